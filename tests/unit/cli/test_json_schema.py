"""`--json-schema`: the reply is JSON by the schema, and a bad file costs no loading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, ScriptedProgram


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    colour = {"type": "string", "enum": ["red", "blue"]}
    path.write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {"colour": colour},
                "required": ["colour"],
                "additionalProperties": False,
            }
        )
    )
    return path


def test_the_reply_is_json_by_the_schema(run: Run, schema: Path) -> None:
    outcome = run("generate", "hello", "--json-schema", str(schema))
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["colour"] in ("red", "blue")
    document = json.loads(run("generate", "hello", "--json-schema", str(schema), "--json").out)
    assert document["text"] == outcome.out
    assert document["finish_reason"] == "stop"


def test_the_schema_can_be_given_itself(run: Run, schema: Path) -> None:
    outcome = run("generate", "hello", "--json-schema", schema.read_text())
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == run("generate", "hello", "--json-schema", str(schema)).out
    for wrong in ('{"type": }', "[1]", ' {"type": "nonsense"}'):
        run("generate", "hello", "--json-schema", wrong).is_one_error("--json-schema")


def test_a_conversation_keeps_to_it_too(run: Run, schema: Path) -> None:
    outcome = run("chat", "--json-schema", str(schema), stdin=b"hello\nagain\n")
    assert outcome.code == 0
    assert outcome.out.count('{"colour":"') == 2


def test_painting_names_forced_tokens_only_where_there_is_a_schema(run: Run, schema: Path) -> None:
    assert "forced" in run("generate", "hello", "--color", "--json-schema", str(schema)).err
    assert "forced" not in run("generate", "hello", "--color").err


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "cannot read"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "must be an object"),
        (b"false", "no reply"),
        (b'{"type": "nonsense"}', "nonsense"),
        (b'{"properties": {"a": {"maxlength": 1}}}', "/properties/a: maxlength is not enforced"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(
    run: Run, program: ScriptedProgram, tmp_path: Path, content: bytes | None, word: str
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    run("generate", "hello", "--json-schema", str(path)).is_one_error(
        "--json-schema", "bad.json", word
    )
    assert not program.configs, "nothing is loaded for a request that cannot work"
    run("generate", "hello", "--json-schema", str(tmp_path)).is_one_error("Is a directory")
