"""zklock and kazoo, unchanged, on a simulated system: threads, clock, sockets and an ensemble.

A run is a function of one number, its seed. ``system`` has the threads and the clock, ``network``
the sockets, ``ensemble`` the servers, ``plans`` what a seed draws. ``world`` has what users do,
what goes wrong, and what must hold; ``several``, ``marks``, ``elections`` and ``pools`` have that
for several locks as one, for locks that track abandoned grants, for elections and for pools,
``rights`` for what ACLs forbid. ``mutations`` puts faults into the code, which the simulator has to
find.

- *Real*: all of zklock but its telemetry, all of kazoo, the executors of Python that zklock uses,
  and each byte between kazoo and a server.
- *Simulated*: the modules ``threading``, ``queue``, ``time``, ``select``, ``socket`` and ``random``
  as zklock and kazoo see them. A thread is a greenlet: one runs at a time. At each lock, event,
  queue, socket and start of a thread, the seed decides who goes on.
- *The ensemble*: the state machine of the embedded server (``zklock.testing.embedded``) as the
  leader, and two followers. A follower notes what it hears of a session, and tells the leader every
  half tick, as a real one does. So a session may expire while its client hears answers.
- *Not simulated*: a change between two steps of Python without any of these calls; signals; fork;
  followers that answer reads from an old state (``tests/unit/explorer.py`` has those).
"""
