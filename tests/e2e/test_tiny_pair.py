"""Tiny GGUF pairs through `pilotfish.load_engine`: drafting changes time, never the reply.

On the native backend nothing excuses a difference. On llama.cpp, with fp32 files, a tie does: two
best logits less than 1e-4 apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pilotfish import Reply, TextEngine, load, load_engine, models
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.config import EngineConfig, ModelConfig, Request, SpeculationConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import (
    BackendError,
    CacheNotTruncatable,
    ContextLengthExceeded,
    ModelError,
    NotEnoughMemory,
    VocabularyMismatch,
)
from pilotfish.protocols import Drafter
from pilotfish.types import FloatArray, Segment
from support.drafters import never, oracle, random_tokens
from support.memory import growth
from support.tiny_gguf import BEGIN, CHAT_TEMPLATE, END, TURN, vocabulary, write_tiny

LARGEST_TIE = {"native": 0.0, "llama": 1e-4}
REAL = len(vocabulary()[0])
CONTEXT = 256
PROMPTS = [
    [17],
    *([(seed * 31 + 7 * i * i) % 256 for i in range(3 + seed % 5)] for seed in range(1, 8)),
]


Model = LlamaModel | NativeModel


@pytest.fixture(scope="module", params=["native", "llama"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def open_model(backend: str, path: Path, **options: Any) -> Model:
    """Load one model, in fp32 and on one thread unless said otherwise."""
    values: dict[str, Any] = {"context_size": CONTEXT, "threads": 1, "cache_type": "f32"}
    kind = {"native": NativeModel, "llama": LlamaModel}[backend]
    return kind(path, **(values | options))


def side(path: Path, backend: str = "native", **options: Any) -> ModelConfig:
    """Return the config of one side, in fp32 and on one thread unless said otherwise."""
    values: dict[str, Any] = {"context_size": CONTEXT, "threads": 1, "cache_type": "f32"}
    return ModelConfig(reference=str(path), backend=backend, **(values | options))


def pair(
    target: ModelConfig,
    draft: ModelConfig | None = None,
    *,
    drafter: str = "model",
    number: int | None = None,
    sessions: int = 1,
    **options: Any,
) -> TextEngine:
    # whether drafts pay is not the question here: they are made
    speculation = SpeculationConfig(
        drafter=drafter, num_speculative_tokens=number, controller="fixed", **options
    )
    return load_engine(
        EngineConfig(target=target, draft=draft, speculation=speculation, max_sessions=sessions)
    )


def plain(target: ModelConfig, **options: Any) -> Reply:
    with pair(target, drafter="none") as engine:
        return engine.generate("Go:", raw=True, **options)


class Reference:
    """The greedy replies of a model alone, one token a pass, with the gap of each choice."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.tie = LARGEST_TIE[model.facts.backend]
        self.replies: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}

    def reply(self, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """Return the tokens and, for each, how far the second best logit was."""
        key = (*prompt, -num_tokens)
        if key not in self.replies:
            self.replies[key] = self._decode(prompt, num_tokens)
        return self.replies[key]

    def _decode(self, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        engine = Engine(target=self.model, drafter=NoDrafter(), controller=FixedController(0))
        session = engine.start(prompt, max_tokens=num_tokens)
        gaps = []
        forward = self.model.forward

        def watching(segments: list[Segment]) -> list[FloatArray]:
            rows = forward(segments)
            second, first = np.sort(rows[0][-1])[-2:]
            gaps.append(float(first - second))
            return rows

        self.model.forward = watching  # type: ignore[method-assign, assignment]
        try:
            engine.run_together([session])
        finally:
            del self.model.forward
        return session.output_ids, gaps

    def explains(self, prompt: list[int], other: list[int], *, tie: float | None = None) -> bool:
        """Return whether `other` is the reply, or parts from it at a tie."""
        tie = self.tie if tie is None else tie
        ids, gaps = self.reply(prompt, len(other))
        pairs = zip(ids, other, strict=True)
        index = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        return index is None or gaps[index] <= tie > 0


@pytest.fixture(scope="module")
def target(tiny_pair: Any, backend: str) -> Iterator[Model]:
    with open_model(backend, tiny_pair.target, max_sessions=3) as model:
        yield model


@pytest.fixture(scope="module")
def draft(tiny_pair: Any, backend: str) -> Iterator[Model]:
    with open_model(backend, tiny_pair.draft, max_sessions=3) as model:
        yield model


@pytest.fixture(scope="module")
def reference(target: Model) -> Reference:
    return Reference(target)


def greedy(target: Model, drafter: Drafter, number: int, prompt: list[int], n: int) -> list[int]:
    engine = Engine(target=target, drafter=drafter, controller=FixedController(number))
    session = engine.start(prompt, max_tokens=n)
    engine.run_together([session])
    assert session.error is None
    assert session.drafting_error is None
    return session.output_ids


@pytest.mark.parametrize("number", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("style", ["suffix", "model", "self", "oracle-3", "never", "random"])
def test_greedy_replies_are_those_of_the_target_alone(
    tiny_pair: Any,
    target: Model,
    draft: Model,
    reference: Reference,
    style: str,
    number: int,
) -> None:
    with open_model(target.facts.backend, tiny_pair.target) as twin:
        for prompt in PROMPTS:
            known, _ = reference.reply(prompt, 24)
            drafter: Drafter = {
                "suffix": lambda: SuffixDrafter(),
                "model": lambda: ModelDrafter(draft, vocab_size=REAL, min_survival=0.0),
                "self": lambda twin=twin: ModelDrafter(twin, vocab_size=REAL, min_survival=0.0),
                "oracle-3": lambda known=known: oracle(known, errs_every=3, vocab_size=REAL),
                "never": lambda known=known: never(known, vocab_size=REAL),
                "random": lambda: random_tokens(REAL),
            }[style]()
            assert reference.explains(prompt, greedy(target, drafter, number, prompt, 24))


@pytest.mark.parametrize("number", range(1, 33))
def test_the_reply_does_not_depend_on_the_number_of_drafts(
    target: Model, reference: Reference, number: int
) -> None:
    prompt = PROMPTS[3]
    known, _ = reference.reply(prompt, 40)
    drafter = oracle(known, errs_every=7, vocab_size=REAL)
    assert reference.explains(prompt, greedy(target, drafter, number, prompt, 40))


def largest_difference(model: LlamaModel, text: list[int], width: int) -> float:
    """Return by how much a logit of passes of one width differs from that of one-token passes."""

    def rows(step: int) -> FloatArray:
        cache = model.new_cache()
        pieces = [text[begin : begin + step] for begin in range(0, len(text), step)]
        scored = [model.forward([Segment(cache, piece)])[0].copy() for piece in pieces]
        cache.close()
        return np.concatenate(scored)

    return float(np.abs(rows(width) - rows(1)).max())


def part_only_where_rounding_can(model: LlamaModel, prompts: list[list[int]], n: int) -> None:
    """Assert that replies differ only at gaps that the widths explain, so nowhere if they agree."""
    number = 3
    reference = Reference(model)
    texts = [[*prompt, *reference.reply(prompt, n)[0]] for prompt in prompts]
    error = max(largest_difference(model, text, number + 1) for text in texts)
    for prompt in prompts:
        known, _ = reference.reply(prompt, n)
        drafter = oracle(known, errs_every=5, vocab_size=model.vocab_size)
        first = greedy(model, drafter, number, prompt, n)
        assert reference.explains(prompt, first, tie=2 * error)
        assert greedy(model, drafter, number, prompt, n) == first


def test_quantised_replies_part_only_where_rounding_can(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "q8.gguf", quantised=True)
    with LlamaModel(path, context_size=CONTEXT, threads=1) as model:
        part_only_where_rounding_can(model, PROMPTS, 24)


@pytest.mark.models
def test_replies_of_a_real_quantised_file_part_only_where_rounding_can() -> None:
    with LlamaModel(models.resolve("smollm2-135m"), context_size=CONTEXT) as model:
        texts = ["Once upon a time", "def add(a, b):", "The capital of France is", "1, 2, 3, 4,"]
        prompts = [model.tokenizer.encode(text, parse_special=False) for text in texts]
        part_only_where_rounding_can(model, prompts, 32)


# what the sides may differ in
DIFFERENT = {
    "context": ({}, {"context_size": 48}),
    "threads": ({"threads": 1}, {"threads": 2}),
    "cache": ({"cache_type": "f32"}, {"cache_type": "f16"}),
    "backend": ({}, {"backend": "llama"}),
    "other-backend": ({"backend": "llama"}, {}),
    "batch": ({"backend": "llama"}, {"backend": "llama", "batch_size": 4}),
    "narrow-target": ({"backend": "llama", "batch_size": 4}, {"backend": "llama"}),
    "everything": (
        {"context_size": 200},
        {
            "backend": "llama",
            "context_size": 64,
            "threads": 2,
            "batch_size": 8,
            "cache_type": "f16",
        },
    ),
}


@pytest.mark.parametrize("options", DIFFERENT.values(), ids=DIFFERENT)
def test_target_and_draft_may_differ_in_everything(
    tiny_pair: Any, options: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    target = side(tiny_pair.target, **options[0])
    settings: dict[str, Any] = {"max_tokens": 90, "temperature": 0.8, "seed": 11}
    expected = plain(target, **settings)
    with pair(target, side(tiny_pair.draft, **options[1]), number=4) as engine:
        for _ in range(2):
            reply = engine.generate("Go:", raw=True, **settings)
            assert reply.token_ids == expected.token_ids
            assert reply.stats.drafted > 0
        context_size = options[1].get("context_size", 256)
        assert engine.facts.models["draft"]["context_size"] == context_size
        limits = [n for n in engine.facts.notices if f"holds {context_size} tokens" in n]
        assert len(limits) == (context_size < options[0].get("context_size", 256))


@pytest.mark.parametrize("quantised", ["target", "draft"])
def test_target_and_draft_may_be_of_different_formats(
    tmp_path: Path, backend: str, quantised: str
) -> None:
    files = {
        role: write_tiny(tmp_path / f"{role}.gguf", seed=seed, quantised=role == quantised)
        for role, seed in (("target", 1), ("draft", 2))
    }
    settings: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "seed": 3, "logprobs": 2}
    sides = [side(path, backend) for path in files.values()]
    expected = plain(sides[0], **settings)
    with pair(*sides, number=1) as engine:
        reply = engine.generate("Go:", raw=True, **settings)
    if quantised == "draft" or backend == "native":
        assert reply.token_ids == expected.token_ids
    assert reply.stats.drafted > 0


@pytest.mark.parametrize("drafter", ["none", "suffix", "model"])
@pytest.mark.parametrize("length", [40, 62, 63, 64])
def test_neither_side_passes_the_end_of_its_context(
    tiny_pair: Any, backend: str, drafter: str, length: int
) -> None:
    sides = [side(path, backend, context_size=64) for path in (tiny_pair.target, tiny_pair.draft)]
    with pair(*sides, drafter=drafter, number=8) as engine:
        reply = engine.generate("a" * length, raw=True, max_tokens=100, temperature=0.5, seed=1)
        assert reply.usage.prompt_tokens == length
        assert reply.usage.completion_tokens == 65 - length
        assert reply.finish_reason == "length"
        assert engine.generate("a", raw=True, max_tokens=2).usage.completion_tokens == 2


@pytest.mark.parametrize("draft_context", [32, 128])
@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_too_long_is_refused_with_both_numbers(
    tiny_pair: Any, draft_context: int, raw: bool
) -> None:
    sides = (
        side(tiny_pair.target, context_size=64),
        side(tiny_pair.draft, context_size=draft_context),
    )
    with pair(*sides, number=4) as engine:
        for length in (65, 5_000):
            with pytest.raises(ContextLengthExceeded, match=r"\d+ tokens.* 64"):
                engine.generate("a" * length, raw=raw)
        assert engine.generate("a" * 20, raw=raw, max_tokens=3).usage.completion_tokens == 3


@pytest.mark.parametrize("batch_size", [4, 8, 512])
@pytest.mark.parametrize("number", [0, 1, 7, 9, 64, 1000])
def test_long_drafts_respect_the_batch(tiny_pair: Any, batch_size: int, number: int) -> None:
    target = side(tiny_pair.target, "llama", batch_size=batch_size)
    expected = plain(side(tiny_pair.target, "llama"), max_tokens=60)
    with pair(target, drafter="suffix", number=number, sessions=2) as engine:
        replies = engine.generate_batch(["Go:", "Go:"], raw=True, max_tokens=60)
    assert [reply.token_ids for reply in replies] == [expected.token_ids] * 2
    assert replies[0].stats.speculation["on"] == (number > 0)
    clamped = [notice for notice in engine.facts.notices if f"{batch_size} rows" in notice]
    assert len(clamped) == (number >= batch_size)


@pytest.mark.parametrize("number", [0, 1, 7, 63, 64, 1000])
def test_long_drafts_respect_the_widest_pass(tiny_pair: Any, number: int) -> None:
    expected = plain(side(tiny_pair.target), max_tokens=90)
    with pair(side(tiny_pair.target), drafter="suffix", number=number, sessions=2) as engine:
        replies = engine.generate_batch(["Go:", "Go:"], raw=True, max_tokens=90)
        clamped = [notice for notice in engine.facts.notices if "64 rows" in notice]
    assert [reply.token_ids for reply in replies] == [expected.token_ids] * 2
    assert len(clamped) == (number >= 64)


def test_recurrent_models_are_refused_for_drafting_before_the_first_token(
    tmp_path: Path, tiny_pair: Any
) -> None:
    recurrent = side(write_tiny(tmp_path / "recurrent.gguf", recurrent=True), "auto")
    with pytest.raises(CacheNotTruncatable, match=r"target.*recurrent") as caught:
        pair(recurrent, drafter="suffix")
    assert "--drafter none" in caught.value.hint
    with pytest.raises(CacheNotTruncatable, match=r"draft.*recurrent") as caught:
        pair(side(tiny_pair.target), recurrent)
    assert "another draft" in caught.value.hint
    with pair(recurrent, drafter="none") as engine:
        first = engine.generate("Go:", raw=True, max_tokens=30)
        engine.generate("Another prompt", raw=True, max_tokens=5)
        again = engine.generate("Go:", raw=True, max_tokens=30)
    assert first.token_ids == again.token_ids
    assert first.usage.completion_tokens == 30


@pytest.mark.parametrize("number", [1, 4, 8, 16, 20])
@pytest.mark.parametrize("length", [5, 16, 40])
def test_a_sliding_window_gives_the_same_reply_with_drafts(
    tmp_path: Path, number: int, length: int
) -> None:
    path = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    prompt = [(5 * i * i + i) % 256 for i in range(length)]
    with LlamaModel(path, context_size=CONTEXT, threads=1, cache_type="f32") as model:
        reference = Reference(model)
        known, _ = reference.reply(prompt, 60)
        for errs_every in (1, 3):
            drafter = oracle(known, errs_every=errs_every, vocab_size=model.vocab_size)
            assert reference.explains(prompt, greedy(model, drafter, number, prompt, 60))


@pytest.mark.parametrize("windowed", ["target", "draft"])
def test_one_side_may_have_a_window(tmp_path: Path, windowed: str) -> None:
    sides = [
        side(
            write_tiny(tmp_path / f"{role}.gguf", sliding_window=16 if role == windowed else 0),
            "auto",
        )
        for role in ("target", "draft")
    ]
    expected = plain(sides[0], max_tokens=50)
    with pair(*sides, number=4) as engine:
        reply = engine.generate("Go:", raw=True, max_tokens=50)
        assert any("runs on llama.cpp: architecture gemma2" in n for n in engine.facts.notices)
    assert reply.token_ids == expected.token_ids


@pytest.mark.parametrize(("target_padding", "draft_padding"), [(0, 13), (13, 0), (64, 8)])
def test_padding_of_either_side_does_not_matter(
    tmp_path: Path, backend: str, target_padding: int, draft_padding: int
) -> None:
    files = [
        write_tiny(tmp_path / "target.gguf", padding=target_padding),
        write_tiny(tmp_path / "draft.gguf", seed=2, padding=draft_padding),
    ]
    settings: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 5}
    sides = [side(path, backend) for path in files]
    expected = plain(sides[0], **settings)
    with pair(*sides, number=4) as engine:
        reply = engine.generate("Go:", raw=True, **settings)
        assert engine.facts.models["target"]["vocabulary"] == REAL
    assert reply.token_ids == expected.token_ids
    assert max(reply.token_ids) < REAL
    assert reply.stats.drafted > 0


def changed(path: Path, source: Path, *changes: tuple[str, str]) -> Path:
    """Write a copy of a model file in which texts of equal length are exchanged."""
    data = source.read_bytes()
    for old, new in changes:
        assert len(old.encode()) == len(new.encode())
        assert data.count(old.encode()) >= 1
        data = data.replace(old.encode(), new.encode())
    path.write_bytes(data)
    return path


def test_a_vocabulary_with_other_tokens_is_refused_with_the_id_and_both_texts(
    tmp_path: Path, tiny_pair: Any, backend: str
) -> None:
    target = side(tiny_pair.target, backend)
    texts = vocabulary()[0]
    number = texts.index("or")
    # the merge is changed too, so that the file is sound by itself
    other = changed(
        tmp_path / "other.gguf",
        tiny_pair.draft,
        ("\x02\0\0\0\0\0\0\0or", "\x02\0\0\0\0\0\0\0og"),
        ("\x03\0\0\0\0\0\0\0o r", "\x03\0\0\0\0\0\0\0o g"),
    )
    with pytest.raises(VocabularyMismatch, match=rf"token {number} is 'or' .* 'og'") as caught:
        pair(target, side(other, backend))
    assert "--drafter suffix" in caught.value.hint
    kind = changed(tmp_path / "kind.gguf", tiny_pair.draft, ("gpt-2", "qwen2"))
    with pytest.raises(VocabularyMismatch, match=r"gpt2/qwen2.* gpt2/gpt-2"):
        pair(target, side(kind, backend))
    # with a drafter that does not use it the draft is not even read
    with pair(target, side(kind, backend), drafter="suffix") as engine:
        assert engine.facts.models["draft"] is None


def test_a_control_token_of_another_name_gives_a_notice(
    tmp_path: Path, tiny_pair: Any, backend: str
) -> None:
    renamed = changed(tmp_path / "renamed.gguf", tiny_pair.draft, (TURN, "<|TURN|>"))
    target = side(tiny_pair.target, backend)
    expected = plain(target, max_tokens=30)
    with pair(target, side(renamed, backend), number=4) as engine:
        assert any("control tokens" in notice for notice in engine.facts.notices)
        assert engine.generate("Go:", raw=True, max_tokens=30).token_ids == expected.token_ids


def test_the_same_file_twice_gives_a_notice_and_every_draft_is_right(
    tiny_pair: Any, backend: str
) -> None:
    one = side(tiny_pair.target, backend)
    with pair(one, one, number=4, draft_requantize=False) as engine:
        assert any("same file" in notice for notice in engine.facts.notices)
        for temperature in (0.0, 0.9):
            reply = engine.generate("Go:", raw=True, max_tokens=40, temperature=temperature, seed=2)
            assert reply.stats.acceptance_rate == 1.0
            assert (
                reply.token_ids
                == plain(one, max_tokens=40, temperature=temperature, seed=2).token_ids
            )


def test_facts_are_those_of_the_two_files(tiny_pair: Any, backend: str) -> None:
    sides = [side(path, backend) for path in (tiny_pair.target, tiny_pair.draft)]
    with pair(*sides, number=2) as engine:
        facts = engine.facts.models
        document = engine.generate("Go:", raw=True, max_tokens=3).to_dict()
    for role in ("target", "draft"):
        path = getattr(tiny_pair, role)
        assert facts[role]["backend"] == backend
        assert facts[role]["path"] == str(path)
        assert facts[role]["bytes"] == path.stat().st_size
        tensors = gguf.GGUFReader(path).tensors
        assert facts[role]["parameters"] == sum(int(t.n_elements) for t in tensors)
        assert facts[role]["vocabulary"] == REAL
        assert facts[role]["memory_bytes"] > 0
    assert document["models"] == facts


def test_a_draft_that_does_not_fit_is_an_error_with_both_figures(
    tiny_pair: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # native models are asked for together, before either is read; of llama.cpp weights and context
    # are asked for apart, and the last question is the draft's
    free = [10**9] * {"native": 0, "llama": 3}[backend] + [10**6]
    monkeypatch.setattr("pilotfish.backends.machine.available_memory_bytes", lambda: free.pop(0))
    with pytest.raises(
        NotEnoughMemory, match=r"draft(\.gguf| model) needs about \d+ MB more, 1 MB are free"
    ):
        pair(side(tiny_pair.target, backend), side(tiny_pair.draft, backend))


def test_loading_and_freeing_pairs_does_not_raise_memory(tiny_pair: Any, backend: str) -> None:
    sides = [side(path, backend) for path in (tiny_pair.target, tiny_pair.draft)]

    def round_trip() -> None:
        with pair(*sides, number=3) as engine:
            engine.generate("Go:", raw=True, max_tokens=20)
        with pytest.raises(ModelError):
            pair(sides[0], side(tiny_pair.target.with_name("none.gguf"), backend))

    assert growth(round_trip).resident_bytes < 4 * 2**20


def test_a_closed_pair_refuses_and_closes_twice(tiny_pair: Any, backend: str) -> None:
    engine = pair(side(tiny_pair.target, backend), side(tiny_pair.draft, backend))
    engine.close()
    engine.close()
    with pytest.raises(BackendError, match="closed"):
        engine.generate("Go:", raw=True)


def with_template(path: Path, source: Path, template: str, *, add_bos: bool | None) -> Path:
    """Write a copy with another chat template of at most the same length, and another add_bos."""
    data = source.read_bytes()
    padded = template.ljust(len(CHAT_TEMPLATE) - 9) + "{# end #}"
    assert len(padded) == len(CHAT_TEMPLATE)
    data = data.replace(CHAT_TEMPLATE.encode(), padded.encode())
    key = b"tokenizer.ggml.add_bos_token"
    at = data.index(key) + len(key) + 4
    if add_bos is None:
        data = data.replace(key, b"tokenizer.ggml.add_bos_tokeX")
    else:
        data = data[:at] + bytes([add_bos]) + data[at + 1 :]
    path.write_bytes(data)
    return path


TEMPLATES = {
    "with": BEGIN + "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}",
    "without": "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_prompt_begins_with_the_right_number_of_beginning_tokens(
    tmp_path: Path, tiny_pair: Any, backend: str, template: str, add_bos: bool | None
) -> None:
    file = with_template(
        tmp_path / "target.gguf", tiny_pair.target, TEMPLATES[template], add_bos=add_bos
    )
    texts = vocabulary()[0]
    begin, turn = texts.index(BEGIN), texts.index(TURN)
    seen = []
    for drafter in ("none", "suffix", "model"):
        draft = side(tiny_pair.draft, backend) if drafter == "model" else None
        with pair(side(file, backend), draft, drafter=drafter, number=2) as engine:
            seen.append(engine.prompt_ids(f"Hi {END}<s>", Request()))
            reply = engine.generate(f"Hi {END}<s>", max_tokens=4)
            assert reply.usage.prompt_tokens == len(seen[0])
    wanted = 1 if template == "with" or add_bos else 0
    assert seen[0] == seen[1] == seen[2]
    assert seen[0].count(begin) == wanted
    assert seen[0][wanted] == turn
    assert seen[0].count(turn) == 1
    assert texts.index(END) not in seen[0]


def test_load_takes_the_options_of_a_pair_by_name(tiny_pair: Any) -> None:
    with load(
        str(tiny_pair.target),
        draft=str(tiny_pair.draft),
        drafter="auto",
        num_speculative_tokens=3,
        threads=1,
        context_size=128,
        max_sessions=2,
    ) as engine:
        replies = engine.generate_batch(["a", "b"], raw=True, max_tokens=5)
        assert all(reply.usage.completion_tokens == 5 for reply in replies)
        assert engine.facts.models["target"]["context_size"] == 128
