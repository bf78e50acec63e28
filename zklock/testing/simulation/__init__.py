"""A simulated ZooKeeper: real clients and real threads, on a clock that the test moves.

`world` has the clock, and moves it from one moment to the next. `server` is the embedded server on
that clock. `side` is what a client runs on: its clock, its connection, its threads. The recipes,
the session and kazoo are the real ones.
"""
