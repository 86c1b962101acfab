"""From text to text on scripted models: streams, stops, figures, cancelling."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.backends.scripted import ScriptedTokenizer, random_logits
from pilotfish.config import Request, RequestOptions
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.errors import (
    BackendError,
    ConfigError,
    ContextLengthExceeded,
    NoFreeSlot,
    PilotfishError,
    PromptError,
)
from pilotfish.generation import Reply, TextEngine
from pilotfish.types import SamplingSettings
from support.drafters import FunctionDrafter, RaisingDrafter, never, oracle, random_tokens
from support.text_engines import END, START, reply_logits, text_engine, tokenizer

PROMPT = "Go:"
MANY_BYTES = "né 日本語 👩‍👩‍👧 fin"


def engine_that_says(
    reply: list[int],
    *,
    words: ScriptedTokenizer,
    drafter: Any = None,
    num_drafts: int = 4,
    **model: Any,
) -> TextEngine:
    logits = reply_logits(reply, vocab_size=words.vocab_size, num_prompt_tokens=len(PROMPT))
    return text_engine(logits, words=words, drafter=drafter, num_drafts=num_drafts, **model)


def answer(
    pieces: list[bytes], *, style: str = "plain", num_drafts: int = 4, **options: Any
) -> tuple[Reply, list[str]]:
    """Return the reply made of these tokens, and the streamed pieces of text."""
    words = tokenizer(*(p for p in dict.fromkeys(pieces) if len(p) > 1))
    ids = [token_of(words, piece) for piece in pieces]
    size = words.vocab_size
    drafter = {
        "plain": None,
        "oracle": oracle(ids, vocab_size=size),
        "oracle-3": oracle(ids, errs_every=3, vocab_size=size),
        "never": never(ids, vocab_size=size),
        "random": random_tokens(size),
    }[style]
    engine = engine_that_says(ids, words=words, drafter=drafter, num_drafts=num_drafts)
    stream = engine.stream(PROMPT, raw=True, **options)
    texts, emitted = [], []
    for piece in stream:
        texts.append(piece.text)
        emitted += piece.tokens
    reply = stream.reply
    assert "".join(texts) == reply.text
    assert tuple(emitted) == reply.tokens
    return reply, texts


def token_of(words: ScriptedTokenizer, piece: bytes) -> int:
    return next(i for i in range(words.vocab_size) if words.token_bytes(i) == piece)


def split(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]


def same(one: Reply, other: Reply) -> None:
    assert one.text == other.text
    assert one.token_ids == other.token_ids
    assert one.finish_reason == other.finish_reason
    assert one.usage == other.usage
    assert [t.logprobs for t in one.tokens] == [t.logprobs for t in other.tokens]


DRAFTED = [("oracle", n) for n in (1, 2, 3, 5, 8, 16)] + [
    ("oracle-3", 4), ("never", 4), ("random", 4),
]  # fmt: skip


def test_generate_is_the_joined_stream() -> None:
    words = tokenizer()
    ids = words.encode("Eat, fish. Swim, fish.", parse_special=False)
    engine = engine_that_says(ids, words=words, drafter=SuffixDrafter())
    pieces = list(engine.stream(PROMPT, raw=True))
    reply = engine.generate(PROMPT, raw=True)
    assert "".join(piece.text for piece in pieces) == reply.text == "Eat, fish. Swim, fish."
    assert [t.token_id for piece in pieces for t in piece.tokens] == reply.token_ids
    assert reply.token_ids == [*ids, END]
    assert reply.finish_reason == "stop"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, len(ids) + 1)


@pytest.mark.parametrize(("style", "number"), DRAFTED)
@pytest.mark.parametrize("begin", range(2, 9))
def test_a_stop_anywhere_in_a_long_block_ends_everything_at_the_token_that_completes_it(
    style: str, number: int, begin: int
) -> None:
    pieces = split("abcdefgh"[:begin] + "##END##" + "mnopqrstuvwx")
    options = {"stop": "##END##", "logprobs": 2}
    reply, _ = answer(pieces, style=style, num_drafts=number, **options)
    plain, _ = answer(pieces, **options)
    same(reply, plain)
    assert reply.text == "abcdefgh"[:begin]
    assert reply.finish_reason == "stop"
    assert len(reply.token_ids) == begin + 7 == reply.usage.completion_tokens
    assert len(reply.to_dict()["logprobs"]) == begin + 7
    assert reply.stats.emitted == begin + 7


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("Go:!ab", ["Go:!a!"], "Go:!ab"),  # never complete: flushed at the end
        ("nd stop", ["end"], "nd stop"),  # the prompt's letters do not count
        ("one abcd", ["abc", "ab"], "one "),
        ("one abcd", ["abx", "bc"], "one a"),
        ("é日本語", ["本"], "é日"),
        ("x 日本", ["\u65e5本"], "x "),
    ],
)
@pytest.mark.parametrize(("style", "number"), [("plain", 0), *DRAFTED])
def test_stops_of_every_kind_equal_those_of_plain_decoding(
    text: str, stop: list[str], expected: str, style: str, number: int
) -> None:
    reply, _ = answer(split(text), style=style, num_drafts=number, stop=stop)
    same(reply, answer(split(text), stop=stop)[0])
    assert reply.text == expected


@pytest.mark.parametrize("stop", ["<|start|>", "!<|start|>", ["x", "<|start|>user"]])
@pytest.mark.parametrize("number", [0, 1, 3, 8])
def test_a_stop_that_names_a_control_token_ends_a_reply_with_drafts_and_without(
    stop: str | list[str], number: int
) -> None:
    words = tokenizer()
    ids = [*b"fish!", START, *b"user and more"]

    def reply(drafter: Any = None) -> Reply:
        engine = engine_that_says(ids, words=words, drafter=drafter, num_drafts=number)
        return engine.generate(PROMPT, raw=True, stop=stop, logprobs=1)

    drafted = reply(oracle(ids, vocab_size=words.vocab_size))
    same(drafted, reply())
    assert drafted.text == ("fish" if stop == "!<|start|>" else "fish!")
    assert len(drafted.token_ids) == (10 if isinstance(stop, list) else 6)
    assert drafted.finish_reason == "stop"


def test_log_probabilities_come_with_the_texts_and_bytes_of_their_tokens() -> None:
    reply, _ = answer([*split("aé"), b" fin"], logprobs=2, prompt_logprobs=1)
    assert [(one.text, one.data) for one in reply.logprobs] == [
        ("a", b"a"), ("\ufffd", b"\xc3"), ("\ufffd", b"\xa9"), (" fin", b" fin"), ("<|end|>", b""),
    ]  # fmt: skip
    assert [one.token_id for one in reply.logprobs] == reply.token_ids
    for entry, token in zip(reply.logprobs, reply.tokens, strict=True):
        assert token.logprobs is not None
        assert [(one.token_id, one.logprob) for one in entry.top] == [*token.logprobs.top]
        assert entry.top[0].text == entry.text
    prompt = reply.named(reply.prompt_logprobs)
    assert [one.text for one in prompt] == [*PROMPT[1:]]
    document = json.loads(json.dumps(reply.to_dict()))
    assert document["logprobs"][1]["bytes"] == [0xC3]
    assert [one["text"] for one in document["prompt_logprobs"]] == [*PROMPT[1:]]
    assert answer(split("a"))[0].logprobs == ()


def test_control_tokens_leave_text_where_that_is_asked_for() -> None:
    words = tokenizer()
    ids = [*b"a", START, *b"b"]
    for shown, text in ((["<|start|>"], "a<|start|>b"), ((), "ab")):
        engine = engine_that_says(ids, words=words, drafter=oracle(ids, vocab_size=258))
        assert engine.generate(PROMPT, raw=True, shown_tokens=shown).text == text
    with pytest.raises(ConfigError, match="shown_tokens must be a list of texts"):
        engine.generate(PROMPT, raw=True, shown_tokens="<|start|>")


def test_a_raw_prompt_with_a_suffix_is_a_gap_to_be_filled() -> None:
    words = tokenizer()
    words.fill_ids = (1, 2, 3)
    ids = [*b"a + b"]
    prompt = [1, *b"def", 2, *b"end", 3]
    logits = reply_logits(ids, vocab_size=words.vocab_size, num_prompt_tokens=len(prompt))
    engine = text_engine(logits, words=words)
    reply = engine.generate("def", raw=True, suffix="end")
    assert (reply.text, reply.usage.prompt_tokens) == ("a + b", len(prompt))
    # nothing after the gap: an ordinary text
    for suffix in ("", None):
        assert engine.generate("def", raw=True, suffix=suffix).usage.prompt_tokens == 3
    with pytest.raises(ConfigError, match="suffix needs raw"):
        engine.generate("def", suffix="end")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"The quick br", b"own", b" fox"],
        [b"The quick brow", b"n fo", b"x"],
        [b"The quick br", b"o", b"wn f", b"ox jumps"],
        split("The quick brown fox jumps"),
    ],
)
@pytest.mark.parametrize(("style", "number"), [("plain", 0), *DRAFTED])
def test_half_a_stop_string_never_reaches_the_reader(
    pieces: list[bytes], style: str, number: int
) -> None:
    reply, texts = answer(pieces, style=style, num_drafts=number, stop="own fox")
    assert reply.text == "The quick br"
    shown = ""
    for text in texts:
        shown += text
        assert "The quick br".startswith(shown)


@pytest.mark.parametrize(("style", "number"), DRAFTED)
def test_held_text_comes_in_order_when_the_stop_fails(style: str, number: int) -> None:
    reply, _ = answer([b"own fo", b"ld", b" own", b" fo"], style=style, stop="own fox")
    assert reply.text == "own fold own fo"


@pytest.mark.parametrize(("style", "number"), [("plain", 0), *DRAFTED])
def test_characters_over_several_tokens_stream_whole(style: str, number: int) -> None:
    reply, texts = answer(split(MANY_BYTES), style=style, num_drafts=number)
    assert reply.text == MANY_BYTES
    assert not any("\ufffd" in text for text in texts)
    for text in texts:
        text.encode()


@given(data=st.data(), number=st.integers(1, 9))
def test_any_cut_of_the_text_into_tokens_gives_the_text(data: st.DataObject, number: int) -> None:
    raw = MANY_BYTES.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), min_size=1)))
    edges = [0, *cuts, len(raw)]
    pieces = [raw[i:j] for i, j in itertools.pairwise(edges)]
    reply, _ = answer(pieces, style="oracle-3", num_drafts=number)
    assert reply.text == MANY_BYTES


@pytest.mark.parametrize("limit", [1, 2, 5, 8])
@pytest.mark.parametrize(("style", "number"), [("plain", 0), *DRAFTED])
def test_usage_counts_what_was_delivered(limit: int, style: str, number: int) -> None:
    reply, _ = answer(split("0123456789"), style=style, num_drafts=number, max_tokens=limit)
    assert reply.text == "0123456789"[:limit]
    assert reply.finish_reason == "length"
    assert reply.usage.completion_tokens == len(reply.tokens) == reply.stats.emitted == limit
    assert reply.usage.total_tokens == len(PROMPT) + limit


def test_figures_and_origins_agree() -> None:
    reply, _ = answer(split("0123456789" * 3), style="oracle-3", num_drafts=4)
    stats = reply.stats
    drafted_tokens = [token for token in reply.tokens if token.origin != "target"]
    assert stats.accepted == len(drafted_tokens) == sum(stats.accepted_per_position)
    assert stats.accepted == sum(one.accepted for one in stats.by_drafter.values())
    assert stats.drafted == sum(one.drafted for one in stats.by_drafter.values())
    assert stats.tokens_per_round == stats.emitted / stats.rounds
    assert stats.emitted == len(reply.tokens)


PROMPTS = ["Go:", "Go:", "On:"]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.3, "logprobs": 1}]
)
@pytest.mark.parametrize("drafter", [None, NgramDrafter(min_match=1), random_tokens(258)])
def test_a_batch_gives_what_each_prompt_gives_alone(drafter: Any, settings: dict[str, Any]) -> None:
    logits = random_logits(258, memory=2, scale=3.0)
    engine = text_engine(logits, words=tokenizer(), drafter=drafter)
    options = {"raw": True, "max_tokens": 24, **settings}
    together = engine.generate_batch(PROMPTS, **options)
    for prompt, reply in zip(PROMPTS, together, strict=True):
        same(reply, engine.generate(prompt, **options))
    assert engine.generate_batch([], raw=True) == []


@pytest.mark.parametrize("num_slots", [1, 2, 5])
def test_a_batch_larger_than_the_engine_waits_for_slots_and_gives_the_same_replies(
    num_slots: int,
) -> None:
    prompts = [f"{number}: go" for number in range(20)]
    options: dict[str, Any] = {"raw": True, "max_tokens": 6, "temperature": 0.9, "seed": 4}
    logits = random_logits(258, memory=4)
    engine = text_engine(logits, words=tokenizer(), max_sessions=num_slots)
    alone = text_engine(logits, words=tokenizer())
    together = engine.generate_batch(prompts, **options)
    for prompt, reply in zip(prompts, together, strict=True):
        same(reply, alone.generate(prompt, **options))
    # as many together as there are slots
    widths = engine.engine.target.log.widths  # type: ignore[attr-defined]
    assert max(len(each) for each in widths) == num_slots
    assert len(engine.engine.target.open_caches) == 0  # type: ignore[attr-defined]


def test_a_batch_with_a_prompt_that_cannot_be_used_begins_nothing() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), context_size=40)
    with pytest.raises(ContextLengthExceeded):
        engine.generate_batch(["fits", "does not fit" * 10], raw=True, max_tokens=3)
    assert engine.engine.target.log.evaluations == []  # type: ignore[attr-defined]


def test_a_batch_that_fails_frees_its_slots() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=2, fail_at=4)
    with pytest.raises(BackendError, match="pass 4"):
        engine.generate_batch(["one", "two", "three"], raw=True, max_tokens=9)
    assert len(engine.generate_batch(["one", "two"], raw=True, max_tokens=3)) == 2


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Return what each function returned or raised, each in a thread of its own."""
    results: list[Any] = [None] * len(functions)

    def work(index: int) -> None:
        try:
            results[index] = functions[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_threads_beyond_the_slots_wait_their_turn() -> None:
    engine = text_engine(random_logits(258, memory=4), words=tokenizer(), max_sessions=2)
    options: dict[str, Any] = {"raw": True, "max_tokens": 10, "seed": 1}

    def streamed(prompt: str) -> list[int]:
        pieces = engine.stream(prompt, **options)
        return [token.token_id for piece in pieces for token in piece.tokens]

    prompts = [f"{number}: go" for number in range(12)]
    expected = [engine.generate(prompt, **options).token_ids for prompt in prompts]
    assert in_threads(*(partial(streamed, prompt) for prompt in prompts)) == expected


def test_a_batch_leaves_free_slots_to_threads_that_wait() -> None:
    """Else whoever asks while a batch runs would wait for all of it."""
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1)
    order: list[str] = []
    begun = threading.Event()
    target: Any = engine.engine.target
    forward = target.forward

    def watched(segments: Any) -> Any:
        order.append(chr(segments[0].cache.tokens[0]) if segments[0].cache.tokens else "new")
        begun.set()
        while not engine.engine.num_waiting_threads and "X" not in order:
            time.sleep(0.001)  # the batch is in its first pass until the other thread asks
        return forward(segments)

    target.forward = watched

    def alone() -> None:
        begun.wait(30)
        engine.generate("X", raw=True, max_tokens=2)

    in_threads(
        lambda: engine.generate_batch(["A.", "B.", "C.", "D."], raw=True, max_tokens=2), alone
    )
    replies = [each for each in order if each != "new"]
    assert replies.index("X") < replies.index("D")


