"""Beats without a changed line: on PYTHONPATH this module makes every optimizer step of PyTorch beat.

Python imports `sitecustomize` at its start. It waits for the trainer to import torch's optimizers and registers a
step hook on them; it never imports torch itself. Only the first optimizer that steps is counted (a GAN has two), and
the steps count from 1 in this process, told from the second on, and are marked as such. A trainer's own call of
`transom_cli.beat` ends the automatic ones. A `sitecustomize` that this one hides is run in its place. Nothing that
happens here may reach the trainer.

Ranks start with SIGUSR2 ignored, so that Slurm's warning before the time limit kills no trainer that does not know it.
Lightning takes an ignored signal for one that the user handles, and would not install its own handler: corrected here.
Its Trainer also knows the step from which training resumes.

Every Python of a job runs this file: loader workers, pip, small tools. So it imports nothing that Python has not
imported before, and leaves `sys.path` at once, where each later import would look into its folder.
"""

import sys
from os import environ, getpid

TYPE_CHECKING = False  # as typing has it; Python's own start must not wait for that import
if TYPE_CHECKING:
    from typing import Any

_HERE = __file__.rpartition("/")[0]  # as it is in PYTHONPATH
_OPTIMIZER = ("torch.optim.optimizer",)
_LIGHTNING = tuple(
    f"{package}.trainer.connectors.signal_connector" for package in ("lightning.pytorch", "pytorch_lightning")
)
_RANK_PID = "TRANSOM_RANK_PID"  # the job and process whose optimizer steps: no child of it is a rank
_trainers: "list[Any]" = []  # Lightning's newest
_LEARNED = 5  # optimizer steps after which a trainer has imported what it needs
_JOB = f"{environ.get('SLURM_JOB_ID', '')}:"


class _Import:
    """Sees the import of one of the modules that it waits for, lets the real finders do it, and leaves."""

    def __init__(self, names: "tuple[str, ...]", then: "Any") -> None:
        self._names, self._then = names, then

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self._names:
            return None
        sys.meta_path.remove(self)
        if name in _OPTIMIZER and environ.get("TRANSOM_BEAT_DIR"):  # where the node has an agent
            _allow_tracing()
        spec = _find(name, path)
        if spec is not None and spec.loader is not None:
            run, then = spec.loader.exec_module, self._then

            def exec_module(module: "Any") -> None:
                run(module)
                try:
                    then(module)
                except Exception:
                    return

            spec.loader.exec_module = exec_module
        return spec


def _find(name: str, path: "Any") -> "Any":
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, None) if find is not None else None
        if spec is not None:
            return spec
    return None


def _let_lightning_handle(module: "Any") -> None:
    """Do not count an ignored signal as one that has a handler already; note the Trainer, which knows the step."""
    import signal

    def has_handler(signum: "Any") -> bool:
        return signal.getsignal(signum) not in (None, signal.SIG_DFL, signal.SIG_IGN)

    connector = module._SignalConnector
    init = connector.__init__

    def remember(self: "Any", trainer: "Any", *args: "Any", **kwargs: "Any") -> None:
        init(self, trainer, *args, **kwargs)
        _trainers[:] = [trainer]

    connector.__init__ = remember
    if hasattr(connector, "_has_already_handler"):
        connector._has_already_handler = staticmethod(has_handler)


def _register(module: "Any") -> None:
    import weakref

    sys.meta_path.insert(0, _Import(_LIGHTNING, _let_lightning_handle))

    client = _client()
    counted = None  # weak reference to the optimizer whose steps count
    step = 0

    def stepped(optimizer: "Any", args: "Any", kwargs: "Any") -> None:
        nonlocal counted, step
        try:
            leader = counted() if counted is not None else None
            if leader is None:
                counted = weakref.ref(optimizer)
                environ[_RANK_PID] = f"{_JOB}{getpid()}"
            elif leader is not optimizer:
                return
            step += 1
            if step == _LEARNED and (learn := environ.pop("TRANSOM_STANDBY_LEARN", "")):
                _beside("standby.py")["learn"](learn)
            if step == 2 and _trainers and len(_trainers[0].optimizers) == 1:  # with more, it counts them all
                client.resumed(_trainers[0].global_step - 1)  # which is counted after this hook
            if step > 1:  # a trainer that beats by itself has done so by then: its own steps are never mixed with ours
                client.automatic_beat(step)
        except Exception:
            return

    # torch.compile shall call this and not look into it. Its decorator for that would import the compiler, in seconds.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    module.register_optimizer_step_post_hook(stepped)


def _client() -> "Any":
    """transom's client from the trainer's own environment, else from beside this file."""
    try:
        from transom_cli.heartbeat import client
    except ImportError:
        root = _HERE.rsplit("/", 3)[0]
        sys.path.append(root)
        try:
            from transom_cli.heartbeat import client
        finally:
            sys.path.remove(root)
    return client


def _allow_tracing() -> None:
    """Before the first beat there may be a hang, too."""
    try:
        _beside("tracing.py")["allow"]()
    except Exception:
        return


def _beside(name: str) -> "Any":
    """Run a module of transom's by its path, and return its names: the trainer may find another transom."""
    path = f"{_HERE.rpartition('/')[0]}/{name}"
    names: dict[str, object] = {"__name__": f"transom_{name[:-3]}", "__file__": path}
    with open(path) as file:  # noqa: PTH123
        exec(compile(file.read(), path, "exec"), names)
    return names


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without us, as if it had been."""
    ours = sys.modules.pop(__name__, None)
    try:
        __import__(__name__)
    except BaseException as error:
        if ours is not None:
            sys.modules[__name__] = ours
        if not (isinstance(error, ImportError) and error.name == __name__):
            raise


_rest = [entry for entry in sys.path if entry.rstrip("/") != _HERE]
if len(_rest) < len(sys.path):  # otherwise the import of the hidden one would find this one again
    sys.path[:] = _rest
    _run_hidden()
_in_run = environ.get("TRANSOM_RUN_DIR") or environ.get("TRANSOM_BEAT_DIR")
_parent = environ.get(_RANK_PID, "")  # of another job, if a trainer has submitted this one
if _in_run and (_parent == f"{_JOB}{getpid()}" or not _parent.startswith(_JOB)):
    sys.meta_path.insert(0, _Import(_OPTIMIZER, _register))

if _waiting := environ.pop("TRANSOM_STANDBY", ""):
    _go, _report, _output, _modules = _waiting.split(",", 3)
    _beside("standby.py")["wait"](_modules, int(_go), int(_report), int(_output))
