"""Let the node's agent look at this process's stack where Yama's ptrace_scope is 1, Ubuntu's default.

There only ancestors may trace a process, and the agent is none of the ranks' ancestors. The leave that the wrapper
gives is for the one process it starts and is not inherited: a rank of torchrun has to give its own.

`auto/sitecustomize.py` runs this file by its path when Python starts, so that it imports nothing that is not needed.
"""

from __future__ import annotations

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER, _ANY = 0x59616D61, -1  # any process that could trace it without Yama: this user's


def allow() -> None:
    """Never raises. Where nothing forbids it, or this could not change it, nothing is done."""
    try:
        with open(_SCOPE) as file:  # noqa: PTH123
            if file.read().strip() != "1":
                return
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)
    except Exception:
        return
