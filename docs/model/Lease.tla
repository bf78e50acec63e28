------------------------------- MODULE Lease -------------------------------
(* One holder, its session, and the leader that may end the session and     *)
(* grant the lock to a rival. Time goes in whole units. Every time is kept   *)
(* as an age or as what is left, so that the model is finite.                *)
EXTENDS Naturals

CONSTANTS
  Timeouts,     \* the timeouts that servers may grant
  Gap,          \* the leader asks its servers at least every Gap units
  Proves,       \* what extends the lease: "write"; wrong: "ping", "sync", "none" (no lease)
  KeepsFirst,   \* wrong: a shorter timeout is not noted
  Unbounded,    \* wrong: a handshake that is not answered does not bound the lease
  Fenced,       \* whether the resource compares tokens
  DriftEvery,   \* the client's clock may gain or lose a unit once in so many units; 0: never
  Room          \* a lease ends so many units before the timeout of the touch that it rests on

VARIABLES
  link,       \* what the client's server is: "whole", "cut" (from the leader), "minority"
              \* (it is, or follows, a leader without followers), "none" (no connection)
  leaderless, \* no leader has a quorum
  first,      \* the timeout that the session began with
  timeout,    \* the timeout that the leader goes by
  life,       \* the leader does not end the session for so long
  asked,      \* age of the leader's last question to the client's server
  fresh,      \* age of the newest touch that the leader has not been told, or Never
  request,    \* the request under way: its kind, its age, whether it is answered, and
              \* whether what is known was answered early enough before it was sent
  known,      \* a touch or a connection that the client remembers: ages of sending and answer
  left,       \* what is left of the lease
  proof,      \* age of the proof that the lease rests on
  least,      \* the least timeout that the client has been granted
  shake,      \* the handshake under way: its stage, its age, the timeout granted
  bound,      \* what is left until an unanswered handshake ends the lease, or Never
  steady,     \* units since the client's clock was last wrong
  ended,      \* the session is over, and the rival is granted
  pen,        \* the holder has checked its lease, and its write is on the way
  mark,       \* the highest token that the resource has seen (holder 1, rival 2)
  late        \* the resource has accepted a write of the holder after one of the rival

clock  == <<known, left, proof, least, bound, steady>>
server == <<leaderless, first, timeout, life>>
store  == <<pen, mark, late>>
vars   == <<link, server, asked, fresh, request, clock, shake, ended, store>>

Longest == CHOOSE t \in Timeouts : \A u \in Timeouts : u <= t
Never == Longest + 1                        \* an age that no rule tells from older ones
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0
Lasts(t) == (2 * t + 2) \div 3              \* 2/3 of t, rounded up
Lag(t) == (7 * t + 29) \div 30              \* (0.9 - 2/3) of t, rounded up
Answerless(t) == (t + 5) \div 6             \* t/6, rounded up
Nothing == [kind |-> "none", age |-> 0, done |-> FALSE, ripe |-> FALSE]
NoShake == [at |-> "none", age |-> 0, grant |-> 0]
Unknown == [sent |-> Never, answered |-> Never]

Kinds == {"ping", "write"} \cup IF Proves = "sync" THEN {"sync"} ELSE {}

Believes == ~ended /\ (Proves = "none" \/ (left > 0 /\ bound > 0))
MayEnd == life = 0 /\ ~leaderless

Init ==
  /\ link = "whole" /\ leaderless = FALSE
  /\ first \in Timeouts /\ timeout = first /\ life = first /\ least = first
  /\ asked = 0 /\ fresh = Never /\ request = Nothing /\ shake = NoShake
  /\ known = [sent |-> 0, answered |-> Never]   \* making a session goes through the leader
  /\ left = 0 /\ proof = Never /\ bound = Never /\ steady = DriftEvery
  /\ ended = FALSE /\ pen = FALSE /\ mark = 0 /\ late = FALSE

----------------------------------------------------------------------------
(* Time. What the client does not do in a unit, it does later: it may pause. *)

