"""Things that exist once, in one process: they cannot be copied or sent to another process."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex


class NotCopyable:
    """Refuses ``copy``, ``deepcopy``, ``pickle``: a copy would not hear when the original ends."""

    _INSTEAD: ClassVar[str]
    """What to do instead of copying."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise a ``TypeError`` that says what to do instead."""
        raise TypeError(
            f"a {type(self).__name__.lstrip('_')} cannot be copied or pickled, because the copy "
            f"would not learn of its end: {self._INSTEAD}"
        )
