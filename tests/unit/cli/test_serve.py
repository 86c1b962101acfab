"""`pilotfish serve`: options reach the server, and what cannot work is told before loading."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotfish.cli import serve
from pilotfish.errors import ConfigError
from pilotfish.server import running
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import ServiceLimits

from .conftest import Run, ScriptedProgram

BAD_VALUES = [
    *[("--port", value) for value in ("-1", "65536", "1.5", "http", "nan")],
    *[("--max-body-bytes", value) for value in ("0", "-1", "1.5", "all")],
    *[("--drain-seconds", value) for value in ("-1", "nan", "inf", "soon")],
    *[("--max-sessions", value) for value in ("0", "-1", "1.5", "many")],
    *[("--max-waiting", value) for value in ("-1", "1.5", "many")],
    *[("--request-seconds", value) for value in ("-1", "nan", "inf", "long")],
    *[("--max-connections", value) for value in ("0", "-1", "1.5", "all")],
    *[("--client-seconds", value) for value in ("0", "-1", "nan", "inf", "long")],
    *[("--ping-seconds", value) for value in ("-1", "nan", "inf", "often")],
    *[("--idle-seconds", value) for value in ("0", "-1", "nan", "inf", "long")],
    *[("--kept-sequences", value) for value in ("-1", "1.5")],
    *[("--kept-tokens", value) for value in ("-1", "few")],
    *[("--cors-origin", value) for value in ("a.example", "https://a.example/", "")],
    *[("--allowed-host", value) for value in ("https://a.example", "a.example:80", "")],
    *[("--api-key", value) for value in ("", "  ", "ü")],
    *[("--host", value) for value in ("", "no.such.host.invalid", "300.1.1.1")],
    ("--model-name", ""),
    ("--reasoning-format", "deep"),
]


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_a_bad_value_is_one_line_that_names_the_option(
    run: Run, program: ScriptedProgram, option: str, value: str
) -> None:
    run("serve", option, value).is_one_error(option)
    assert not program.configs, "nothing is loaded for a server that cannot start"


def test_a_port_in_use_is_told_before_loading(run: Run, program: ScriptedProgram) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = run("serve", "--port", port)
    outcome.is_one_error("in use", port)
    assert "--port" in outcome.err.splitlines()[1]
    assert not program.configs


def test_a_port_is_free_again_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = running.take_port(ServerOptions(port=0))
    port = bound.getsockname()[1]
    bound.listen()
    with socket.create_connection(("127.0.0.1", port)) as client:
        bound.accept()[0].close()
        bound.close()
        client.recv(1)
        running.take_port(ServerOptions(port=port)).close()


def test_small_answers_are_sent_at_once() -> None:
    with running.take_port(ServerOptions(port=0)) as bound:
        # what asyncio asks before it turns the delay of small packets off
        assert bound.proto == socket.IPPROTO_TCP


def test_files_are_allowed_for_as_many_connections_as_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(256, 1000)]
    monkeypatch.setattr(running.resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(running.resource, "setrlimit", lambda kind, pair: limits.append(pair))
    running.take_files(ServerOptions(max_connections=100))
    assert len(limits) == 1
    running.take_files(ServerOptions(max_connections=500))
    soft, hard = limits[-1]
    assert (500 < soft <= 1000, hard) == (True, 1000)
    with pytest.raises(ConfigError, match="--max-connections 1000 are too many"):
        running.take_files(ServerOptions(max_connections=1000))


Served = dict[str, Any]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Return what the server would have been run with."""
    seen: Served = {}

    def take(engine: Any, bound: Any, options: Any, *, limits: Any, ready: Any) -> None:
        seen.update(options=options, limits=limits, engine=engine)

    monkeypatch.setattr(running, "run", take)
    monkeypatch.delenv(serve.KEY_VARIABLE, raising=False)
    return seen