def test_who_holds_all_slots_and_asks_for_one_more_is_refused_at_once() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=2)
    both_hold = threading.Barrier(2, timeout=30)

    def hold_and_ask() -> int:
        held = engine.stream("held", raw=True, max_tokens=30)
        next(held)
        both_hold.wait()
        with held:
            return len(engine.generate("more", raw=True, max_tokens=3).token_ids)

    results = in_threads(hold_and_ask, hold_and_ask)
    # one is refused, and what it held goes to the other
    assert sorted(isinstance(each, NoFreeSlot) for each in results) == [False, True]
    assert 3 in results


def test_nobody_waits_for_a_stream_whose_thread_has_ended() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1)
    (held,) = in_threads(lambda: engine.stream(PROMPT, raw=True))
    with pytest.raises(NoFreeSlot):
        engine.generate(PROMPT, raw=True, max_tokens=2)
    held.close()
    assert len(engine.generate(PROMPT, raw=True, max_tokens=2).token_ids) == 2


def test_nobody_waits_forever_for_a_thread_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pilotfish.engine.engine.MOST_IDLE_SECONDS", 0.05)
    monkeypatch.setattr("pilotfish.engine.engine._SECONDS_BETWEEN_LOOKS", 0.02)
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1)
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        held = engine.stream(PROMPT, raw=True)
        holds.set()
        may_end.wait(30)
        held.close()

    def ask() -> int:
        holds.wait(30)
        try:
            return len(engine.generate(PROMPT, raw=True).token_ids)
        finally:
            may_end.set()

    assert isinstance(in_threads(hold, ask)[1], NoFreeSlot)


