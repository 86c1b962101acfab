"""Loads models: which backend runs a file, and whether two files make a pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pilotfish import calibration, gguf, models
from pilotfish.accounting.costs import ModelSize, multiplied_parameters
from pilotfish.backends.footprint import read_footprint
from pilotfish.backends.vocabulary import check_vocabularies
from pilotfish.calibration import Calibration, Progress
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig, cache_folder
from pilotfish.errors import (
    CacheNotTruncatable,
    ConfigError,
    MissingExtra,
    ModelError,
    StrictUnavailable,
)
from pilotfish.gguf import GgufHeader

if TYPE_CHECKING:
    from pilotfish.backends.llama import LlamaModel
    from pilotfish.backends.native import NativeModel

    LoadedModel: TypeAlias = LlamaModel | NativeModel


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which backend runs a file.

    reason   why `auto` did not take the native one; empty where it did, or where one was named
    header   the file's, where it had to be read
    """

    backend: str
    reason: str = ""
    header: GgufHeader | None = None


@dataclass(slots=True)
class ModelPair:
    """A loaded target and, where drafts may come from one, its draft model.

    calibration  what passes cost, once it was asked for
    lost         what was to take part in drafting and does not
    """

    config: EngineConfig
    target: LoadedModel
    draft: LoadedModel | None = None
    notices: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    lost: str = ""
    _description: dict[str, Any] = field(default_factory=dict)
    _sizes: dict[str, ModelSize] = field(default_factory=dict)

    @property
    def target_size(self) -> ModelSize:
        """Return the size of the target; its file is read once, however many engines share it."""
        return self._size(self.target, self.config.target)

    @property
    def draft_size(self) -> ModelSize | None:
        """Return the size of the draft model, if there is one."""
        if self.draft is None:
            return None
        return self._size(self.draft, self.config.draft or self.config.target)

    def _size(self, model: LoadedModel, config: ModelConfig) -> ModelSize:
        side = "target" if model is self.target else "draft"
        if side not in self._sizes:
            self._sizes[side] = model_size(model, config.cache_type)
        return self._sizes[side]

    def measured_costs(self, progress: Progress | None = None) -> Calibration:
        """Return what passes of the models cost here: as kept, or measured now."""
        if self.calibration is None:
            # kept: the pair may lose its draft model later
            self._description = calibration.describe_pair(self.target, self.draft, self.config)
            told = _Told(progress)
            self.calibration = calibration.costs_for(
                self.target, self.draft, description=self._description, progress=told
            )
            if told.was_called:
                self._notice_measuring(self.calibration)
        return self.calibration

    def _notice_measuring(self, measured: Calibration) -> None:
        """Tell what makes a measurement worse than usual, once: when it was made."""
        if not measured.steady:
            self.notices.append(
                "other work disturbed the measurement of what passes cost; replies correct it as "
                "they are made, and `pilotfish calibrate` measures again"
            )
        if calibration.load(self._description) is None:
            self.notices.append(
                f"what passes cost cannot be kept in {cache_folder()} and is measured at every "
                "load; PILOTFISH_CACHE names another folder"
            )

    def forget_costs(self) -> None:
        """Let the next load measure again, once a day at most."""
        if self._description:
            calibration.mark_stale(self._description)

    def drop_draft(self) -> None:
        """Free the draft model, which costs too much here, and say so."""
        assert self.draft is not None
        ratio = self.measured_costs().costs.draft_cost_ratio
        self.lost = (
            f"the draft model is not used: a token of it takes {ratio:.2f} of a step of the target "
            "here, so that it could not pay even if it were nearly always right"
        )
        self.notices.append(self.lost)
        self.draft.close()
        self.draft = None

    def close(self) -> None:
        """Free the models."""
        self.target.close()
        if self.draft is not None:
            self.draft.close()


