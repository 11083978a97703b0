"""Plain values as torch.save writes them. Most are the same from save to save, and each archive costs a millisecond."""

from __future__ import annotations

import io
import marshal
from typing import Any

import torch

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


class Pickles:
    """What marshal finds unchanged is taken from the last time; what it does not tell apart is pickled each time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bytes, bytes]] = {}  # by name: marshalled, and in its archive

    def of(self, name: str, value: Any) -> bytes:
        if not _told_apart(value):
            return _pickled(value)
        now = marshal.dumps(value)
        last = self._last.get(name)
        if last is None or last[0] != now:
            last = self._last[name] = now, _pickled(value)
        return last[1]


def _told_apart(value: Any, deep: int = 8) -> bool:
    """marshal takes an array of numpy for its bytes alone: 0 and 0.0 would be one. `deep`: a list may hold itself."""
    kind = type(value)
    if kind in (list, tuple):
        return deep > 0 and all(type(item) in _PLAIN or _told_apart(item, deep - 1) for item in value)
    if kind is dict:
        return deep > 0 and all(_told_apart(k, deep - 1) and _told_apart(v, deep - 1) for k, v in value.items())
    return kind in _PLAIN


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