def test_closing_a_stream_cancels_and_frees_the_place() -> None:
    forgetting = FunctionDrafter(lambda view, budget: [1] * budget)
    engine = text_engine(random_logits(258), words=tokenizer(), drafter=forgetting, max_sessions=1)
    stream = engine.stream(PROMPT, raw=True, max_tokens=100)
    first = next(stream)
    stream.close()
    assert list(stream) == []
    reply = stream.reply
    assert reply.finish_reason == "cancelled"
    assert reply.tokens == first.tokens
    assert forgetting.forgotten
    unread = engine.stream(PROMPT, raw=True)
    unread.close()
    assert unread.reply.tokens == ()
    assert engine.generate(PROMPT, raw=True, max_tokens=4).usage.completion_tokens == 4


def test_a_reader_that_breaks_off_leaves_the_place_to_the_next_one() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1)
    stream = engine.stream(PROMPT, raw=True)
    for _ in stream:
        break
    stream.close()
    stream.close()
    assert engine.generate(PROMPT, raw=True, max_tokens=2).finish_reason == "length"


def test_several_threads_may_generate_at_once() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), drafter=SuffixDrafter())
    options: dict[str, Any] = {"raw": True, "max_tokens": 20, "temperature": 0.8, "seed": 3}
    expected = engine.generate(PROMPT, **options).token_ids
    replies: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: replies.append(engine.generate(PROMPT, **options).token_ids)
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert replies == [expected] * 4


