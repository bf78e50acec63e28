"""Makes the table of the marks.

It stays when the migration is taken back, since it shuts old tokens out.
"""

from typing import Any

from django.db import NotSupportedError, migrations

from zklock.fencing import SqlGuard


def make(apps: Any, editor: Any) -> None:
    """Make the table, if this database can be guarded."""
    del apps
    try:
        text = SqlGuard.ddl(editor.connection.vendor)
    except ValueError as error:
        raise NotSupportedError(
            f"zklock guards SQLite, PostgreSQL, MariaDB and MySQL, not {editor.connection.vendor}"
        ) from error
    editor.execute(text)


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    # MySQL takes no DDL in a transaction; where it does, the whole migration is one.
    operations = (migrations.RunPython(make, migrations.RunPython.noop, atomic=False),)
