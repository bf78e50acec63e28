"""The app, for ``INSTALLED_APPS``."""

from django.apps import AppConfig


class ZkLockConfig(AppConfig):
    """zklock's app: it has the table of the marks, and ``run_singleton``."""

    name = "zklock.contrib.django"
    label = "zklock"
    verbose_name = "zklock"
