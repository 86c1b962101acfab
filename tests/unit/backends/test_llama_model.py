"""LlamaModel on tiny fp32 files: rows, caches, limits, refusals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
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
    NotEnoughMemory,
)
from pilotfish.types import FloatArray, Segment
from support.tiny_gguf import vocabulary, write_tiny

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


def test_rows_begin_at_first_row(model: LlamaModel, cache: LlamaCache):
    everything = rows_of(model, cache, TEXT[:12])
    cache.truncate(0)
    (last,) = model.forward([Segment(cache, TEXT[:12], first_row=9)])
    np.testing.assert_allclose(last, everything[9:], atol=1e-5)
    (none,) = model.forward([Segment(cache, TEXT[12:20], first_row=8)])
    assert none.shape == (0, model.vocab_size)
    assert len(cache) == 20


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


def test_truncating_and_continuing_equals_a_fresh_cache(model: LlamaModel, cache: LlamaCache):
    rows_of(model, cache, TEXT[:30])
    for length in (29, 20, 7, 0):
        cache.truncate(length)
        assert len(cache) == length
        rows = rows_of(model, cache, TEXT[100:110])
        cache.truncate(length)
        expected = rows_one_by_one(model, [*TEXT[:length], *TEXT[100:110]])[length:]
        np.testing.assert_allclose(rows, expected, atol=1e-4)


@pytest.mark.parametrize("length", [-1, 11])
def test_a_length_the_cache_never_had_is_refused(model: LlamaModel, cache: LlamaCache, length: int):
    rows_of(model, cache, TEXT[:10])
    with pytest.raises(BackendError, match="cannot cut"):
        cache.truncate(length)
    assert len(cache) == 10


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


def test_the_context_may_be_filled_to_its_end_and_not_beyond(model: LlamaModel, cache: LlamaCache):
    rows_of(model, cache, TEXT[:255])
    (last,) = rows_of(model, cache, TEXT[255:256])
    assert np.isfinite(last).all()
    assert len(cache) == model.context_size
    with pytest.raises(BackendError, match="exceed the context"):
        model.forward([Segment(cache, [1])])
    cache.truncate(250)
    with pytest.raises(BackendError, match="exceed the context"):
        model.forward([Segment(cache, TEXT[:7])])
    assert len(cache) == 250


def test_empty_segments_change_nothing(model: LlamaModel, cache: LlamaCache):
    other = model.new_cache()
    (none,) = model.forward([Segment(cache, [])])
    assert none.shape == (0, model.vocab_size)
    nothing, rows = model.forward([Segment(cache, []), Segment(other, TEXT[:3])])
    assert (len(nothing), len(rows), len(cache), len(other)) == (0, 3, 0, 3)
    assert model.forward([]) == []
    other.close()


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_are_refused(
    model: LlamaModel, cache: LlamaCache, token_id: int
):
    with pytest.raises(BackendError, match="token ids"):
        model.forward([Segment(cache, [1, token_id])])
    assert len(cache) == 0


def test_places_are_taken_and_given_back(model: LlamaModel):
    caches = [model.new_cache() for _ in range(3)]
    with pytest.raises(BackendError, match="in use") as caught:
        model.new_cache()
    assert "max_sessions" in caught.value.hint
    rows_of(model, caches[1], TEXT[:9])
    caches[1].close()
    caches[1].close()
    again = model.new_cache()
    np.testing.assert_allclose(
        rows_of(model, again, TEXT[:3]), rows_one_by_one_in(model, caches[2], TEXT[:3]), atol=1e-4
    )
    for cache in (caches[0], caches[2], again):
        cache.close()


def rows_one_by_one_in(model: LlamaModel, cache: LlamaCache, token_ids: list[int]) -> FloatArray:
    """Return rows evaluated one at a time in a given cache."""
    return np.stack([rows_of(model, cache, [token_id])[0] for token_id in token_ids])


def test_wrong_caches_are_refused(tiny_path: Path, model: LlamaModel, cache: LlamaCache):
    with pytest.raises(BackendError, match="twice"):
        model.forward([Segment(cache, [1]), Segment(cache, [2])])
    with LlamaModel(tiny_path, context_size=64, threads=1) as stranger:
        theirs = stranger.new_cache()
        with pytest.raises(BackendError, match="another model"):
            model.forward([Segment(theirs, [1])])
    closed = model.new_cache()
    closed.close()
    with pytest.raises(BackendError, match="closed"):
        model.forward([Segment(closed, [1])])
    with pytest.raises(BackendError, match="closed"):
        closed.truncate(1)


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


def test_a_second_thread_gets_an_error(model: LlamaModel, cache: LlamaCache):
    errors: list[Exception] = []

    def intrude() -> None:
        for action in (lambda: model.forward([Segment(cache, [1])]), model.new_cache):
            try:
                action()
            except BackendError as error:
                errors.append(error)

    with model._exclusive():
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
    assert len(errors) == 2
    assert all("another thread" in str(error) for error in errors)
    assert len(rows_of(model, cache, [1])) == 1


def test_a_closed_model_refuses_everything_and_closes_twice(tiny_path: Path):
    model = LlamaModel(tiny_path, context_size=64, threads=1)
    cache = model.new_cache()
    model.close()
    model.close()
    uses: list[Callable[[], object]] = [
        lambda: model.forward([Segment(cache, [1])]),
        model.new_cache,
        lambda: cache.truncate(1),
        lambda: model.tokenizer.encode("a", parse_special=False),
        lambda: model.tokenizer.token_bytes(1),
    ]
    for use in uses:
        with pytest.raises(BackendError, match="closed"):
            use()
    cache.close()


def test_loading_and_freeing_does_not_raise_memory(tiny_path: Path):
    def resident_bytes() -> int:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4096

    def round_trip() -> None:
        with LlamaModel(tiny_path, context_size=1024, max_sessions=2, threads=1) as model:
            rows_of(model, model.new_cache(), TEXT[:50])

    for _ in range(3):
        round_trip()
    gc.collect()
    before = resident_bytes()
    for _ in range(10):
        round_trip()
    gc.collect()
    assert resident_bytes() - before < 4 * 2**20


def test_padding_of_the_vocabulary_is_never_offered(tmp_path: Path):
    path = write_tiny(tmp_path / "padded.gguf", padding=13)
    real = len(vocabulary()[0])
    with LlamaModel(path, context_size=128, threads=1) as model:
        assert (model.vocab_size, model.padded_vocab_size) == (real, real + 13)
        assert model.tokenizer.vocab_size == real
        assert max(greedy(model, TEXT[:5], 50)) < real


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


def test_files_that_are_no_models_are_refused(tmp_path: Path, tiny_path: Path):
    page = tmp_path / "page.gguf"
    page.write_text("<html>not found</html>")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path.read_bytes()[:-1000])
    for path in (page, cut):
        with pytest.raises(ModelFileError):
            LlamaModel(path, threads=1)


def test_what_llama_cpp_logs_is_in_the_error(tmp_path: Path, tiny_path: Path):
    strange = tmp_path / "strange.gguf"
    # same length, so that the file itself is sound
    strange.write_bytes(tiny_path.read_bytes().replace(b"llama.block_count", b"llama.blick_count"))
    with pytest.raises(ModelFileError, match="block_count"):
        LlamaModel(strange, threads=1)


def test_too_little_memory_is_said_before_loading(tiny_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pilotfish.backends.machine.available_memory_bytes", lambda: 100 * 10**6)
    with pytest.raises(NotEnoughMemory, match=r"needs about \d+ MB more, 100 MB are free"):
        LlamaModel(tiny_path, context_size=200_000, max_sessions=8, threads=1)


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


def test_facts_are_read_from_the_loaded_object(tiny_path: Path, model: LlamaModel):
    facts = model.facts
    assert facts.path == tiny_path
    assert facts.file_bytes == tiny_path.stat().st_size
    assert 30_000 < facts.parameters < 50_000
    assert (facts.architecture, facts.trained_context, facts.threads) == ("llama", 512, 1)
    assert facts.metadata["general.name"] == "tiny"
    assert "llama-cpp-python" in facts.library
    assert facts.to_dict()["vocabulary"] == model.vocab_size
    assert model.exactness["level"] == "in distribution"


def test_the_default_context_is_the_trained_one(tiny_path: Path):
    with LlamaModel(tiny_path, threads=1) as model:
        assert model.context_size == 512
        assert model.max_width == 512
