"""Workers under a nemesis, and a checker that decides from their histories.

``python -m tests.chaos --minutes 30`` runs it; see ``tests.chaos.checker`` for what is decided.
"""
