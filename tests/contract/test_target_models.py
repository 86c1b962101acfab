"""What every target model keeps to: rows, caches, limits. One suite over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pilotfish import models
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.errors import BackendError
from pilotfish.protocols import Cache, TargetModel
from pilotfish.types import FloatArray, Segment
from support.tiny_gguf import write_tiny

CONTEXT = 96
PLACES = 3
VOCAB = 40
TEXT = [(7 * i * i + 3 * i) % 32 for i in range(CONTEXT)]


@dataclass(frozen=True)
class Subject:
    """One implementation, and how near the rows of two ways to one place must be."""

    model: TargetModel
    tolerance: float
    # whether a row's bits do not depend on where in memory the keys and values lie
    keeps_bits_of_copies: bool = True


def scripted(folder: Path) -> ScriptedModel:
    logits = random_logits(VOCAB, memory=6)
    return ScriptedModel(logits, vocab_size=VOCAB, context_size=CONTEXT, max_sessions=PLACES)


def llama(folder: Path) -> LlamaModel:
    return LlamaModel(
        write_tiny(folder / "tiny.gguf"),
        context_size=CONTEXT,
        max_sessions=PLACES,
        threads=1,
        cache_type="f32",
    )


def llama_strict(folder: Path) -> LlamaModel:
    path = write_tiny(folder / "tiny.gguf", quantised=True)
    return LlamaModel(path, context_size=CONTEXT, max_sessions=PLACES, threads=1, strict=True)


def llama_shared(folder: Path) -> LlamaModel:
    return LlamaModel(
        write_tiny(folder / "tiny.gguf"),
        context_size=CONTEXT,
        max_sessions=PLACES,
        threads=1,
        cache_type="f32",
        shared_cells=True,
    )


def llama_quantised_cache(folder: Path) -> LlamaModel:
    return LlamaModel(
        write_tiny(folder / "tiny.gguf", heads=1),
        context_size=CONTEXT,
        max_sessions=PLACES,
        threads=1,
        cache_type="q8_0",
        flash_attention=True,
    )


def llama_real(folder: Path) -> LlamaModel:
    path = models.resolve("smollm2-135m")
    return LlamaModel(path, context_size=CONTEXT, max_sessions=PLACES)


def native(folder: Path) -> NativeModel:
    return NativeModel(
        write_tiny(folder / "tiny.gguf"),
        context_size=CONTEXT,
        max_sessions=PLACES,
        threads=1,
        cache_type="f32",
    )


def native_quantised(folder: Path) -> NativeModel:
    path = write_tiny(folder / "tiny.gguf", quantised=True)
    return NativeModel(path, context_size=CONTEXT, max_sessions=PLACES, threads=1)


def native_real(folder: Path) -> NativeModel:
    path = models.resolve("smollm2-135m")
    return NativeModel(path, context_size=CONTEXT, max_sessions=PLACES)


# only where kernels change with the width of a pass do rows differ: in fp32 by rounding, and in
# quantised weights by more, since their passes round elsewhere
MAKERS: dict[str, tuple[Callable[[Path], TargetModel], float]] = {
    "scripted": (scripted, 0.0),
    "llama": (llama, 1e-4),
    "llama-shared": (llama_shared, 1e-4),
    "llama-q8-cache": (llama_quantised_cache, 0.05),
    "llama-strict": (llama_strict, 0.0),
    "llama-135m": (llama_real, 2.0),
    "native": (native, 0.0),
    "native-quantised": (native_quantised, 0.0),
    "native-135m": (native_real, 0.0),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.models] if name.endswith("135m") else [])
        for name in MAKERS
    ],
)
def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    make, tolerance = MAKERS[request.param]
    model = make(tmp_path_factory.mktemp("model"))
    yield Subject(model, tolerance, keeps_bits_of_copies=make is not llama_shared)
    if isinstance(model, LlamaModel | NativeModel):
        model.close()


@pytest.fixture
def caches(subject: Subject) -> Iterator[list[Cache]]:
    """Give one cache for each place, empty at the start, closed at the end."""
    opened = [subject.model.new_cache() for _ in range(PLACES)]
    yield opened
    for cache in opened:
        cache.close()


def rows(subject: Subject, cache: Cache, token_ids: list[int], first_row: int = 0) -> FloatArray:
    return subject.model.forward([Segment(cache, token_ids, first_row)])[0].copy()


def read(subject: Subject, cache: Cache, token_ids: list[int]) -> None:
    assert rows(subject, cache, token_ids, len(token_ids)).shape == (0, subject.model.vocab_size)


def one_by_one(subject: Subject, cache: Cache, token_ids: list[int]) -> FloatArray:
    return np.concatenate([rows(subject, cache, [token]) for token in token_ids])


def same(subject: Subject, one: FloatArray, other: FloatArray) -> None:
    if subject.tolerance == 0:
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, atol=subject.tolerance)


def widest(subject: Subject) -> int:
    return min(subject.model.max_width, 12)


def test_rows_are_float32_of_the_real_vocabulary(subject: Subject, caches: list[Cache]) -> None:
    read(subject, caches[0], TEXT[:4])
    scored = rows(subject, caches[0], TEXT[4:6])
    assert scored.dtype == np.float32
    assert scored.shape == (2, subject.model.vocab_size)
    assert np.isfinite(scored).all()
    assert len(caches[0]) == 6


def test_each_row_of_a_wide_pass_is_that_of_a_one_token_pass(
    subject: Subject, caches: list[Cache]
) -> None:
    for cache in caches[:2]:
        read(subject, cache, TEXT[:9])
    for width in sorted({1, 2, 3, 4, 7, widest(subject)} & set(range(1, widest(subject) + 1))):
        new = TEXT[9 : 9 + width]
        same(subject, rows(subject, caches[0], new), one_by_one(subject, caches[1], new))
        for cache in caches[:2]:
            cache.truncate(9)


def test_ragged_sequences_in_one_call_are_each_as_if_alone(
    subject: Subject, caches: list[Cache]
) -> None:
    starts, widths = [5, 20, 11], [1, widest(subject), 3]
    texts = [TEXT[i : i + 40] for i in range(PLACES)]
    alone = []
    for cache, text, start, width in zip(caches, texts, starts, widths, strict=True):
        read(subject, cache, text[:start])
        alone.append(one_by_one(subject, cache, text[start : start + width]))
        cache.truncate(start)
    for order in ([0, 1, 2], [2, 0, 1]):
        segments = [Segment(caches[i], texts[i][starts[i] : starts[i] + widths[i]]) for i in order]
        together = [one.copy() for one in subject.model.forward(segments)]
        for i, scored in zip(order, together, strict=True):
            same(subject, scored, alone[i])
            assert len(caches[i]) == starts[i] + widths[i]
            caches[i].truncate(starts[i])


def test_a_prompt_and_a_decoding_session_share_a_call(
    subject: Subject, caches: list[Cache]
) -> None:
    read(subject, caches[0], TEXT[:8])
    alone = rows(subject, caches[0], TEXT[8:10])
    caches[0].truncate(8)
    nothing, scored = subject.model.forward(
        [Segment(caches[1], TEXT[:20], first_row=20), Segment(caches[0], TEXT[8:10])]
    )
    assert nothing.shape == (0, subject.model.vocab_size)
    same(subject, scored, alone)
    assert len(caches[1]) == 20


def test_truncating_and_continuing_is_as_if_fresh(subject: Subject, caches: list[Cache]) -> None:
    read(subject, caches[0], TEXT[:10])
    rows(subject, caches[0], [3] * min(widest(subject), 4))
    for length in (11, 10, 6):
        caches[0].truncate(length)
        assert len(caches[0]) == length
    scored = rows(subject, caches[0], TEXT[20:23])
    read(subject, caches[1], TEXT[:6])
    same(subject, scored, one_by_one(subject, caches[1], TEXT[20:23]))
    caches[0].truncate(0)
    read(subject, caches[0], TEXT[:6])
    assert len(caches[0]) == 6


@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_the_cache_never_had_is_refused(
    subject: Subject, caches: list[Cache], length: int
) -> None:
    read(subject, caches[0], TEXT[:4])
    with pytest.raises(BackendError):
        caches[0].truncate(length)
    assert len(caches[0]) == 4


def test_places_run_out_and_come_back(subject: Subject, caches: list[Cache]) -> None:
    with pytest.raises(BackendError, match="in use"):
        subject.model.new_cache()
    read(subject, caches[1], TEXT[:7])
    caches[1].close()
    caches[1].close()  # closing twice does nothing
    caches[1] = subject.model.new_cache()
    assert len(caches[1]) == 0
    with pytest.raises(BackendError, match="in use"):
        subject.model.new_cache()
    for cache in (caches[0], caches[1]):
        read(subject, cache, TEXT[:5])
    same(subject, rows(subject, caches[0], [1, 2]), rows(subject, caches[1], [1, 2]))


def test_the_context_can_be_filled_and_not_more(subject: Subject, caches: list[Cache]) -> None:
    model = subject.model
    assert model.context_size == CONTEXT
    read(subject, caches[0], TEXT[: CONTEXT - 1])
    assert rows(subject, caches[0], TEXT[CONTEXT - 1 :]).shape == (1, model.vocab_size)
    assert len(caches[0]) == CONTEXT
    with pytest.raises(BackendError, match="context"):
        model.forward([Segment(caches[0], [1])])
    caches[0].truncate(CONTEXT - 1)
    assert rows(subject, caches[0], [1]).shape == (1, model.vocab_size)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_ids_that_are_no_tokens_are_refused(
    subject: Subject, caches: list[Cache], wrong: int
) -> None:
    read(subject, caches[0], TEXT[:4])
    with pytest.raises(BackendError):
        subject.model.forward([Segment(caches[0], [wrong, 1])])
    caches[0].truncate(4)
    assert rows(subject, caches[0], [1]).shape == (1, subject.model.vocab_size)


def test_more_rows_than_the_widest_pass_are_refused_or_given(
    subject: Subject, caches: list[Cache]
) -> None:
    width = subject.model.max_width
    assert width >= 1
    if width < CONTEXT:
        with pytest.raises(BackendError):
            subject.model.forward([Segment(caches[0], TEXT[: width + 1])])
        caches[0].truncate(0)
    assert len(rows(subject, caches[0], TEXT[: min(width, CONTEXT)])) == min(width, CONTEXT)


# inside a page of 64 tokens, and around its border
CUTS = [1, 17, 63, 64, 65, 70]


@pytest.mark.parametrize("cut", CUTS)
def test_a_copy_of_a_beginning_scores_like_a_fresh_sequence(
    subject: Subject, caches: list[Cache], cut: int
) -> None:
    caches[1].close()
    read(subject, caches[0], TEXT[:70])
    caches[1] = caches[0].prefix(cut)
    read(subject, caches[2], TEXT[:cut])
    assert [len(cache) for cache in caches] == [70, cut, cut]
    new = TEXT[80 : 80 + min(widest(subject), 5)]
    same(subject, rows(subject, caches[1], new), rows(subject, caches[2], new))
    # the origin is what it was, whatever its copy has read
    caches[2].truncate(0)
    read(subject, caches[2], TEXT[:70])
    same(subject, rows(subject, caches[0], new), rows(subject, caches[2], new))


@pytest.mark.parametrize("cut", [16, 64])
def test_a_copy_of_whole_passes_has_the_bits_of_a_fresh_sequence(
    subject: Subject, caches: list[Cache], cut: int
) -> None:
    caches[1].close()
    for start in range(0, 80, cut):
        read(subject, caches[0], TEXT[start : start + cut])
    caches[1] = caches[0].prefix(cut)
    read(subject, caches[2], TEXT[:cut])
    copied, fresh = [rows(subject, cache, TEXT[80:83]) for cache in caches[1:]]
    if subject.keeps_bits_of_copies:
        np.testing.assert_array_equal(copied, fresh)
    else:
        same(subject, copied, fresh)


@pytest.mark.parametrize("cut", CUTS)
def test_a_copy_does_not_see_what_becomes_of_its_origin(
    subject: Subject, caches: list[Cache], cut: int
) -> None:
    for cache in caches[1:]:
        cache.close()
    read(subject, caches[0], TEXT[:70])
    caches[1] = caches[0].prefix(cut)
    caches[2] = caches[1].prefix(cut)  # a copy of a copy
    caches[0].truncate(min(cut, 20))
    read(subject, caches[0], TEXT[30:60])
    new = TEXT[5:8]
    first = rows(subject, caches[1], new)
    caches[0].close()
    caches[1].close()
    caches[0] = subject.model.new_cache()
    read(subject, caches[0], TEXT[:cut])
    fresh = rows(subject, caches[0], new)
    same(subject, first, fresh)
    same(subject, rows(subject, caches[2], new), fresh)


def test_copies_and_their_origin_share_a_pass(subject: Subject, caches: list[Cache]) -> None:
    for cache in caches[1:]:
        cache.close()
    read(subject, caches[0], TEXT[:66])
    caches[1], caches[2] = caches[0].prefix(64), caches[0].prefix(30)
    lengths, new = [66, 64, 30], [TEXT[i : i + 1 + i % 2] for i in range(PLACES)]
    pairs = list(zip(caches, new, strict=True))
    together = [one.copy() for one in subject.model.forward([Segment(*pair) for pair in pairs])]
    for cache in caches:
        cache.truncate(0)
    for (cache, ids), length, scored in zip(pairs, lengths, together, strict=True):
        read(subject, cache, TEXT[:length])
        same(subject, scored, rows(subject, cache, ids))


def test_the_whole_and_nothing_are_beginnings_too(subject: Subject, caches: list[Cache]) -> None:
    for cache in caches[1:]:
        cache.close()
    read(subject, caches[0], TEXT[:9])
    caches[1], caches[2] = caches[0].prefix(9), caches[0].prefix(0)
    assert [len(cache) for cache in caches] == [9, 9, 0]
    expected = rows(subject, caches[0], [1, 2])
    same(subject, rows(subject, caches[1], [1, 2]), expected)
    read(subject, caches[2], TEXT[:9])
    same(subject, rows(subject, caches[2], [1, 2]), expected)


@pytest.mark.parametrize("length", [-1, 5])
def test_a_beginning_the_cache_does_not_hold_is_refused_and_takes_no_place(
    subject: Subject, caches: list[Cache], length: int
) -> None:
    read(subject, caches[0], TEXT[:4])
    caches[1].close()
    with pytest.raises(BackendError):
        caches[0].prefix(length)
    caches[1] = caches[0].prefix(4)
    assert len(caches[0]) == len(caches[1]) == 4


def test_a_copy_takes_a_place_and_gives_it_back(subject: Subject, caches: list[Cache]) -> None:
    read(subject, caches[0], TEXT[:4])
    with pytest.raises(BackendError, match="in use"):
        caches[0].prefix(2)
    for _ in range(3):
        caches[1].close()
        caches[1] = caches[0].prefix(2)
    with pytest.raises(BackendError, match="in use"):
        caches[0].prefix(2)
    assert rows(subject, caches[0], [1]).shape == (1, subject.model.vocab_size)


def test_a_closed_cache_has_no_beginning(subject: Subject, caches: list[Cache]) -> None:
    read(subject, caches[0], TEXT[:4])
    caches[0].close()
    with pytest.raises(BackendError, match="closed"):
        caches[0].prefix(2)
    caches[0] = subject.model.new_cache()
