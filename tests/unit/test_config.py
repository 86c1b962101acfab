"""Configuration: strict readers, and ranges that name the option."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from pilotfish.config import (
    BACKENDS,
    DRAFTERS,
    EngineConfig,
    ModelConfig,
    Request,
    SpeculationConfig,
)
from pilotfish.errors import ConfigError
from pilotfish.types import SamplingSettings

WHOLE: dict[str, Any] = {
    "target": {"reference": "big", "context_size": 2048, "threads": 2, "cache_type": "f32"},
    "draft": "small",
    "speculation": {"drafter": "model", "num_speculative_tokens": 3, "strict": True},
    "max_sessions": 2,
}


def test_nested_mappings_become_the_configuration() -> None:
    config = EngineConfig.from_dict(WHOLE)
    assert config.target == ModelConfig(
        reference="big", context_size=2048, threads=2, cache_type="f32"
    )
    assert config.draft == ModelConfig(reference="small")
    assert config.speculation.num_speculative_tokens == 3
    assert config.max_sessions == 2
    assert EngineConfig.from_dict({"target": "big"}) == EngineConfig(
        target=ModelConfig(reference="big")
    )


def test_reading_does_not_change_what_was_read() -> None:
    raw = {"target": "big", "draft": "small", "speculation": {}}
    before = dict(raw)
    EngineConfig.from_dict(raw)
    assert raw == before


@pytest.mark.parametrize(
    ("raw", "name", "hint"),
    [
        ({"target": "m", "max_session": 1}, "max_session", "max_sessions"),
        ({"target": {"reference": "m", "thread": 1}}, "thread", "threads"),
        ({"target": "m", "draft": {"reference": "m", "ctx": 1}}, "ctx", "known: "),
        ({"target": "m", "speculation": {"draftr": "none"}}, "draftr", "drafter"),
    ],
)
def test_an_unknown_key_is_named_with_a_hint(raw: dict[str, Any], name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown \w+ option: {name}$") as caught:
        EngineConfig.from_dict(raw)
    assert hint in caught.value.hint


def test_a_configuration_without_a_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="target"):
        EngineConfig.from_dict({"draft": "small"})


def test_a_file_is_read_like_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "pilotfish.toml"
    path.write_text(
        'target = "big"\nmax_sessions = 2\n\n[draft]\nreference = "small"\nthreads = 1\n\n'
        '[speculation]\ndrafter = "suffix"\n'
    )
    config = EngineConfig.from_toml(path)
    assert config.draft == ModelConfig(reference="small", threads=1)
    assert (config.speculation.drafter, config.max_sessions) == ("suffix", 2)


@pytest.mark.parametrize(
    "content",
    [b"target = ", b"\xff\xfe\x00", b"= 3", b"[target\n", b'target = "a"\ntarget = "b"\n'],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot read .*bad\.toml") as caught:
        EngineConfig.from_toml(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read {path}"):
            EngineConfig.from_toml(path)


@pytest.mark.parametrize(
    ("kind", "required", "name", "value"),
    [
        (ModelConfig, {"reference": "m"}, "reference", ""),
        (ModelConfig, {"reference": "m"}, "backend", "cuda"),
        (ModelConfig, {"reference": "m"}, "cache_type", "q2"),
        *[
            (ModelConfig, {"reference": "m"}, name, value)
            for name in ("context_size", "threads", "batch_size")
            for value in (0, -1, 1.5, "8", True, math.nan)
        ],
        (SpeculationConfig, {}, "drafter", "magic"),
        (SpeculationConfig, {}, "verify", "block"),
        *[
            (SpeculationConfig, {}, "num_speculative_tokens", value)
            for value in (-1, 1.5, "4", True)
        ],
        *[
            (SpeculationConfig, {}, "draft_head_size", value)
            for value in (-1, 1.5, "4", True, None)
        ],
        (SpeculationConfig, {}, "draft_requantize", "no"),
        *[
            (EngineConfig, {"target": ModelConfig(reference="m")}, "max_sessions", value)
            for value in (0, -1, 1.5, None, math.nan)
        ],
        *[(Request, {}, "max_tokens", value) for value in (0, -1, 1.5, "9", math.nan)],
        *[(Request, {}, "seed", value) for value in (1.5, "7", math.nan)],
        *[(Request, {}, "stop", value) for value in (("",), (3,), ("a", ""))],
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_option(
    kind: Any, required: dict[str, Any], name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        kind(**(required | {name: value}))
    assert "must be" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (-1, math.nan, math.inf, "hot", None, True)),
        ("top_k", (-1, 1.5, "40", True)),
        ("top_p", (0, -1, 2, math.nan, "all")),
        ("min_p", (-0.1, 1.1, math.nan)),
        ("repetition_penalty", (0, -1, math.nan, math.inf)),
        ("presence_penalty", (math.nan, math.inf, "some")),
        ("frequency_penalty", (math.nan, -math.inf)),
        ("logit_bias", ({-1: 1.0}, {1.5: 1.0}, {3: math.nan}, {3: math.inf}, {3: "much"})),
        ("banned_tokens", ((-1,), (1.5,), ("a",))),
        ("min_tokens", (-1, 1.5)),
        ("logprobs", (-1, 101, 1.5)),
    ],
)
def test_settings_out_of_range_name_themselves(name: str, values: tuple[object, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=name):
            SamplingSettings(**{name: value})  # type: ignore[arg-type]


def test_the_bounds_themselves_are_allowed() -> None:
    SamplingSettings(temperature=0, top_k=0, top_p=1, min_p=0, logprobs=0)
    SamplingSettings(temperature=1e9, top_p=1e-9, min_p=1, logprobs=100, min_tokens=10**9)
    SamplingSettings(logit_bias={0: -math.inf})
    Request(max_tokens=1, seed=-1)
    Request(max_tokens=None)
    SpeculationConfig(num_speculative_tokens=0, draft_head_size=0)
    for backend in BACKENDS:
        assert ModelConfig(reference="m", backend=backend).backend == backend
    for drafter in DRAFTERS:
        assert SpeculationConfig(drafter=drafter).drafter == drafter


def test_a_request_is_made_of_flat_options() -> None:
    request = Request.from_options({"stop": "end", "seed": 3, "temperature": 0.5, "top_k": 4})
    assert (request.stop, request.seed) == (("end",), 3)
    assert request.settings == SamplingSettings(temperature=0.5, top_k=4)
    assert Request.from_options({"stop": None}).stop == ()
    assert Request.from_options({"stop": ["a", "b"]}).stop == ("a", "b")
    with pytest.raises(ConfigError, match="exclude each other"):
        Request.from_options({"raw": True, "system": "s"})
    with pytest.raises(ConfigError, match="settings"):
        Request.from_options({"settings": SamplingSettings()})


@pytest.mark.parametrize(
    "value",
    [
        ModelConfig(reference="m"),
        SpeculationConfig(),
        EngineConfig(target=ModelConfig(reference="m")),
        Request(),
        SamplingSettings(),
    ],
)
def test_configurations_cannot_be_changed_and_take_keywords_only(value: Any) -> None:
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)
    with pytest.raises(TypeError):
        type(value)("m")


@pytest.mark.parametrize(
    "raw",
    [
        *[{"target": value} for value in (3, None, {}, [])],
        *[{"target": "m", "speculation": value} for value in (3, "suffix", None)],
        {"target": "m", "draft": 3},
    ],
)
def test_what_is_no_table_is_a_config_error(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("reference", {"target": {"reference": 3}}),
        *[("strict", {"target": "m", "speculation": {"strict": v}}) for v in ("false", 1)],
    ],
)
def test_a_value_of_another_kind_is_a_config_error(name: str, raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("stop", 3), ("system", 3), ("raw", "no"), ("logit_bias", [1]), ("banned_tokens", 3)],
        *[("json_schema", value) for value in ("{}", [{}], 1)],
    ],
)
def test_an_option_of_another_kind_is_a_config_error(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        Request.from_options({name: value})
