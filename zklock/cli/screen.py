"""The live screen of ``zklock top``, made with Textual."""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from zklock.cli.view import table
from zklock.cli.view.model import Look
from zklock.cli.view.table import Table, middle
from zklock.cli.view.text import plain

_ORDERS = list(table.Order)
_OF_LOCKS = {"quit", "sort", "filter", "all"}
_STDIN = 0
_ROOT = 30
_LOOK_AT_TERMINAL = 1.0
"""Seconds between two looks whether the terminal is still there."""


class _Table(DataTable[Text]):
    """A table that keeps its cursor on the same row when its rows change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)

    def show(self, table: Table, chosen: str | None = None) -> None:
        """Show a table, as far as there is room; the cursor is on the row that was ``chosen``."""
        table = table.fitted(self.app.size.width - 2)
        before, at, top = chosen or self.chosen(), self.cursor_row, self.scroll_offset.y
        # With widths of its own a column is right at once; otherwise lines that were drawn before
        # the widths were measured may stay as they are.
        self.clear(columns=True)
        for number, head in enumerate(table.heads):
            longest = max((cell_len(row[number]) for row in table.rows), default=0)
            self.add_column(head.upper(), width=max(len(head), longest))
        for key, row in zip(table.keys, table.rows, strict=True):
            self.add_row(*map(Text, row), key=key)
        if before in table.keys:
            at = table.keys.index(before)
        if table.keys:
            self.move_cursor(row=min(at, len(table.keys) - 1), scroll=False)
            self.scroll_to(y=top, animate=False)

    def chosen(self) -> str | None:
        """Return the key of the row under the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value


class Top(App[None]):
    """The screen: it shows each look as it comes, and draws its ages anew at each ``interval``.

    ``ended_by``: the signal that has ended it.
    """

    TITLE = "zklock top"
    CSS = """
    #head { height: 1; background: $primary; color: $text; padding: 0 1; }
    #filter { display: none; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "all", "All", show=False),
        Binding("escape,q", "close", "Back"),
    ]

    def __init__(
        self,
        seen: Iterator[Look],
        root: str,
        order: table.Order,
        part: str = "",
        interval: float = _LOOK_AT_TERMINAL,
    ) -> None:
        super().__init__()
        self._interval = interval
        self._seen = seen
        self._root = root
        self._order = order
        self._part = part
        self._look: Look | None = None
        self._opened: str | None = None  # the key of the row whose queue, or workers, are shown
        self._shown = threading.Event()
        self.failed: Exception | None = None
        self.ended_by: int | None = None
        self._home: asyncio.AbstractEventLoop | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield _Table()
        yield Input(self._part, placeholder="text in path, kind or holder", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self._home = asyncio.get_running_loop()
        self.query_one(_Table).focus()
        self.set_interval(_LOOK_AT_TERMINAL, self._end_without_terminal)
        self.set_interval(self._interval, self._draw)
        self._draw()
        # A thread of the screen's own would be waited for at the end, and a look may take long.
        threading.Thread(target=self._follow, name="zklock-top", daemon=True).start()
        if self.ended_by is not None:
            self.exit()

    def end_by(self, number: int) -> None:
        """End because of a signal. For its handler, too: a loop keeps what is raised there."""
        self.ended_by = number
        if self._home is not None:
            self._call(self.exit)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the screen's thread call this soon, unless the screen has ended."""
        assert self._home is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._home.call_soon_threadsafe(function, *arguments)

    def action_interrupt(self) -> None:
        """Do what Ctrl-C does elsewhere: here the terminal sends no signal for it."""
        self.end_by(signal.SIGINT)

    def _end_without_terminal(self) -> None:
        """End when the terminal has gone: a signal tells so only where it controls the session."""
        if _hung_up():
            self.end_by(signal.SIGHUP)

    def _follow(self) -> None:
        try:
            for look in self._seen:
                if look is not self._look:
                    self._shown.clear()
                    self._call(self.call_later, self.show, look)
                    self._shown.wait()
        except Exception as error:
            self.failed = error
            self._call(self.exit)

    def show(self, look: Look) -> None:
        self._look = look
        self._draw()
        self._shown.set()

    def on_resize(self) -> None:
        """Show as much as there is room for now."""
        self._draw()

    def _draw(self, chosen: str | None = None) -> None:
        """Show what is known; the ages are those of now."""
        look, path = self._look or Look(), self._root
        if self._opened is not None:
            path, head, found = table.opened(look, self._opened)
        else:
            head = "reading ..." if self._look is None else table.summary(look)
            head += f"; by {self._order.value.replace('-', ' ')}"
            if self._part:
                head += f"; with {self._part!r}"
            found = table.locks(look, self._order, self._part)
        mark = "" if look.connected else "NOT CONNECTED; last known state: "
        told = f"{mark}{middle(plain(path), _ROOT)}: {head}"
        with contextlib.suppress(NoMatches):  # the screen is being made, or ends
            self.query_one("#head", Static).update(told)
            self.query_one(_Table).show(found, chosen)

    def action_sort(self) -> None:
        self._order = _ORDERS[(_ORDERS.index(self._order) + 1) % len(_ORDERS)]
        self._draw()

    def action_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.add_class("open")
        entry.focus()

    def action_all(self) -> None:
        """Show everything again."""
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def action_close(self) -> None:
        """Show the locks again."""
        self._open(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key does this: some are for the locks, one is for what is opened."""
        return action != "close" if self._opened is None else action not in _OF_LOCKS

    def _open(self, key: str | None) -> None:
        before, self._opened = self._opened, key
        self.query_one(_Table).move_cursor(row=0)
        self._draw(before)
        self.refresh_bindings()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self._part = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self.query_one(_Table).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the queue of a lock."""
        if self._opened is None:
            self._open(event.row_key.value)


@contextlib.contextmanager
def drawn_on_stdout() -> Iterator[None]:
    """Have Textual draw on standard output in the body, not on standard error, as it does."""
    before = sys.__stderr__
    sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]


def _hung_up() -> bool:
    poll = select.poll()
    poll.register(_STDIN, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
