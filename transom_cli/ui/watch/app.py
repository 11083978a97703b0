"""The live screen: textual hears the keys and draws; what is drawn comes from `content`, what is known by `follow`."""

from __future__ import annotations

import contextlib
import shlex
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
from transom_cli.ui.colour import text_of
from transom_cli.ui.lines import Line, cut, line, plain
from transom_cli.ui.view import RunView
from transom_cli.ui.watch import content, frame, plots
from transom_cli.ui.watch.content import Item, Wish
from transom_cli.ui.watch.follow import Follow
from transom_cli.ui.watch.help import FOOT, PAGE
from transom_cli.ui.watch.pane import Lines, Pane
from transom_cli.ui.watch.past import Past

EVERY = 1.0  # seconds between two looks
_LISTED = 4  # lines of a list that stay in sight when something is open
_FRAME = 3  # rows: the tabs, the foot, the line above what is open
_UP, _DOWN = ("up", "k"), ("down", "j")


class Help(ModalScreen[None]):
    CSS = "Help { align: center middle; } Help Static { width: auto; max-width: 100%; border: round; padding: 1; }"

    def compose(self) -> ComposeResult:
        yield Static(Text(PAGE))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss()


class WatchApp(App[RunView | None]):
    """Ends with the last view."""

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

    def __init__(self, follow: Follow, *, colours: bool = True, every: float = EVERY) -> None:
        super().__init__(ansi_color=True)
        self._follow, self._colours, self._every = follow, colours, every
        self._view: RunView | None = None
        self._tab, self._wish = content.NODES, Wish()
        self._curves = plots.Curves()
        self._output: tuple[str, str] = ("", "")
        self._opened: str | None = None
        self._stories: dict[str, tuple[str, ...]] = {}  # of the incident that is open
        self._paused = self._wrap = False
        self._said = ""
        self._shown: list[Line] = []  # of what is open

    def compose(self) -> ComposeResult:
        for name in ("head", "tabs", "columns"):
            yield Lines(colours=self._colours, id=name)
        yield Pane(colours=self._colours, id="pane")
        with Vertical(id="details", classes="gone"):
            yield Static(id="opened")
        yield Input(placeholder="only lines with ...", id="filter", classes="gone")
        yield Lines(colours=self._colours, id="foot")

    @property
    def _main(self) -> Screen[object]:
        """The screen below the page of help, if that is open."""
        return self.screen_stack[0]

    def on_mount(self) -> None:
        self.set_interval(self._every, self._turn)
        self._look()

    @property
    def _room(self) -> int:
        """Columns of what is open, beside its scroll bar."""
        return max(1, self.size.width - 1)

    # --- looking ---

    def _turn(self) -> None:
        if not self._paused:
            self._look()

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        try:
            view = self._follow.look()
        except TransomError as error:  # the run directory is gone, or cannot be read now
            self.call_from_thread(self.say, error.what)
            return
        log = self._follow.log(view) if self._tab == content.LOG else None
        kind, _, name = (self._opened or "").partition(" ")
        stories = {name: self._follow.story(name, self._room)} if kind == "incident" else {}
        past = self._follow.past() if self._tab == content.PLOTS else None
        self.call_from_thread(self._seen, view, log, stories, past)

    def _seen(
        self,
        view: RunView,
        log: tuple[object, str] | None,
        stories: dict[str, tuple[str, ...]],
        past: Past | None,
    ) -> None:
        self._view, self._stories = view, stories
        self._curves.past = past or self._curves.past
        if log is not None:
            self._output = (shlex.quote(str(log[0])), log[1])
        self._curves.add(view.now, view.step, view.loss, view.step_time, view.goodput)
        self._draw()
        if view.over:
            self.exit(view)

    # --- drawing ---

    def _draw(self) -> None:
        with contextlib.suppress(NoMatches):  # the screen is being put up, or taken down
            self._draw_all()

    def _draw_all(self) -> None:
        view = self._view
        if view is None:
            self._put("head", [line((self._said or "looking ...", "dim"))])
            return
        pane = self._main.query_one("#pane", Pane)
        columns, items = self._items(view)
        pane.tail, pane.pointed = self._tab == content.LOG, bool(items) and self._tab != content.PLOTS
        pane.show(items or [Item("", line((frame.none(view, self._tab, self._wish), "dim")))])
        head = frame.head(view, self.size.width, self.size.height)
        taken = len(head) + bool(columns) + _FRAME + min(_LISTED, max(1, len(items)))
        self._main.query_one("#details").styles.max_height = max(_LISTED, self.size.height - taken)
        self._put("head", head)
        self._put("tabs", [frame.tabs(view, self._tab, self._wish, len(items))])
        self._put("columns", [columns] if columns else [])
        self._put_details(self._details(items))
        self._put("foot", [line((self._said or ("paused: p goes on  " if self._paused else "") + FOOT, "dim"))])

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
        if self._tab == content.NODES:
            return content.node_items(view, self._wish, self._opened)
        if self._tab == content.INCIDENTS:
            return (), content.incident_items(view, self._wish, self._stories)
        if self._tab == content.CHECKPOINTS:
            return (), content.checkpoint_items(view)
        if self._tab == content.LOG:
            return (), content.log_items(*self._output, self._wish)
        size = self._main.query_one("#pane", Pane).size
        drawn = plots.plot_lines(self._curves, size.width, size.height)
        return (), [Item(f"plot {n}", one) for n, one in enumerate(drawn)]

    def _details(self, items: list[Item]) -> list[Line]:
        found = next((one for one in items if one.key == self._opened), None)
        self._main.query_one("#details").set_class(found is None, "gone")
        if found is None:
            return []
        does = [line(("do          ", "dim"), (found.command, "note"))] if found.command else []
        return [found.line, *found.details, *does]

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
            "a": lambda: self._wishes(everything=not self._wish.everything),
            "s": self._sort, "S": lambda: self._wishes(backwards=not self._wish.backwards),
            "w": self._wrapped, "p": self._pause, "r": self._look,
            "q": self._leave, "ctrl+c": self._leave, "ctrl+q": self._leave, "?": lambda: self.push_screen(Help()),
        }  # fmt: skip
        act = moves.get(key) or moves.get(character)
        if act is not None:
            self._said = ""
            act()
        elif character.isdecimal() and 1 <= int(character) <= len(content.TABS):
            self._go(content.TABS[int(character) - 1])
        else:
            return False
        return True

    def _page(self, by: float) -> None:
        """In what is open, where there is more of it than is seen; else in the list."""
        opened = self._main.query_one("#details", Vertical)
        if self._opened is not None and opened.max_scroll_y > 0:
            opened.scroll_relative(y=round(by * opened.size.height), animate=False)
        else:
            self._main.query_one("#pane", Pane).page(by)

    def _to(self, by: int) -> None:
        self._go(content.TABS[(content.TABS.index(self._tab) + by) % len(content.TABS)])

    def _go(self, tab: str) -> None:
        self._tab, self._opened = tab, None
        if tab in (content.LOG, content.PLOTS):
            self._look()

    def _open(self) -> None:
        chosen = self._main.query_one("#pane", Pane).selected
        self._opened = chosen.key if chosen is not None and (chosen.details or chosen.command) else None
        if self._opened is not None and self._tab == content.INCIDENTS:
            self._look()

    def _close(self) -> None:
        if self._opened is None:
            self._wishes(words="")
        self._opened = None

    def _copy(self) -> None:
        chosen = self._main.query_one("#pane", Pane).selected
        command = chosen.command if chosen is not None else ""
        if command:
            self.copy_to_clipboard(command)
            self._said = f"copied, where the terminal allows it: {command}"

    def _filter(self) -> None:
        box = self._main.query_one("#filter", Input)
        box.remove_class("gone")
        box.value = self._wish.words
        box.focus()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._filter_done(keep=True)

    def _filter_done(self, *, keep: bool) -> None:
        box = self._main.query_one("#filter", Input)
        box.add_class("gone")
        self.set_focus(None)
        self._wishes(words=box.value if keep else "")
        self._draw()

    def _sort(self) -> None:
        after = content.SORTS[(content.SORTS.index(self._wish.sort) + 1) % len(content.SORTS)]
        self._wishes(sort=after)

    def _wishes(self, **changed: object) -> None:
        self._wish = Wish(**{**vars(self._wish), **changed})  # type: ignore[arg-type]

    def _wrapped(self) -> None:
        self._wrap = not self._wrap
        self._shown = []

    def _pause(self) -> None:
        self._paused = not self._paused

    def say(self, words: str) -> None:
        """In the last line, until the next key."""
        self._said = words
        self._draw()

    def _leave(self) -> None:
        self.exit(self._view)

    def on_resize(self) -> None:
        self._shown = []
        self._draw()
