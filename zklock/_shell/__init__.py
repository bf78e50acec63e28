"""The shell: threads, sockets, and the door to kazoo.

For: making clients; the handler, which drives a core's session; what kazoo takes for its socket;
threads for timed work and for users' callbacks.

May come in: code that must know kazoo's names or states, or the system.

Must never: use a private name of kazoo, let an error of ours reach a thread of kazoo's, or know
what a lock is.
"""