def test_options_reach_the_server_and_the_engine(
    run: Run, program: ScriptedProgram, served: Served
) -> None:
    words = (
        "serve --host 127.0.0.1 --port 0 --api-key k --cors-origin https://a.example --cors-origin "
        "* --allowed-host b.example --max-connections 7 --client-seconds 1.5 --idle-seconds 8 "
        "--ping-seconds 0 "
        "--max-body-bytes 9 --log-prompts --drain-seconds 2.5 "
        "--max-sessions 3 --max-waiting 4 --request-seconds 0 --kept-sequences 5 --kept-tokens 6 "
        "--model-name m --drafter suffix"
    )
    assert run(*words.split()).code == 0
    assert served["options"] == ServerOptions(
        port=0,
        api_key="k",
        cors_origins=("https://a.example", "*"),
        allowed_hosts=("b.example",),
        max_body_bytes=9,
        max_connections=7,
        client_seconds=1.5,
        idle_seconds=8,
        ping_seconds=0,
        log_prompts=True,
        drain_seconds=2.5,
        model_name="m",
    )
    assert served["limits"] == ServiceLimits(max_running=3, max_waiting=4, request_seconds=0)
    (config,) = program.configs
    assert (config.max_sessions, config.kept_sequences, config.kept_tokens) == (3, 5, 6)
    assert config.speculation.drafter == "suffix"


def test_defaults_are_those_the_help_names(
    run: Run, program: ScriptedProgram, served: Served
) -> None:
    assert run("serve", "--port", "0").code == 0
    (config,) = program.configs
    assert served["limits"].max_running == config.max_sessions == serve.MOST_RUNNING
    assert config.kept_sequences == serve.KEPT_SEQUENCES
    assert served["options"].model_name == config.target.reference
    text = " ".join(run("serve", "--help").out.replace("│", " ").split())
    defaults = ServerOptions()
    for number in (
        *(defaults.port, defaults.max_body_bytes, int(defaults.drain_seconds)),
        *(defaults.max_connections, int(defaults.client_seconds), int(defaults.idle_seconds)),
        int(defaults.ping_seconds),
        *(served["limits"].max_waiting, int(served["limits"].request_seconds)),
        *(config.max_sessions, config.kept_sequences, config.kept_tokens),
    ):
        assert f"Default: {number}" in text


def test_a_file_of_settings_holds_where_no_option_is_given(
    run: Run, program: ScriptedProgram, served: Served, tmp_path: Path
) -> None:
    file = tmp_path / "pilotfish.toml"
    file.write_text('max_sessions = 2\nkept_tokens = 7\n[target]\nreference = "smollm2-135m"\n')
    assert run("serve", "--port", "0", "--config", str(file), "--kept-tokens", "9").code == 0
    (config,) = program.configs
    assert (config.max_sessions, config.kept_sequences, config.kept_tokens) == (2, 8, 9)
    assert served["options"].model_name == "smollm2-135m"


def test_the_key_may_come_from_the_environment(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(serve.KEY_VARIABLE, "from-there")
    assert run("serve", "--port", "0").code == 0
    assert served["options"].api_key == "from-there"
    assert run("serve", "--port", "0", "--api-key", "given").code == 0
    assert served["options"].api_key == "given"


def test_a_model_file_is_called_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "my-model.Q4.gguf"
    file.touch()
    assert serve.model_name(str(file)) == "my-model.Q4"
    assert serve.model_name("org/repo:my-model.gguf") == "org/repo:my-model.gguf"
    address = "https://huggingface.co/org/repo/blob/main/my-model.gguf"
    assert serve.model_name(address) == "org/repo:my-model.gguf"


def test_an_open_server_without_a_key_warns(run: Run, served: Served) -> None:
    assert "--api-key" in run("serve", "--port", "0", "--host", "0.0.0.0").err
    assert run("serve", "--port", "0", "--host", "0.0.0.0", "--api-key", "k").err == ""
    assert run("serve", "--port", "0").err == ""


def test_it_says_where_it_listens_and_ends_well_when_told_to(
    run: Run, program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.notices = ("draft and target are the same file",)
    say = serve._say_ready

    def say_and_stop(options: ServerOptions, address: str) -> None:
        say(options, address)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve, "_say_ready", say_and_stop)
    outcome = run("serve", "--port", "0", "--model-name", "m")
    assert (outcome.code, outcome.out) == (0, "")
    notice, line = outcome.err.splitlines()
    assert notice == "note: draft and target are the same file"
    assert line.startswith("serving m at http://127.0.0.1:")


def test_without_its_libraries_it_says_what_to_install(
    run: Run, program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pilotfish.server.running", None)
    monkeypatch.delattr("pilotfish.server.running")
    outcome = run("serve")
    outcome.is_one_error("'server'")
    assert "scripts/install server" in outcome.err
