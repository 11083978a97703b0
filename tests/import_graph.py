"""What imports what, read from the source with `ast`: nothing is imported to find out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One module named by an import statement; `late` when it stands in a function and so costs nothing at start."""

    target: str
    late: bool
    line: int


@dataclass(frozen=True)
class Graph:
    """Imports by module name. Blocks under `if TYPE_CHECKING:` are left out: they never run."""

    paths: dict[str, Path]
    imports: dict[str, tuple[Import, ...]]

    @classmethod
    def of(cls, package: Path) -> Graph:
        paths = {_name(path, package.parent): path for path in sorted(package.rglob("*.py"))}
        return cls(paths, {name: tuple(_imports(name, path, paths)) for name, path in paths.items()})

    def inside(self, name: str, *, late: bool) -> set[str]:
        """The package's own modules that `name` imports; with `late`, those in functions as well."""
        return {i.target for i in self.imports[name] if i.target in self.paths and (late or not i.late)}

    def outside(self, name: str, *, late: bool) -> set[str]:
        """Top-level names of everything else that `name` imports."""
        return {
            i.target.partition(".")[0]
            for i in self.imports[name]
            if i.target not in self.paths and (late or not i.late)
        }

    def reached(self, name: str, *, late: bool) -> set[str]:
        """`name` and all modules that it imports, directly or through others."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += self.inside(module, late=late)
        return seen


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    is_package = path.name == "__init__.py"
    for node, late in _statements(ast.parse(path.read_text()), late=False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, late, node.lineno)
            continue
        base = node.module or ""
        if node.level:
            parents = name.split(".")[: None if is_package and node.level == 1 else int(is_package) - node.level]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield Import(inner if inner in known else base, late, node.lineno)


def _statements(node: ast.AST, *, late: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in (one for field in _BLOCKS for one in getattr(node, field, ())):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, late
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _statements(other, late=late)
        else:
            yield from _statements(child, late=late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements are
