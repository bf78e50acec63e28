"""Django: a transaction that a late holder cannot commit, and a command that runs on one host.

This file is a ``manage.py``, too. In a project, the settings are in their own file.
"""

import os
import subprocess
import sys
import tempfile

import django
from django.conf import settings
from django.core.management import call_command, execute_from_command_line
from django.db import connection

from zklock.errors import StaleToken

HOSTS = os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")


def configure(hosts: str, database: str) -> None:
    """Do what a settings file does."""
    settings.configure(
        INSTALLED_APPS=["zklock.contrib.django"],
        ZKLOCK={"HOSTS": hosts, "ROOT": "/examples/django", "TIMEOUT": 30},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def main(hosts: str, database: str) -> None:
    """Write under a lock, write late, and run a command on one host."""
    from zklock.contrib.django import claim, create_mark, fenced_atomic, lock  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    create_mark("report")  # once: the database is new. In a project, a migration calls it
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE report (author TEXT)")

        grant = lock("report", identity="first").acquire()
        assert grant is not None
        lock("report", identity="operator").break_lock()
        with lock("report", identity="second", timeout=30) as later:
            claim(later, "report")
            with fenced_atomic(later, "report"):
                cursor.execute("INSERT INTO report VALUES ('second')")
            try:
                with fenced_atomic(grant, "report"):
                    cursor.execute("INSERT INTO report VALUES ('first')")
            except StaleToken:
                print("refused: the first holder is late")
        cursor.execute("SELECT author FROM report")
        print("written by:", cursor.fetchall())

    command = "from zklock.contrib.django import token; print('runs with', token())"
    manage = [sys.executable, __file__, "run_singleton", "--wait", "60", "shell", "-c", command]
    environment = {**os.environ, "ZKLOCK_HOSTS": hosts, "DATABASE": database}
    both = [subprocess.Popen(manage, env=environment) for _ in range(2)]
    print("one after the other:", [process.wait() for process in both])


if __name__ == "__main__":
    if sys.argv[1:2] in (["run_singleton"], ["shell"]):
        configure(HOSTS, os.environ["DATABASE"])
        execute_from_command_line(sys.argv)
    else:
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
            chosen = sys.argv[1] if len(sys.argv) > 1 else HOSTS
            configure(chosen, file.name)
            main(chosen, file.name)
