"""requirements/login-node.txt fits pyproject.toml: pip refuses to install with hashes if one package is missing."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """By name: each pinned version, and how many hashes it has."""
    found = defaultdict(list)
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements" / "login-node.txt").read_text(), flags=re.MULTILINE)
    for entry in text.replace("\\\n", " ").splitlines():
        pinned = Requirement(entry.partition(" --hash")[0].strip())
        found[_name(pinned)].append((pinned, entry.count("--hash=sha256:")))
    return found


def _name(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def _applies(requirement: Requirement, python: str) -> bool:
    values = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return requirement.marker is None or requirement.marker.evaluate(values)


def test_every_entry_is_one_version_with_hashes() -> None:
    entries = [entry for versions in locked().values() for entry in versions]
    assert len(entries) > len(PROJECT["project"]["dependencies"])
    assert [str(one) for one, hashes in entries if not hashes or not str(one.specifier).startswith("==")] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_each_dependency_is_there_in_a_version_that_fits(python: str) -> None:
    pinned, wrong = locked(), []
    for text in (*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]):
        wanted = Requirement(text)
        if not _applies(wanted, python):
            continue
        versions = [one for one, _ in pinned.get(_name(wanted), []) if _applies(one, python)]
        if len(versions) != 1 or not wanted.specifier.contains(str(versions[0].specifier)[2:]):
            wrong.append((text, [str(one) for one in versions]))
    assert not wrong, "run `make lock`"
