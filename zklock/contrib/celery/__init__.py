"""Celery: a beat that leads before it ticks, and tasks that run one at a time.

Settings of the app: ``zklock_hosts`` (needed), ``zklock_timeout`` (the session timeout in seconds,
10 by default) and ``zklock_options`` (more arguments of ``zklock.connect()``). Needs the extra
``celery``.
"""

from zklock.contrib.celery.beat import LeaderScheduler
from zklock.contrib.celery.tasks import current_grant, singleton

__all__ = ["LeaderScheduler", "current_grant", "singleton"]
