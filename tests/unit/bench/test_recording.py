"""Recordings: what they hold, how they are kept, and what is said of damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish.bench.recording import (
    NO_DRAFT,
    PlainTimes,
    Recorded,
    Recording,
    load_recordings,
    save_recordings,
)
from pilotfish.errors import ConfigError

TIMES = PlainTimes(
    prompt=0.5,
    draft_prompt=0.125,
    target=2.0,
    decode=2.25,
    drafting=0.0625,
    context=7,
    steps={2: 1.0, 4: 1.5},
    draft_steps=0.25,
)
RECORDING = Recording(
    id="einer/ö",
    category="chat",
    prompt=(5, 6, 7),
    reply=(8, 9, 2),
    draft=(8, NO_DRAFT, 3),
    draft_probabilities=(0.75, 0.0, 1.0),
    end_ids=(2,),
    max_tokens=10,
    times=TIMES,
)
RECORDED = Recorded(
    recordings=(
        RECORDING,
        Recording(id="2", category="story", prompt=(1,), reply=(1, 1)),
    ),
    about={"target": "model.gguf", "temperature": 0.5},
    errors={},
)


def test_what_was_kept_is_what_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    save_recordings(file, RECORDED)
    assert load_recordings(file) == RECORDED
    assert len(file.read_text(encoding="utf-8").splitlines()) == 3


def test_probabilities_are_kept_to_four_places(tmp_path: Path) -> None:
    exact = replace(RECORDING, draft_probabilities=(0.123456, 0.0, 0.99999))
    file = tmp_path / "kept.jsonl"
    save_recordings(file, replace(RECORDED, recordings=(exact,)))
    (kept,) = load_recordings(file).recordings
    assert kept.draft_probabilities == (0.1235, 0.0, 1.0)


def test_drafts_are_there_when_every_reply_has_them() -> None:
    assert not RECORDED.has_drafts
    assert replace(RECORDED, recordings=(RECORDING,)).has_drafts


def test_only_an_end_token_says_that_a_reply_could_have_been_longer() -> None:
    assert RECORDING.limit == 10
    assert replace(RECORDING, end_ids=(99,)).limit == 3
    assert replace(RECORDING, max_tokens=None).limit == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ()},
        {"reply": (), "draft": (), "draft_probabilities": ()},
        {"draft": (8,)},
        {"draft_probabilities": ()},
        {"end_ids": (9,)},
        {"max_tokens": 2},
    ],
)
def test_a_recording_that_cannot_be_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="einer/ö"):
        replace(RECORDING, **wrong)


DAMAGED_RECORDINGS: dict[str, Any] = {
    "no object": [1, 2],
    "no prompt": {"prompt": None},
    "text for ids": {"reply": "abc"},
    "a fraction": {"reply": [8, 9.5, 2]},
    "true for a number": {"reply": [8, True, 2]},
    "a negative id": {"prompt": [5, -1, 7]},
    "a draft below none": {"draft": [8, -2, 3]},
    "a probability above 1": {"draft_probabilities": [0.5, 1.5, 0.5]},
    "a probability that is none": {"draft_probabilities": [0.5, "x", 0.5]},
    "drafts for half the reply": {"draft": [8, 9]},
    "a limit that is none": {"max_tokens": "ten"},
    "a limit below the reply": {"max_tokens": 2},
    "times that are none": {"times": 3},
    "times with one missing": {"times": {"prompt": 1.0}},
}


def kept_lines(tmp_path: Path) -> list[str]:
    file = tmp_path / "kept.jsonl"
    save_recordings(file, RECORDED)
    return file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kind", DAMAGED_RECORDINGS)
def test_a_damaged_line_is_named(tmp_path: Path, kind: str) -> None:
    lines = kept_lines(tmp_path)
    damage = DAMAGED_RECORDINGS[kind]
    good = json.loads(lines[1])
    bad = damage if isinstance(damage, list) else {**good, **damage}
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join([lines[0], lines[1], json.dumps(bad)]))
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 3: ") as caught:
        load_recordings(file)
    assert "\n" not in str(caught.value)
    assert "--record" in caught.value.hint


@pytest.mark.parametrize("name", ["prompt", "steps", "draft_steps", "context"])
@pytest.mark.parametrize("value", ["Infinity", "-1", "NaN", '"x"', '{"2": 0}'])
def test_times_that_no_clock_gives_are_refused(tmp_path: Path, name: str, value: str) -> None:
    lines = kept_lines(tmp_path)
    raw = json.loads(lines[1])
    raw["times"][name] = "HERE"
    bad = json.dumps(raw).replace('"HERE"', value)
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{lines[0]}\n{bad}\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2: "):
        load_recordings(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no recordings"),
        ('{"pilotfish_recordings": 1}\n', "holds no reply"),
        ('{"pilotfish_recordings": 99}\n{}', "line 2"),
        ("[]\n", "holds no recordings"),
        ("3\n", "holds no recordings"),
        ('{"prompt": "a workload"}\n', "holds no recordings"),
        ("not json\n", "line 1"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.jsonl") as caught:
        load_recordings(file)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_named_by_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    save_recordings(file, RECORDED)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match=r"cut\.jsonl, line 3: "):
        load_recordings(file)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "unread.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot read the recordings unread\.jsonl"):
        load_recordings(file)
