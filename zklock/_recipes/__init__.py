"""The recipes: who gets a lock, when, and how a contender leaves.

For: the algorithms, as generators that yield the requests they need, and the plain data that they
work on: names of contenders, the data of their nodes, requests and answers.

May come in: decisions that need only listings, nodes and events.

Must never: start or wait for a thread, read a clock, know an event loop, or import kazoo.
``zklock._core`` carries out what a recipe asks for.
"""
