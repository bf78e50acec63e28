-------------------------------- MODULE Keep --------------------------------
(* One client keeps its node: the keeper. Its users wait in it; it has one    *)
(* contender in the queue. Strangers queue as module Recipe says, which shows  *)
(* that a turn is taken in order. There is no time here: what may happen       *)
(* happens in any order, so a keeper may give back at any time.                *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Strangers,
  Users,        \* so many wait in the keeper at most
  Faults,       \* how many connections and sessions may be lost, counted together
  WatchesLater, \* wrong: the watch is placed after the look, and not with it
  UsesSeen      \* wrong: an idle node is used though a stranger was seen

VARIABLES
  queue,     \* the nodes in order, as a quorum has them
  view,      \* the same as the keeper's server shows it: now, or at an earlier time
  at,        \* where a stranger is
  kept,      \* the keeper's node that was granted: its number, whether it is in use,
             \* whether the watch on the queue is known to be placed, whether it must go
  look,      \* the look at the queue: "none", "due", "sent", its answer ("alone", "others"), and
             \* then: the watch is waited for ("waits"), or somebody was seen ("over")
  watch,     \* the watch is placed on the server
  event,     \* its notification is on the way
  contender, \* the keeper's node that waits for its turn, or 0
  leaving,   \* those that are being deleted
  waiting,   \* how many wait in the keeper
  faults,    \* the faults that may still happen
  passed     \* a body has begun on a node after a stranger was seen behind it

ours    == <<kept, contender, leaving, waiting>>
looking == <<look, watch, event>>
rest    == <<faults, passed>>
vars    == <<queue, view, at, ours, looking, rest>>

Numbers == 1..2          \* a node that leaves, and one behind it
Own(n) == [who |-> "keeper", number |-> n]
Of(s) == [who |-> s, number |-> 0]
Nothing == [number |-> 0, used |-> FALSE, watched |-> FALSE, asked |-> FALSE]
Has == kept.number # 0
Idle == Has /\ ~kept.used
In(node) == \E i \in 1..Len(queue) : queue[i] = node
Without(seq, nodes) == SelectSeq(seq, LAMBDA node : node \notin nodes)
First(node) == queue # <<>> /\ Head(queue) = node
Quiet == /\ look' = "none" /\ watch' = FALSE /\ event' = FALSE

Init ==
  /\ queue = <<>> /\ view = <<>> /\ at = [s \in Strangers |-> "out"]
  /\ kept = Nothing /\ look = "none" /\ watch = FALSE /\ event = FALSE
  /\ contender = 0 /\ leaving = {} /\ waiting = 0
  /\ faults = Faults /\ passed = FALSE

----------------------------------------------------------------------------
(* Strangers.                                                               *)

Join(s) ==
  /\ at[s] = "out" /\ at' = [at EXCEPT ![s] = "queued"] /\ queue' = Append(queue, Of(s))
  /\ UNCHANGED <<view, ours, looking, rest>>

Take(s) ==
  /\ at[s] = "queued" /\ First(Of(s)) /\ at' = [at EXCEPT ![s] = "held"]
  /\ UNCHANGED <<queue, view, ours, looking, rest>>

Go(s) ==
  /\ at' = [at EXCEPT ![s] = "out"] /\ queue' = Without(queue, {Of(s)})
  /\ UNCHANGED <<view, ours, looking, rest>>

----------------------------------------------------------------------------
(* The keeper's users, and its place in the queue.                          *)

Ask ==
  /\ waiting < Users /\ waiting' = waiting + 1
  /\ UNCHANGED <<queue, view, at, kept, contender, leaving, looking, rest>>

GiveUp ==
  /\ waiting > 0 /\ waiting' = waiting - 1
  /\ UNCHANGED <<queue, view, at, kept, contender, leaving, looking, rest>>

(* Whoever waits stands behind those that were seen, by one new node. *)
Enter ==
  /\ waiting > 0 /\ contender = 0 /\ (~Has \/ kept.asked)
  /\ \E n \in Numbers \ (leaving \cup {kept.number}) :
       contender' = n /\ queue' = Append(queue, Own(n))
  /\ UNCHANGED <<view, at, kept, leaving, waiting, looking, rest>>

Withdraw ==
  /\ waiting = 0 /\ contender # 0
  /\ leaving' = leaving \cup {contender} /\ contender' = 0
  /\ UNCHANGED <<queue, view, at, kept, waiting, looking, rest>>

Claim ==
  /\ contender # 0 /\ waiting > 0 /\ ~Has /\ First(Own(contender))
  /\ kept' = [Nothing EXCEPT !.number = contender, !.used = TRUE]
  /\ contender' = 0 /\ waiting' = waiting - 1 /\ Quiet
  /\ UNCHANGED <<queue, view, at, leaving, rest>>

(* A body ends. The first time, the keeper looks who else is there. *)
Release ==
  /\ kept.used /\ kept' = [kept EXCEPT !.used = FALSE]
  /\ look' = IF look = "none" THEN "due" ELSE look
  /\ UNCHANGED <<queue, view, at, contender, leaving, waiting, watch, event, rest>>

(* The next body begins, without a request. *)
Use ==
  /\ Idle /\ kept.watched /\ waiting > 0 /\ (UsesSeen \/ ~kept.asked)
  /\ kept' = [kept EXCEPT !.used = TRUE] /\ waiting' = waiting - 1
  /\ passed' = (passed \/ look = "over")
  /\ UNCHANGED <<queue, view, at, contender, leaving, looking, faults>>

GiveBack ==
  /\ Idle /\ kept.asked
  /\ leaving' = leaving \cup {kept.number} /\ kept' = Nothing /\ Quiet
  /\ UNCHANGED <<queue, view, at, contender, waiting, rest>>

(* It was idle for long enough, or its holder is asked to release it. *)
TimeIsUp ==
  /\ Has /\ ~kept.asked /\ kept' = [kept EXCEPT !.asked = TRUE]
  /\ UNCHANGED <<queue, view, at, contender, leaving, waiting, looking, rest>>

Delete(n) ==
  /\ n \in leaving /\ leaving' = leaving \ {n} /\ queue' = Without(queue, {Own(n)})
  /\ UNCHANGED <<view, at, kept, contender, waiting, looking, rest>>

----------------------------------------------------------------------------
(* The watch on the queue.                                                  *)

Send ==
  /\ look = "due" /\ look' = "sent"
  /\ UNCHANGED <<queue, view, at, ours, watch, event, rest>>

(* The look is answered. The watch is placed with it, whatever it shows. *)
Look ==
  /\ look = "sent" /\ look' = IF view = <<Own(kept.number)>> THEN "alone" ELSE "others"
  /\ watch' = ~WatchesLater
  /\ UNCHANGED <<queue, view, at, ours, event, rest>>

(* If it shows anything but the keeper's node alone, the node must go. *)
Learn ==
  /\ look \in {"alone", "others"}
  /\ CASE look = "others" -> kept' = [kept EXCEPT !.asked = TRUE] /\ look' = "over"
       [] look = "alone" -> kept' = [kept EXCEPT !.watched = TRUE] /\ look' = "waits"
  /\ watch' = (watch \/ (WatchesLater /\ look = "alone"))
  /\ UNCHANGED <<queue, view, at, contender, leaving, waiting, event, rest>>

(* The server catches up with the quorum, and tells of it. *)
CatchUp ==
  /\ view # queue /\ view' = queue
  /\ watch' = FALSE /\ event' = (event \/ watch)
  /\ UNCHANGED <<queue, at, ours, look, rest>>

Hear ==
  /\ event /\ look = "waits" /\ event' = FALSE /\ look' = "due"
  /\ UNCHANGED <<queue, view, at, ours, watch, rest>>

----------------------------------------------------------------------------
(* Faults.                                                                  *)

Fault == faults > 0 /\ faults' = faults - 1

(* The connection is lost, and with it the watch, its notification, and what was asked. *)
Reconnect ==
  /\ Fault /\ watch' = FALSE /\ event' = FALSE
  /\ look' = IF look \in {"sent", "alone", "others", "waits"} THEN "due" ELSE look
  /\ UNCHANGED <<queue, view, at, ours, passed>>

(* The session ends, with all of its nodes. A body that runs stops to believe before that: see *)
(* module Lease. The keeper forgets what it has kept.                                        *)
Expire ==
  /\ Fault /\ queue' = Without(queue, {Own(n) : n \in Numbers})
  /\ kept' = Nothing /\ contender' = 0 /\ leaving' = {} /\ Quiet
  /\ UNCHANGED <<view, at, waiting, passed>>

Works == \/ Enter \/ Withdraw \/ Claim \/ Release \/ Use \/ GiveBack
         \/ (\E n \in Numbers : Delete(n)) \/ Send \/ Look \/ Learn \/ CatchUp \/ Hear
Next == \/ Works \/ Ask \/ GiveUp \/ TimeIsUp \/ Reconnect \/ Expire
        \/ \E s \in Strangers : \/ Join(s) \/ Take(s)
                                \/ (at[s] \in {"queued", "held"} /\ Go(s))
Spec == Init /\ [][Next]_vars
Fair == /\ Spec
        /\ WF_vars(Enter) /\ WF_vars(Withdraw \/ Claim) /\ WF_vars(Release)
        /\ WF_vars(GiveBack) /\ (\A n \in Numbers : WF_vars(Delete(n))) /\ WF_vars(Send) /\ WF_vars(Look)
        /\ WF_vars(Learn) /\ WF_vars(CatchUp) /\ WF_vars(Hear) /\ WF_vars(Use)
        /\ \A s \in Strangers : WF_vars(Take(s)) /\ WF_vars(at[s] = "held" /\ Go(s))

----------------------------------------------------------------------------
Symmetry == Permutations(Strangers)

OneBeliever == \A s \in Strangers : ~(at[s] = "held" /\ kept.used)
InOrder == Has => First(Own(kept.number))
NobodyPasses == ~passed
(* Whoever stands behind a node that has begun to be kept is seen, or will be. *)
Noticed ==
  Has /\ Len(queue) > 1 =>
    \/ kept.asked
    \/ kept.used /\ look = "none"          \* the first body
    \/ look \in {"due", "sent", "others"}
    \/ event \/ (watch /\ view # queue)    \* a notification comes
StrangerIsGranted == \A s \in Strangers : at[s] = "queued" ~> at[s] # "queued"
UserIsGranted == waiting > 0 ~> (kept.used \/ waiting = 0)
=============================================================================
