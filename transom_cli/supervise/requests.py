"""Requests of people to a run's operator, as files of the owner or through the request socket."""

import getpass
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from transom_cli.core import events as ev
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.toml import read_toml

STOP, LIFT, REQUEUE, RESUME = KINDS = ("stop", "lift", "requeue", "resume")
MAX_NODES = 4096  # in one request to lift


def event_of(request: Mapping[str, Any], at: float, who: str, name: str) -> ev.Event | None:
    """Return the event for the core; None for anything that is not a request.

    who: the author, as journal and screen show it. name: identifies the request, so that it counts once.
    """
    kind, nodes = request.get("ask"), request.get("nodes")
    if kind == STOP:
        return ev.StopRequested(at, who)
    if kind == REQUEUE:
        return ev.RequeueRequested(at, who, name)
    if kind == RESUME:
        return ev.ResumeRequested(at, who, name)
    if kind == LIFT and isinstance(nodes, list) and len(nodes) <= MAX_NODES and all(isinstance(n, str) for n in nodes):
        return ev.LiftRequested(at, who, name, tuple(nodes))
    return None


def write_request(run: RunDir, kind: str, who: str, **more: Any) -> str:
    """Leave a request for the operator in the user's own run, and return its name. Raises OSError."""
    run.requests.mkdir(mode=0o700, exist_ok=True)
    name = f"{kind}-{time.time_ns()}-{os.getpid()}.json"
    publish_text(run.requests / name, json.dumps({"ask": kind, "who": who, **more}))
    return name


def on_call(run: RunDir) -> tuple[str, ...]:
    """Return the users whose requests the operator carries out (`run.on_call`)."""
    section = read_toml(run.settings).get("run")
    users = section.get("on_call") if isinstance(section, dict) else None
    return tuple(map(str, users)) if isinstance(users, list) else ()


def this_user() -> str:
    return f"{getpass.getuser()} on {socket.gethostname()}"
