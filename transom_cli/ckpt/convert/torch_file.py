"""Read a torch file without running code."""

from __future__ import annotations

import codecs
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from transom_cli.ckpt.failures import BadFile

_GLOBAL = re.compile(r"GLOBAL (\S+)")
_PIECE = 4 << 20  # bytes


def read(path: Path) -> Any:
    """What is in a torch file, and only data: its tensors are on the CPU, and their bytes are read when they are used.

    The archive's checksums are compared first (those that torch left out are zero). Raises BadFile and OSError.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    try:
        if zipped:
            _compare_checksums(path)
        with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_data()):
            warnings.simplefilter("ignore")  # torch warns about how it reads old files
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError:
        raise
    except Exception as error:  # torch and zipfile raise many types for damaged bytes
        found = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found:
            raise BadFile(
                f"{path} holds more than data",
                f"it needs code to be loaded ({found[1]}), and transom runs none from a file",
                "save tensors, numbers, texts, lists and dicts only, as state_dict() gives them",
            ) from None
        raise BadFile(f"{path} is not a torch file, or is damaged", str(error).strip().partition("\n")[0]) from None


def _numpy_data() -> list[Any]:
    """The names that numpy pickles arrays of numbers with, such as its random state. Empty without numpy."""
    try:
        import numpy as np
    except ImportError:
        return []
    numbers = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    return [np.ndarray, np.dtype, np.empty(0).__reduce__()[0], codecs.encode, *numbers]


def _compare_checksums(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.CRC:
                with archive.open(entry) as record:
                    while record.read(_PIECE):
                        pass
