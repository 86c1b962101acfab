"""NativeModel's own ways: bits, the self-check, partial heads, errors of the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.native import NativeModel, head, library, loading, self_check
from pilotfish.backends.native.library import load_library, missing_reason
from pilotfish.errors import (
    BackendError,
    ConfigError,
    MissingExtra,
    ModelError,
    ModelFileError,
    NotEnoughMemory,
)
from pilotfish.types import FloatArray, Segment
from support.tiny_gguf import BEGIN, END, TURN, vocabulary, write_tiny

TEXT = [(7 * i * i + 3 * i) % 256 for i in range(120)]
REAL = len(vocabulary()[0])


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", quantised=True)


@pytest.fixture
def model(tiny_path: Path) -> Iterator[NativeModel]:
    with NativeModel(tiny_path, max_sessions=3, threads=1) as loaded:
        yield loaded


def rows_of(model: NativeModel, text: list[int], *, cuts: int = 1) -> FloatArray:
    """Return the rows of a text that is evaluated `cuts` tokens at a time."""
    cache = model.new_cache()
    pieces = [text[i : i + cuts] for i in range(0, len(text), cuts)]
    rows = np.concatenate([model.forward([Segment(cache, piece)])[0].copy() for piece in pieces])
    cache.close()
    return rows


@pytest.mark.parametrize("cuts", [2, 3, 7, 64])
def test_rows_have_the_same_bits_however_the_text_is_cut(model: NativeModel, cuts: int) -> None:
    np.testing.assert_array_equal(rows_of(model, TEXT, cuts=cuts), rows_of(model, TEXT))


@pytest.mark.parametrize("options", [{"threads": 2}, {"threads": 3}, {"instructions": "portable"}])
def test_other_threads_and_instructions_give_close_rows(
    tiny_path: Path, model: NativeModel, options: dict[str, Any]
) -> None:
    with NativeModel(tiny_path, **({"threads": 1} | options)) as other:
        rows = rows_of(other, TEXT, cuts=5)
    if "threads" in options:
        np.testing.assert_array_equal(rows, rows_of(model, TEXT))
    np.testing.assert_allclose(rows, rows_of(model, TEXT), atol=1e-3)


def test_the_self_check_runs_once_for_a_file_and_its_settings(
    tiny_path: Path, own_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    run = self_check.run
    monkeypatch.setattr(self_check, "run", lambda *given: runs.append(1) or run(*given))
    for options in ({}, {}, {"threads": 2}, {"threads": 2}):
        with NativeModel(tiny_path, **({"threads": 1} | options)) as model:
            assert model.exactness["level"] == "bit-identical"
            assert model.exactness["checked_widths"] == [1, 2, 4, 8, 16]
            assert model.exactness["strict_width"] is None
            assert model.notices == []
    assert len(runs) == 2
    for kept in (own_cache_folder / "self-check").iterdir():
        kept.write_text('{"for": {}, "report"')
    with NativeModel(tiny_path, threads=1):
        assert len(runs) == 3


def test_rows_that_differ_are_told_and_kept(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(10**6))
    monkeypatch.setattr(self_check, "row_bits", lambda row: next(numbers))
    for _ in range(2):
        with NativeModel(tiny_path, threads=1) as model:
            assert model.exactness["level"] == "in distribution"
            (notice,) = model.notices
            assert "other bits" in notice
        monkeypatch.setattr(self_check, "run", lambda *given: pytest.fail("checked again"))


def test_a_check_that_breaks_frees_the_model(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = []

    def run(core: Any, sample_ids: Any) -> Any:
        cores.append(core)
        raise RuntimeError("broken")

    monkeypatch.setattr(self_check, "run", run)
    with pytest.raises(RuntimeError, match="broken"):
        NativeModel(tiny_path, threads=1)
    assert not cores[0].is_open


class FailingCore:
    """A core whose pass evaluates half of what it was given, then fails."""

    def __init__(self, core: Any, error: type[Exception]) -> None:
        self.core, self.error = core, error
        self.is_open = True

    def forward(self, sequences: Any, token_ids: Any, first_rows: Any) -> Any:
        half = [list(ids)[: len(ids) // 2] for ids in token_ids]
        self.core.forward(sequences, half, [len(ids) for ids in half])
        raise self.error("broken")


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError])
def test_a_failing_pass_leaves_every_cache_as_it_was(
    model: NativeModel, error: type[Exception]
) -> None:
    caches = [model.new_cache() for _ in range(2)]
    segments = [Segment(cache, TEXT[:10]) for cache in caches]
    expected = [rows.copy() for rows in model.forward(segments)]
    caches[1].truncate(3)
    core = model._core
    model._core = FailingCore(core, error)
    with pytest.raises(BackendError, match="native core"):
        model.forward([Segment(cache, TEXT[20:30]) for cache in caches])
    model._core = core
    assert [len(cache) for cache in caches] == [10, 3]
    (again,) = model.forward([Segment(caches[1], TEXT[3:10])])
    np.testing.assert_array_equal(again, expected[1][3:])


class RefusingPart:
    """A part of the core that refuses every call but `is_open` and `__len__`."""

    is_open = True

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 10

    def __getattr__(self, name: str) -> Any:
        def refuse(*given: Any) -> Any:
            raise self.error("loaded before this process was forked")

        return refuse


REFUSALS = [RuntimeError, ValueError, MemoryError]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_sequence_that_the_core_refuses_takes_no_place(
    model: NativeModel, error: type[Exception]
) -> None:
    origin = model.new_cache()
    model.forward([Segment(origin, TEXT[:10])])
    core, sequence = model._core, origin.sequence
    model._core = origin.sequence = RefusingPart(error)
    for _ in range(4):
        with pytest.raises(BackendError, match="native core failed: loaded before"):
            model.new_cache()
        with pytest.raises(BackendError, match="native core failed: loaded before"):
            origin.prefix(5)
    model._core, origin.sequence = core, sequence
    others = [origin.prefix(5), model.new_cache()]
    assert [len(other) for other in others] == [5, 0]
    with pytest.raises(BackendError, match="all 3 sequences"):
        model.new_cache()


@pytest.mark.parametrize("error", REFUSALS)
def test_whatever_the_core_refuses_is_an_error_of_ours(
    model: NativeModel, error: type[Exception]
) -> None:
    cache, core = model.new_cache(), model._core
    model._core = cache.sequence = RefusingPart(error)
    calls = [
        lambda: cache.truncate(3),
        model.read_weights,
        lambda: model._extend_head(np.array([1], dtype=np.int32)),
        model.close,
    ]
    for call in calls:
        with pytest.raises(BackendError, match="native core failed: loaded before"):
            call()
    model._core = core


def test_a_close_that_is_refused_can_be_repeated(model: NativeModel) -> None:
    caches = [model.new_cache() for _ in range(3)]
    sequence = caches[0].sequence
    caches[0].sequence = RefusingPart(RuntimeError)
    with pytest.raises(BackendError, match="native core"):
        caches[0].close()
    caches[0].sequence = sequence
    with model._exclusive, pytest.raises(BackendError, match="another thread"):
        caches[0].close()
    assert caches[0].is_open
    for _ in range(2):
        caches[0].close()
    assert not caches[0].is_open
    caches[0] = model.new_cache()
    with pytest.raises(BackendError, match="all 3 sequences"):
        model.new_cache()


def test_a_cache_that_was_dropped_gives_its_place_back(model: NativeModel) -> None:
    expected = rows_of(model, TEXT[:10])
    for _ in range(7):
        model.forward([Segment(model.new_cache(), TEXT[20:40])])
    caches = [model.new_cache() for _ in range(3)]
    for cache in caches:
        np.testing.assert_array_equal(model.forward([Segment(cache, TEXT[:10])])[0], expected)


def test_a_self_check_that_finds_no_memory_says_so_and_frees_the_model(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = []

    def run(core: Any, sample_ids: Any) -> Any:
        cores.append(core)
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(self_check, "run", run)
    with pytest.raises(NotEnoughMemory, match=r"tiny\.gguf does not fit into memory"):
        NativeModel(tiny_path, threads=1)
    assert not cores[0].is_open


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError, ModelFileError),
        (OSError, ModelFileError),
        (MemoryError, NotEnoughMemory),
    ],
)
def test_what_the_core_refuses_is_one_line_that_names_the_file(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], kind: type[Exception]
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise error("blk.0.attn_q.weight: shape")

    monkeypatch.setattr(load_library(), "Model", refuse)
    with pytest.raises(kind, match=r"tiny\.gguf") as caught:
        NativeModel(tiny_path, threads=1)
    assert "\n" not in str(caught.value)


def test_a_file_it_does_not_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    with pytest.raises(ModelError, match="gemma2 is not among llama, qwen2, qwen3") as caught:
        NativeModel(path)
    assert "--backend llama" in caught.value.hint


def test_more_tokens_than_embeddings_are_a_damaged_file(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = loading.network_parameters
    monkeypatch.setattr(
        loading, "network_parameters", lambda header: read(header) | {"vocab_size": 200}
    )
    with pytest.raises(ModelFileError, match=f"{REAL} tokens, 200 embeddings"):
        NativeModel(tiny_path, threads=1)


@pytest.mark.parametrize(
    "options",
    [{"instructions": "sse2"}, {"head_size": -1}, {"cache_type": "q8_0"}, {"cache_type": ""}],
)
def test_options_of_its_own_are_checked(tiny_path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        NativeModel(tiny_path, **options)


def test_without_the_package_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library.cache_clear()
    try:
        monkeypatch.setitem(sys.modules, "pilotfish_native", None)
        assert "not installed" in (missing_reason() or "")
        with pytest.raises(MissingExtra) as caught:
            load_library()
        assert "scripts/install" in caught.value.hint
    finally:
        load_library.cache_clear()


def test_a_processor_without_its_instructions_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_reason() is None
    monkeypatch.setattr(load_library(), "processor", lambda: {"available": []})
    assert "processor" in (missing_reason() or "")


@pytest.fixture
def partial(tiny_path: Path) -> Iterator[NativeModel]:
    with NativeModel(tiny_path, threads=1, head_size=100, max_sessions=2) as loaded:
        yield loaded


def test_a_partial_head_has_the_first_ids_and_all_control_tokens(partial: NativeModel) -> None:
    texts = vocabulary()[0]
    assert partial.head is not None
    control = [texts.index(text) for text in (BEGIN, END, TURN)]
    assert partial.head.ids.tolist() == [*range(100), *control]
    assert partial.vocab_size == REAL


def test_rows_of_a_partial_head_have_the_bits_of_the_whole(
    model: NativeModel, partial: NativeModel
) -> None:
    assert partial.head is not None
    whole = rows_of(model, TEXT[:20])
    np.testing.assert_array_equal(rows_of(partial, TEXT[:20], cuts=4), whole[:, partial.head.ids])
    partial.head.extend([5, 200, 101, 200])
    assert partial.head.ids[-2:].tolist() == [200, 101]
    np.testing.assert_array_equal(rows_of(partial, TEXT[:20], cuts=4), whole[:, partial.head.ids])
    assert partial.exactness["level"] == "bit-identical"


@pytest.mark.parametrize("size", [0, REAL, 10**6])
def test_a_head_as_large_as_the_vocabulary_is_whole(tiny_path: Path, size: int) -> None:
    with NativeModel(tiny_path, threads=1, head_size=size) as model:
        assert model.head is None
        assert rows_of(model, [1]).shape == (1, REAL)


def test_rows_are_added_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST_ADDED_ROWS", 5)
    added: list[list[int]] = []
    one = head.SubsetHead(
        np.arange(10, dtype=np.int32), vocab_size=50, add=lambda ids: added.append(ids.tolist())
    )
    one.extend([3, 20, 21, 20])
    one.extend([20, 9])
    one.extend([30, 31, 32, 33, 34])
    one.extend([40])
    assert added == [[20, 21], [30, 31, 32]]
    assert one.ids.tolist() == [*range(10), 20, 21, 30, 31, 32]


def test_a_draft_in_four_bits_is_smaller_and_near(tiny_path: Path) -> None:
    with (
        NativeModel(tiny_path, threads=1) as plain,
        NativeModel(tiny_path, threads=1, requantize=True) as small,
    ):
        assert small.facts.weight_bytes < plain.facts.weight_bytes
        rows, others = rows_of(plain, TEXT[:30]), rows_of(small, TEXT[:30], cuts=6)
    assert not np.array_equal(rows, others)
    # the rounding of 4 bits: one part in fifteen of a block's span
    assert np.corrcoef(rows.ravel(), others.ravel())[0, 1] > 0.9


def test_the_library_says_its_version_and_instructions(model: NativeModel) -> None:
    assert model.facts.library == library.library_version(model._core.instructions)
    assert model.facts.backend == "native"
    assert model.can_truncate
    assert model.max_width == 64
