------------------------------- MODULE Recipe -------------------------------
(* Contenders queue for one lock. There is no time here: what may happen     *)
(* happens in any order. Module Lease shows that a holder stops believing    *)
(* before its session ends; here, the end of a session is the end of belief. *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
  Contenders,
  Staying,      \* the contenders that never give up
  Rounds,       \* how often each of them queues
  Faults,       \* how many faults may happen, counted together
  Kinds,        \* which: "request", "reply", "late", "connection", "session", "node", "tree"
  RenewAt,      \* from this number on, a release removes the parent if it is empty
  WornAt,       \* from this number on, no grant is taken
  WithEpoch,    \* whether tokens begin with the epoch
  LooksAgain,   \* whether a waiter that is woken looks at the queue again
  ByUuidOnly,   \* wrong: a node with the uuid is adopted, whoever owns it, and without a sync
  Syncs,        \* whether the search for a lost node begins with a sync
  Settles,      \* whether a node that is made after the search for it is deleted
  Fenced        \* whether the resource compares tokens

VARIABLES
  parent,   \* the lock's path: whether it is there, its epoch, the next number
  nodes,    \* the contenders' nodes, as a quorum has them
  view,     \* the nodes as each contender's server shows them: now, or at an earlier time
  alive,    \* whether the session of a contender lives
  session,  \* its number
  at,       \* where a contender is in the recipe
  mine,     \* its node, as far as it knows
  uuid,     \* the uuid of its try
  before,   \* whom it waits for, and whether that was the only one before it
  chopped,  \* an operator has deleted the node of this try
  late,     \* the creates whose requests are lost, and which may still be carried out
  disowned, \* those that were looked for and not found: the settlers look for them again
  rounds,   \* the rounds that a contender has still to begin
  faults,   \* the faults that may still happen
  top,      \* the greatest token granted, and whether each was greater than the one before
  pen,      \* a write that a holder has sent, and that has not arrived
  mark      \* the greatest token accepted, and whether a lower one was accepted after it

zk   == <<parent, nodes, alive, session>>
own  == <<mine, uuid, before, chopped>>
lost == <<late, disowned>>
vars == <<parent, nodes, view, alive, session, at, mine, uuid, before, chopped, late, disowned,
          rounds, faults, top, pen, mark>>

None == [who |-> "none"]
NoToken == <<0, 0>>
Nobody == [node |-> None, sole |-> FALSE]
Token(n) == IF WithEpoch THEN <<n.epoch, n.number>> ELSE <<0, n.number>>
Above(a, b) == a[1] > b[1] \/ (a[1] = b[1] /\ a[2] > b[2])

Earlier(set, n) == {m \in set : m.epoch = n.epoch /\ m.number < n.number}
Nearest(set) == CHOOSE m \in set : \A k \in set : k.number <= m.number
Worn(set, n) == \E m \in set \cup {n} : m.number >= WornAt
Try(c) == [who |-> c, uuid |-> uuid[c], session |-> session[c]]
TryOf(n) == [who |-> n.who, uuid |-> n.uuid, session |-> n.session]
NewNode(try) == [who |-> try.who, uuid |-> try.uuid, session |-> try.session,
                 epoch |-> parent.epoch, number |-> parent.next]
Mine(c, n) == n.who = c /\ n.uuid = uuid[c] /\ (ByUuidOnly \/ n.session = session[c])

Goes(c, place) == at' = [at EXCEPT ![c] = place]
Fault(kind) == kind \in Kinds /\ faults > 0 /\ faults' = faults - 1
Forget(c) ==
  /\ mine' = [mine EXCEPT ![c] = None] /\ before' = [before EXCEPT ![c] = Nobody]
Keep == UNCHANGED <<top, pen, mark>>

Init ==
  /\ parent = [there |-> FALSE, epoch |-> 0, next |-> 0] /\ nodes = {}
  /\ view = [c \in Contenders |-> {}]
  /\ alive = [c \in Contenders |-> TRUE] /\ session = [c \in Contenders |-> 1]
  /\ at = [c \in Contenders |-> "start"]
  /\ mine = [c \in Contenders |-> None] /\ uuid = [c \in Contenders |-> 1]
  /\ before = [c \in Contenders |-> Nobody] /\ chopped = [c \in Contenders |-> FALSE]
  /\ late = {} /\ disowned = {}
  /\ rounds = [c \in Contenders |-> Rounds - 1] /\ faults = Faults
  /\ top = [token |-> NoToken, some |-> FALSE, rises |-> TRUE]
  /\ pen = [who |-> "none", token |-> NoToken]
  /\ mark = [token |-> NoToken, late |-> FALSE]

----------------------------------------------------------------------------
(* Enter the queue: create and list in one flight.                          *)

MakeParent(c) ==
  /\ at[c] = "start" /\ alive[c] /\ ~parent.there
  /\ parent' = [there |-> TRUE, epoch |-> parent.epoch + 1, next |-> 0]
  /\ UNCHANGED <<nodes, view, alive, session, at, own, lost, rounds, faults>> /\ Keep

(* Decide by a listing: whose turn is it? *)
Decide(c, set, n) ==
  LET ahead == Earlier(set, n)
  IN IF Worn(set, n)
     THEN /\ Goes(c, "withdraw") /\ before' = [before EXCEPT ![c] = Nobody]
     ELSE IF ahead = {}
     THEN /\ Goes(c, "turn") /\ before' = [before EXCEPT ![c] = Nobody]
     ELSE /\ Goes(c, "watch")
          /\ before' = [before EXCEPT ![c] = [node |-> Nearest(ahead),
                                               sole |-> Cardinality(ahead) = 1]]

