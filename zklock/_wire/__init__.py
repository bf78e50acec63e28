"""ZooKeeper's wire format, without a socket.

For: the bytes of requests, replies, events and handshakes, for both sides of a connection.

May come in: what turns bytes into values or values into bytes.

Must never: know a socket, a thread, a clock, kazoo, or what a lock is.
"""
