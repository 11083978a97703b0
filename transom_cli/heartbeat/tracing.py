"""Let the node's agent read this process's stack where Yama's ptrace_scope is 1, Ubuntu's default.

There only ancestors may trace a process, and the agent is not an ancestor of the ranks. The permission that the wrapper
gives covers the one process it starts and is not inherited: a rank of torchrun must give its own.

`auto/sitecustomize.py` runs this file by its path when a process imports torch, so it imports only what it needs.
"""

from __future__ import annotations

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER, _ANY = 0x59616D61, -1  # any process of this user


def allow() -> None:
    """Permit tracing by this user's processes if Yama forbids it. Never raises."""
    try:
        with open(_SCOPE) as file:  # noqa: PTH123
            if file.read().strip() != "1":
                return
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)
    except Exception:
        return
