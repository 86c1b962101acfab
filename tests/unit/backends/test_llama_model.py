"""LlamaModel on tiny fp32 files: rows, caches, limits, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.llama.cache import LlamaCache
from pilotfish.errors import (
    BackendError,
    CacheNotTruncatable,
    ConfigError,
    ModelFileError,
)
from pilotfish.types import FloatArray, Segment
from support.tiny_gguf import write_tiny

TEXT = [(7 * i * i + 3 * i) % 256 for i in range(300)]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(
        tiny_path, context_size=256, max_sessions=3, threads=1, cache_type="f32"
    ) as loaded:
        yield loaded


@pytest.fixture
def cache(model: LlamaModel) -> Iterator[LlamaCache]:
    one = model.new_cache()
    yield one
    one.close()


def rows_of(model: LlamaModel, cache: LlamaCache, token_ids: list[int]) -> FloatArray:
    """Return copies of the rows of `token_ids`, evaluated in one call."""
    return model.forward([Segment(cache, token_ids)])[0].copy()


def rows_one_by_one(model: LlamaModel, token_ids: list[int]) -> FloatArray:
    """Return the rows of `token_ids`, evaluated one token at a time in a fresh cache."""
    cache = model.new_cache()
    rows = [rows_of(model, cache, [token_id])[0] for token_id in token_ids]
    cache.close()
    return np.stack(rows)


def greedy(model: LlamaModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Return `num_tokens` greedy tokens after `prompt`."""
    cache, reply, fed = model.new_cache(), [], prompt
    for _ in range(num_tokens):
        reply.append(int(rows_of(model, cache, fed)[-1].argmax()))
        fed = [reply[-1]]
    cache.close()
    return reply


def test_rows_of_one_pass_equal_rows_of_single_passes(model: LlamaModel, cache: LlamaCache):
    rows = rows_of(model, cache, TEXT[:40])
    assert rows.shape == (40, model.vocab_size)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, rows_one_by_one(model, TEXT[:40]), atol=1e-4)


def test_greedy_text_of_the_tiny_model_varies(model: LlamaModel):
    assert len(set(greedy(model, TEXT[:5], 40))) > 8


def test_a_close_that_is_refused_can_be_repeated(model: LlamaModel):
    caches = [model.new_cache() for _ in range(3)]
    with model._exclusive, pytest.raises(BackendError, match="another thread"):
        caches[0].close()
    assert caches[0].is_open
    for cache in (*caches, *caches):
        cache.close()
    places = [model.new_cache() for _ in range(3)]
    for cache in places:
        cache.close()


def test_a_cache_that_was_dropped_gives_its_place_back(model: LlamaModel):
    for _ in range(7):
        rows_of(model, model.new_cache(), TEXT[20:40])
    caches = [model.new_cache() for _ in range(3)]
    expected = rows_of(model, caches[0], TEXT[:10])
    for cache in caches[1:]:
        np.testing.assert_allclose(rows_of(model, cache, TEXT[:10]), expected, atol=1e-4)
    for cache in caches:
        cache.close()


def test_a_cache_closed_late_leaves_the_next_holder_of_its_place_alone(model: LlamaModel):
    first = model.new_cache()
    # the place was given back, and an interrupt came before the cache knew
    model.release(first)
    second = model.new_cache()
    assert second.sequence == first.sequence
    rows_of(model, second, TEXT[:10])
    first.close()
    assert len(second) == 10
    after = rows_of(model, second, [1])
    second.truncate(0)
    np.testing.assert_allclose(rows_of(model, second, [*TEXT[:10], 1])[-1:], after, atol=1e-4)
    second.close()


