"""Leader election.

For: ``candidate`` and ``observe`` are recipes (see ``_recipes``). ``base`` is an election, with its
``options`` and its ``term``; ``changes`` and ``membership`` are what observers see,
the last two of a pool, too. They wait through their front only. ``threads`` and ``observers`` are
the layer that waits, for threads.

May come in: other things that members and observers of an election do.

Must never: let the first group import the second. ``zklock.aio`` also stands on the first.
"""
