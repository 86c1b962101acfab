"""Which backend runs a file, what follows from it, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotfish import build
from pilotfish.backends import native
from pilotfish.backends.native import NativeModel
from pilotfish.build import DEFAULTS, choose_backend, load_engine, load_pair
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.errors import ConfigError, MissingExtra, ModelError, StrictUnavailable
from pilotfish.generation import TextEngine
from support.tiny_gguf import CONTEXT, vocabulary, write_tiny

REAL = len(vocabulary()[0])
NOT_INSTALLED = "the package pilotfish-native is not installed"


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def window_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "window.gguf", sliding_window=16)


def one(path: Path, **options: Any) -> ModelConfig:
    return ModelConfig(reference=str(path), threads=1, context_size=64, **options)


def engine_of(
    target: ModelConfig, draft: ModelConfig | None = None, **speculation: Any
) -> TextEngine:
    return load_engine(
        EngineConfig(
            target=target,
            draft=draft,
            speculation=SpeculationConfig(**{"controller": "fixed", **speculation}),
        )
    )


@pytest.mark.parametrize(
    ("backend", "cache_type", "expected"),
    [
        ("auto", "f16", "native"),
        ("native", "f32", "native"),
        ("llama", "f16", "llama"),
        ("auto", "q8_0", "llama"),
    ],
)
def test_auto_is_native_unless_something_speaks_against_it(
    tiny_path: Path, backend: str, cache_type: str, expected: str
) -> None:
    choice = choose_backend(one(tiny_path, backend=backend, cache_type=cache_type), tiny_path)
    assert choice.backend == expected
    assert bool(choice.reason) == (cache_type == "q8_0")


def test_auto_says_in_one_line_why_a_file_runs_on_llama(window_path: Path) -> None:
    with engine_of(one(window_path), drafter="none") as engine:
        assert engine.facts.notices == (
            f"{window_path} runs on llama.cpp: "
            "architecture gemma2 is not among llama, qwen2, qwen3",
        )
        assert engine.facts.models["target"]["backend"] == "llama"
    with engine_of(one(window_path, backend="llama"), drafter="none") as engine:
        assert engine.facts.notices == ()


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_a_context_beyond_what_the_model_was_trained_for_is_told(
    tiny_path: Path, tmp_path: Path, backend: str
) -> None:
    def model(path: Path, size: int | None) -> ModelConfig:
        return ModelConfig(reference=str(path), threads=1, context_size=size, backend=backend)

    for size in (None, CONTEXT):
        with engine_of(model(tiny_path, size), drafter="none") as engine:
            assert engine.facts.notices == ()
    draft = write_tiny(tmp_path / "draft.gguf", seed=2)
    target = model(tiny_path, CONTEXT + 64)
    with engine_of(target, model(draft, CONTEXT + 128), drafter="model") as engine:
        told = [notice for notice in engine.facts.notices if "trained" in notice]
    assert len(told) == 2
    for notice, words in zip(told, (["tiny.gguf", "64"], ["draft.gguf", "128"]), strict=True):
        assert f"trained for {CONTEXT}" in notice
        assert str(CONTEXT + int(words[1])) in notice
        assert words[0] in notice


def test_without_the_native_package_auto_is_llama(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "missing_reason", lambda: NOT_INSTALLED)
    with engine_of(one(tiny_path), drafter="none") as engine:
        assert engine.facts.notices == (f"{tiny_path} runs on llama.cpp: {NOT_INSTALLED}",)
    with pytest.raises(ModelError, match="not installed"):
        choose_backend(one(tiny_path, backend="native"), tiny_path)


def test_native_by_name_is_refused_with_the_reason(window_path: Path) -> None:
    with pytest.raises(ModelError, match=r"window\.gguf does not run.*gemma2") as caught:
        choose_backend(one(window_path, backend="native"), window_path)
    assert "--backend llama" in caught.value.hint


def test_without_llama_what_is_missing_is_named_with_the_reason(
    window_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.files, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"gemma2.*'llama'") as caught:
        choose_backend(one(window_path), window_path)
    assert "install llama" in caught.value.hint


def test_a_cache_type_of_llama_runs_there(tmp_path: Path) -> None:
    # a quantised cache needs heads of 32 values
    path = write_tiny(tmp_path / "heads.gguf", heads=1)
    with engine_of(one(path, cache_type="q8_0"), drafter="none") as engine:
        (notice,) = engine.facts.notices
        assert "cache type q8_0 is kept there only" in notice
        assert engine.generate("Go:", raw=True, max_tokens=5).usage.completion_tokens == 5


def test_a_cache_type_of_llama_is_refused_on_native(tiny_path: Path) -> None:
    with pytest.raises(ConfigError, match="cache_type of the native backend"):
        engine_of(one(tiny_path, backend="native", cache_type="q8_0"))


SIDE = {"threads": 1, "cache_type": "f32", "context_size": 64}
OTHER_SIDE = {"threads": 2, "cache_type": "f16", "context_size": 32}


@pytest.mark.parametrize("backend", DEFAULTS)
@pytest.mark.parametrize("name", SIDE)
def test_each_side_of_a_pair_is_loaded_with_its_own_options(
    tiny_path: Path, backend: str, name: str
) -> None:
    own = {"target": SIDE, "draft": SIDE | {name: OTHER_SIDE[name]}}
    sides = {
        role: ModelConfig(reference=str(tiny_path), backend=backend, **options)
        for role, options in own.items()
    }
    pair = load_pair(EngineConfig(**sides))
    try:
        for role, options in own.items():
            loaded = getattr(pair, role)
            facts = loaded.facts
            assert (facts.threads, facts.context_size) == (
                options["threads"],
                options["context_size"],
            )
            used = loaded._options if backend == "native" else loaded._context.options
            assert used.cache_type == options["cache_type"]
    finally:
        pair.close()


@pytest.mark.parametrize("backend", DEFAULTS)
def test_the_number_of_drafts_follows_the_targets_backend(tiny_path: Path, backend: str) -> None:
    with engine_of(one(tiny_path, backend=backend), drafter="suffix") as engine:
        number = DEFAULTS[backend].num_speculative_tokens
        assert engine.facts.speculation_reason == f"fixed: up to {number} tokens a round"
        assert engine.engine.controller.draft_budgets([]) == []
    with engine_of(one(tiny_path, backend=backend), num_speculative_tokens=2) as engine:
        assert engine.facts.speculation_reason == "fixed: up to 2 tokens a round"


def loaded_draft(engine: TextEngine) -> NativeModel:
    model = engine.engine.drafter._drafters[-1]._model  # type: ignore[attr-defined]
    assert isinstance(model, NativeModel)
    return model


def test_a_native_draft_is_made_small_and_the_target_is_not(tiny_path: Path) -> None:
    pair = (one(tiny_path), one(tiny_path))
    with engine_of(*pair, drafter="model", draft_head_size=100) as engine:
        draft = loaded_draft(engine)
        assert draft.head is not None
        assert draft.facts.weight_bytes < engine.engine.target.facts.weight_bytes  # type: ignore[attr-defined]
        assert engine.engine.target.head is None  # type: ignore[attr-defined]
        small = engine.generate("Go:", raw=True, max_tokens=30, temperature=0.8, seed=3)
    with engine_of(*pair, drafter="model", draft_head_size=0, draft_requantize=False) as engine:
        assert loaded_draft(engine).head is None
        whole = engine.generate("Go:", raw=True, max_tokens=30, temperature=0.8, seed=3)
    assert small.token_ids == whole.token_ids
    assert whole.stats.acceptance_rate == 1.0
    assert small.stats.drafted > 0


@pytest.mark.parametrize("sides", [("native", "llama"), ("llama", "native")])
def test_target_and_draft_may_run_on_different_backends(
    tiny_path: Path, sides: tuple[str, str]
) -> None:
    target, draft = (one(tiny_path, backend=backend) for backend in sides)
    with engine_of(target, draft, drafter="auto") as engine:
        models = engine.facts.models
        assert (models["target"]["backend"], models["draft"]["backend"]) == sides
        reply = engine.generate("Go:", raw=True, max_tokens=30)
        assert "model" in reply.stats.by_drafter


def test_strict_has_nothing_to_add_on_native(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(one(tiny_path), strict=True) as engine:
        assert engine.facts.exactness["level"] == "bit-identical"
        assert engine.engine.reads_in_any_parts
        assert engine.facts.exactness["strict_width"] is None
        assert engine.engine.target.max_width == 64
    differing = {"level": "in distribution", "reason": "rows differed"}
    monkeypatch.setattr(NativeModel, "exactness", property(lambda model: differing))
    with pytest.raises(StrictUnavailable, match="rows differed"):
        engine_of(one(tiny_path), strict=True)
    with engine_of(one(tiny_path)) as engine:
        assert not engine.engine.reads_in_any_parts
        assert engine.facts.exactness["level"] == "in distribution"


LOADED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"drafter": "auto"}, ("prediction", "suffix")),
    ({"drafter": "ngram"}, ("ngram",)),
    ({"drafter": "none"}, ()),
    ({"drafter": "suffix", "num_speculative_tokens": 0}, ()),
]


@pytest.mark.parametrize(("options", "there"), LOADED)
def test_a_request_may_name_who_was_loaded_and_nobody_else(
    tiny_path: Path, options: dict[str, Any], there: tuple[str, ...]
) -> None:
    ask: dict[str, Any] = {"raw": True, "max_tokens": 3, "prediction": "Go on"}
    with engine_of(one(tiny_path), **options) as engine:
        assert engine.facts.speculation["drafters"] == list(there)
        texts = {engine.generate("Go:", drafter=name, **ask).text for name in ("auto", *there)}
        assert len(texts) == 1
        for name in {"suffix", "ngram", "model"} - {*there}:
            for call in (
                lambda: engine.generate("Go:", drafter=name, **ask),  # noqa: B023
                lambda: engine.stream("Go:", drafter=name, **ask),  # noqa: B023
                lambda: engine.generate_batch(["Go:"], drafter=name, **ask),  # noqa: B023
            ):
                with pytest.raises(ConfigError, match=f"drafter {name} is not loaded") as caught:
                    call()
                assert " and ".join(there) in str(caught.value)
                assert caught.value.hint


def test_a_draft_model_may_be_named_where_one_is_loaded(tiny_path: Path) -> None:
    with engine_of(one(tiny_path), one(tiny_path)) as engine:
        assert engine.facts.speculation["drafters"] == ["prediction", "suffix", "model"]
        reply = engine.generate("Go:", raw=True, max_tokens=9, drafter="model")
        assert reply.stats.by_drafter.keys() == {"model"}
