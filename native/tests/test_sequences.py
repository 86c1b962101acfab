"""Sequences: cut, continued, copied and mixed, they stay what a fresh evaluation gives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native import Model, Sequence

from support.tiny_networks import TinyNetwork, write_network

TEXT = [(11 * i * i + 5 * i) % 70 for i in range(200)]
OTHER = [(13 * i * i + 3 * i + 1) % 70 for i in range(200)]
Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> TinyNetwork:
    return write_network(tmp_path_factory.mktemp("net") / "weights", "Q8_0", num_layers=2)


@pytest.fixture(scope="module")
def core(network: TinyNetwork) -> Model:
    return network.open()


@pytest.fixture(scope="module")
def expected(core: Model) -> dict[str, Rows]:
    return {"text": fresh(core, TEXT), "other": fresh(core, OTHER)}


def fresh(core: Model, ids: list[int]) -> Rows:
    return add(core, core.new_sequence(), ids)


def add(core: Model, sequence: Sequence, ids: list[int]) -> Rows:
    return core.forward([sequence], [ids], [0]).copy()


def same(rows: Rows, expected: Rows) -> None:
    np.testing.assert_array_equal(rows.view(np.uint32), expected.view(np.uint32))


CUTS = [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 130]


@pytest.mark.parametrize("cut", CUTS)
def test_cut_and_continued_is_as_if_nothing_else_had_been_there(
    core: Model, expected: dict[str, Rows], cut: int
) -> None:
    sequence = core.new_sequence()
    add(core, sequence, TEXT[:cut])
    add(core, sequence, OTHER[: 150 - cut])
    sequence.truncate(cut)
    assert len(sequence) == cut
    same(add(core, sequence, TEXT[cut:150]), expected["text"][cut:150])


def test_a_prefix_and_its_origin_go_their_own_ways_from_any_length(
    core: Model, expected: dict[str, Rows]
) -> None:
    origin = core.new_sequence()
    add(core, origin, TEXT[:130])
    for cut in range(1, 131):
        copy = origin.prefix(cut)
        assert (len(copy), len(origin)) == (cut, 130)
        add(core, copy, OTHER[:3])
        same(add(core, origin, TEXT[130:132]), expected["text"][130:132])
        copy.truncate(cut)
        same(add(core, copy, TEXT[cut : cut + 2]), expected["text"][cut : cut + 2])
        origin.truncate(130)
        copy.close()


@pytest.mark.parametrize("cut", CUTS)
def test_an_origin_may_be_cut_below_its_copy(
    core: Model, expected: dict[str, Rows], cut: int
) -> None:
    origin = core.new_sequence()
    add(core, origin, TEXT[:140])
    copy, copy_of_copy = origin.prefix(140), origin.prefix(140).prefix(135)
    origin.truncate(cut)
    add(core, origin, OTHER[:100])
    same(add(core, copy, TEXT[140:145]), expected["text"][140:145])
    origin.close()
    same(add(core, copy_of_copy, TEXT[135:145]), expected["text"][135:145])


def test_segments_of_one_pass_are_as_if_alone(core: Model, expected: dict[str, Rows]) -> None:
    random = np.random.default_rng(7)
    for _ in range(30):
        begun = random.integers(0, 100, 5)
        lengths = random.integers(0, 60, 5)
        firsts = [int(random.integers(0, length + 1)) for length in lengths]
        texts = [("text", TEXT) if i % 2 else ("other", OTHER) for i in range(5)]
        sequences = [core.new_sequence() for _ in range(5)]
        for sequence, start, (_, ids) in zip(sequences, begun, texts, strict=True):
            core.forward([sequence], [ids[:start]], [start])
        new = [ids[b : b + n] for b, n, (_, ids) in zip(begun, lengths, texts, strict=True)]
        rows = core.forward(sequences, new, firsts)
        wanted = [
            expected[name][start + first : start + length]
            for (name, _), start, first, length in zip(texts, begun, firsts, lengths, strict=True)
        ]
        same(rows, np.concatenate(wanted))
        assert [len(sequence) for sequence in sequences] == (begun + lengths).tolist()


def test_a_pass_may_want_no_rows_or_hold_no_tokens(core: Model, expected: dict[str, Rows]) -> None:
    first, second = core.new_sequence(), core.new_sequence()
    assert core.forward([], [], []).shape == (0, 70)
    assert core.forward([first], [[]], [0]).shape == (0, 70)
    assert core.forward([first, second], [TEXT[:100], OTHER[:3]], [100, 3]).shape == (0, 70)
    assert core.hidden().shape == (0, core.hidden_size)
    same(add(core, first, TEXT[100:103]), expected["text"][100:103])
    same(add(core, second, OTHER[3:5]), expected["other"][3:5])


def test_pages_are_used_again_without_a_trace(core: Model, expected: dict[str, Rows]) -> None:
    for _ in range(3):
        sequences = [core.new_sequence() for _ in range(3)]
        for sequence in sequences:
            add(core, sequence, OTHER)
        for sequence in sequences:
            sequence.close()
            sequence.close()
        same(fresh(core, TEXT), expected["text"])


def test_rows_and_hidden_states_belong_together(core: Model, expected: dict[str, Rows]) -> None:
    single = []
    sequence = core.new_sequence()
    for token_id in TEXT[:70]:
        core.forward([sequence], [[token_id]], [0])
        single.append(core.hidden()[0].copy())
    sequence.truncate(0)
    core.forward([sequence, core.new_sequence()], [TEXT[:70], OTHER[:9]], [3, 8])
    assert core.hidden().shape == (68, core.hidden_size)
    same(core.hidden()[:67].copy(), np.stack(single[3:]))


def test_rows_are_kept_while_somebody_looks_at_them(network: TinyNetwork) -> None:
    core = network.open()
    sequence = core.new_sequence()
    few = core.forward([sequence], [TEXT[:2]], [0])
    kept = few.copy()
    # more rows than there was room for: new memory
    core.forward([sequence], [TEXT[2:200]], [0])
    core.close()
    del core
    same(few, kept)


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_what_is_no_number_stays_in_its_own_sequence(network: TinyNetwork, cache_type: str) -> None:
    core = network.open(cache_type=cache_type)
    clean = fresh(core, TEXT[:70])

    def spoiled(name: str, values: Rows) -> Rows:
        if name == "token_embd.weight":
            values[69] = [np.nan, np.inf] * (values.shape[1] // 2)
        return values

    shape = {"num_layers": 2, "changed": spoiled}
    path = network.path.with_name("spoiled")
    core = write_network(path, MATRICES_IN_Q8, **shape).open(cache_type=cache_type)
    sequence, text = core.new_sequence(), [i % 69 for i in TEXT[:70]]
    clean = fresh(core, text)
    assert not np.isfinite(add(core, sequence, [69] * 64)).all()
    sequence.truncate(0)
    same(add(core, sequence, text), clean)
    sequence.truncate(40)
    # the pass of a row that is no number, and those before it
    rows = add(core, sequence, [*text[40:50], 69])
    same(rows[:10], clean[40:50])
    sequence.truncate(50)
    same(add(core, sequence, text[50:]), clean[50:])


MATRICES_IN_Q8 = {
    f"blk.{layer}.{name}.weight": "Q8_0"
    for layer in range(2)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda core, s: s.truncate(6), ValueError),
        (lambda core, s: s.prefix(6), ValueError),
        (lambda core, s: s.truncate(-1), TypeError),
        (lambda core, s: core.forward([s], [[70]], [0]), ValueError),
        (lambda core, s: core.forward([s], [[-1]], [0]), ValueError),
        (lambda core, s: core.forward([s], [[1]], [2]), ValueError),
        (lambda core, s: core.forward([s], [[1]], [-1]), TypeError),
        (lambda core, s: core.forward([s], [[1 << 40]], [0]), TypeError),
        (lambda core, s: core.forward([s, s], [[1], [1]], [0, 0]), ValueError),
        (lambda core, s: core.forward([s], [[1], [1]], [0]), ValueError),
        (lambda core, s: core.forward([s], [[1]], []), ValueError),
        (lambda core, s: core.forward([None], [[1]], [0]), (TypeError, ValueError)),
        (lambda core, s: core.forward([s], [["1"]], [0]), TypeError),
    ],
)
def test_wrong_values_are_refused_and_leave_the_sequence(
    core: Model, expected: dict[str, Rows], call: object, error: type[Exception]
) -> None:
    sequence = core.new_sequence()
    add(core, sequence, TEXT[:5])
    with pytest.raises(error):
        call(core, sequence)  # type: ignore[operator]
    same(add(core, sequence, TEXT[5:8]), expected["text"][5:8])


def test_sequences_of_other_models_and_closed_ones_are_refused(
    core: Model, network: TinyNetwork
) -> None:
    with pytest.raises(ValueError, match="another model"):
        core.forward([network.open().new_sequence()], [[1]], [0])
    sequence = core.new_sequence()
    sequence.close()
    with pytest.raises(ValueError, match="closed"):
        core.forward([sequence], [[1]], [0])
    for call in (lambda: sequence.truncate(0), lambda: sequence.prefix(0)):
        with pytest.raises(RuntimeError, match="closed"):
            call()
