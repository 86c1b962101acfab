"""Turn segments into passes: as few as possible, or each alone at a checked width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from pilotfish.backends.llama.batch import Piece, plan_passes
from pilotfish.backends.llama.cache import LlamaCache
from pilotfish.backends.llama.context import LlamaContext
from pilotfish.errors import BackendError
from pilotfish.types import FloatArray, Segment


def evaluate_together(context: LlamaContext, segments: Sequence[Segment]) -> list[FloatArray]:
    """Return the rows of each segment [num_rows, vocab_size], from as few passes as possible.

    One pass gives views on llama.cpp's buffer; several give copies. Caches grow as passes end.
    """
    if len(segments) == 1 and _fits(context, segments[0]):
        return [_evaluate_one(context, segments[0])]
    num_tokens = sum(len(segment.token_ids) for segment in segments)
    num_rows = sum(segment.num_rows for segment in segments)
    if num_tokens == 0:
        return [context.no_rows for _ in segments]
    max_tokens = context.options.batch_size
    if num_tokens <= max_tokens and num_rows <= context.max_rows:
        whole = [Piece(i, 0, len(s.token_ids)) for i, s in enumerate(segments) if s.token_ids]
        results = [context.no_rows for _ in segments]
        for piece, rows in zip(whole, _run_pass(context, segments, whole), strict=True):
            results[piece.index] = rows
        return results
    parts: list[list[FloatArray]] = [[context.no_rows] for _ in segments]
    for pieces in plan_passes(segments, max_tokens=max_tokens, max_rows=context.max_rows):
        for piece, rows in zip(pieces, _run_pass(context, segments, pieces), strict=True):
            parts[piece.index].append(rows.copy())
    return [np.concatenate(part) for part in parts]


def evaluate_alone(
    context: LlamaContext, segments: Sequence[Segment], widths: Sequence[int]
) -> list[FloatArray]:
    """Return the rows of each segment, every one from a pass of its own at one of `widths`.

    A segment that wants rows takes the smallest width that holds it, filled up with its last id;
    what was filled up is cut away again. A segment that wants none is a prompt and runs as given:
    its cut into passes depends on the prompt alone.
    """
    if len(segments) == 1:
        return [_evaluate_fixed(context, segments[0], widths)]
    return [_evaluate_fixed(context, segment, widths).copy() for segment in segments]


def _fits(context: LlamaContext, segment: Segment) -> bool:
    num_tokens = len(segment.token_ids)
    return (
        0 < num_tokens <= context.options.batch_size
        and num_tokens - segment.first_row <= context.max_rows
    )


def _evaluate_one(context: LlamaContext, segment: Segment) -> FloatArray:
    # the most frequent call by far: a pass has just swept every cache of the processor, so each
    # step of Python after it costs several times what it costs in a loop
    cache = cast(LlamaCache, segment.cache)
    begin = len(cache)
    rows = context.run_one(
        segment.token_ids, position=begin, sequence=cache.sequence, first_row=segment.first_row
    )
    cache.set_length(begin + len(segment.token_ids))
    return rows


def _evaluate_fixed(context: LlamaContext, segment: Segment, widths: Sequence[int]) -> FloatArray:
    if segment.num_rows == 0:
        return evaluate_together(context, [segment])[0]
    token_ids, cache = segment.token_ids, cast(LlamaCache, segment.cache)
    width = next((width for width in widths if width >= len(token_ids)), None)
    if width is None:
        raise BackendError(
            f"strict mode evaluates at most {widths[-1]} tokens with rows, got {len(token_ids)}",
            hint="pass a prompt with first_row == len(token_ids)",
        )
    filled = [*token_ids, *[token_ids[-1]] * (width - len(token_ids))]
    begin, end = len(cache), len(cache) + len(token_ids)
    # every row is asked for: the last layer and the head run over the wanted rows only, and
    # their number picks the kernel as well
    rows = context.run_one(filled, position=begin, sequence=cache.sequence)
    if width > len(token_ids) and not context.truncate(cache.sequence, end):
        raise BackendError("the padding of a strict pass could not be cut away")
    cache.set_length(end)
    return rows[segment.first_row : len(token_ids)]


def _run_pass(
    context: LlamaContext, segments: Sequence[Segment], pieces: Sequence[Piece]
) -> list[FloatArray]:
    """Return the rows of each piece, in the order of `pieces`."""
    batch = context.batch
    batch.clear()
    order: Sequence[int] = range(len(pieces))
    if len(pieces) > 1:
        # llama.cpp joins sequences in one pass only when their ids ascend without gaps
        order = sorted(order, key=lambda i: _cache_of(segments, pieces[i]).sequence)
    spans = [(0, 0)] * len(pieces)
    for index in order:
        piece = pieces[index]
        segment, cache = segments[piece.index], _cache_of(segments, piece)
        begin = batch.num_rows
        batch.append(
            segment.token_ids[piece.start : piece.stop],
            position=len(cache),
            sequence=cache.sequence,
            first_row=min(max(segment.first_row - piece.start, 0), piece.stop - piece.start),
        )
        spans[index] = (begin, batch.num_rows)
    rows = context.run()
    for piece in pieces:
        cache = _cache_of(segments, piece)
        cache.set_length(len(cache) + piece.stop - piece.start)
    return [rows[begin:end] for begin, end in spans]


def _cache_of(segments: Sequence[Segment], piece: Piece) -> LlamaCache:
    return cast(LlamaCache, segments[piece.index].cache)
