"""`pilotfish chat` with piped lines: the history, the commands, and turns that leave no trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotfish.cli.conversation import Conversation
from pilotfish.cli.typed import Typed

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
    assert "unknown command: /nope" in outcome.err


def test_help_lists_every_command_in_80_columns(run: Run) -> None:
    lines = run("chat", stdin=b"/help\n").err.splitlines()
    assert max(map(len, lines)) <= 80
    listed = {word.strip(",;") for line in lines for word in line.split() if word[0] == "/"}
    commands = {"/system", "/retry", "/undo", "/clear", "/save", "/load", "/stats", "/help"}
    assert listed == commands | {"/?", "/exit", "/bye", "/quit"}
    assert '"""' in "".join(lines)
    for command in sorted(listed - {"/exit", "/bye", "/quit"}):
        assert "unknown" not in run("chat", stdin=f"{command}\n".encode()).err


@pytest.mark.parametrize("command", ["/exit", "/bye", "/quit", "/BYE "])
def test_a_conversation_ends_with_any_of_its_last_words(run: Run, command: str) -> None:
    assert run("chat", stdin=f"{command}\nhello\n".encode()).out == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/sytem be brief", ["unknown command: /sytem", "did you mean /system?"]),
        ("/set temperature 1", ["unknown command: /set"]),
        ("/nope", ["unknown command: /nope", "/help lists the commands"]),
        ("/save", ["/save needs the name of a file"]),
        ("/load no-such-file.json", ["cannot read no-such-file.json: no such file"]),
        ("/undo", ["no message to take back"]),
        ("/retry", ["no message to answer again"]),
        ("/clear all", ["/clear takes nothing"]),
        ("/save x.json", ["nothing to save"]),
    ],
)
def test_what_looks_like_a_command_never_reaches_the_model(
    run: Run, line: str, words: list[str]
) -> None:
    outcome = run("chat", stdin=f"{line}\nhello\n".encode())
    assert outcome.out == f"{reply_text(1)}\n"
    for word in words:
        assert word in outcome.err


def messages(run: Run, stdin: str, *options: str) -> list[str]:
    """Return the contents of the conversation that these lines make."""
    document = json.loads(run("chat", "--json", *options, stdin=stdin.encode()).out)
    return [message["content"] for message in document["messages"]]


def test_paths_and_indented_slashes_are_messages(run: Run) -> None:
    said = messages(run, "/etc/hosts is what?\n /clear\n/5 or 1/5?\n")
    assert said[::2] == ["/etc/hosts is what?", " /clear", "/5 or 1/5?"]


def test_a_block_of_quotes_is_one_turn(run: Run) -> None:
    lines = '"""one\n  two\n\nthree"""\n"""\n/exit\n"""\n"""in one line"""\n'
    said = messages(run, lines + 'plain\n"""x\n""" \n""""""\n')
    assert said[::2] == ["one\n  two\n\nthree", "/exit", "in one line", "plain", "x"]


def test_a_block_that_is_damaged_is_dropped_whole(run: Run) -> None:
    outcome = run("chat", stdin=b'"""one\n\xff\ntwo"""\nhello\n"""no end\n')
    assert outcome.out == f"{reply_text(1)}\n"
    assert "line 2 of stdin is not UTF-8" in outcome.err
    assert "has no end, so it is not sent" in outcome.err


def test_the_system_message_can_be_set_shown_and_taken_away(
    run: Run, program: ScriptedProgram
) -> None:
    lines = '/system\n/system be brief\nhello\n/system """two\nlines"""\n/system none\nhello\n'
    outcome = run("chat", "--json", "--system", "old", stdin=lines.encode())
    assert outcome.err.splitlines() == [
        "system: old",
        "system: be brief",
        "system: two",
        "lines",
        "no system message",
    ]
    with_system, without = (
        reply["usage"]["prompt_tokens"] for reply in json.loads(outcome.out)["replies"]
    )
    first = len("hello") + len("be brief") + len("user\nsystem\nassistant\n\n\n") + 2 * 2 + 1
    assert with_system == first
    assert without > first


def test_undo_and_retry_change_the_last_turn(run: Run) -> None:
    assert messages(run, "one\ntwo\n/undo\n") == ["one", reply_text(1)]
    assert messages(run, "one\ntwo\n/undo\n/undo\nthree\n") == ["three", reply_text(1)]
    assert messages(run, "one\ntwo\n/retry\n") == ["one", reply_text(1), "two", reply_text(2)]


def test_a_retry_without_chance_says_so_and_one_with_a_seed_takes_the_next(run: Run) -> None:
    assert "only change with --temperature" in run("chat", stdin=b"one\n/retry\n").err
    options = ("--json", "--temperature", "0.5", "--seed", "7")
    outcome = run("chat", *options, stdin=b"one\n/retry\n")
    assert [reply["seed"] for reply in json.loads(outcome.out)["replies"]] == [7, 8]
    assert outcome.err == ""


def test_a_retry_that_is_stopped_before_its_first_word_keeps_the_reply(
    run: Run, program: ScriptedProgram
) -> None:
    take = Conversation.take

    def interrupted(self: Conversation, typed: Typed) -> bool:
        program.interrupt_after = 0 if typed.command == "/retry" else None
        return take(self, typed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conversation, "take", interrupted)
        assert messages(run, "one\n/retry\n") == ["one", reply_text(1)]


def test_a_saved_conversation_can_be_loaded(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "fish 🦈.json"
    lines = (
        f"/system be brief\none\n/save {file}\n/clear\n/system none\n/load {file}\n/system\ntwo\n"
    )
    outcome = run("chat", stdin=lines.encode())
    assert outcome.out == f"{reply_text(2)}\n{reply_text(3)}\n", "the system message counts"
    assert outcome.err.endswith("system: be brief\n")
    assert json.loads(file.read_text())["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": reply_text(2)},
    ]
    assert "saved 4 messages" in run("chat", stdin=f"/load {file}\ntwo\n/save {file}".encode()).err


def test_what_chat_prints_as_json_can_be_loaded(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(run("chat", "--json", stdin=b"one\n").out)
    assert run("chat", stdin=f"/load {file}\ntwo\n".encode()).out == f"{reply_text(2)}\n"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"other": 1}', "no list of messages"),
        ("[1]", "role of messages[0]"),
        ('[{"role": "tool", "content": "x"}]', "'tool'"),
        ('[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]', "messages[1]"),
        ('[{"role": "user", "content": ["x"]}]', "content of messages[0]"),
        ('[{"role": [], "content": "x"}]', "role of messages[0]"),
    ],
)
def test_other_files_are_neither_loaded_nor_overwritten(
    run: Run, tmp_path: Path, content: str, word: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    outcome = run("chat", stdin=f"one\n/load {file}\n/save {file}\ntwo\n".encode())
    assert outcome.out == f"{reply_text(1)}\n{reply_text(2)}\n", "the conversation goes on"
    assert word in outcome.err
    assert "holds no conversation" in outcome.err
    assert file.read_text() == content


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
