"""Which lock in Python: seven questions, played with real servers (``make compare``).

A module of ``locks`` has a small adapter for each library. ``questions.py`` plays the questions
with processes that run ``contender.py``, each in an environment with the library's pinned packages.
``results.json`` is what was seen, and what the next run has to see. ``page.py`` writes it into
docs/which-lock-in-python.md.
"""
