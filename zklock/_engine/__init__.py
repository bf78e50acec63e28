"""Drives recipes, keeps the lease, reports losses.

For: the session (one for each client) with its lease, heartbeat, nodes and watches; attempts, which
advance recipes; grants, without the waiting; the threads that run users' callbacks; scripts, which
are methods that wait, written once for both fronts. ``blocking`` runs scripts on threads.

May come in: what every kind of lock needs from its session.

Must never: know a kind of lock, block a caller outside of ``blocking``, or run the user's code on a
kazoo thread or under a lock of ours.
"""
