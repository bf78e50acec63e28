"""The only door to kazoo.

For: making clients, the handler and its sockets, requests to kazoo and its answers back in zklock's
own terms.

May come in: code that must know kazoo's names, states or errors.

Must never: use a private name of kazoo, let an error of ours reach a thread of kazoo's, or know
what a lock is.
"""
