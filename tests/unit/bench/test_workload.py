"""Workloads: our own prompts, files of users, and every line that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilotfish.bench.workload import (
    NO_CATEGORY,
    OWN_CATEGORIES,
    Prompt,
    Workload,
    load_workload,
    own_workload,
)
from pilotfish.errors import ConfigError, PromptError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def write(file: Path, *rows: Any) -> str:
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(file)


def test_our_own_set_has_six_prompts_in_each_of_six_categories_in_turns() -> None:
    own = own_workload()
    assert own.categories == dict.fromkeys(OWN_CATEGORIES, 6)
    assert [prompt.category for prompt in own.prompts] == list(OWN_CATEGORIES) * 6
    assert len({prompt.id for prompt in own.prompts}) == 36
    assert len({prompt.content for prompt in own.prompts}) == 36


def test_our_own_prompts_have_the_size_of_their_kind() -> None:
    for prompt in own_workload().prompts:
        assert isinstance(prompt.content, str)
        assert prompt.content == prompt.content.strip()
        num_words = len(prompt.content.partition("\n\n")[2].split())
        if prompt.category in ("summary", "extraction"):
            assert 120 <= num_words <= 250, prompt.id
        if prompt.category == "code_edit":
            assert prompt.content.count("```") == 2
            assert 15 <= len(prompt.content.splitlines()) <= 40, prompt.id


def test_a_file_gives_prompts_and_messages_and_fills_in_what_is_missing(file: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    source = write(
        file,
        {"id": "a", "category": "chat", "prompt": "Hello"},
        {"prompt": "No name"},
        {"id": 7, "messages": messages},
    )
    assert load_workload(source) == Workload(
        "prompts.jsonl",
        (
            Prompt("a", "chat", "Hello"),
            Prompt("line-2", NO_CATEGORY, "No name"),
            Prompt("7", NO_CATEGORY, messages),
        ),
    )


def test_the_question_file_of_spec_bench_gives_first_turns(file: Path) -> None:
    source = write(
        file,
        {"question_id": 81, "category": "writing", "turns": ["First", "Then"], "reference": []},
        {"question_id": 82, "category": "rag", "turns": ["Only"]},
    )
    prompts = load_workload(source).prompts
    assert prompts == (Prompt("81", "writing", "First"), Prompt("82", "rag", "Only"))


def test_marks_empty_lines_and_line_ends_of_windows_are_no_trouble(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two\xe2\x80\xa8lines"}')
    first, second = load_workload(str(file)).prompts
    assert (first.content, second.content) == ("one", "two\u2028lines")
    assert second.id == "line-3"


BAD_LINES = {
    "not JSON": "{",
    "not a JSON object": "[1]",
    "it has none": '{"id": "a"}',
    "prompt and messages": '{"prompt": "a", "messages": [{}]}',
    "prompt must hold text": '{"prompt": " "}',
    "turns must hold text": '{"turns": []}',
    "messages must be a list": '{"messages": []}',
    "a message is": '{"messages": ["hi"]}',
    "the id must be": '{"id": [1], "prompt": "a"}',
    "the category must be": '{"category": 3, "prompt": "a"}',
    "line 1 has the id 'good'": '{"id": "good", "prompt": "again"}',
}


@pytest.mark.parametrize("words", BAD_LINES)
def test_a_bad_line_is_named_with_its_number(file: Path, words: str) -> None:
    file.write_text('{"id": "good", "prompt": "fine"}\n\n' + BAD_LINES[words] + "\n")
    with pytest.raises(PromptError, match=words) as caught:
        load_workload(str(file))
    assert f"{file}, line 3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_empty_or_no_text_is_an_error_that_names_it(file: Path) -> None:
    with pytest.raises(PromptError, match=r"prompts\.jsonl: No such file"):
        load_workload(str(file))
    file.write_text("\n \n")
    with pytest.raises(PromptError, match="no prompts"):
        load_workload(str(file))
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(PromptError, match=r"prompts\.jsonl"):
        load_workload(str(file))


def test_a_limit_takes_from_all_categories_alike_and_keeps_the_order() -> None:
    letters = "aaaabbc"
    prompts = tuple(Prompt(f"{letter}{i}", letter, "x") for i, letter in enumerate(letters))
    workload = Workload("letters", prompts)

    def taken(limit: int) -> list[str]:
        return [prompt.id for prompt in workload.limited(limit).prompts]

    assert taken(1) == ["a0"]
    assert taken(3) == ["a0", "b4", "c6"]
    assert taken(5) == ["a0", "a1", "b4", "b5", "c6"]
    assert taken(6) == ["a0", "a1", "a2", "b4", "b5", "c6"]
    assert taken(7) == taken(100) == [prompt.id for prompt in prompts]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "few", True])
def test_a_limit_below_one_is_an_error(limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit must be a whole number above 0"):
        own_workload().limited(limit)
