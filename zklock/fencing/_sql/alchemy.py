"""The checks that a SQLAlchemy connection must pass before it commits."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from zklock.fencing._sql.errors import doubtful

Check: TypeAlias = Callable[[], None]

# A connection keeps its watch alive, as its listener. A strong reference here would keep both.
_watches: weakref.WeakKeyDictionary[Any, weakref.ref[Watch]] = weakref.WeakKeyDictionary()


class Watch:
    """The guards' checks of the open transaction of one ``Connection``.

    A ``Session`` commits through its ``Connection``. So the watch sees the commits of both, and
    those of any framework. A check that raises prevents the commit.
    """

    def __init__(self, connection: Any) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - an extra

        self._marks: dict[object, tuple[int, Check]] = {}
        self._refused: Exception | None = None
        for name, listener in (
            ("commit", self._commit),
            ("prepare_twophase", self._commit),
            ("commit_twophase", self._commit_unprepared),
            ("rollback", self._forget),
            ("rollback_twophase", self._forget),
        ):
            event.listen(connection, name, listener)

    @staticmethod
    def of(connection: Any) -> Watch:
        """Return the watch of a connection; the first call makes it."""
        found = known() if (known := _watches.get(connection)) is not None else None
        if found is None:
            found = Watch(connection)
            _watches[connection] = weakref.ref(found)
        return found

    def stamp(self, mark: object) -> int | None:
        """Return the stamp that this transaction has left on a mark."""
        known = self._marks.get(mark)
        return None if known is None else known[0]

    def expect(self, mark: object, stamp: int, check: Check) -> None:
        """Call ``check`` before the commit."""
        self._marks[mark] = stamp, check

    def refuse(self, error: Exception) -> None:
        """Refuse every commit with this error until there is a rollback."""
        self._refused = error

    def _commit(self, connection: Any, *_: object) -> None:
        checks = [check for _, check in self._marks.values()]
        try:
            if self._refused is not None:
                raise self._refused
            for check in checks:
                check()
        except BaseException as error:
            # SQLAlchemy leaves the database's transaction open after a failed commit.
            with contextlib.suppress(Exception):
                if doubtful(error):
                    connection.invalidate()
                else:
                    connection.connection.rollback()
            raise
        finally:
            self._forget()

    def _commit_unprepared(self, connection: Any, *_: object) -> None:
        """Check, unless that was done before it was prepared.

        Some drivers cannot roll such a transaction back by ``rollback()``.
        """
        try:
            self._commit(connection)
        except BaseException:
            with contextlib.suppress(Exception):
                connection.invalidate()
            raise

    def _forget(self, *_: object) -> None:
        self._marks.clear()
        self._refused = None
