"""What models of both backends for GGUF files keep to, beyond the contract of all models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.errors import BackendError, ConfigError, ModelFileError, NotEnoughMemory
from pilotfish.protocols import Cache
from pilotfish.types import FloatArray, Segment
from support.memory import growth
from support.tiny_gguf import vocabulary, write_tiny

TEXT = [(7 * i * i + 3 * i) % 256 for i in range(300)]
# the rows of one backend agree to the bit, those of the other as far as fp32 goes
TOLERANCE = {"native": 0.0, "llama": 1e-4}

Model = LlamaModel | NativeModel
Load = Callable[..., Model]


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module", params=["native", "llama"])
def load(request: pytest.FixtureRequest, tiny_path: Path) -> Load:
    """Return what loads the tiny file, or another, on one thread and in fp32."""
    kind = {"native": NativeModel, "llama": LlamaModel}[request.param]

    def load(path: Path = tiny_path, **options: Any) -> Model:
        return kind(path, **({"threads": 1, "cache_type": "f32"} | options))

    return load


@pytest.fixture(scope="module")
def model(load: Load) -> Iterator[Model]:
    with load(context_size=256, max_sessions=3) as loaded:
        yield loaded


@pytest.fixture
def cache(model: Model) -> Iterator[Cache]:
    one = model.new_cache()
    yield one
    one.close()


def same(model: Model, one: FloatArray, other: FloatArray) -> None:
    """Assert that rows are equal as far as the backend promises."""
    if tolerance := TOLERANCE[model.facts.backend]:
        np.testing.assert_allclose(one, other, atol=tolerance)
    else:
        np.testing.assert_array_equal(one, other)


def rows_of(model: Model, cache: Cache, token_ids: list[int]) -> FloatArray:
    """Return copies of the rows of `token_ids`, evaluated in one call."""
    return model.forward([Segment(cache, token_ids)])[0].copy()


def rows_one_by_one(model: Model, token_ids: list[int]) -> FloatArray:
    """Return the rows of `token_ids`, evaluated one token at a time in a fresh cache."""
    cache = model.new_cache()
    rows = [rows_of(model, cache, [token_id])[0] for token_id in token_ids]
    cache.close()
    return np.stack(rows)


def greedy(model: Model, prompt: list[int], num_tokens: int) -> list[int]:
    """Return `num_tokens` greedy tokens after `prompt`."""
    cache, reply, fed = model.new_cache(), [], prompt
    for _ in range(num_tokens):
        reply.append(int(rows_of(model, cache, fed)[-1].argmax()))
        fed = [reply[-1]]
    cache.close()
    return reply


def test_rows_begin_at_first_row(model: Model, cache: Cache):
    everything = rows_of(model, cache, TEXT[:12])
    cache.truncate(0)
    (last,) = model.forward([Segment(cache, TEXT[:12], first_row=9)])
    same(model, last, everything[9:])
    (none,) = model.forward([Segment(cache, TEXT[12:20], first_row=8)])
    assert none.shape == (0, model.vocab_size)
    assert len(cache) == 20


def test_truncating_and_continuing_equals_a_fresh_cache(model: Model, cache: Cache):
    rows_of(model, cache, TEXT[:30])
    for length in (29, 20, 7, 0):
        cache.truncate(length)
        assert len(cache) == length
        rows = rows_of(model, cache, TEXT[100:110])
        cache.truncate(length)
        expected = rows_one_by_one(model, [*TEXT[:length], *TEXT[100:110]])[length:]
        same(model, rows, expected)


def test_the_context_may_be_filled_to_its_end_and_not_beyond(model: Model, cache: Cache):
    model.forward([Segment(cache, TEXT[:255], first_row=255)])
    (last,) = rows_of(model, cache, TEXT[255:256])
    assert np.isfinite(last).all()
    assert len(cache) == model.context_size
    with pytest.raises(BackendError, match="exceed the context"):
        model.forward([Segment(cache, [1])])
    cache.truncate(250)
    with pytest.raises(BackendError, match="exceed the context"):
        model.forward([Segment(cache, TEXT[:7])])
    assert len(cache) == 250


def test_empty_segments_change_nothing(model: Model, cache: Cache):
    other = model.new_cache()
    (none,) = model.forward([Segment(cache, [])])
    assert none.shape == (0, model.vocab_size)
    nothing, rows = model.forward([Segment(cache, []), Segment(other, TEXT[:3])])
    assert (len(nothing), len(rows), len(cache), len(other)) == (0, 3, 0, 3)
    assert model.forward([]) == []
    other.close()


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**40])
def test_ids_outside_the_vocabulary_are_refused(model: Model, cache: Cache, token_id: int):
    with pytest.raises(BackendError, match="token ids"):
        model.forward([Segment(cache, [1, token_id])])
    assert len(cache) == 0


def test_places_are_taken_and_given_back(model: Model):
    caches = [model.new_cache() for _ in range(3)]
    with pytest.raises(BackendError, match="in use") as caught:
        model.new_cache()
    assert "max_sessions" in caught.value.hint
    rows_of(model, caches[1], TEXT[:9])
    caches[1].close()
    caches[1].close()
    again = model.new_cache()
    same(model, rows_of(model, again, TEXT[:3]), rows_one_by_one_in(model, caches[2], TEXT[:3]))
    for cache in (caches[0], caches[2], again):
        cache.close()


def rows_one_by_one_in(model: Model, cache: Cache, token_ids: list[int]) -> FloatArray:
    """Return rows evaluated one at a time in a given cache."""
    return np.stack([rows_of(model, cache, [token_id])[0] for token_id in token_ids])


def test_wrong_caches_are_refused(load: Load, model: Model, cache: Cache):
    with pytest.raises(BackendError, match="twice"):
        model.forward([Segment(cache, [1]), Segment(cache, [2])])
    with load(context_size=64) as stranger:
        theirs = stranger.new_cache()
        with pytest.raises(BackendError, match="another model"):
            model.forward([Segment(theirs, [1])])
    closed = model.new_cache()
    closed.close()
    with pytest.raises(BackendError, match="closed"):
        model.forward([Segment(closed, [1])])
    with pytest.raises(BackendError, match="closed"):
        closed.truncate(1)


def test_a_second_thread_gets_an_error(model: Model, cache: Cache):
    errors: list[Exception] = []

    def intrude() -> None:
        for action in (lambda: model.forward([Segment(cache, [1])]), model.new_cache):
            try:
                action()
            except BackendError as error:
                errors.append(error)

    with model._exclusive:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
    assert len(errors) == 2
    assert all("another thread" in str(error) for error in errors)
    assert len(rows_of(model, cache, [1])) == 1


def test_a_closed_model_refuses_everything_and_closes_twice(load: Load):
    model = load(context_size=64)
    cache = model.new_cache()
    model.close()
    model.close()
    uses: list[Callable[[], object]] = [
        lambda: model.forward([Segment(cache, [1])]),
        model.new_cache,
        lambda: cache.truncate(1),
    ]
    for use in uses:
        with pytest.raises(BackendError, match="closed"):
            use()
    cache.close()


def test_loading_and_freeing_does_not_raise_memory(load: Load):
    def round_trip() -> None:
        with load(context_size=1024, max_sessions=2) as model:
            rows_of(model, model.new_cache(), TEXT[:50])

    assert growth(round_trip).resident_bytes < 4 * 2**20


def test_padding_of_the_vocabulary_is_never_offered(load: Load, tmp_path: Path):
    path = write_tiny(tmp_path / "padded.gguf", padding=13)
    real = len(vocabulary()[0])
    with load(path) as model:
        facts = model.facts
        assert (facts.vocabulary, facts.padded_vocabulary) == (real, real + 13)
        assert model.vocab_size == real
        assert model.tokenizer.vocab_size == real
        assert max(greedy(model, TEXT[:5], 50)) < real


def test_files_that_are_no_models_are_refused(load: Load, tmp_path: Path, tiny_path: Path):
    page = tmp_path / "page.gguf"
    page.write_text("<html>not found</html>")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path.read_bytes()[:-1000])
    for path in (page, cut):
        with pytest.raises(ModelFileError):
            load(path)


def test_too_little_memory_is_said_before_loading(load: Load, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pilotfish.backends.machine.available_memory_bytes", lambda: 100 * 10**6)
    with pytest.raises(NotEnoughMemory, match=r"needs about \d+ MB more, 100 MB are free"):
        load(context_size=200_000, max_sessions=8)


def test_facts_are_read_from_the_loaded_object(tiny_path: Path, model: Model):
    facts = model.facts
    assert facts.path == tiny_path
    assert facts.file_bytes == tiny_path.stat().st_size
    assert 30_000 < facts.parameters < 50_000
    assert (facts.architecture, facts.trained_context, facts.threads) == ("llama", 512, 1)
    assert facts.metadata["general.name"] == "tiny"
    package = {"llama": "llama-cpp-python", "native": "pilotfish-native"}[facts.backend]
    assert facts.library.startswith(package)
    assert facts.to_dict()["vocabulary"] == model.vocab_size


@pytest.mark.parametrize(
    "options",
    [
        {"context_size": 0},
        {"max_sessions": 0},
        {"threads": 0},
        {"cache_type": "q2"},
        {"cache_type": "q8_0"},
    ],
)
def test_impossible_options_are_refused(load: Load, options: dict[str, object]):
    with pytest.raises(ConfigError):
        load(**options)


def test_the_default_context_is_the_trained_one(load: Load):
    with load() as model:
        assert model.context_size == 512