Create(c) ==
  LET n == NewNode(Try(c))
  IN /\ at[c] = "start" /\ alive[c] /\ parent.there
     /\ \/ /\ faults' = faults                                \* done and answered
           /\ nodes' = nodes \cup {n} /\ parent' = [parent EXCEPT !.next = @ + 1]
           /\ view' = [view EXCEPT ![c] = nodes'] /\ mine' = [mine EXCEPT ![c] = n]
           /\ Decide(c, nodes', n) /\ late' = late
        \/ /\ Fault("reply")                                  \* done, the reply is lost
           /\ nodes' = nodes \cup {n} /\ parent' = [parent EXCEPT !.next = @ + 1]
           /\ Goes(c, "search") /\ UNCHANGED <<view, mine, before, late>>
        \/ /\ Fault("request")                                \* not done
           /\ Goes(c, "search") /\ UNCHANGED <<nodes, parent, view, mine, before, late>>
        \/ /\ Fault("late")                                   \* done later, or never
           /\ late' = late \cup {Try(c)}
           /\ Goes(c, "search") /\ UNCHANGED <<nodes, parent, view, mine, before>>
     /\ UNCHANGED <<alive, session, uuid, chopped, disowned, rounds>> /\ Keep

(* A late create is carried out while its session lives, wherever its contender is by now. If *)
(* there is no parent, it fails. Nothing says that it ever happens.                           *)
Land(try) ==
  /\ try \in late /\ late' = late \ {try}
  /\ IF parent.there
     THEN /\ nodes' = nodes \cup {NewNode(try)} /\ parent' = [parent EXCEPT !.next = @ + 1]
     ELSE UNCHANGED <<nodes, parent>>
  /\ UNCHANGED <<view, alive, session, at, own, disowned, rounds, faults>> /\ Keep

(* A server catches up with the quorum: at once, later, or when a sync asks it to. *)
CatchUp(c) ==
  /\ at[c] # "done" /\ view[c] # nodes /\ view' = [view EXCEPT ![c] = nodes]
  /\ UNCHANGED <<zk, at, own, lost, rounds, faults>> /\ Keep

NewUuid(c) == uuid' = [uuid EXCEPT ![c] = @ + 1] /\ chopped' = [chopped EXCEPT ![c] = FALSE]

(* After a lost reply: look for the uuid. What is not found is disowned: it may come late. *)
Search(c) ==
  LET seen == IF Syncs THEN nodes ELSE view[c]
      found == {n \in seen : Mine(c, n)}
  IN /\ at[c] \in {"search", "searchout"} /\ alive[c]
     /\ view' = [view EXCEPT ![c] = seen]
     /\ IF found # {}
        THEN LET n == CHOOSE n \in found : TRUE
             IN /\ mine' = [mine EXCEPT ![c] = n] /\ UNCHANGED <<uuid, chopped, disowned>>
                /\ IF at[c] = "search" THEN Decide(c, seen, n)
                   ELSE Goes(c, "leave") /\ before' = before
        ELSE /\ Forget(c) /\ NewUuid(c)
             /\ disowned' = IF Settles THEN disowned \cup {Try(c)} ELSE disowned
             /\ Goes(c, IF at[c] = "search" THEN "start" ELSE "out")
     /\ UNCHANGED <<zk, late, rounds, faults>> /\ Keep

(* A worn parent goes with the last of its children; the two deletions are one flight. *)
Gone(n) ==
  /\ nodes' = nodes \ {n}
  /\ \/ parent' = parent
     \/ n.number >= RenewAt /\ nodes' = {} /\ parent' = [parent EXCEPT !.there = FALSE]

(* The settler of a session deletes what was disowned, if it is made. It looks for longer than *)
(* a create can be late; so here it never stops to look, but with its session.                 *)
Settle(c) ==
  /\ alive[c]
  /\ \E n \in nodes :
       /\ n.who = c /\ TryOf(n) \in disowned
       /\ Gone(n) /\ disowned' = disowned \ {TryOf(n)}
  /\ UNCHANGED <<view, alive, session, at, own, late, rounds, faults>> /\ Keep

----------------------------------------------------------------------------
(* Look, watch, wake.                                                       *)

Again(c) == Forget(c) /\ NewUuid(c) /\ Goes(c, "start")

Look(c) ==
  /\ at[c] = "look" /\ alive[c]
  /\ IF mine[c] \in view[c] THEN Decide(c, view[c], mine[c]) /\ UNCHANGED <<mine, uuid, chopped>>
     ELSE Again(c)
  /\ UNCHANGED <<zk, view, lost, rounds, faults>> /\ Keep

Watch(c) ==
  /\ at[c] = "watch" /\ alive[c]
  /\ IF mine[c] \notin view[c] THEN Again(c)
     ELSE /\ Goes(c, IF before[c].node \in view[c] THEN "wait" ELSE "look")
          /\ UNCHANGED own
  /\ UNCHANGED <<zk, view, lost, rounds, faults>> /\ Keep

Wake(c) ==
  /\ at[c] = "wait" /\ alive[c]
  /\ \/ mine[c] \notin view[c] /\ Again(c)
     \/ /\ mine[c] \in view[c] /\ before[c].node \notin view[c]
        /\ Goes(c, IF before[c].sole \/ ~LooksAgain THEN "turn" ELSE "look")
        /\ UNCHANGED own
  /\ UNCHANGED <<zk, view, lost, rounds, faults>> /\ Keep

(* The connection is lost, and the watches with it. *)
Reconnect(c) ==
  /\ at[c] = "wait" /\ Fault("connection") /\ Goes(c, "watch")
  /\ UNCHANGED <<zk, view, own, lost, rounds>> /\ Keep

(* The turn is taken on a live lease only. *)
Claim(c) ==
  /\ at[c] = "turn" /\ alive[c] /\ Goes(c, "held")
  /\ top' = IF mine[c] \in nodes
            THEN [token |-> Token(mine[c]), some |-> TRUE,
                  rises |-> top.rises /\ (top.some => Above(Token(mine[c]), top.token))]
            ELSE top
  /\ UNCHANGED <<zk, view, own, lost, rounds, faults, pen, mark>>

----------------------------------------------------------------------------
(* Leave: delete until the answer is known.                                 *)

Release(c) ==
  /\ at[c] = "held" /\ Goes(c, "leave")
  /\ UNCHANGED <<zk, view, own, lost, rounds, faults>> /\ Keep

GiveUp(c) ==
  /\ c \notin Staying /\ at[c] \in {"search", "look", "watch", "wait", "turn"}
  /\ Goes(c, IF at[c] = "search" THEN "searchout" ELSE "leave")
  /\ UNCHANGED <<zk, view, own, lost, rounds, faults>> /\ Keep

Delete(c) ==
  /\ at[c] \in {"leave", "withdraw"} /\ alive[c]
  /\ \/ /\ faults' = faults /\ Gone(mine[c])
        /\ Goes(c, IF at[c] = "leave" THEN "out" ELSE "drain")
     \/ Fault("reply") /\ Gone(mine[c]) /\ at' = at
     \/ Fault("request") /\ UNCHANGED <<nodes, parent, at>>
  /\ UNCHANGED <<view, alive, session, own, lost, rounds>> /\ Keep

(* The numbers are used up: wait until the queue is empty, and delete the parent. *)
Drain(c) ==
  /\ at[c] = "drain" /\ alive[c]
  /\ nodes = {} \/ parent.epoch # mine[c].epoch
  /\ parent' = IF parent.epoch = mine[c].epoch THEN [parent EXCEPT !.there = FALSE] ELSE parent
  /\ Again(c)
  /\ UNCHANGED <<nodes, view, alive, session, lost, rounds, faults>> /\ Keep

Out(c) ==
  /\ at[c] = "out" /\ alive[c] /\ Forget(c)
  /\ IF rounds[c] > 0
     THEN rounds' = [rounds EXCEPT ![c] = @ - 1] /\ NewUuid(c) /\ Goes(c, "start") /\ view' = view
     ELSE Goes(c, "done") /\ view' = [view EXCEPT ![c] = {}] /\ UNCHANGED <<rounds, uuid, chopped>>
  /\ UNCHANGED <<zk, lost, faults>> /\ Keep

----------------------------------------------------------------------------
(* Sessions, and operators.                                                 *)

(* The session ends, with all of its nodes, what is late, and the belief of its holder. *)
Expire(c) ==
  /\ at[c] # "done" /\ alive[c] /\ Fault("session")
  /\ alive' = [alive EXCEPT ![c] = FALSE]
  /\ nodes' = {n \in nodes : ~(n.who = c /\ n.session = session[c])}
  /\ late' = {try \in late : try.who # c} /\ disowned' = {try \in disowned : try.who # c}
  /\ Goes(c, IF at[c] = "held" THEN "leave" ELSE at[c])
  /\ UNCHANGED <<parent, view, session, own, rounds>> /\ Keep

(* The client hears of it, and has a new session: it queues again, at the end. *)
Replace(c) ==
  /\ ~alive[c] /\ alive' = [alive EXCEPT ![c] = TRUE]
  /\ session' = [session EXCEPT ![c] = @ + 1]
  /\ CASE at[c] \in {"leave", "searchout", "out"} -> Goes(c, "out") /\ UNCHANGED own
       [] at[c] = "search" /\ ByUuidOnly -> at' = at /\ UNCHANGED own
       [] OTHER -> Again(c)
  /\ UNCHANGED <<parent, nodes, view, lost, rounds, faults>> /\ Keep

Chop(set) ==
  /\ nodes' = nodes \ set
  /\ chopped' = [c \in Contenders |-> chopped[c] \/ \E n \in set : n.who = c /\ n.uuid = uuid[c]]

Operator ==
  /\ \/ Fault("node") /\ (\E n \in nodes : Chop({n})) /\ parent' = parent
     \/ Fault("tree") /\ parent.there /\ Chop(nodes) /\ parent' = [parent EXCEPT !.there = FALSE]
  /\ UNCHANGED <<view, alive, session, at, mine, uuid, before, lost, rounds>> /\ Keep

----------------------------------------------------------------------------
(* The resource. A holder's write may arrive long after it has lost the lock. *)

Send(c) ==
  /\ at[c] = "held" /\ pen.who = "none" /\ pen' = [who |-> c, token |-> Token(mine[c])]
  /\ UNCHANGED <<zk, view, at, own, lost, rounds, faults, top, mark>>

Accept(token) ==
  mark' = IF ~Above(mark.token, token) THEN [mark EXCEPT !.token = token]
          ELSE IF Fenced THEN mark ELSE [mark EXCEPT !.late = TRUE]

Arrive ==
  /\ pen.who # "none" /\ Accept(pen.token) /\ pen' = [who |-> "none", token |-> NoToken]
  /\ UNCHANGED <<zk, view, at, own, lost, rounds, faults, top>>

(* A write without delay. *)
Write(c) ==
  /\ at[c] = "held" /\ Above(Token(mine[c]), mark.token) /\ Accept(Token(mine[c]))
  /\ UNCHANGED <<zk, view, at, own, lost, rounds, faults, top, pen>>

Works(c) == \/ MakeParent(c) \/ Create(c) \/ CatchUp(c) \/ Search(c) \/ Look(c) \/ Watch(c)
            \/ Wake(c) \/ Claim(c) \/ Release(c) \/ Delete(c) \/ Drain(c) \/ Out(c) \/ Replace(c)
            \/ Settle(c)
Next == \/ \E c \in Contenders : Works(c) \/ Reconnect(c) \/ GiveUp(c) \/ Expire(c) \/ Send(c)
                                 \/ Write(c)
        \/ Operator \/ Arrive \/ \E try \in late : Land(try)
Spec == Init /\ [][Next]_vars
Fair == Spec /\ \A c \in Contenders : WF_vars(Works(c)) /\ WF_vars(CatchUp(c))
                                             /\ WF_vars(Settle(c))

----------------------------------------------------------------------------
Symmetry == Permutations(Contenders)

Believes(c) == at[c] = "held"

OneBeliever ==
  \A c, d \in Contenders :
    c # d /\ Believes(c) /\ Believes(d) => chopped[c] \/ chopped[d]
TokensRise == top.rises
InOrder ==
  \A c \in Contenders :
    Believes(c) /\ ~chopped[c] => mine[c] \in nodes /\ Earlier(nodes, mine[c]) = {}
NoOrphan ==
  \A n \in nodes :
    TryOf(n) \in disowned \/ (at[n.who] \notin {"out", "done"} /\ n.uuid = uuid[n.who])
ResourceInOrder == ~mark.late
WhoStaysIsGranted == \A c \in Staying : at[c] = "start" ~> at[c] = "held"
=============================================================================
