"""Regular expressions that are compiled at their first use: a short command uses few, and compiling takes its time."""

import re
from typing import Any, AnyStr, cast


class _Lazy:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self.pattern, self.flags), name)
        setattr(self, name, found)
        return found


def lazy_re(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, but later. An invalid expression raises at its first use."""
    return cast("re.Pattern[AnyStr]", _Lazy(pattern, flags))
