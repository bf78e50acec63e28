"""The core: drives recipes, keeps the lease, reports losses. It has no thread, socket or clock.

For: the session (one for each client) with its lease, heartbeat, nodes and watches; the stream of
its requests and results (``link``, ``wire``); attempts, which advance recipes; kept locks; grants,
without the waiting; scripts, which are methods that wait, written once for both fronts.

May come in: what every kind of lock needs from its session; what that needs of its shell, in
``ports``.

Must never: know a kind of lock, start a thread, block a caller outside of ``blocking``, or call the
user's code in a step.
"""
