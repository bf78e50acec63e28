"""What the commands that look know: the locks below a path, who waits for whom, what would hurt.

For: a reader of everything below a path, which may follow it by watches; a model of it; and what
follows from the model. All but ``reader``, ``live`` and ``servers`` is pure.

May come in: what only looks. Nothing here changes what is in ZooKeeper.

Must never: know an option of a command, or print.
"""
