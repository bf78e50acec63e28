"""Workers under a nemesis, and a checker that decides from their histories.

``python -m tests.chaos --minutes 30`` runs it; see ``zklock.testing.checker`` for what is decided.
"""
