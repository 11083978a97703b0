"""The live screen in textual. `panels` and `plots` make its content, `follow` reads the run."""

import contextlib
import os
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from transom_cli.errors import TransomError
from transom_cli.view.model import RunView
from transom_cli.view.read_history import TimeSeries
from transom_cli.view.terminal import text_of
from transom_cli.view.text import Line, cut, line, plain
from transom_cli.view.watch import panels, plots
from transom_cli.view.watch.follow import Follow
from transom_cli.view.watch.pane import Lines, Pane
from transom_cli.view.watch.panels import FOOT, HELP, Filter, Item

EVERY = 1.0  # seconds between two looks
_LISTED = 4  # lines of the list that stay visible while an item is open
_FRAME = 3  # rows: the tabs, the foot, the line above an open item
_UP, _DOWN = ("up", "k"), ("down", "j")


class Help(ModalScreen[None]):
    CSS = "Help { align: center middle; } Help Static { width: auto; max-width: 100%; border: solid; padding: 1; }"

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if self.is_current:  # keys typed fast arrive after the first one has closed it
            self.dismiss()


class WatchApp(App[RunView | None]):
    """Returns the last view."""

    CSS = """
    Screen { layout: vertical; overflow: hidden; background: ansi_default; color: ansi_default; }
    #head, #tabs, #columns, #foot { height: 0; }
    #pane { height: 1fr; } #details { height: auto; border-top: solid ansi_bright_black; overflow-y: auto;
               scrollbar-size-vertical: 1; scrollbar-gutter: stable;
               scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default; }
    #filter { height: 1; border: none; padding: 0; }
    .gone { display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar = []

    def __init__(
        self,
        follow: Follow,
        *,
        colours: bool = True,
        every: float = EVERY,
        ends: Callable[[RunView], bool] = lambda view: view.over,
    ) -> None:
        """ends: Whether the screen closes by itself after a view."""
        known = os.environ.get("NO_COLOR")
        if not colours:
            os.environ["NO_COLOR"] = "1"  # textual looks here, once
        super().__init__(ansi_color=True)
        if known is None:
            os.environ.pop("NO_COLOR", None)
        self._follow, self._colours, self._every, self._ends = follow, colours, every, ends
        self.left = False  # by a key
        self._view: RunView | None = None
        self._tab, self._chosen = panels.NODES, Filter()
        self._plots = plots.LivePlots(ascii=os.environ.get("TERM") == "linux")
        self._output: tuple[int | None, list[Line]] = (None, [])
        self._by = 0  # ranks to go on in the output
        self._opened: str | None = None
        self._timelines: dict[str, tuple[str, ...]] = {}  # of the open incident
        self._paused = self._wrap = False
        self._said = ""
        self._shown: list[Line] = []  # of the open item

    def compose(self) -> ComposeResult:
        for name in ("head", "tabs", "columns"):
            yield Lines(colours=self._colours, id=name)
        yield Pane(colours=self._colours, id="pane")
        with Vertical(id="details", classes="gone"):
            yield Static(id="opened")
        yield Input(placeholder="filter", id="filter", classes="gone")
        yield Lines(colours=self._colours, id="foot")

    @property
    def _main(self) -> Screen[object]:
        """The main screen, also while the help is open."""
        if not self.screen_stack:  # closed, while a reader thread still had a view to show
            raise NoMatches("the live screen is closed")
        return self.screen_stack[0]

    def on_mount(self) -> None:
        self.set_interval(self._every, self._turn)
        self._look()

    @property
    def _room(self) -> int:
        """Columns of an open item, without its scroll bar."""
        return max(1, self.size.width - 1)

    # --- reading ---

    def _turn(self) -> None:
        if not self._paused:
            self._look()

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        try:
            view = self._follow.look()
        except TransomError as error:  # the run directory is gone, or cannot be read
            self.call_from_thread(self.say, error.what)
            return
        by, self._by = self._by, 0
        output = self._follow.output(view, by) if self._tab == panels.OUTPUT else None
        kind, _, name = (self._opened or "").partition(" ")
        timelines = {name: self._follow.timeline(name, self._room)} if kind == "incident" else {}
        series = self._follow.time_series()
        self.call_from_thread(self._seen, view, output, timelines, series)

    def _seen(
        self,
        view: RunView,
        output: tuple[int | None, list[Line]] | None,
        timelines: dict[str, tuple[str, ...]],
        series: TimeSeries | None,
    ) -> None:
        self._view, self._timelines = view, timelines
        self._plots.series = series or self._plots.series
        self._output = output or self._output
        self._plots.add(view.now, view.step, view.loss, view.step_time, view.goodput)
        self._draw()
        if self._ends(view):
            self.exit(view)

    # --- drawing ---

    def _draw(self) -> None:
        with contextlib.suppress(NoMatches):  # the screen is being built or closed
            self._draw_all()

    def _draw_all(self) -> None:
        view = self._view
        if view is None:
            self._put("head", [line((self._said or "reading the run ...", "dim"))])
            return
        pane = self._main.query_one("#pane", Pane)
        columns, items = self._items(view)
        pane.tail, pane.pointed = self._tab == panels.OUTPUT, bool(items) and self._tab != panels.PLOTS
        listed = len(items)
        items = items or [Item("", line((panels.empty(view, self._tab, self._chosen), "dim")))]
        trend = plots.trend(self._plots, self.size.width) if view.confirmed == "training" else ()
        head = panels.head(view, self.size.width, self.size.height, trend)
        if self._tab == panels.NODES and self._opened is None and not self._chosen.text:
            items = [*items, *self._below(view, self.size.height - len(head) - bool(columns) - 2 - len(items))]
        pane.selectable = max(1, listed) if self._tab == panels.NODES else None  # not what is below the nodes
        pane.show(items)
        taken = len(head) + bool(columns) + _FRAME + min(_LISTED, max(1, len(items)))
        self._main.query_one("#details").styles.max_height = max(_LISTED, self.size.height - taken)
        self._put("head", head)
        self._put("tabs", [panels.tabs(view, self._tab, self._chosen, listed, self._output[0])])
        self._put("columns", [columns] if columns else [])
        self._put_details(self._details(items))
        self._put("foot", [line((self._said or ("paused: p continues  " if self._paused else "") + FOOT, "dim"))])

    def _put(self, name: str, lines: list[Line]) -> None:
        self._main.query_one(f"#{name}", Lines).show([cut(one, self.size.width) for one in lines])

    def _put_details(self, lines: list[Line]) -> None:
        shown = lines if self._wrap else [cut(one, self._room) for one in lines]
        if shown == self._shown:
            return
        self._shown = shown
        text = text_of(shown) if self._colours else Text("\n".join(plain(one) for one in shown))
        if self._wrap:
            text.no_wrap, text.overflow = False, "fold"
        self._main.query_one("#opened", Static).update(text)

    def _items(self, view: RunView) -> tuple[Line, list[Item]]:
        if self._tab == panels.NODES:
            return panels.node_items(view, self._chosen, self._opened)
        if self._tab == panels.INCIDENTS:
            return (), panels.incident_items(view, self._chosen, self._timelines)
        if self._tab == panels.CHECKPOINTS:
            return (), panels.checkpoint_items(view)
        if self._tab == panels.OUTPUT:
            return (), panels.output_items(view.run_id, *self._output, self._chosen)
        size = self._main.query_one("#pane", Pane).size
        drawn = plots.plot_lines(self._plots, size.width, size.height)
        return (), [Item(f"plot {n}", one) for n, one in enumerate(drawn)]

    def _below(self, view: RunView, room: int) -> list[Item]:
        """Fill free rows below the nodes: the newest incidents, then plots."""
        found = panels.incident_items(view, Filter(), {})[: max(0, min(panels.BELOW, room - 1))]
        blank = Item("", ())
        lines: list[Item] = [blank, *found] if found else []
        width, room = self.size.width, room - len(lines) - 1
        if room >= panels.PLOT_ROWS and any(len(points) > 1 for _, points in self._plots.named()[:2]):
            drawn = plots.plot_lines(self._plots, width, room, most=2)
            lines += [blank, *(Item(f"plot {n}", one) for n, one in enumerate(drawn))]
        return lines

    def _details(self, items: list[Item]) -> list[Line]:
        found = next((one for one in items if one.key == self._opened), None)
        self._main.query_one("#details").set_class(found is None, "gone")
        if found is None:
            return []
        does = [line(("do          ", "dim"), (found.command, "note"))] if found.command else []
        head = [] if self._tab == panels.INCIDENTS else [found.line]
        return [*head, *found.details, *does]

    # --- keys ---

    def on_key(self, event: events.Key) -> None:
        if self._main.query_one("#filter", Input).has_focus:
            if event.key == "escape":
                self._filter_done(keep=False)
            return
        if self._pressed(event.key, event.character or ""):
            event.stop()
            event.prevent_default()
            self._draw()

    def on_click(self, event: events.Click) -> None:
        name = getattr(getattr(event, "widget", None), "id", "")
        if name == "tabs" and (tab := panels.tab_at(self._main.query_one("#tabs", Lines).first, event.x)):
            self._go(tab)
            self._draw()
        elif name == "pane" and getattr(event, "chain", 1) == 2:
            self._open()
            self._draw()

    def _pressed(self, key: str, character: str) -> bool:
        pane = self._main.query_one("#pane", Pane)
        moves: dict[str, Callable[[], object]] = {
            **dict.fromkeys(_UP, lambda: pane.move(-1)),
            **dict.fromkeys(_DOWN, lambda: pane.move(1)),
            "g": lambda: pane.to(end=False), "home": lambda: pane.to(end=False),
            "G": lambda: pane.to(end=True), "end": lambda: pane.to(end=True),
            "ctrl+d": lambda: self._page(0.5), "ctrl+u": lambda: self._page(-0.5),
            "pagedown": lambda: self._page(1.0), "pageup": lambda: self._page(-1.0),
            "tab": lambda: self._to(1), "shift+tab": lambda: self._to(-1),
            "enter": self._open, "escape": self._close, "y": self._copy, "slash": self._filter,
            "a": lambda: self._choose(everything=not self._chosen.everything),
            **dict.fromkeys(("left", "less_than_sign", "<"), lambda: self._another(-1)),
            **dict.fromkeys(("right", "greater_than_sign", ">"), lambda: self._another(1)),
            "s": self._sort, "S": lambda: self._choose(backwards=not self._chosen.backwards),
            "w": self._wrapped, "p": self._pause, "r": self._look,
            "q": self._leave, "ctrl+c": self._leave, "ctrl+q": self._leave, "?": lambda: self.push_screen(Help()),
        }  # fmt: skip
        act = moves.get(key) or moves.get(character)
        if act is not None:
            self._said = ""
            act()
        elif character.isdecimal() and 1 <= int(character) <= len(panels.TABS):
            self._go(panels.TABS[int(character) - 1])
        else:
            return False
        return True

    def _page(self, by: float) -> None:
        """Scroll the open item if it is longer than its pane, else the list."""
        opened = self._main.query_one("#details", Vertical)
        if self._opened is not None and opened.max_scroll_y > 0:
            opened.scroll_relative(y=round(by * opened.size.height), animate=False)
        else:
            self._main.query_one("#pane", Pane).page(by)

    def _to(self, by: int) -> None:
        self._go(panels.TABS[(panels.TABS.index(self._tab) + by) % len(panels.TABS)])

    def _go(self, tab: str) -> None:
        self._tab, self._opened = tab, None
        if tab in (panels.OUTPUT, panels.PLOTS):
            self._look()

    def _another(self, by: int) -> None:
        """Show the output of another rank."""
        if self._tab == panels.OUTPUT:
            self._by += by
            self._look()

    def _open(self) -> None:
        chosen = self._main.query_one("#pane", Pane).selected
        self._opened = chosen.key if chosen is not None and (chosen.details or chosen.command) else None
        if self._opened is not None and self._tab == panels.INCIDENTS:
            self._look()

    def _close(self) -> None:
        if self._opened is None:
            self._choose(text="")
        self._opened = None

    def _copy(self) -> None:
        chosen = self._main.query_one("#pane", Pane).selected
        command = chosen.command if chosen is not None else ""
        if command:
            self.copy_to_clipboard(command)
            self._said = f"copied (if the terminal supports it): {command}"

    def _filter(self) -> None:
        box = self._main.query_one("#filter", Input)
        box.remove_class("gone")
        box.value = self._chosen.text
        box.focus()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._filter_done(keep=True)

    def _filter_done(self, *, keep: bool) -> None:
        box = self._main.query_one("#filter", Input)
        box.add_class("gone")
        self.set_focus(None)
        self._choose(text=box.value if keep else "")
        self._draw()

    def _sort(self) -> None:
        after = panels.SORTS[(panels.SORTS.index(self._chosen.sort) + 1) % len(panels.SORTS)]
        self._choose(sort=after)

    def _choose(self, **changed: object) -> None:
        self._chosen = Filter(**{**vars(self._chosen), **changed})  # type: ignore[arg-type]

    def _wrapped(self) -> None:
        self._wrap = not self._wrap
        self._shown = []

    def _pause(self) -> None:
        self._paused = not self._paused

    def say(self, message: str) -> None:
        """Show a message in the last line, until the next key."""
        self._said = message
        self._draw()

    def _leave(self) -> None:
        self.left = True
        self.exit(self._view)

    def on_resize(self) -> None:
        self._shown = []
        self._draw()
