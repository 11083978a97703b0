"""torch.distributed.checkpoint in bench/ckpt.py: synchronous, and asynchronous with a thread or a process."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, ClassVar

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckpt_methods import Method, Place
from ckpt_state import State
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from transom_cli.ckpt.names import DCP_METADATA, parse_step


class Dcp(Method):
    background = False
    threads: ClassVar[int] = 1  # its own default

    def save(self, step: int) -> None:
        dcp.save(self._live(), storage_writer=self._writer(step))

    def steps(self) -> list[int]:
        named = [path.parent.name for path in self.place.folder.glob(f"step-*/{DCP_METADATA}")]
        return sorted((step for name in named if (step := parse_step(name)) is not None), reverse=True)

    def load(self, step: int) -> None:
        dcp.load(self._live(), storage_reader=FileSystemReader(self.path(step)))

    def _live(self) -> dict[str, Any]:
        return dict(self.state.tensors)

    def _writer(self, step: int) -> FileSystemWriter:
        return FileSystemWriter(self.path(step), thread_count=self.threads)


class DcpTwo(Dcp):
    threads = 2


class DcpThread(Dcp):
    """Stage at each save, which is the default. The group is its own, since training uses the default one meanwhile."""

    background = True
    kind: ClassVar[AsyncCheckpointerType] = AsyncCheckpointerType.THREAD

    def __init__(self, state: State, place: Place) -> None:
        super().__init__(state, place)
        self._group = dist.new_group(backend="gloo")
        self._stager = self._make_stager()
        self._future: Future[Any] | None = None

    def save(self, step: int) -> None:
        self._future = dcp.async_save(  # type: ignore[assignment]  # a plain future, as staging is not asynchronous
            self._live(),
            storage_writer=self._writer(step),
            process_group=self._group,
            async_checkpointer_type=self.kind,
            async_stager=self._stager,
        )

    def done(self) -> bool:
        return self._future is None or self._future.done()

    def finish(self) -> None:
        if self._future is not None:
            self._future.result()

    def _make_stager(self) -> Any:
        return None

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


class DcpThreadCached(DcpThread):
    def _make_stager(self) -> Any:
        return _stager(shared=False)


class DcpProcess(DcpThread):
    kind = AsyncCheckpointerType.PROCESS

    def _make_stager(self) -> Any:
        return _stager(shared=True)


def _stager(shared: bool) -> Any:
    """One that keeps its memory from save to save. Of newer torch versions only."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=shared, use_async_staging=False, use_non_blocking_copy=False
        )
    )
