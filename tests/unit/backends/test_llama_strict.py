"""Strict mode: equal bits over widths, slots, strides, neighbours; and the self-check itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.llama import strict as strict_module
from pilotfish.backends.llama.strict import group_equal, rank_classes
from pilotfish.config import cache_folder
from pilotfish.errors import BackendError, ConfigError, StrictUnavailable
from pilotfish.types import FloatArray, Segment
from support.tiny_gguf import write_tiny

PROMPT = [(11 * i * i + 5 * i) % 256 for i in range(252)]
REPLY = [(7 * i * i + 3 * i) % 256 for i in range(24)]


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny_path(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", quantised=True)


@pytest.fixture
def model(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(tiny_path, context_size=320, max_sessions=2, threads=1, strict=True) as loaded:
        yield loaded


def reply_rows(model: LlamaModel, counts: Sequence[int], *, junk: int = 0) -> FloatArray:
    """Return the rows of REPLY, evaluated by passes that keep `counts` rows in turn.

    With `junk` every pass carries that many rejected ids, which are truncated away.
    """
    cache = model.new_cache()
    model.forward([Segment(cache, PROMPT, first_row=len(PROMPT))])
    rows, done, turn = [], 0, 0
    while done < len(REPLY):
        count = min(counts[turn % len(counts)], len(REPLY) - done)
        ids = [*REPLY[done : done + count], *[junk] * junk][: model.max_width]
        (scored,) = model.forward([Segment(cache, ids)])
        rows.append(scored[:count].copy())
        done, turn = done + count, turn + 1
        cache.truncate(len(PROMPT) + done)
    cache.close()
    return np.concatenate(rows)


def test_rows_have_the_same_bits_whatever_the_passes(model: LlamaModel):
    expected = reply_rows(model, [1])
    for counts in ([2], [4], [1, 3, 2], [4, 1], [model.max_width]):
        for junk in (0, 1, 3):
            np.testing.assert_array_equal(reply_rows(model, counts, junk=junk), expected)


def test_rows_have_the_same_bits_beside_another_session(model: LlamaModel):
    expected = reply_rows(model, [1])
    other = model.new_cache()
    model.forward([Segment(other, REPLY * 5, first_row=120)])
    np.testing.assert_array_equal(reply_rows(model, [3, 1]), expected)
    other.close()


def test_two_sessions_in_one_call_have_the_bits_of_each_alone(model: LlamaModel):
    first, second = model.new_cache(), model.new_cache()
    for cache, prompt in ((first, PROMPT), (second, PROMPT[:50])):
        model.forward([Segment(cache, prompt, first_row=len(prompt))])
    together = model.forward([Segment(second, REPLY[:2]), Segment(first, REPLY[:3])])
    second.truncate(50)
    (alone,) = model.forward([Segment(second, REPLY[:1])])
    np.testing.assert_array_equal(together[0][0], alone[0])
    np.testing.assert_array_equal(together[1], reply_rows_beside(model, first)[:3])
    first.close()
    second.close()


def reply_rows_beside(model: LlamaModel, cache: object) -> FloatArray:
    """Return the first rows of REPLY from a cache that holds PROMPT and more."""
    cache.truncate(len(PROMPT))  # type: ignore[attr-defined]
    (rows,) = model.forward([Segment(cache, REPLY[:3])])  # type: ignore[arg-type]
    return rows.copy()


def test_exactness_says_what_was_checked(model: LlamaModel):
    exactness = model.exactness
    assert exactness["level"] == "bit-identical"
    assert exactness["strict_width"] == min(exactness["checked_widths"])
    assert model.max_width == max(exactness["checked_widths"])
    assert model.width_report is not None
    assert model.width_report.num_positions >= 16


def test_the_context_may_be_filled_to_its_end(tiny_path: Path):
    with LlamaModel(tiny_path, context_size=256, threads=1, strict=True) as model:
        cache = model.new_cache()
        model.forward([Segment(cache, PROMPT[:250], first_row=250)])
        for token_id in REPLY[:6]:
            (rows,) = model.forward([Segment(cache, [token_id])])
            assert np.isfinite(rows).all()
        assert len(cache) == model.context_size == 256


def test_more_rows_than_the_strict_width_are_refused(model: LlamaModel):
    cache = model.new_cache()
    with pytest.raises(BackendError, match="strict mode evaluates at most"):
        model.forward([Segment(cache, PROMPT[: model.max_width + 1])])
    assert len(cache) == 0


def test_the_result_is_cached_and_a_broken_file_is_checked_again(
    tiny_path: Path, own_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    runs: list[int] = []
    run = strict_module.WidthCheck.run

    def counted(check: strict_module.WidthCheck) -> strict_module.WidthReport:
        runs.append(1)
        return run(check)

    monkeypatch.setattr(strict_module.WidthCheck, "run", counted)

    def widths() -> object:
        with LlamaModel(tiny_path, context_size=256, threads=1, strict=True) as model:
            return model.width_report

    first = widths()
    assert widths() == first
    assert len(runs) == 1
    assert cache_folder() == own_cache_folder
    (stored,) = (own_cache_folder / "self-check").glob("*.json")
    for broken in ("", "{", "[]", "null", '{"for": 1}', _without(stored, "classes")):
        stored.write_text(broken)
        assert widths() == first
    assert len(runs) == 7
    with LlamaModel(tiny_path, context_size=256, strict=True, threads=2):
        assert len(runs) == 8


def _without(stored: Path, name: str) -> str:
    raw = json.loads(stored.read_text())
    del raw["report"][name]
    return json.dumps(raw)


def test_a_folder_that_cannot_be_written_is_no_error(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("PILOTFISH_CACHE", str(blocker))
    with LlamaModel(tiny_path, context_size=256, threads=1, strict=True) as model:
        assert model.exactness["level"] == "bit-identical"


def test_a_backend_whose_rows_depend_on_the_slot_is_refused(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []

    def unstable(row: FloatArray) -> bytes:
        calls.append(1)
        return len(calls).to_bytes(4, "big")

    monkeypatch.setattr(strict_module, "row_bits", unstable)
    with pytest.raises(StrictUnavailable, match="no width gave the same bits") as caught:
        LlamaModel(tiny_path, context_size=256, threads=1, strict=True)
    assert "--strict" in caught.value.hint


def test_recurrent_models_have_no_strict_mode(tmp_path: Path):
    path = write_tiny(tmp_path / "recurrent.gguf", recurrent=True)
    with pytest.raises(StrictUnavailable, match="recurrent"):
        LlamaModel(path, context_size=128, strict=True)


@pytest.mark.parametrize("widths", [(), (0, 1), (33,)])
def test_impossible_widths_are_refused(tiny_path: Path, widths: tuple[int, ...]):
    with pytest.raises(ConfigError):
        LlamaModel(tiny_path, context_size=256, strict=True, strict_widths=widths)


def test_sequences_that_share_cells_have_no_strict_mode(tiny_path: Path):
    with pytest.raises(ConfigError, match="exclude each other"):
        LlamaModel(tiny_path, context_size=256, threads=1, strict=True, shared_cells=True)


def test_widths_with_equal_bits_form_groups():
    bits = {1: [b"a"], 2: [b"b"], 3: [b"b"], 4: [b"c"], 8: [b"b"], 16: [b"c"]}
    assert group_equal(bits, [8]) == ((1,), (2, 3), (4, 16))


def test_groups_are_tried_free_ones_first_then_that_of_width_four():
    assert rank_classes([(1,), (2, 3), (4,), (5,)]) == [(4,), (2, 3), (5,), (1,)]
    assert rank_classes([(1, 2), (4, 8, 16)])[0] == (1, 2)
    assert rank_classes([(1,), (2, 3, 4, 8)])[0] == (2, 3, 4, 8)