def test_a_prefix_that_cannot_be_copied_takes_no_place(
    model: LlamaModel, cache: LlamaCache, monkeypatch: pytest.MonkeyPatch
):
    rows_of(model, cache, TEXT[:10])

    def refuse(source: int, sequence: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(model._context, "copy", refuse)
        for _ in range(3):
            with pytest.raises(MemoryError):
                cache.prefix(5)
    copies = [cache.prefix(5) for _ in range(2)]
    for copy in copies:
        copy.close()


@pytest.mark.parametrize("shared_cells", [False, True])
def test_ragged_sequences_in_one_pass_equal_each_alone(
    tiny_path: Path, model: LlamaModel, shared_cells: bool
):
    lengths, texts = [1, 7, 4], [TEXT, TEXT[50:], TEXT[90:]]
    with LlamaModel(
        tiny_path,
        context_size=256,
        max_sessions=3,
        threads=1,
        cache_type="f32",
        shared_cells=shared_cells,
    ) as ragged:
        caches = [ragged.new_cache() for _ in lengths]
        for cache, text in zip(caches, texts, strict=True):
            ragged.forward([Segment(cache, text[:10], first_row=10)])
        # the order of segments is not the order of sequences
        order = [2, 0, 1]
        segments = [
            Segment(caches[i], texts[i][10 : 10 + lengths[i]], first_row=lengths[i] // 3)
            for i in order
        ]
        together = [rows.copy() for rows in ragged.forward(segments)]
    for index, rows in zip(order, together, strict=True):
        alone = rows_one_by_one(model, texts[index][: 10 + lengths[index]])
        np.testing.assert_allclose(rows, alone[10 + lengths[index] // 3 :], atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 4, 8, 16, 512])
def test_any_batch_size_takes_any_number_of_rows(
    tiny_path: Path, model: LlamaModel, batch_size: int
):
    expected = rows_one_by_one(model, TEXT[:200])
    with LlamaModel(
        tiny_path,
        context_size=256,
        max_sessions=2,
        batch_size=batch_size,
        cache_type="f32",
        threads=1,
    ) as small:
        caches = [small.new_cache(), small.new_cache()]
        for first_row in (0, 3, 199):
            for width in (1, 7, 8, 9, 65, 200):
                segments = [
                    Segment(caches[0], TEXT[:width], first_row=min(first_row, width)),
                    Segment(caches[1], TEXT[:5]),
                ]
                rows, other = small.forward(segments)
                np.testing.assert_allclose(
                    rows, expected[:width][min(first_row, width) :], atol=1e-4
                )
                np.testing.assert_allclose(other, expected[:5], atol=1e-4)
                for cache in caches:
                    cache.truncate(0)


def test_rows_are_views_that_stay_readable(model: LlamaModel, cache: LlamaCache):
    (first,) = model.forward([Segment(cache, TEXT[:1])])
    address = first.ctypes.data
    (wide,) = model.forward([Segment(cache, TEXT[1:60])])
    assert wide.ctypes.data == address
    # the old view shows the new pass: llama.cpp kept its buffer in place
    np.testing.assert_array_equal(first[0], wide[0])


def test_a_failing_pass_leaves_every_cache_as_it_was(
    model: LlamaModel, cache: LlamaCache, monkeypatch: pytest.MonkeyPatch
):
    rows_of(model, cache, TEXT[:10])
    context = model._context
    decode, calls = context._decode, []

    def fail_second(*arguments: object) -> int:
        calls.append(1)
        code: int = -3 if len(calls) == 2 else decode(*arguments)
        return code

    monkeypatch.setattr(context, "_decode", fail_second)
    with pytest.raises(BackendError, match=r"llama\.cpp failed"):
        model.forward([Segment(cache, TEXT[10:110])])
    assert len(cache) == 10
    monkeypatch.undo()
    rows = rows_of(model, cache, TEXT[10:20])
    np.testing.assert_allclose(rows, rows_one_by_one(model, TEXT[:20])[10:], atol=1e-4)


@pytest.mark.parametrize("window", [16, 40])
def test_sliding_windows_truncate_as_if_never_passed(tmp_path: Path, window: int):
    path = write_tiny(tmp_path / "window.gguf", sliding_window=window)
    plain_path = write_tiny(tmp_path / "wide.gguf", sliding_window=400)
    with LlamaModel(path, context_size=256, max_sessions=2, cache_type="f32", threads=1) as model:
        expected = rows_one_by_one(model, TEXT[:120])
        with LlamaModel(plain_path, context_size=256, cache_type="f32", threads=1) as plain:
            # the window does something once it is full
            everything = rows_one_by_one(plain, TEXT[:120])
        assert not np.allclose(everything[window + 8 :], expected[window + 8 :], atol=1e-3)
        np.testing.assert_allclose(everything[: window - 1], expected[: window - 1], atol=1e-4)
        for num_drafted in (1, 4, 8, 16, 20):
            cache, done = model.new_cache(), 0
            while done < 120 - num_drafted:
                # a pass of rejected tokens first, then the true ones
                rows_of(model, cache, [5] * (num_drafted + 1))
                cache.truncate(done)
                rows = rows_of(model, cache, TEXT[done : done + num_drafted])
                np.testing.assert_allclose(rows, expected[done : done + num_drafted], atol=5e-4)
                done += num_drafted
            cache.close()


def test_recurrent_models_say_so_and_decode_plainly(tmp_path: Path):
    path = write_tiny(tmp_path / "recurrent.gguf", recurrent=True)
    with LlamaModel(path, context_size=128, threads=1) as model:
        assert not model.can_truncate
        text = greedy(model, TEXT[:5], 20)
        assert greedy(model, TEXT[:5], 20) == text
        cache = model.new_cache()
        rows_of(model, cache, TEXT[:8])
        with pytest.raises(CacheNotTruncatable, match="recurrent") as caught:
            cache.truncate(5)
        assert "--drafter none" in caught.value.hint
        cache.close()
        assert greedy(model, TEXT[:5], 20) == text


def test_a_part_of_a_recurrent_state_cannot_be_taken_over_and_costs_no_place(tmp_path: Path):
    path = write_tiny(tmp_path / "recurrent.gguf", recurrent=True)
    with LlamaModel(path, context_size=128, max_sessions=2, threads=1) as model:
        cache = model.new_cache()
        rows_of(model, cache, TEXT[:8])
        for _ in range(3):
            with pytest.raises(CacheNotTruncatable, match="recurrent"):
                cache.prefix(5)
        copy = cache.prefix(8)
        np.testing.assert_array_equal(
            rows_of(model, copy, TEXT[8:10]), rows_of(model, cache, TEXT[8:10])
        )


@pytest.mark.parametrize("cut", [5, 16, 30, 60])
def test_a_sliding_window_copies_what_has_left_the_window_too(tmp_path: Path, cut: int):
    path = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    with LlamaModel(path, context_size=128, max_sessions=3, threads=1, cache_type="f32") as model:
        origin, fresh = model.new_cache(), model.new_cache()
        rows_of(model, origin, TEXT[:60])
        rows_of(model, fresh, TEXT[:cut])
        copy = origin.prefix(cut)
        np.testing.assert_allclose(
            rows_of(model, copy, TEXT[60:64]), rows_of(model, fresh, TEXT[60:64]), atol=1e-4
        )


def test_what_llama_cpp_logs_is_in_the_error(tmp_path: Path, tiny_path: Path):
    strange = tmp_path / "strange.gguf"
    # same length, so that the file itself is sound
    strange.write_bytes(tiny_path.read_bytes().replace(b"llama.block_count", b"llama.blick_count"))
    with pytest.raises(ModelFileError, match="block_count"):
        LlamaModel(strange, threads=1)


@pytest.mark.parametrize(
    "options",
    [
        {"context_size": 0},
        {"max_sessions": 0},
        {"threads": 0},
        {"batch_size": 0},
        {"cache_type": "q2"},
        {"cache_type": "q8_0"},
    ],
)
def test_impossible_options_are_refused(tiny_path: Path, options: dict[str, object]):
    with pytest.raises(ConfigError):
        LlamaModel(tiny_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0", "q4_0"])
def test_every_cache_type_works(tmp_path: Path, cache_type: str):
    # a quantised cache needs heads of 32 values
    path = write_tiny(tmp_path / "heads.gguf", heads=1)
    with LlamaModel(
        path, context_size=128, cache_type=cache_type, flash_attention=True, threads=1
    ) as model:
        rows = rows_of(model, model.new_cache(), TEXT[:40])
        assert np.isfinite(rows).all()


def test_the_default_context_is_the_trained_one(tiny_path: Path):
    with LlamaModel(tiny_path, threads=1) as model:
        assert model.context_size == 512
        assert model.max_width == 512


def test_the_tokenizer_of_a_closed_model_refuses(tiny_path: Path):
    model = LlamaModel(tiny_path, context_size=64, threads=1)
    model.close()
    for use in (model.tokenizer.token_bytes, model.tokenizer.token_text):
        with pytest.raises(BackendError, match="closed"):
            use(1)


def test_the_widest_pass_is_the_batch_and_rows_are_equal_in_distribution(tiny_path: Path):
    with LlamaModel(tiny_path, threads=1, batch_size=100) as model:
        assert model.max_width == 100
        assert model.exactness["level"] == "in distribution"