def test_the_seed_is_reported_and_gives_the_reply_again() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), drafter=SuffixDrafter())
    options: dict[str, Any] = {"raw": True, "max_tokens": 20, "temperature": 1.0}
    first = engine.generate(PROMPT, **options)
    assert 0 <= first.seed < 2**53
    assert engine.generate(PROMPT, seed=first.seed, **options).token_ids == first.token_ids
    assert engine.generate(PROMPT, seed=7, **options).seed == 7


def test_a_reply_is_the_documented_json() -> None:
    reply, _ = answer(split("0123456789"), style="oracle-3", logprobs=2, max_tokens=6)
    document = json.loads(json.dumps(reply.to_dict(), allow_nan=False))
    assert document.keys() == {
        "text", "token_ids", "finish_reason", "seed", "usage", "stats", "exactness", "models",
        "logprobs",
    }  # fmt: skip
    assert document["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    }  # fmt: skip
    assert document["stats"].keys() == {
        "rounds", "drafted", "accepted", "emitted", "tokens_per_round", "acceptance_rate",
        "accepted_per_position", "prefill_seconds", "decode_seconds", "draft_seconds",
        "target_seconds", "overhead_seconds", "draft_prefill_seconds", "tokens_per_second",
        "by_drafter", "speculation", "tried_per_position", "costs", "plain_seconds_estimate",
    }  # fmt: skip
    assert document["stats"]["by_drafter"]["model"].keys() == {"rounds", "drafted", "accepted"}
    assert document["stats"]["costs"].keys() == {"latency", "compute", "serving"}
    told = document["stats"]["speculation"]
    assert told.keys() == {"on", "reason", "decisions", "failures"}
    entry = document["logprobs"][0]
    assert entry.keys() == {"token_id", "text", "bytes", "logprob", "top"}
    assert entry["top"][0].keys() == {"token_id", "text", "bytes", "logprob"}
    assert [one["token_id"] for one in document["logprobs"]] == document["token_ids"]
    assert len(entry["top"]) == 2
    assert "logprobs" not in answer(split("0"))[0].to_dict()


def test_a_banned_token_leaves_no_infinity_in_the_json() -> None:
    logits = random_logits(258)
    engine = text_engine(logits, words=tokenizer())
    reply = engine.generate(
        PROMPT, raw=True, max_tokens=5, logprobs=5, banned_tokens=(3, 4), logit_bias={5: -1e9}
    )
    json.dumps(reply.to_dict(), allow_nan=False)


def test_logits_of_minus_infinity_give_valid_json() -> None:
    def logits(prefix: tuple[int, ...]) -> Any:
        row = np.full(258, -np.inf, dtype=np.float32)
        row[[65, 66]] = 1.0, 0.5
        return row

    reply = text_engine(logits, words=tokenizer()).generate(
        PROMPT, raw=True, max_tokens=3, logprobs=3
    )
    assert reply.text == "AAA"
    json.dumps(reply.to_dict(), allow_nan=False)


def test_a_drafter_that_fails_costs_drafts_and_the_stats_say_so() -> None:
    words = tokenizer()
    ids = words.encode("all of it", parse_special=False)
    engine = engine_that_says(ids, words=words, drafter=RaisingDrafter(after=1))
    reply = engine.generate(PROMPT, raw=True)
    assert reply.text == "all of it"
    assert reply.stats.speculation["on"] is False
    assert "the drafter broke" in reply.stats.speculation["reason"]


def test_a_target_that_fails_raises_and_the_next_request_works() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1, fail_at=3)
    with pytest.raises(BackendError, match="pass 3"):
        engine.generate(PROMPT, raw=True)
    assert engine.generate(PROMPT, raw=True, max_tokens=2).usage.completion_tokens == 2


