"""What a holder does for one process of its own node: a rank, or the node's agent. One per connection, one thread."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transom_cli.ckpt.manifest import FileEntry, decode
from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule.plan import NextSaves
from transom_cli.ckpt.snapshot import launches, messages
from transom_cli.ckpt.snapshot.finding import Found, NotHad
from transom_cli.ckpt.snapshot.holding import Holding
from transom_cli.ckpt.snapshot.launches import Launch
from transom_cli.ckpt.snapshot.persisting import RESERVED
from transom_cli.ckpt.snapshot.protection import NONE, parse
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.snapshot.slot import Share, Slot
from transom_cli.ckpt.snapshot.writing import Order
from transom_cli.core.codec import build, plain

Answer = tuple[dict[str, Any], list[int]]  # and descriptors, which stay ours
SURVEY = 5.0  # seconds for a neighbour to tell what it has
_RHYTHM = 500  # characters
PATIENCE = 30.0  # seconds at most that one question may wait here


class Desk:
    """`find`: the holding for a directory and the token that its folder has, made if need be where a node is named.
    `serve`: listen for a directory's neighbours with a key, on a port if it is free; returns the port. `forget`: nobody
    needs it."""

    def __init__(
        self,
        find: Callable[[str, str, str], Holding],
        serve: Callable[[str, bytes, str, int], int],
        forget: Callable[[Holding], None],
    ) -> None:
        self._find, self._serve, self._forget = find, serve, forget
        self._holding: Holding | None = None
        self._launch: Launch | None = None
        self._rank = -1
        self._found: list[Found] = []
        self._parcels: list[int] = []

    def answer(self, name: str, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """What this raises becomes the answer's error. The descriptors in `fds` that are taken over are removed."""
        self._close_parcels()
        act = getattr(self, f"_do_{name}", None)
        if act is None:
            raise ValueError(f"a memory holder is not asked for {name!r}")
        answer: Answer = act(about, fds)
        return answer

    def close(self) -> None:
        """The process has gone: what it was writing to is no snapshot, and what it read may be overwritten."""
        self._close_parcels()
        self._end_reading()
        if self._holding is not None:
            self._holding.restoring.pop(self._rank, None)

    # A rank comes

    def _do_listen(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        launch, directory, node = launches.read(about["launch"]), str(about["directory"]), str(about["node"])
        self._find(directory, str(about["token"]), node).shelf.admit(launch)
        return {"port": self._serve(directory, bytes.fromhex(about["key"]), node, int(about["port"]))}, []

    def _do_join(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """Its memory from an earlier launch comes back with the answer, as [index, bytes] and a descriptor each."""
        launch, rank, node = launches.read(about["launch"]), int(about["rank"]), str(about["node"])
        holding = self._find(str(about["directory"]), str(about["token"]), node)
        if holding.shelf.launch != launch:
            holding.begin()
        holding.protect = protection = parse(str(about.get("protect", NONE)))
        slots = holding.shelf.join(launch, rank, protection != NONE)
        rate = None if about.get("rate") is None else float(about["rate"])
        holding.protecting.choose(protection, {str(n): str(d) for n, d in about.get("domains", {}).items()}, rate)
        places = {str(n): (str(address), int(port)) for n, (address, port) in about["places"].items()}
        holding.meet(node, places, bytes.fromhex(about["key"]))
        holding.persisting.copy_to({Path(d): int(every) for d, every in about.get("also", ())})
        self._holding, self._launch, self._rank = holding, launch, rank
        rows = sorted(slots.items())[:8]
        return {"slots": [[n, slot.size] for n, slot in rows]}, [slot.fd for _, slot in rows]

    def _do_lend(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        slot = Slot(fds[0], int(about["size"]))
        del fds[0]
        try:
            self.holding.shelf.lend(self.launch, self._rank, int(about["index"]), slot, write=bool(about["write"]))
        except BaseException:
            slot.close()
            raise
        return {}, []

    def _do_look(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """For one that asks and is no rank."""
        self._holding = self._find(str(about["directory"]), str(about["token"]), "")
        return {}, []

    def _do_bye(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        holding, self._holding = self.holding, None
        if holding.shelf.leave(self.launch, self._rank):
            self._forget(holding)
        return {}, []

    # A save

    def _do_take(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        index, why = self.holding.shelf.take(
            self.launch, self._rank, min(PATIENCE, float(about["patience"])), about.get("index")
        )
        pinned = self.holding.shelf.pinned if index is None else None
        words = self._words() if about.get("words") else []
        return {"index": index, "busy": why, "pinned": pinned, "words": words}, []

    def _do_drop(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        self.holding.shelf.drop(self.launch, self._rank, int(about["index"]))
        return {}, []

    def _do_hold(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        share = _share(about, fds)
        if about.get("index") is None:
            self.holding.shelf.hold(self.launch, self._rank, share)
        else:
            self.holding.shelf.again(self.launch, self._rank, int(about["index"]), share)
        return {}, []

    def _do_commit(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        data, size = messages.unpack(fds[0]), int(about["manifest"])
        record = Record(data[:size], data[size:])
        step, uses = int(about["step"]), [str(why) for why in about["reserve"]]
        self.holding.shelf.commit(self.launch, step, record, uses, restored=about.get("restored") is True)
        if RESERVED in uses:
            self.holding.persisting.tried_again(step)
        return {}, []

    def _do_superseded(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """All ranks of all nodes have committed a step that is newer than the restored one."""
        self.holding.shelf.superseded(self.launch, int(about["step"]))
        return {}, []

    def _do_secure(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """Begin to make the restored step durable, by the holder of `by`: its memory is needed. Answers whether it is
        kept at all."""
        step, attempt = int(about["step"]), str(about["attempt"])
        kept = self.holding.shelf.pinned == step
        if kept:
            self.holding.persisting.tried_again(step)
            self.holding.neighbours.ask(str(about["by"]), "persist", SURVEY, step=step, attempt=attempt)
        return {"kept": kept}, []

    def _do_durable(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """The restored step is on disk."""
        self.holding.shelf.durable(self.launch, int(about["step"]))
        return {}, []

    def _do_plan(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """When the training saves, in words, and which saves come next."""
        self.holding.rhythm, self.holding.coming = str(about["rhythm"])[:_RHYTHM], build(NextSaves, about["coming"])
        return {}, []

    def _do_persist(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        self.holding.persisting.begin(Order(int(about["step"]), str(about["attempt"]), _keep(about)))
        return {}, []

    def _do_protect(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        self.holding.protecting.begin(int(about["step"]))
        return {}, []

    def _do_outcome(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """Of a step that the holder of `by` sees to."""
        patience = min(PATIENCE, float(about["patience"]))
        state, trouble = self.holding.persisting.outcome_by(str(about["by"]), int(about["step"]), patience)
        return {"state": state, "trouble": trouble}, []

    def _do_unheard(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """Its outcome is waited for no more."""
        self.holding.shelf.release(int(about["step"]), RESERVED)
        return {}, []

    def _do_copying(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """Whether the holder of `by` has copies written."""
        return {"busy": self.holding.persisting.copying_by(str(about["by"]))}, []

    def _do_tidying(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        return {"busy": self.holding.persisting.tidying}, []

    def _do_words(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        return {"words": self._words()}, []

    def _do_state(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """What this node holds, in short: for whoever looks."""
        return self.holding.state(), []

    def _do_states(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """The same of all nodes: {node: account or {"error": ..}}, as a parcel."""
        answers = self.holding.neighbours.ask_all("state", SURVEY)
        return {}, [self._parcel(json.dumps(answers).encode("ascii"))]

    def _do_check(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """All that is in memory of a step is read again, on all nodes: what came out, as a parcel."""
        checked = plain(self.holding.checking.everywhere(int(about["step"])))
        return {}, [self._parcel(json.dumps(checked).encode("ascii"))]

    # A restore

    def _do_survey(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """What all holders have: {node: {"held": .., "records": ..} or {"error": ..}}, as a parcel."""
        answers = self.holding.neighbours.ask_all("all", SURVEY)
        return {}, [self._parcel(json.dumps(answers).encode("ascii"))]

    def _do_record(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        sizes = int(about["manifest"]), int(about["metadata"])
        data = bytearray(sum(sizes))
        self.holding.neighbours.ask(str(about["node"]), "record", SURVEY, memoryview(data), step=int(about["step"]))
        return {}, [self._parcel(bytes(data))]

    def _do_fetch(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """A share whose bytes are those of the record, in memory: good until `rewind`, or until the rank goes. Without
        `check` the asker sees to that of what is held here; what turns out to be damaged it asks for again, with."""
        entry = FileEntry(str(about["file"]), int(about["size"]), str(about["sum"]))
        try:
            found = self.holding.finder.find(int(about["step"]), entry, check=about["check"] is not False)
        except NotHad as error:
            raise messages.Refused(str(error)) from None
        self._found.append(found)
        told = {"size": found.size, "where": found.where, "segments": list(found.segments), "checked": found.checked}
        return told, [found.fd]

    def _do_restoring(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        """How far this rank is, until `rewind`."""
        self.holding.restoring[self._rank] = build(Part, about)
        return {}, []

    def _do_rewind(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        self._end_reading()
        self.holding.restoring.pop(self._rank, None)
        step = None if about["step"] is None else int(about["step"])
        self.holding.shelf.rewind(self.launch, step)
        self.holding.rewind(step)
        return {}, []

    def _do_trust(self, about: Mapping[str, Any], fds: list[int]) -> Answer:
        manifest = decode(messages.unpack(fds[0]))
        directory = Path(str(about["directory"]))
        if self.holding.persisting.writes_to(directory):
            self.holding.persisting.trust(directory, str(about["attempt"]), _keep(about), manifest)
        return {}, []

    def _end_reading(self) -> None:
        found, self._found = self._found, []
        for one in found:
            with contextlib.suppress(OSError):
                one.end()

    def _words(self) -> list[str]:
        """What there was to tell since the last time."""
        words = self.holding.words
        return [words.popleft() for _ in range(len(words))]

    def _parcel(self, data: bytes) -> int:
        self._parcels.append(messages.parcel(data))
        return self._parcels[-1]

    def _close_parcels(self) -> None:
        while self._parcels:
            os.close(self._parcels.pop())

    @property
    def holding(self) -> Holding:
        if self._holding is None:
            raise ValueError("join first")
        return self._holding

    @property
    def launch(self) -> Launch:
        if self._launch is None:
            raise ValueError("join first")
        return self._launch


def _keep(about: Mapping[str, Any]) -> Keep:
    every = about["keep_every"]
    return Keep(int(about["keep"]), None if every is None else int(every))


def _share(about: Mapping[str, Any], fds: list[int]) -> Share:
    """Segments travel as a parcel: there may be as many as tensors."""
    segments = tuple((int(start), int(length)) for start, length in json.loads(messages.unpack(fds[0])))
    return Share(int(about["step"]), str(about["file"]), int(about["size"]), str(about["sum"]), segments)
