"""Tool calls are found in text of any cut, and what is none stays as it is."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.server import tools
from pilotfish.server.json_object import ObjectScanner
from pilotfish.server.tools import Call, CallFinder, NoCall, parsed_call, writes_calls
from support.api import TEMPLATE
from support.counted_text import CountedText, Work

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
    '{"name": "f", "args": {"x": "',
    '"',
    "}",
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
        '{"name": "f", "arguments": "x"}', '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": {}, "args": {}}', '{"name": "f", "city": "Rome"}',
        '{"name": "f", "arguments": "[1]"}', "{'name': 'f'}", '{"name": "f",}', '{"name": "f"]',
        '{"name": "f", "arguments": {"x": NaN}}', '{"name": "f", "arguments": ' + '{"a":' * 9999,
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(body: str) -> None:
    text = f"<tool_call>{body}</tool_call> and <tool_call>{TIME}</tool_call>"
    with pytest.raises(NoCall):
        parsed_call(body)
    assert found([text]) == [f"<tool_call>{body}</tool_call> and", ("time", "{}")]


def test_braces_doubled_as_in_the_template_are_taken_for_one() -> None:
    assert found([f"<tool_call>\n{{{TIME}}}\n</tool_call>"]) == [("time", "{}")]
    assert found([f"{{{{{TIME}}}}}"], "time") == [f"{{{{{TIME}}}}}"]


def test_a_brace_too_many_before_the_closing_mark_is_passed_over() -> None:
    assert found([f"<tool_call>\n{TIME}}}\n</tool_call> ok"]) == [("time", "{}"), " ok"]
    assert found([f"<tool_call>\n{TIME}}} ok"]) == [("time", "{}"), "} ok"]


@pytest.mark.parametrize("name", ["arguments", "parameters", "args", "input"])
def test_arguments_are_read_under_every_name_that_models_give_them(name: str) -> None:
    text = f'{{"name": "weather", "{name}": {{"city": "Rome"}}}}'
    call = ("weather", '{"city": "Rome"}')
    assert found([f"<tool_call>{text}</tool_call>"]) == [call]
    assert found([text], "weather") == [call]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"arguments": "{\\"city\\": \\"Rome\\"}"', '{"city": "Rome"}'),
        ('"arguments": ""', "{}"),
        ('"arguments": null', "{}"),
        ('"type": "function", "id": "call_1"', "{}"),
        ('"thought": "hm", "arguments": {"n": 1}', '{"n": 1}'),
        ('"arguments": {"text": "two\nlines"}', '{"text": "two\\nlines"}'),
    ],
)
def test_other_ways_to_write_arguments_are_understood(written: str, arguments: str) -> None:
    assert found([f'<tool_call>{{"name": "f", {written}}}</tool_call>']) == [("f", arguments)]


MARKS = '<tool_call>{"name": "f"}</tool_call> } ] ``` \\" {{ <tool_call>'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_argument_may_hold_any_mark(size: int) -> None:
    arguments = json.dumps({"text": MARKS})
    call = f'{{"name": "weather", "arguments": {arguments}}}'
    text = f"<tool_call>\n{call}\n</tool_call>\n<tool_call>{TIME}</tool_call>"
    assert found(cut(text, [size] * len(text))) == [("weather", arguments), ("time", "{}")]
    assert found(cut(call, [size] * len(call)), "weather") == [("weather", arguments)]


VALUES: Any = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.sampled_from([MARKS, '"', "\\"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("a"), inner),
    max_leaves=4,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=9) | st.just(MARKS), VALUES, max_size=2), max_size=3),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.lists(st.integers(1, 30), max_size=30),
)
def test_calls_with_any_arguments_are_found_among_text(
    calls: list[dict[str, Any]], indent: int | None, is_ascii: bool, sizes: list[int]
) -> None:
    text, expected = "One moment.", ["One moment."]
    for arguments in calls:
        call = {"name": "f", "arguments": arguments}
        written = json.dumps(call, indent=indent, ensure_ascii=is_ascii)
        text += f"\n<tool_call>\n{written}\n</tool_call>"
        expected.append(("f", json.dumps(arguments, ensure_ascii=False)))
    assert found(cut(text, sizes)) == expected


BROKEN = [
    "{broken}</tool_call>",
    '{"name": "f", "arguments": {</tool_call>',
    '{"name": "f", "arguments": {"x": "no end}}</tool_call>',
    '{"name": "f", "arguments": {"x": "no end, no mark\n',
    '{"name": "f", "arguments": {"x": 1}\n',
    '{"name": "f", "city": "Rome"}</tool_call>',
    "weather(city)</tool_call>",
    "<tool_call>",
    "",
]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_call_after_a_broken_one_is_found(broken: str, size: int) -> None:
    text = f"<tool_call>{broken}<tool_call>{CITY}</tool_call>"
    left = f"<tool_call>{broken}".rstrip()
    call = ("weather", '{"city": "Zürich", "days": [1, 2]}')
    assert found(cut(text, [size] * len(text))) == [left, call]


def test_a_call_without_its_closing_mark_is_found_before_other_text() -> None:
    text = f"<tool_call>{TIME}\n<tool_call>{CITY}\nSo."
    assert found([text]) == [("time", "{}"), ("weather", CITY[33:-1]), "\nSo."]


@pytest.mark.parametrize("size", [1, 6, 1000])
def test_nothing_follows_the_first_call_where_one_is_asked_for(size: int) -> None:
    text = f"So.\n<tool_call>{TIME}</tool_call>\n<tool_call>{CITY}</tool_call> And"
    finder = CallFinder(["time"], only_first=True)
    parts = [part for chunk in cut(text, [size] * len(text)) for part in finder.feed(chunk)]
    parts += finder.finish()
    assert "".join(part for part in parts if isinstance(part, str)) == "So."
    assert [part.name for part in parts if isinstance(part, Call)] == ["time"]


def test_the_log_says_once_why_calls_stay_text_and_repeats_none_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "pilotfish.server"):
        found(['<tool_call>{"name": "secret", "city": "secret"}</tool_call> <tool_call>{secret'])
    (message,) = caplog.messages
    assert message == (
        "tool calls left as text: 2, the first because it has entries beside its name, "
        "and no arguments"
    )
    caplog.clear()
    found([f"<tool_call>{TIME}</tool_call> and {CITY}"], "time")
    assert not caplog.messages


UNITS = [
    "<tool_call>", "</tool_call>", "<tool_call>{", '<tool_call>{"a', '<tool_call>{"a": "',
    f"<tool_call>{TIME}", f"{TIME} ", "<", "<tool_call", "\n", " ", "{", "[", '"', "\\", "}",
    '{"name":', "```json\n", "```\n\n", "x", "a\n\n",
]  # fmt: skip


def handled(text: str, size: int) -> int:
    """Return how many characters are handled while a text is read in pieces of a size."""
    work, seen = Work(), ObjectScanner.feed

    def counted(scanner: ObjectScanner, text: str, start: int = 0) -> int:
        end = seen(scanner, text, start)
        work.num_characters += end - start
        return end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectScanner, "feed", counted)
        finder = CallFinder(["time"])
        for start in range(0, len(text), size):
            finder.feed(CountedText.of(text[start : start + size], work))
        finder.finish()
    return work.num_characters


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("beginning", ["", "```json\n", '{"name": "', '<tool_call>{"name": "'])
def test_the_work_grows_with_the_length_of_the_text(beginning: str, unit: str, size: int) -> None:
    text = beginning + unit * (2000 // len(unit))
    assert handled(text, size) <= 150 * len(text)


@given(st.lists(st.sampled_from(UNITS), min_size=1, max_size=6).map("".join))
def test_the_work_grows_with_the_length_of_whatever_is_repeated(unit: str) -> None:
    text = unit * (1200 // len(unit) + 1)
    assert handled(text, 3) <= 150 * len(text)


def test_no_pattern_is_used_on_what_models_write() -> None:
    values = [*vars(tools).values()]
    assert not [value for value in values if isinstance(value, re.Pattern) or value is re]


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
