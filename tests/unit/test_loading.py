"""What loading does once and not again, what it refuses before it reads weights, what it tells."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish import build
from pilotfish.backends import machine
from pilotfish.build import files, load_engine, loading
from pilotfish.calibration import store
from pilotfish.cli import main
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.errors import (
    CacheNotTruncatable,
    ConfigError,
    MissingExtra,
    ModelFileError,
    NotEnoughMemory,
    UnknownModel,
    VocabularyMismatch,
)
from pilotfish.server import running
from support.tiny_gguf import write_tiny

Measure = Callable[..., Any]
Program = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a function that runs the command line for its code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdin", None)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return run


def config(target: Path, draft: Path | None = None, **speculation: Any) -> EngineConfig:
    def one(path: Path) -> ModelConfig:
        return ModelConfig(reference=str(path), threads=1, context_size=64)

    return EngineConfig(
        target=one(target),
        draft=None if draft is None else one(draft),
        speculation=SpeculationConfig(**speculation),
    )


def disturb(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    """Let every measurement find these values."""
    measure: Measure = store.measure
    monkeypatch.setattr(store, "measure", lambda *a, **k: replace(measure(*a, **k), **found))


def test_a_pair_is_measured_at_its_first_load_and_told_so(tiny: Path, program: Program) -> None:
    ask = ("generate", "--raw", "Go:", "-m", str(tiny), "--max-tokens", "2", "--threads", "1")
    for is_told in (True, False, False):
        code, out, err = program(*ask)
        assert code == 0
        assert out
        assert err.count("measuring what passes cost") == is_told


@pytest.mark.parametrize("steady", [True, False])
def test_a_disturbed_measurement_is_told_when_it_is_made_and_used_ever_after(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, steady: bool
) -> None:
    disturb(monkeypatch, steady=steady)
    with load_engine(config(tiny)) as engine:
        assert ["pilotfish calibrate" in notice for notice in engine.facts.notices] == (
            [] if steady else [True]
        )
    monkeypatch.setattr(store, "measure", None)
    with load_engine(config(tiny)) as engine:
        assert engine.facts.notices == ()


def test_costs_that_cannot_be_kept_are_told_at_each_load(tiny: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    for _ in range(2):
        with load_engine(config(tiny)) as engine:
            (notice,) = [one for one in engine.facts.notices if "cannot be kept" in one]
            assert str(cache) in notice
            assert "PILOTFISH_CACHE" in notice


PICKY = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}go"
CHATS = [("generate", "hello"), ("chat",), ("bench",), ("advise",)]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be a fault of the program to read weights."""

    def read(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "load_model", read)


def refused(program: Program, *arguments: str) -> str:
    """Return the error of a command that is refused, and its hint."""
    code, out, err = program(*arguments)
    assert code == 2, err
    assert out == ""
    return err


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("backend", ["native", "llama"])
@pytest.mark.parametrize("command", CHATS, ids=lambda command: command[0])
def test_a_file_without_a_chat_template_is_refused_before_weights_are_read(
    tmp_path: Path, program: Program, command: tuple[str, ...], backend: str
) -> None:
    path = write_tiny(tmp_path / "plain.gguf", template=None)
    err = refused(program, *command, "-m", str(path), "--backend", backend)
    assert "no chat template" in err
    assert "--raw" in err


@pytest.mark.usefixtures("unread")
def test_what_the_request_cannot_have_is_told_before_weights_are_read(
    tmp_path: Path, program: Program, tiny: Path
) -> None:
    picky = str(write_tiny(tmp_path / "picky.gguf", template=PICKY))
    broken = str(write_tiny(tmp_path / "broken.gguf", template="{% if %}"))
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "nothing there is"}')
    for command in (("generate", "hello"), ("chat",)):
        assert "no system" in refused(program, *command, "-m", picky, "--system", "be brief")
        assert "cannot be read" in refused(program, *command, "-m", broken)
        ask = (*command, "-m", str(tiny), "--json-schema", str(schema))
        assert "cannot be used" in refused(program, *ask)
    long = ("generate", "hello " * 99, "-m", str(tiny), "--ctx", "64")
    assert "the context holds 64" in refused(program, *long)
    assert "the context holds 64" in refused(program, *long, "--raw")


@pytest.mark.usefixtures("unread")
def test_what_the_draft_cannot_be_is_told_before_the_target_is_read(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:-100])
    state = write_tiny(tmp_path / "state.gguf", recurrent=True)
    window = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    with pytest.raises(ModelFileError, match="is cut"):
        load_engine(config(tiny, cut))
    with pytest.raises(CacheNotTruncatable, match="draft model keeps recurrent state"):
        load_engine(config(tiny, state))
    with pytest.raises(CacheNotTruncatable, match="target model keeps recurrent state"):
        load_engine(config(state))
    with pytest.raises(UnknownModel):
        load_engine(config(tiny, tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match="needs a draft model"):
        load_engine(config(tiny, drafter="model"))
    q8 = replace(config(tiny).target, backend="native", cache_type="q8_0")
    with pytest.raises(ConfigError, match="cache_type of the native backend"):
        load_engine(replace(config(tiny), draft=q8))
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    for draft in (
        replace(config(window).target, backend="llama"),
        replace(config(window).target, backend="auto"),
    ):
        with pytest.raises(MissingExtra, match="'llama'"):
            load_engine(replace(config(tiny), draft=draft))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("sides", [("native", "native"), ("llama", "native"), ("llama", "llama")])
def test_a_pair_of_other_tokens_is_refused_before_weights_are_read(
    tmp_path: Path, tiny: Path, sides: tuple[str, str]
) -> None:
    other = tmp_path / "other.gguf"
    swap = {
        b"\1" + bytes(7) + one: b"\1" + bytes(7) + two for one, two in ((b"Q", b"q"), (b"q", b"Q"))
    }
    other.write_bytes(re.sub(b"|".join(swap), lambda found: swap[found[0]], tiny.read_bytes()))
    one, two = (replace(config(tiny).target, backend=backend) for backend in sides)
    two = replace(two, reference=str(other))
    with pytest.raises(VocabularyMismatch, match="'Q' in the target and 'q' in the draft"):
        load_engine(EngineConfig(target=one, draft=two))


@pytest.mark.usefixtures("unread")
def test_a_pair_that_does_not_fit_together_is_refused_before_the_target_is_read(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needed(files: Any) -> int:
        with pytest.raises(NotEnoughMemory) as caught:
            load_engine(files)
        return int(str(caught.value).split("about ")[1].split(" MB")[0])

    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 0)
    alone, both = needed(config(tiny)), needed(config(tiny, tiny))
    assert both > 1.5 * alone > 0


def test_what_headers_say_is_read_once_for_the_pair(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[build.CheckedPair] = []
    with load_engine(config(tiny, tiny, controller="fixed"), check=seen.append) as engine:
        (checked,) = seen
        assert checked.draft is not None
        assert engine.tokenizer is checked.target.tokenizer
        assert checked.target.context_size == engine.engine.target.context_size == 64


def test_a_server_of_a_file_without_a_template_says_so(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "plain.gguf", template=None)
    monkeypatch.setattr(running, "run", lambda *arguments, **options: None)
    code, _, err = program("serve", "-m", str(path), "--port", "0", "--drafter", "none")
    assert code == 0, err
    assert "note: the model has no chat template" in err
