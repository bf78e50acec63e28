"""A ZooKeeper server in pure Python, for tests, demos and a first try; never for production.

`machine` is the server's state: the tree, the sessions, the watches, and the answer to every
request. It is pure: it knows no socket, no thread and no clock; the time is handed in. `messages`
are its requests and answers, `server` puts the machine behind a socket, `faults` are what a test
makes go wrong.
"""