def test_in_a_batch_a_failing_pass_raises_and_frees_every_place() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=2, fail_at=5)
    with pytest.raises(BackendError, match="pass 5"):
        engine.generate_batch(PROMPTS[:2], raw=True, max_tokens=9)
    assert len(engine.generate_batch(PROMPTS[:2], raw=True, max_tokens=9)) == 2


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("temprature", "temperature"),
        ("topk", "top_k"),
        ("max_token", "max_tokens"),
    ],
)
def test_an_unknown_option_is_named_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    engine = text_engine(random_logits(258), words=tokenizer())
    with pytest.raises(ConfigError, match=rf"unknown request option: {wrong}") as caught:
        engine.generate(PROMPT, raw=True, **{wrong: 1})  # type: ignore[arg-type]
    assert meant in caught.value.hint


def test_the_typed_options_are_those_of_a_request() -> None:
    # a rule is for programs that read replies, such as the server
    own = {field.name for field in dataclasses.fields(Request)} - {"settings", "end_rule"}
    sampling = {field.name for field in dataclasses.fields(SamplingSettings)}
    assert set(RequestOptions.__annotations__) == own | sampling


def test_prompts_are_text_messages_or_raw_text() -> None:
    words = tokenizer()
    engine = text_engine(random_logits(words.vocab_size), words=words)
    asked = engine.prompt_ids("Hi", Request())
    assert asked == engine.prompt_ids([{"role": "user", "content": "Hi"}], Request())
    assert asked[0] == START
    with_system = engine.prompt_ids("Hi", Request(system="Be brief."))
    assert words.encode("system\nBe brief.", parse_special=False) == with_system[1:17]
    assert engine.prompt_ids("Hi", Request(raw=True)) == [72, 105]
    with pytest.raises(PromptError):
        engine.prompt_ids([{"role": "user", "content": "Hi"}], Request(raw=True))


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        *[(prompt, "text or a list of messages") for prompt in (None, 5, 1.5, True, object())],
        ({"role": "user", "content": "Hi"}, "text or a list of messages, got dict"),
        (b"Hi", "must be text, got bytes"),
        ([], "messages is empty"),
        *[(prompt, r"messages\[0\] needs a role") for prompt in ([1], ["Hi"], {1}, range(3))],
    ],
)
def test_a_prompt_of_a_wrong_type_is_a_prompt_error(prompt: Any, told: str) -> None:
    engine = text_engine(random_logits(258), words=tokenizer())
    for ask in (engine.generate, engine.stream, lambda one: engine.generate_batch([one])):
        with pytest.raises(PromptError, match=told):
            ask(prompt)
    if not isinstance(prompt, str):
        with pytest.raises(PromptError, match="raw prompt must be text"):
            engine.generate(prompt, raw=True)


