"""Generate docs/messages.md: every error that a user may see, with the exit code of its class."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_INTRO = """# Messages

Every error begins with one of these lines (`error: ...` on stderr; `--json`: `error.what`). Words in CAPITALS and ...
are placeholders for names, paths and numbers. The error continues with the reason, usually quoted from Slurm or the
system, and with the hint, if this page lists one. An error of a command that has no hint of its own names the help of
that command. [Troubleshooting](troubleshooting.md) explains the exit codes and the common errors.
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
_AS_ON_THE_CLUSTER = ("by_hand", "cluster_command")
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
_OF_COMMANDS = ("cli", "config", "diagnose", "health", "notify", "sandbox", "simulate", "submit", "view")


@dataclass(frozen=True)
class Message:
    module: str  # as "slurm.runner"
    what: str
    code: int
    hint: str


def messages_markdown(package: Path) -> str:
    trees = {_module(path, package): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    met = {module: tree for module, tree in trees.items() if _is_met(module)}
    everywhere = {name: node for tree in (*met.values(), trees["errors"]) for name, node in _classes(tree).items()}
    shared = {name: texts for tree in trees.values() for name, texts in _constants(tree).items() if name[0] != "_"}
    codes = _codes(everywhere, everywhere)
    found = []
    for module, tree in met.items():  # of two classes with one name, a module means its own
        own = _classes(tree)
        known = {**everywhere, **own}
        found += _messages(module, tree, {**codes, **_codes(own, known)}, known, {**shared, **_constants(tree)})
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


def _doings(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Return what failed with a system call, and what to do instead, as `path_error` and its callers word them."""
    said, default = dict[str, str](), ""
    for node in (node for tree in trees for node in ast.walk(tree)):
        pairs: dict[str, ast.expr | None] = {}
        if isinstance(node, ast.Call):
            pairs = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.arguments):
            pairs = dict(zip((name.arg for name in node.kwonlyargs), node.kw_defaults, strict=True))
        doing, instead = (_text(value) if (value := pairs.get(name)) else "" for name in ("doing", "instead"))
        if doing:
            said[doing] = instead or said.get(doing, "")
        if doing and isinstance(node, ast.arguments):
            default = instead
    return {doing: said[doing] or default for doing in sorted(said)}


def _filled(message: Message, doings: dict[str, str]) -> list[Message]:
    if "DOING" not in message.what:
        return [message]
    return [
        replace(message, what=message.what.replace("DOING", doing), hint=message.hint.replace("INSTEAD", instead))
        for doing, instead in doings.items()
    ]


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


def _messages(
    module: str, tree: ast.Module, codes: dict[str, int], classes: dict[str, ast.ClassDef], shared: dict[str, list[str]]
) -> Iterator[Message]:
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))]:
        said = None  # a walk of its own, which few scopes need
        for call in _own(function):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            words = [*call.args, *(given[key] for key in ("what", "why", "hint")[len(call.args) :] if key in given)]
            if name not in codes or not words or isinstance(call.args[-1], ast.Starred):  # an error of another rank
                continue
            said = {**shared, **_said(function, shared)} if said is None else said
            hint = call.args[2] if len(call.args) > 2 else given.get("hint")
            why = call.args[1] if len(call.args) > 1 else given.get("why")
            advice = _constant(hint, said) or _of_class(name, classes, "advice")
            if not advice and codes[name] == 2 and module.partition(".")[0] in _OF_COMMANDS:
                advice = "transom ... --help"
            reason = "" if advice else _constant(why, said)
            for what in _texts(words[0], said):
                yield Message(module, f"{what}: {reason}" if reason else what, codes[name], advice)


def _own(scope: ast.AST) -> Iterator[ast.Call]:
    """Return the calls in this scope, without nested scopes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _own(child)


def _said(scope: ast.AST, known: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the texts assigned to the scope's variables, and the defaults of its parameters."""
    found: dict[str, list[str]] = {}
    if isinstance(scope, ast.FunctionDef):
        names = (*scope.args.posonlyargs, *scope.args.args)
        defaults = zip(names[::-1], scope.args.defaults[::-1], strict=False)
        for name, default in (*defaults, *zip(scope.args.kwonlyargs, scope.args.kw_defaults, strict=True)):
            text = name.arg.upper() if name.arg == "instead" else _text(default) if default else ""
            if text:
                found[name.arg] = [text]
    for node in ast.walk(scope):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name) and (texts := _texts(value, known)):
                found[target.id] = found.get(target.id, []) + texts
    return found


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """Return the texts of a module's constants, and those that its functions return."""
    found = _said(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []), {})
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        found[function.name] = [text for value in returned for text in _texts(value, _said(function, {}))]
    return found


def _texts(node: ast.expr, said: dict[str, list[str]]) -> list[str]:
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        ways = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        return [text for way in ways for text in _texts(way, said)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in said:
        node = node.func
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
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
        "by_hand",
        "cluster_command",
    ):  # as on the cluster at hand
        return _text(node.args[0])
    return ""


def _stand_in(part: ast.expr) -> str:
    """Return a variable's name in capitals, or ... for any other expression."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else "..."
    return name.strip("_").upper()


def _constant(node: ast.expr | None, said: dict[str, list[str]]) -> str:
    text = next(iter(_texts(node, said)), "") if node is not None else ""
    return text if any(c.islower() for c in text.replace("...", "")) or text.startswith(("--", "INSTEAD")) else ""


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _codes(names: Iterable[str], classes: dict[str, ast.ClassDef]) -> dict[str, int]:
    """Return the exit code of each error class."""
    return {name: code for name in names if (code := _code(name, classes)) is not None}


def _code(name: str, classes: dict[str, ast.ClassDef]) -> int | None:
    code = _of_class(name, classes, "exit_code")
    return int(code) if code else None


def _of_class(name: str, classes: dict[str, ast.ClassDef], what: str) -> str:
    """Return the value of a class attribute, perhaps of a base; "" if it has none."""
    node = classes.get(name)
    for line in node.body if node else ():
        if (
            isinstance(line, ast.Assign)
            and ast.unparse(line.targets[0]) == what
            and isinstance(line.value, ast.Constant)
        ):
            return str(line.value.value)
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)] if node else []
    return next((value for base in bases if (value := _of_class(base, classes, what))), "")


def _cell(text: str) -> str:
    line = " ".join(text.split())
    line = line.replace("|", "\\|").replace("<", "&lt;")
    return line.replace("*", "\\*") if line.count("*") > 1 else line  # a pair would be read as emphasis
