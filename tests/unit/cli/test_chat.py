"""`pilotfish chat` with piped lines: the history, the commands, and turns that leave no trace."""

from __future__ import annotations

import json

from .conftest import Run, ScriptedProgram, reply_text


def test_each_line_is_a_turn_and_the_history_is_kept(run: Run) -> None:
    outcome = run("chat", stdin=b"hello\n\nagain\nand again")
    assert outcome.code == 0
    assert outcome.out == "".join(f"{reply_text(turn)}\n" for turn in (1, 2, 3))
    assert outcome.err == ""


def test_the_commands_of_a_chat(run: Run) -> None:
    outcome = run(
        "chat", stdin=b"/stats\nhello\n/clear\nhello\n/stats\n/help\n/nope\n/exit\nunread\n"
    )
    assert outcome.out == f"{reply_text(1)}\n" * 2
    assert "no reply yet" in outcome.err
    assert "2 replies" in outcome.err
    assert "/clear" in outcome.err
    assert "unknown command: /nope" in outcome.err


def test_a_message_that_no_longer_fits_is_dropped_and_the_chat_goes_on(
    run: Run, program: ScriptedProgram
) -> None:
    program.context_size = 250
    outcome = run("chat", stdin=b"hello\n" + b"x" * 300 + b"\n/clear\nhello\n")
    assert outcome.code == 0
    assert outcome.out == f"{reply_text(1)}\n" * 2
    first, second = outcome.err.splitlines()
    assert first.startswith("error: ")
    assert "250" in first
    assert second.startswith("hint: /clear")


def test_an_interrupt_stops_one_reply_only(run: Run, program: ScriptedProgram) -> None:
    program.interrupt_after = 9
    outcome = run("chat", "--drafter", "none", stdin=b"hello\nagain\n")
    first, second = outcome.out.splitlines()
    assert outcome.code == 0
    assert reply_text(1).startswith(first)
    assert second == reply_text(2)


def test_an_interrupt_before_the_first_word_takes_the_turn_back(
    run: Run, program: ScriptedProgram
) -> None:
    program.interrupt_after = 0
    assert run("chat", stdin=b"hello\nhello\n").out.strip() == reply_text(1)


def test_a_line_that_is_no_text_is_refused_and_the_chat_goes_on(run: Run) -> None:
    outcome = run("chat", stdin=b"\xff\nhello\n")
    assert outcome.out == f"{reply_text(1)}\n"
    assert "line 1 of stdin is not UTF-8" in outcome.err


def test_json_prints_the_conversation_once(run: Run) -> None:
    document = json.loads(run("chat", "--json", "--system", "be brief", stdin=b"hello\nmore\n").out)
    assert [message["role"] for message in document["messages"]] == ["user", "assistant"] * 2
    assert [reply["text"] for reply in document["replies"]] == [
        document["messages"][1]["content"],
        document["messages"][3]["content"],
    ]


def test_a_turn_does_not_read_the_turns_before_it_again(run: Run, program: ScriptedProgram) -> None:
    document = json.loads(run("chat", "--json", stdin=b"hello\nmore\n/clear\nhello").out)
    first, second, third = (reply["usage"] for reply in document["replies"])
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["total_tokens"] - 1
    # what was said before the conversation was cleared was begun alike
    assert third["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1
    # and all that in the memory of one reply
    assert [config.num_places for config in program.configs] == [1]
    told = run("chat", stdin=b"hello\n/stats\nmore\n/stats\n").err
    assert told.count("prompt tokens were read before") == 1
