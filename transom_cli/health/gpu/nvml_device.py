"""One GPU's NVML calls, each guarded: what a device or a driver has not got is None."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from transom_cli.core.rootline import clean
from transom_cli.health.gpu.reading import GPU_IS_LOST, RESET_REQUIRED

# "There is no such thing here": invalid argument, not supported, no permission, not found, function not found, no data,
# no ECC on a virtual GPU, argument version mismatch, deprecated.
_ORDINARY = frozenset((2, 3, 4, 6, 13, 21, 22, 25, 26))
_UNREAD = 5  # failures that are kept of one device


class Gone(Exception):
    """NVML has given the device up; `code` is its return code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Device:
    """One device's calls, each guarded."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.unread: list[str] = []

    def get(self, call: str, *args: Any) -> Any:
        """The call's value, None where there is none. Raises Gone when the device is."""
        function = getattr(self.nvml, call, None)
        if function is None:  # an older nvidia-ml-py
            return None
        try:
            return function(self.handle, *args)
        except self.nvml.NVMLError as error:
            if error.value in (GPU_IS_LOST, RESET_REQUIRED):
                raise Gone(error.value, words(error)) from error
            if error.value not in _ORDINARY and len(self.unread) < _UNREAD:
                self.unread.append(f"{call}: {words(error)}")
            return None
        except UnicodeError:  # nvidia-ml-py decodes names itself
            return None

    def text(self, call: str) -> str:
        return clean(str(self.get(call) or ""))

    def switch(self, call: str) -> bool | None:
        found = self.get(call)
        return None if found is None else bool(found)

    def switches(self, call: str) -> tuple[bool | None, bool | None]:
        """Of a mode: the present one, and the one after the next reset."""
        found = self.get(call)
        return (None, None) if found is None else (bool(found[0]), bool(found[1]))

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> list[int | None]:
        """Values by field id, or by field id and scope (a link's number)."""
        found = self.get("nvmlDeviceGetFieldValues", list(wanted))
        return [None] * len(wanted) if found is None else [_number(value) for value in found]

    def fill(self, call: str, kind: str) -> Any:
        """For calls that fill in a structure of nvidia-ml-py's class `kind`."""
        structure = getattr(self.nvml, kind, None)
        if structure is None:
            return None
        filled = structure()
        return None if self.get(call, ctypes.byref(filled)) is None else filled


def words(error: Exception) -> str:
    return clean(str(error))


def _number(field: Any) -> int | None:
    if field.nvmlReturn != 0:
        return None
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}.get(field.valueType)
    return None if member is None else int(getattr(field.value, member))
