"""A page as a parser sees it: every element closed, in order; its text, ids, links."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta"}
SVG_EMPTY = {"rect", "line"}  # written as <rect ...></rect> or <line .../>


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []  # element, name, value
        self.texts: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.elements.append((tag, tuple(names)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif data.strip():
            self.texts.append(" ".join(data.split()))

    def values(self, name: str) -> list[str]:
        return [value for _, one, value in self.attributes if one == name]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)
