"""The JSON of status and list is what its schema says, for every screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from view_scenes import SCENES

import transom_cli.view
from transom_cli.view.document import to_json
from transom_cli.view.runs import list_row

FOLDER = Path(transom_cli.view.__file__).parent / "schema"


def _schema(name: str) -> Draft202012Validator:
    schema = json.loads((FOLDER / name).read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _strange(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


def _undescribed(data: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Keys that a document has and its schema does not speak of."""
    if isinstance(data, dict) and "properties" in schema:
        known = schema["properties"]
        return [f"{at}.{key}" for key in data if key not in known] + [
            found for key in data if key in known for found in _undescribed(data[key], known[key], f"{at}.{key}")
        ]
    if isinstance(data, list) and isinstance(schema.get("items"), dict):
        return [found for one in data for found in _undescribed(one, schema["items"], at)]
    return []


@pytest.mark.parametrize("name", SCENES)
def test_a_document_is_what_the_schema_says(name: str, tmp_path: Path) -> None:
    validator = _schema("status.json")
    told = json.loads(to_json(SCENES[name](tmp_path)), parse_constant=_strange)
    assert [error.message for error in validator.iter_errors(told)] == []
    assert _undescribed(told, validator.schema) == []


def test_the_list_is_what_its_schema_says(tmp_path: Path) -> None:
    rows = []
    for name, scene in SCENES.items():
        (tmp_path / name).mkdir()
        rows.append(list_row(scene(tmp_path / name)))
    validator, told = _schema("list.json"), {"schema": 2, "runs": json.loads(json.dumps(rows))}
    assert [error.message for error in validator.iter_errors(told)] == []
    assert _undescribed(told, validator.schema) == []


def test_moments_stand_there_in_utc_too(tmp_path: Path) -> None:
    told = json.loads(to_json(SCENES["one_node_of_many"](tmp_path)))
    assert (told["now_utc"], told["nodes_at_utc"]) == ("2026-11-22T07:10:00.000Z", "2026-11-22T07:09:59.400Z")
    assert told["incidents"][0]["began_utc"] == "2026-11-22T05:46:40.000Z"
    assert told["slurm_start_utc"] is None and told["next_steps"][0]["at_utc"].startswith("2026-11-23T00:57:30")


def test_64_nodes_are_some_kilobytes(tmp_path: Path) -> None:
    assert len(to_json(SCENES["one_node_of_many"](tmp_path))) < 16_000


def test_first_keys_of_schema_2_are_kept(tmp_path: Path) -> None:
    """Within a schema number a document is only ever added to."""
    told = json.loads(to_json(SCENES["healthy"](tmp_path)))
    first = (
        "run_id now phase over since job_id restarts starts step durable loss nodes spares excluded slurm_state "
        "slurm_reason slurm_lost operator verdict exit_code incidents memory memory_age memory_protection "
        "save_schedule reports step_breakdown step_breakdown_lines schema"
    )
    assert set(first.split()) <= set(told)
    assert told["nodes"] == ["gpu000", "gpu001", "gpu002", "gpu003"] and told["excluded"] == []
