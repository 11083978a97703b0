"""Textual widgets for lines: only visible lines are drawn, and only when they change.

The selection follows the key of its item when rows move, appear or disappear.
"""

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from transom_cli.view.terminal import STYLES
from transom_cli.view.text import Line, cut
from transom_cli.view.watch.panels import Item

_STYLES = {tone: Style.parse(style) for tone, style in STYLES.items()}
_PLAIN = Style()
_CURSOR = Style(reverse=True)
_WHEEL = 3  # lines


def strip_of(one: Line, *, cursor: bool = False, colours: bool = True) -> Strip:
    style = _CURSOR if cursor else _PLAIN
    return Strip(Segment(text, (_STYLES.get(tone, _PLAIN) if colours else _PLAIN) + style) for text, tone in one)


class Lines(Widget):
    """Lines without a cursor, as high as their number. Only changed lines are drawn, for slow connections."""

    def __init__(self, *, colours: bool = True, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._colours = colours

    @property
    def first(self) -> Line:
        return self._lines[0] if self._lines else ()

    def show(self, lines: list[Line]) -> None:
        before, self._lines = self._lines, lines
        if len(lines) != len(before):
            self.styles.height = len(lines)
            self.refresh(layout=True)
            return
        for y, (old, new) in enumerate(zip(before, lines, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width)
        return strip_of(self._lines[y], colours=self._colours).crop(0, width).extend_cell_length(width)


class Pane(ScrollView, can_focus=False):
    """A scrollable list with a cursor."""

    def __init__(self, *, colours: bool = True, id: str | None = None) -> None:
        super().__init__(id=id)
        self._items: list[Item] = []
        self._cursor = 0
        self._colours = colours
        self._drawn: list[tuple[Line, bool] | None] = []  # content of each row
        self.pointed = True  # show a cursor
        self.selectable: int | None = None  # items that the cursor can reach; None: all
        self.tail = False  # keep the last line visible

    @property
    def selected(self) -> Item | None:
        return self._items[self._cursor] if self._items else None

    def show(self, items: list[Item]) -> None:
        """Replace the items. The cursor stays on its item, or at its position if the item is gone."""
        if [one.line for one in items] == [one.line for one in self._items]:
            self._items = items
            return
        chosen, at_end = self.selected, self._cursor >= len(self._items) - 1
        self._items = items
        place = {one.key: n for n, one in enumerate(items)}
        if self.tail and at_end:
            self._cursor = max(0, len(items) - 1)
        elif chosen is not None:
            self._cursor = place.get(chosen.key, min(self._cursor, max(0, len(items) - 1)))
        self.virtual_size = Size(self.size.width, len(items))
        self._in_sight()
        self._refresh_changed([one.line for one in items])

    def _refresh_changed(self, lines: list[Line]) -> None:
        top, drawn = round(self.scroll_offset.y), []
        for y in range(self.size.height):
            at = top + y
            now = (lines[at], self.pointed and at == self._cursor) if at < len(lines) else None
            drawn.append(now)
            if y >= len(self._drawn) or self._drawn[y] != now:
                self.refresh(Region(0, y, self.size.width, 1))
        self._drawn = drawn

    def move(self, by: int) -> None:
        last = (len(self._items) if self.selectable is None else self.selectable) - 1
        self._cursor = max(0, min(last, self._cursor + by))
        self._in_sight()
        self._refresh_changed([one.line for one in self._items])

    def page(self, by: float) -> None:
        self.move(round(by * max(1, self.size.height)))

    def to(self, *, end: bool) -> None:
        self.move(len(self._items) if end else -len(self._items))

    def _in_sight(self) -> None:
        top, height = round(self.scroll_offset.y), max(1, self.size.height)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._items))
        self._in_sight()

    def on_click(self, event: object) -> None:
        at = round(self.scroll_offset.y) + int(getattr(event, "y", 0))
        if at < (len(self._items) if self.selectable is None else self.selectable):
            self.move(at - self._cursor)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, by: int) -> None:
        """Move the cursor: a change of the list brings it back into sight."""
        event.stop()
        event.prevent_default()
        self.move(_WHEEL * by)

    def render_line(self, y: int) -> Strip:
        at = y + round(self.scroll_offset.y)
        width = self.size.width
        if at >= len(self._items):
            return Strip.blank(width)
        here = self.pointed and at == self._cursor
        strip = strip_of(cut(self._items[at].line, width), cursor=here, colours=self._colours)
        return strip.crop(0, width).extend_cell_length(width, _CURSOR if here else _PLAIN)