@pytest.mark.parametrize("prompts", ["Hi", b"Hi", None, 5, {"role": "user", "content": "Hi"}])
def test_a_batch_of_what_is_no_list_is_a_prompt_error(prompts: Any) -> None:
    engine = text_engine(random_logits(258), words=tokenizer())
    with pytest.raises(PromptError, match="must be a list of prompts"):
        engine.generate_batch(prompts)


def test_a_prompt_too_long_for_the_context_names_both_numbers() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), context_size=8)
    with pytest.raises(ContextLengthExceeded, match=r"9 tokens.*8"):
        engine.generate("123456789", raw=True)


def test_the_engine_is_closed_by_its_context() -> None:
    closed: list[int] = []
    made = text_engine(random_logits(258), words=tokenizer())
    with TextEngine(made.engine, made.tokenizer, close=lambda: closed.append(1)) as engine:
        assert engine.generate(PROMPT, raw=True, max_tokens=1).usage.completion_tokens == 1
    assert closed == [1]


def test_min_tokens_holds_for_end_tokens_and_stops() -> None:
    words = tokenizer()
    ids = words.encode("ab.cd.ef.", parse_special=False)
    engine = engine_that_says(ids, words=words, drafter=oracle(ids, vocab_size=258))
    reply = engine.generate(PROMPT, raw=True, stop=".", min_tokens=5)
    assert reply.text == "ab.cd"
    longer = engine.generate(PROMPT, raw=True, min_tokens=12, max_tokens=20)
    assert longer.usage.completion_tokens >= 12
    assert END not in longer.token_ids[:11]


def test_a_stream_that_is_dropped_unread_leaves_its_place_to_the_next_one() -> None:
    engine = text_engine(random_logits(258), words=tokenizer(), max_sessions=1)
    stream = engine.stream(PROMPT, raw=True)
    del stream
    assert engine.generate(PROMPT, raw=True, max_tokens=2).usage.completion_tokens == 2


def test_asking_for_a_reply_too_early_is_an_error_of_ours() -> None:
    stream = text_engine(random_logits(258), words=tokenizer()).stream(PROMPT, raw=True)
    with contextlib.closing(stream), pytest.raises(PilotfishError):
        _ = stream.reply
