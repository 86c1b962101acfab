"""What a model thinks is told from what it answers, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.text import ChatPrompt, ReasoningMarks, ReasoningSplitter, ReplyText, reasoning_marks

THINK = ReasoningMarks("<think>", "</think>")
BYTES = [bytes([i]) for i in range(256)]


def split(*parts: str, prompt: str = "", continued: str = "") -> tuple[str, str]:
    splitter = ReasoningSplitter(THINK, ChatPrompt([], prompt + continued, continued))
    found = [*map(splitter.feed, parts), splitter.finish()]
    return "".join(one for one, _ in found), "".join(one for _, one in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nWell.\n\nSo.\n</think>\n\nYes.\n", ("Well.\n\nSo.", "Yes.\n")),
        ("\n <think>a</think>b", ("a", "b")),
        ("<think></think>b", ("", "b")),
        ("<think>\n\n</think>\n\n", ("", "")),
        ("<think>cut off </thi", ("cut off </thi", "")),
        ("<think>cut off \n", ("cut off", "")),
        ("<think>a</thin></think>b</think>", ("a</thin>", "b</think>")),
        (" plain <think>x</think>", ("", " plain <think>x</think>")),
        ("<thinner>", ("", "<thinner>")),
        ("<thin", ("", "<thin")),
        ("\n ", ("", "\n ")),
        ("", ("", "")),
        ("a</think>b", ("", "a</think>b")),
    ],
)
def test_reasoning_stands_at_the_beginning_between_its_marks(
    text: str, expected: tuple[str, str]
) -> None:
    assert split(text) == split(*text) == expected


@pytest.mark.parametrize("end", ["<think>", "<think>\n"])
def test_a_prompt_that_opens_the_mark_begins_inside(end: str) -> None:
    for text in ("\na\n</think>\n\nb", "<think>a</think>b"):
        assert split(text, prompt=f"assistant\n{end}") == ("a", "b")
    assert split("cut <thi", prompt=end) == ("cut <thi", "")
    assert split("<thi", prompt=end) == ("<thi", "")
    # thinking that the template has turned off
    assert split("a", prompt="<think>\n\n</think>\n\n") == ("", "a")


def test_a_reply_that_continues_a_message_goes_on_where_that_was() -> None:
    assert split(" b</think>c", continued="<think>a") == ("b", "c")
    assert split(" c", continued="<think>a</think> b") == ("", " c")
    assert split("<think>c", continued="b ") == ("", "<think>c")
    assert split("<think>a</think>b", continued="") == ("a", "b")


PARTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b"]))


@given(parts=PARTS, inside=st.booleans(), cuts=st.lists(st.integers(0, 60)))
def test_no_cut_changes_what_comes_out(parts: list[str], inside: bool, cuts: list[int]) -> None:
    text = "".join(parts)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[i:j] for i, j in itertools.pairwise(edges)]
    prompt = "<think>" if inside else ""
    reasoning, content = split(text, prompt=prompt)
    assert split(*pieces, prompt=prompt) == (reasoning, content)
    assert reasoning == reasoning.strip()
    # a slow reference
    body = text.lstrip()
    if not inside and not body.startswith("<think>"):
        assert (reasoning, content) == ("", text)
    else:
        before, found, after = body.removeprefix("<think>").partition("</think>")
        assert (reasoning, content) == (before.strip(), after.lstrip() if found else "")


def test_the_marks_are_those_of_the_template_or_the_vocabulary() -> None:
    def marks(template: str | None, *tokens: bytes) -> ReasoningMarks | None:
        return reasoning_marks(ScriptedTokenizer([*BYTES, *tokens], chat_template=template))

    assert marks(None) is None
    assert marks("{{ messages }}") is None
    assert marks("{{ m.content.split('</think>')[-1] }}") == THINK
    assert marks("[THINK] ... [/THINK]") == ReasoningMarks("[THINK]", "[/THINK]")
    assert marks(None, b"<think>", b"</think>") == THINK
    assert marks(None, b"<think>") is None
    few_letters = ScriptedTokenizer([b"a", b"b"])
    assert reasoning_marks(few_letters) is None


def test_control_tokens_show_in_the_text_where_that_is_asked_for() -> None:
    words = ScriptedTokenizer([*BYTES, b"<think>", b"</think>", b"<x>"], special=[256, 257, 258])
    ids = [256, *b"a", 257, 258, *b"b"]
    for shown, text in (((), "ab"), (("<think>", "</think>"), "<think>a</think>b")):
        reply = ReplyText(words, shown_tokens=shown)
        assert not any(map(reply.feed, ids))
        assert reply.finish() == text
    stopping = ReplyText(words, stop="a</think>", shown_tokens=("<think>", "</think>"))
    assert [stopping.feed(one) for one in ids[:3]] == [False, False, True]
    assert stopping.text == "<think>"
