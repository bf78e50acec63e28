"""The locks: each kind is declared once, for both fronts.

For: ``base`` and ``kinds`` say what a lock is and does. ``multi_base`` does so for several locks.
They wait through their front only. ``threads``, ``grant`` and ``multi`` are the layer that waits,
for threads.

May come in: another kind of lock (a class in ``kinds``, a few lines in each front).

Must never: let the first group import the second. ``zklock.aio`` also stands on the first.
"""
