"""Generate docs/messages.md: every error that a user may see, with the exit code of its class."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_INTRO = """# Messages

Every error begins with one of these lines (`error: ...` on stderr; `--json`: `error.what`). Words in CAPITALS and ...
are placeholders for names, paths and numbers. The error continues with the reason, usually quoted from Slurm or the
system, and with the hint that this page lists. [Troubleshooting](troubleshooting.md) explains the exit codes and the
common errors.
"""
_ROOMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Elsewhere", ()),
    ("Scripts and commands", ("submit", "cli.submitting", "cli.run", "cli.app", "cli.ending")),
    ("Settings, policy, rules and logs", ("config", "diagnose", "cli.policy", "cli.diagnos")),
    ("Runs and their supervisors", ("supervise", "view", "bootstrap", "cli.status", "cli.show", "cli.launch", "cli")),
    ("Nodes and checks", ("health", "cli.check", "cli.nodes", "supervise.operator.lift")),
    ("Slurm", ("slurm",)),
    ("Checkpoints", ("ckpt", "cli.ckpt")),
    ("Notifications and metrics", ("notify", "cli.notify", "config.notify")),
    ("Between launcher and agents", ("rpc.secret",)),
    ("The sandbox", ("sandbox", "cli.sandbox")),
)
_NOT_MET = (
    "supervise.agent",
    "rpc",
    "heartbeat",
    "ckpt.snapshot",
    "core",
    "diagnose.hangs",
    "errors",
)  # only other parts of transom see these
_MET = ("rpc.secret", "ckpt.snapshot.protection")


@dataclass(frozen=True)
class Message:
    module: str  # as "slurm.runner"
    what: str
    code: int
    hint: str


def messages_markdown(package: Path) -> str:
    trees = {_module(path, package): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    everywhere = {name: node for tree in trees.values() for name, node in _classes(tree).items()}
    everywhere |= _classes(trees["errors"])
    codes = _codes(everywhere, everywhere)
    found = []
    for module, tree in trees.items():
        if _is_met(module):  # of two classes with one name, a module means its own
            own = _classes(tree)
            found += _messages(module, tree, {**codes, **_codes(own, {**everywhere, **own})})
    doings = _doings(trees.values())
    found = [filled for message in found for filled in _filled(message, doings)]
    parts = [_INTRO]
    for title, _ in (*_ROOMS[1:], _ROOMS[0]):
        rows = {(m.what, m.code): m.hint for m in found if _room(m.module) == title}
        if not rows:
            continue
        parts.append(f"\n## {title}\n\n| message | exit code | what to do |\n|---|---|---|\n")
        for (what, code), hint in sorted(rows.items(), key=lambda row: (row[0][1], row[0][0].lower())):
            parts.append(f"| {_cell(what)} | [{code}](troubleshooting.md#exit-{code}) | {_cell(hint)} |\n")
    return "".join(parts)


def _doings(trees: Iterable[ast.Module]) -> list[str]:
    """Return the action during which a system call failed, as `submit.rundir.explain` and its callers word it."""
    said: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.keyword) and node.arg == "doing":
            said.add(_text(node.value))
        elif isinstance(node, ast.arguments):
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            said |= {_text(default) for name, default in pairs if name.arg == "doing" and default is not None}
    return sorted(said - {""})


def _filled(message: Message, doings: list[str]) -> list[Message]:
    if "DOING" not in message.what:
        return [message]
    return [replace(message, what=message.what.replace("DOING", doing)) for doing in doings]


def _module(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package).with_suffix("").parts)


def _under(module: str, names: tuple[str, ...]) -> int:
    """How much of the module's name the longest of the names covers; 0: none does."""
    return max((len(name) for name in names if module.startswith(name)), default=0)


def _is_met(module: str) -> bool:
    return not _under(module, _NOT_MET) or bool(_under(module, _MET))


def _room(module: str) -> str:
    """The first where no other has it."""
    return max(_ROOMS, key=lambda room: _under(module, room[1]))[0]


def _messages(module: str, tree: ast.Module, codes: dict[str, int]) -> Iterator[Message]:
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))]:
        said = None  # a walk of its own, which few scopes need
        for call in _own(function):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            words = [*call.args, *(given[key] for key in ("what", "why", "hint")[len(call.args) :] if key in given)]
            if name not in codes or not words:
                continue
            said = _said(function) if said is None else said
            hint = call.args[2] if len(call.args) > 2 else given.get("hint")
            for what in _texts(words[0], said):
                yield Message(module, what, codes[name], _constant(hint, said))


def _own(scope: ast.AST) -> Iterator[ast.Call]:
    """Return the calls in this scope, without nested scopes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _own(child)


def _said(scope: ast.AST) -> dict[str, list[str]]:
    """Return the texts assigned to the scope's variables."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(scope):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
        for target, value in pairs:
            text = _text(value)
            if isinstance(target, ast.Name) and text:
                found.setdefault(target.id, []).append(text)
    return found


def _texts(node: ast.expr, said: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Name):
        return said.get(node.id, [])
    text = _text(node)
    return [text] if text.strip(". ") else []


def _text(node: ast.expr) -> str:
    """Return the text of an expression, with placeholders for values known only at run time."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else _stand_in(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_text(node.left) or "...") + (_text(node.right) or "...")
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "by_hand":  # as on the cluster at hand
        return _text(node.args[0])
    return ""


def _stand_in(part: ast.expr) -> str:
    """Return a variable's name in capitals, or ... for any other expression."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else "..."
    return name.strip("_").upper()


def _constant(node: ast.expr | None, said: dict[str, list[str]]) -> str:
    text = next(iter(_texts(node, said)), "") if node is not None else ""
    return text if any(c.islower() for c in text.replace("...", "")) or text.startswith("--") else ""


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _codes(names: Iterable[str], classes: dict[str, ast.ClassDef]) -> dict[str, int]:
    """Return the exit code of each error class."""
    return {name: code for name in names if (code := _code(name, classes)) is not None}


def _code(name: str, classes: dict[str, ast.ClassDef]) -> int | None:
    node = classes.get(name)
    for line in node.body if node else ():
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "exit_code":
            return int(ast.unparse(line.value))
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)] if node else []
    return next((code for base in bases if (code := _code(base, classes)) is not None), None)


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