Older(age, by) == Min(age + by, Never)
Steps == {1} \cup IF DriftEvery > 0 /\ steady = DriftEvery THEN {0, 2} ELSE {}

Tick ==
  /\ ~ended
  /\ link = "whole" => asked < Gap
  /\ life' = Less(life, 1)
  /\ asked' = IF link = "whole" THEN asked + 1 ELSE 0
  /\ fresh' = Older(fresh, 1)
  /\ \E step \in Steps :
       /\ steady' = IF step # 1 THEN 1 ELSE Min(steady + 1, DriftEvery)
       /\ request' = IF request.kind = "none" THEN request
                     ELSE [request EXCEPT !.age = Older(@, step)]
       /\ shake' = IF shake.at = "none" THEN shake ELSE [shake EXCEPT !.age = Older(@, step)]
       /\ left' = Less(left, step)
       /\ proof' = IF left' = 0 THEN Never ELSE Older(proof, step)
       /\ known' = LET sent == Older(known.sent, step)
                   IN IF sent = Never THEN Unknown
                      ELSE [sent |-> sent,
                            answered |-> IF known.answered + step >= Lag(Longest) THEN Never
                                         ELSE known.answered + step]
       /\ bound' = IF bound = Never THEN Never ELSE Less(bound, step)
  /\ UNCHANGED <<link, leaderless, first, timeout, least, ended, store>>

----------------------------------------------------------------------------
(* The client's requests.                                                   *)

Send ==
  /\ ~ended /\ link # "none" /\ request = Nothing
  /\ \E kind \in Kinds :
       request' = [kind |-> kind, age |-> 0, done |-> FALSE,
                   ripe |-> known.answered = Never \/ known.answered >= Lag(least)]
  /\ UNCHANGED <<link, server, asked, fresh, clock, shake, ended, store>>

(* A ping is answered by any server, a sync by any leader, a write by a quorum. *)
Answer ==
  /\ ~ended /\ request.kind # "none" /\ ~request.done
  /\ CASE request.kind = "ping"  -> link # "none"
       [] request.kind = "sync"  -> link \in {"whole", "minority"}
       [] request.kind = "write" -> link = "whole"
  /\ request' = [request EXCEPT !.done = TRUE]
  /\ fresh' = IF link = "whole" THEN 0 ELSE Never
  /\ UNCHANGED <<link, server, asked, clock, shake, ended, store>>

(* The lease that a proof of this age is good for. *)
Good(age) ==
  IF known.sent = Never \/ ~request.ripe THEN 0
  ELSE Min(Less(Lasts(least), age), Less(least - Room, known.sent))

(* The client remembers one touch, any one: it is the one that a lease rests on. Whether the
   leader is sure to know it by the time of a proof was noted when the proof was sent. *)
Read ==
  /\ ~ended /\ request.done /\ link # "none"
  /\ request' = Nothing
  /\ IF request.kind = Proves /\ Good(request.age) > left
     THEN left' = Good(request.age) /\ proof' = request.age
     ELSE UNCHANGED <<left, proof>>
  /\ \/ known' = known
     \/ known' = IF request.age >= Never THEN Unknown ELSE [sent |-> request.age, answered |-> 0]
  /\ UNCHANGED <<link, server, asked, fresh, least, bound, steady, shake, ended, store>>

----------------------------------------------------------------------------
(* The leader.                                                              *)

