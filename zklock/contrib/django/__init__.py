"""Django: a management command that runs once among all hosts, and fenced transactions.

Add ``"zklock.contrib.django"`` to ``INSTALLED_APPS``, and say in ``ZKLOCK`` where ZooKeeper is. The
app's migration makes the table of the marks. Needs the extra ``django``.
"""

from zklock.contrib.django.configuration import client, lock, token
from zklock.contrib.django.database import claim, create_mark, fence, fenced_atomic

__all__ = ["claim", "client", "create_mark", "fence", "fenced_atomic", "lock", "token"]
