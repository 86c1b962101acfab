"""Tool calls are found in text of any cut, and what is none stays as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.server.tools import Call, CallFinder, parsed_call, writes_calls
from support.api import TEMPLATE

CITY = '{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}'
TIME = '{"name": "time", "arguments": {}}'
PARTS = [
    "Let me look. ",
    "\n",
    "  <tool_call>\n",
    "<tool_call>",
    "</tool_call>",
    "\n</tool_call>\n",
    CITY,
    TIME,
    '{"name": 3}',
    "<think>",
    "</think>",
    "<",
    "<tool",
    "```",
    "世界 👩‍👩‍👧",
]


def found(chunks: list[str], *names: str) -> list[tuple[str, str] | str]:
    """Return texts, joined, and calls as name and arguments, in order."""
    finder = CallFinder(names)
    parts = [part for chunk in chunks for part in finder.feed(chunk)] + finder.finish()
    result: list[tuple[str, str] | str] = []
    for part in parts:
        if isinstance(part, Call):
            result.append((part.name, part.arguments))
        elif result and isinstance(result[-1], str):
            result[-1] += part
        else:
            result.append(part)
    assert finder.num_calls == sum(not isinstance(part, str) for part in result)
    return result


def cut(text: str, sizes: list[int]) -> list[str]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(text[start : start + size])
        start += size
    return [*chunks, text[start:]]


@given(
    st.sampled_from(["", "```json\n", " ```\n", "\n"]),
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.lists(st.integers(1, 9), max_size=60),
    st.sampled_from([(), ("weather",), ("time", "weather")]),
)
def test_the_message_does_not_depend_on_the_cut(
    beginning: str, rest: str, sizes: list[int], names: tuple[str, ...]
) -> None:
    text = beginning + rest
    assert found(cut(text, sizes), *names) == found([text], *names)


@given(st.lists(st.sampled_from([part for part in PARTS if part not in (CITY, TIME)])).map("".join))
def test_text_without_a_call_passes_unchanged(text: str) -> None:
    assert "".join(part for part in found([text]) if isinstance(part, str)) == text


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
def test_words_around_marks_and_calls_are_kept(size: int) -> None:
    text = (
        f"<think>I need both.</think> One moment.\n<tool_call>\n{CITY}\n</tool_call>\n"
        f"<tool_call>\n{TIME}\n</tool_call>"
    )
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert found(chunks) == [
        "<think>I need both.</think> One moment.",
        ("weather", '{"city": "Zürich", "days": [1, 2]}'),
        ("time", "{}"),
    ]


BARE = [CITY, f"{{{CITY}}}", f"```json\n{CITY}\n```", f" ```\n{CITY}```\n", f"\n\n{CITY}\n"]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", BARE)
def test_a_reply_that_is_one_call_without_marks_is_that_call(text: str, size: int) -> None:
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    call = ("weather", '{"city": "Zürich", "days": [1, 2]}')
    assert found(chunks, "weather", "time") == [call]
    # any JSON could be meant where nobody has such a function
    assert found(chunks, "time") == [text]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather"', '{"name": "weather", "arguments": 3}', f"{CITY} and", f"see {CITY}",
        f"```json\n{CITY}", f"```python\n{CITY}\n```", "{", "```", '[{"name": "weather"}]', " ",
    ],
)  # fmt: skip
def test_what_is_not_one_bare_call_stays_text(text: str) -> None:
    assert found([text], "weather") == [text]


def test_text_is_held_only_while_it_may_be_a_bare_call() -> None:
    finder = CallFinder(["weather"])
    assert finder.feed("```") == []
    assert finder.feed("python\n") == ["```python"]
    assert CallFinder(["weather"]).feed("Hello") == ["Hello"]


def test_text_between_and_after_calls_keeps_its_blanks() -> None:
    call = f"<tool_call>{TIME}</tool_call>"
    assert found([f"a\n{call}\nb c{call}\n"]) == ["a", ("time", "{}"), "\nb c", ("time", "{}")]


def test_a_call_at_the_end_needs_no_closing_mark() -> None:
    assert found([f"<tool_call>\n{TIME}"]) == [("time", "{}")]


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "[]", "3", "null", '{"arguments": {}}', '{"name": ""}', '{"name": 3}',
        '{"name": "f", "arguments": "{}"}', '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": {"x": NaN}}', '{"name": "f", "arguments": ' + '{"a":' * 9999,
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call> and <tool_call>{TIME}</tool_call>"
    assert parsed_call(body) is None
    assert found([text]) == [f"<tool_call>{body}</tool_call> and", ("time", "{}")]


def test_braces_doubled_as_in_the_template_are_taken_for_one() -> None:
    assert found([f"<tool_call>\n{{{TIME}}}\n</tool_call>"]) == [("time", "{}")]
    assert parsed_call(f"{{{{{TIME}}}}}") is None


def test_calls_have_ids_of_their_own_and_places_in_a_stream() -> None:
    finder = CallFinder()
    first, second = finder.feed(f"<tool_call>{TIME}</tool_call><tool_call>{TIME}</tool_call>")
    assert isinstance(first, Call)
    assert isinstance(second, Call)
    assert first.call_id != second.call_id
    document = second.to_dict(1)
    assert document["index"] == 1
    assert document["type"] == "function"
    assert json.loads(document["function"]["arguments"]) == {}


def test_the_template_says_whether_a_model_writes_calls() -> None:
    assert writes_calls(TEMPLATE)
    assert not writes_calls("{{ messages }}")
    assert not writes_calls(None)