Ask ==
  /\ ~ended /\ link = "whole" /\ (asked > 0 \/ fresh # Never)
  /\ asked' = 0 /\ fresh' = Never
  /\ life' = IF fresh = Never THEN life ELSE Less(timeout, fresh)
  /\ UNCHANGED <<link, leaderless, first, timeout, request, clock, shake, ended, store>>

Disconnected == asked' = 0 /\ fresh' = Never /\ request' = Nothing

Cut ==
  /\ ~ended /\ link = "whole"
  /\ \/ link' = "cut" /\ leaderless' = leaderless
     \/ link' = "minority" /\ leaderless' = TRUE
  /\ asked' = 0 /\ fresh' = Never
  /\ UNCHANGED <<first, timeout, life, request, clock, shake, ended, store>>

(* A new leader gives the session all of the timeout that it began with. *)
Elect ==
  /\ ~ended
  /\ leaderless' = FALSE /\ timeout' = first /\ life' = first
  /\ IF link = "whole" THEN link' = "none" /\ Disconnected
     ELSE UNCHANGED <<link, asked, fresh, request>>
  /\ UNCHANGED <<first, clock, shake, ended, store>>

End ==
  /\ ~ended /\ MayEnd
  /\ ended' = TRUE
  \* What the client remembers does not matter any more.
  /\ link' = "none" /\ request' = Nothing /\ shake' = NoShake /\ asked' = 0 /\ fresh' = Never
  /\ known' = Unknown /\ left' = 0 /\ proof' = Never /\ bound' = Never
  /\ UNCHANGED <<server, least, steady, store>>

----------------------------------------------------------------------------
(* The connection is lost, and made again.                                  *)

Drop ==
  /\ ~ended /\ link # "none" /\ link' = "none" /\ Disconnected
  /\ UNCHANGED <<server, clock, shake, ended, store>>

Shake ==
  /\ ~ended /\ link = "none" /\ shake = NoShake
  /\ shake' = [at |-> "sent", age |-> 0, grant |-> 0]
  /\ bound' = IF Unbounded THEN bound ELSE Min(bound, Answerless(least))
  /\ UNCHANGED <<link, server, asked, fresh, request, known, left, proof, least, steady, ended,
                 store>>

(* The timeout that is granted is in force from now on, also if the client never hears of it. *)
Take ==
  /\ ~ended /\ shake.at = "sent" /\ ~leaderless
  /\ \E t \in Timeouts :
       timeout' = t /\ life' = t /\ shake' = [shake EXCEPT !.at = "taken", !.grant = t]
  /\ UNCHANGED <<link, leaderless, first, asked, fresh, request, clock, ended, store>>

Lost ==
  /\ ~ended /\ shake.at # "none" /\ shake' = NoShake
  /\ UNCHANGED <<link, server, asked, fresh, request, clock, ended, store>>

Connect ==
  /\ ~ended /\ shake.at = "taken"
  /\ link' = "whole" /\ asked' = 0 /\ fresh' = Never /\ request' = Nothing /\ shake' = NoShake
  /\ bound' = Never
  /\ known' = IF shake.age >= Never THEN Unknown ELSE [sent |-> shake.age, answered |-> Never]
  /\ IF shake.grant < least /\ ~KeepsFirst
     THEN /\ least' = shake.grant
          /\ left' = Min(left, Less(Lasts(shake.grant), proof))
          /\ proof' = IF left' = 0 THEN Never ELSE proof
     ELSE UNCHANGED <<least, left, proof>>
  /\ UNCHANGED <<server, steady, ended, store>>

----------------------------------------------------------------------------
(* The holder looks at its lease, and writes later. The rival writes, too.   *)

Check ==
  /\ Believes /\ ~pen /\ mark = 0 /\ pen' = TRUE
  /\ UNCHANGED <<link, server, asked, fresh, request, clock, shake, ended, mark, late>>

Write(token) ==
  /\ IF token >= mark \/ ~Fenced
     THEN mark' = Max(mark, token) /\ late' = (late \/ token < mark)
     ELSE UNCHANGED <<mark, late>>
  /\ UNCHANGED <<link, server, asked, fresh, request, clock, shake, ended>>

Store == \/ pen /\ ended /\ pen' = FALSE /\ Write(1)
         \/ ended /\ mark < 2 /\ pen' = pen /\ Write(2)

Next == Tick \/ Send \/ Answer \/ Read \/ Ask \/ Cut \/ Elect \/ End \/ Drop \/ Shake \/ Take
        \/ Lost \/ Connect \/ Check \/ Store
Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
HolderStopsFirst == ~(Believes /\ MayEnd)
ResourceInOrder == ~late
=============================================================================