class _Told:
    """Hands news of a measurement on, and knows whether there was one."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.was_called = False

    def __call__(self, label: str, share: float) -> None:
        self.was_called = True
        if self._progress is not None:
            self._progress(label, share)


def asks_draft_model(speculation: SpeculationConfig) -> bool:
    """Return whether a draft model takes part in drafting, if there is one."""
    return speculation.drafter in ("auto", "model") and speculation.num_speculative_tokens != 0


def load_pair(config: EngineConfig) -> ModelPair:
    """Load the models a configuration needs; raises as `load` does."""
    speculation = config.speculation
    if speculation.drafter == "model" and config.draft is None:
        raise ConfigError("--drafter model needs a draft model", hint="name one with --draft")
    pair = ModelPair(config, load_model(config.target, config, strict=speculation.strict))
    try:
        pair.notices += [*pair.target.notices, *context_notices(pair.target)]
        if speculation.drafter != "none":
            require_truncation(pair.target, role="target")
        if config.draft is not None and not asks_draft_model(speculation):
            why = "drafting is turned off" if speculation.drafter in ("auto", "model") else ""
            why = why or f"drafter {speculation.drafter} asks none"
            pair.notices.append(f"the draft model {config.draft.reference} is not loaded: {why}")
        elif config.draft is not None:
            pair.draft = load_model(config.draft, config, as_draft=True)
            require_truncation(pair.draft, role="draft")
            pair.notices += [*pair.draft.notices, *context_notices(pair.draft)]
            pair.notices += pair_notices(pair.target, pair.draft)
    except BaseException:
        pair.close()
        raise
    return pair


def model_size(model: LoadedModel, cache_type: str) -> ModelSize:
    """Return what a loaded model holds and what its passes touch, for the costs of replies."""
    facts, header = model.facts, gguf.check_file(model.facts.path)
    prefix, rows = header.architecture, header.vocabulary_size
    heads = header.integer(f"{prefix}.attention.head_count")
    kv_heads = header.integer(f"{prefix}.attention.head_count_kv", heads) or 1
    head = getattr(model, "head", None)  # part of the vocabulary, of a draft
    head_rows = rows if head is None else len(head.ids)
    return ModelSize(
        parameters=multiplied_parameters(
            facts.parameters,
            vocabulary=rows,
            head_rows=head_rows,
            width=header.integer(f"{prefix}.embedding_length"),
            is_tied=all(tensor.name != "output.weight" for tensor in header.tensors),
        ),
        weight_bytes=facts.weight_bytes,
        step_bytes=facts.step_bytes,
        cache_bytes_per_token=read_footprint(header, cache_type=cache_type).cache_bytes_per_token,
        vocabulary=head_rows,
        # two-byte keys and values, so many for each head that has its own
        attention_flops_per_token=read_footprint(header).cache_bytes_per_token * heads / kv_heads,
    )


def choose_backend(config: ModelConfig, path: Path) -> BackendChoice:
    """Return the backend that runs the file `path` under the configuration.

    `auto` is native where that can run the file here, else llama. Raises ModelError when the
    native one was asked for and cannot, ModelFileError for a damaged file, and MissingExtra when
    the backend that is left is not installed.
    """
    if config.backend == "llama":
        return BackendChoice("llama")
    from pilotfish.backends import native

    reason = native.missing_reason()
    header = None
    if reason is None:
        header = gguf.check_file(path)
        reason = native.unsupported_reason(header)
    if reason is None and config.backend == "auto" and config.cache_type not in native.CACHE_TYPES:
        reason = f"cache type {config.cache_type} is kept there only"
    if reason is None:
        return BackendChoice("native", header=header)
    if config.backend == "native":
        raise ModelError(
            f"{path.name} does not run on the native backend: {reason}",
            hint="use --backend llama, or auto",
        )
    if find_spec("llama_cpp") is None:
        raise MissingExtra("llama", needed_for=f"{path.name} ({reason})")
    return BackendChoice("llama", reason)


def load_model(
    config: ModelConfig, engine: EngineConfig, *, strict: bool = False, as_draft: bool = False
) -> LoadedModel:
    """Return the loaded model of one side of the pair; raises as `load` does.

    `as_draft` makes it as small as the configuration says, where its backend can.
    """
    path = models.resolve(config.reference)
    choice = choose_backend(config, path)
    sizes: dict[str, Any] = {
        "context_size": config.context_size,
        "max_sessions": engine.num_places,
        "threads": config.threads,
        "cache_type": config.cache_type,
    }
    if choice.backend == "native":
        from pilotfish.backends import native

        assert choice.header is not None, "it was read to choose"
        context_size = config.context_size or native.default_context(choice.header)
        # pages of caches grow with their use, and kept ones are limited together
        sizes["most_cached_tokens"] = engine.max_sessions * context_size + engine.kept_tokens
        if as_draft:
            sizes["head_size"] = engine.speculation.draft_head_size
            sizes["requantize"] = engine.speculation.draft_requantize
        return load_native(path, choice.header, sizes, strict=strict)
    from pilotfish.backends.llama import LlamaModel

    model = LlamaModel(
        path,
        batch_size=config.batch_size,
        # llama.cpp keeps a quantised cache with this attention only
        flash_attention=config.cache_type.startswith("q"),
        strict=strict,
        **sizes,
    )
    if choice.reason:
        model.notices.append(f"{config.reference} runs on llama.cpp: {choice.reason}")
    return model


def load_native(
    path: Path, header: GgufHeader | None, sizes: dict[str, Any], *, strict: bool
) -> NativeModel:
    """Return a model on the native backend; StrictUnavailable if its self-check failed."""
    from pilotfish.backends.native import NativeModel

    model = NativeModel(path, header=header, **sizes)
    # this backend always keeps to bit-identical rows: strict mode has nothing to add
    if strict and model.exactness["level"] != "bit-identical":
        reason = model.exactness["reason"]
        model.close()
        raise StrictUnavailable(
            f"strict mode is not available for {path.name} here: {reason}",
            hint="leave out --strict, or use --backend llama",
        )
    return model


def context_notices(model: LoadedModel) -> list[str]:
    """Return what a user should know of a context that is longer than the model was trained for."""
    trained = model.facts.trained_context
    if not 0 < trained < model.context_size:
        return []
    name = Path(model.facts.path).name
    return [
        f"a context of {model.context_size} tokens was asked for, but {name} was trained for "
        f"{trained}: text beyond these may make no sense"
    ]


def pair_notices(target: LoadedModel, draft: LoadedModel) -> list[str]:
    """Return what a user should know about the pair; VocabularyMismatch if it cannot work."""
    notices = check_vocabularies(target.tokenizer, draft.tokenizer)
    if draft.facts.path == target.facts.path:
        notices.append("draft and target are the same file: drafting cannot save time")
    if draft.context_size < target.context_size:
        notices.append(
            f"the draft's context holds {draft.context_size} tokens, the target's "
            f"{target.context_size}: nothing is drafted beyond the smaller one"
        )
    return notices


def require_truncation(model: LoadedModel, *, role: str) -> None:
    """Raise CacheNotTruncatable, before the first token, if rejected tokens would stay."""
    if not model.can_truncate:
        raise CacheNotTruncatable(
            f"the {role} model keeps recurrent state and cannot discard rejected tokens",
            hint="run it with --drafter none" if role == "target" else "choose another draft model",
        )
