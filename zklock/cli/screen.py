"""The live screen of ``zklock top``, made with Textual."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from zklock.cli.view import table
from zklock.cli.view.model import LockView, Look, PoolView
from zklock.cli.view.table import Table
from zklock.cli.view.text import plain

_ORDERS = list(table.Order)
_TURN_SECONDS = 1.0


class _Table(DataTable[Text]):
    """A table that keeps its cursor on the same row when its rows change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)

    def show(self, table: Table, chosen: str | None = None) -> None:
        """Show a table; the cursor is on the row that was ``chosen``, or stays where it was."""
        at, (left, top) = self.cursor_row, self.scroll_offset
        if chosen is None and self.row_count:
            chosen = self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value
        # With widths of its own a column is right at once; otherwise lines that were drawn before
        # the widths were measured may stay as they are.
        self.clear(columns=True)
        for head, *cells in zip(table.heads, *table.rows, strict=True):
            self.add_column(head.upper(), width=max(map(cell_len, [head, *cells])))
        for key, row in zip(table.keys, table.rows, strict=True):
            self.add_row(*map(Text, row), key=key)
        if table.keys:
            at = table.keys.index(chosen) if chosen in table.keys else at
            self.move_cursor(row=min(at, len(table.keys) - 1), scroll=False)
            self.scroll_to(left, top, animate=False)


class Top(App[None]):
    """The screen: it draws the newest look, with the ages of now, once a second.

    ``failed``: the error that has ended it. ``ended_by``: the signal that has.
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
        Binding("escape", "home", "Back"),
    ]

    def __init__(self, seen: Iterator[Look], root: str, order: table.Order, part: str = "") -> None:
        super().__init__()
        self._seen = seen
        self._root = root
        self._order = order
        self._part = part
        self._look: Look | None = None
        self._opened: str | None = None  # the key of the row whose queue, or workers, are shown
        self.failed: Exception | None = None
        self.ended_by: int | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield _Table()
        yield Input(self._part, placeholder="text in path, kind or holder", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(_Table).focus()
        self.set_interval(_TURN_SECONDS, self.turn)
        self.turn()
        # A thread of the screen's own would be waited for at the end, and a look may take long.
        threading.Thread(target=self._follow, name="zklock-top", daemon=True).start()

    def _follow(self) -> None:
        try:
            for look in self._seen:
                self._look = look
        except Exception as error:
            self.failed = error

    def end_by(self, number: int) -> None:
        """End soon, because of a signal. For its handler: a loop keeps what is raised there."""
        self.ended_by = number

    def turn(self) -> None:
        """Draw what is known by now, or end."""
        if self.failed is not None or self.ended_by is not None:
            self.exit()
        else:
            self._draw()

    def _draw(self, chosen: str | None = None) -> None:
        look = self._look or Look()
        views: list[LockView | PoolView] = [*look.pools, *look.locks]
        opened = next((it for it in views if it.key == self._opened), None)
        if opened is not None:
            path, head, found = opened.path, opened.head, table.inside(opened, look.addresses)
        elif self._opened is not None:
            path, head = self._opened.rstrip("\0"), "nobody holds or waits"
            found = Table(table.QUEUE_COLUMNS, [], [])
        else:
            path, head = self._root, table.summary(look) if self._look else "reading ..."
            head += f"; by {self._order}" + (f"; with {self._part!r}" if self._part else "")
            found = table.locks(look, self._order, self._part)
        mark = "" if look.connected else "NOT CONNECTED; last known state: "
        with contextlib.suppress(NoMatches):  # the screen is being made, or ends
            self.query_one("#head", Static).update(f"{mark}{plain(path)}: {head}")
            self.query_one(_Table).show(found, chosen)

    def action_interrupt(self) -> None:
        """Do what Ctrl-C does elsewhere: here the terminal sends no signal for it."""
        self.ended_by = signal.SIGINT
        self.exit()

    def action_sort(self) -> None:
        self._order = _ORDERS[(_ORDERS.index(self._order) + 1) % len(_ORDERS)]
        self._open(None)

    def action_filter(self) -> None:
        self._open(None)
        self.query_one("#filter", Input).add_class("open").focus()

    def action_home(self) -> None:
        """Show all locks again."""
        if self._opened is None:
            self.query_one("#filter", Input).value = ""
            self.on_input_submitted()
        self._open(None)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self._part = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self.query_one(_Table).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the queue of a lock, or a pool."""
        if self._opened is None:
            self._open(event.row_key.value)

    def _open(self, key: str | None) -> None:
        before, self._opened = self._opened, key
        self._draw(before or key)
