"""Loads models: which backend runs a file, and whether two files make a pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pilotfish import calibration, gguf
from pilotfish.accounting.costs import ModelSize, multiplied_parameters
from pilotfish.backends.footprint import read_footprint
from pilotfish.backends.vocabulary import check_vocabularies
from pilotfish.build.files import (
    Check,
    CheckedModel,
    check_files,
    check_model,
    native_sizes,
    not_truncatable,
)
from pilotfish.calibration import Calibration, Progress
from pilotfish.config import EngineConfig, ModelConfig, cache_folder
from pilotfish.errors import StrictUnavailable

if TYPE_CHECKING:
    from pilotfish.backends.llama import LlamaModel
    from pilotfish.backends.native import NativeModel

    LoadedModel: TypeAlias = LlamaModel | NativeModel


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


def load_pair(config: EngineConfig, *, check: Check | None = None) -> ModelPair:
    """Load the models a configuration needs; raises as `load` does.

    Whatever headers can tell is told before weights are read; `check` may look at them, too, and
    what it raises ends the loading.
    """
    files, speculation = check_files(config), config.speculation
    if check is not None:
        check(files)
    target = load_model(config.target, config, strict=speculation.strict, files=files.target)
    pair = ModelPair(config, target)
    try:
        pair.notices += [*pair.target.notices, *context_notices(pair.target)]
        if speculation.drafter != "none":
            require_truncation(pair.target, role="target")
        if files.draft is not None:
            pair.draft = load_model(files.draft.config, config, as_draft=True, files=files.draft)
            require_truncation(pair.draft, role="draft")
            pair.notices += [*pair.draft.notices, *context_notices(pair.draft)]
            pair.notices += pair_notices(pair.target, pair.draft)
        elif config.draft is not None:
            why = "drafting is turned off" if speculation.drafter in ("auto", "model") else ""
            why = why or f"drafter {speculation.drafter} asks none"
            pair.notices.append(f"the draft model {config.draft.reference} is not loaded: {why}")
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


def load_model(
    config: ModelConfig,
    engine: EngineConfig,
    *,
    strict: bool = False,
    as_draft: bool = False,
    files: CheckedModel | None = None,
) -> LoadedModel:
    """Return the loaded model of one side of the pair; raises as `load` does.

    `as_draft` makes it as small as the configuration says, where its backend can. `files` is what
    `check_model` said of it, where the caller has it already.
    """
    files = check_model(config) if files is None else files
    if files.is_native:
        return load_native(files, native_sizes(files, engine, as_draft=as_draft), strict=strict)
    from pilotfish.backends.llama import LlamaModel

    model = LlamaModel(
        files.path,
        context_size=config.context_size,
        max_sessions=engine.num_places,
        threads=config.threads,
        cache_type=config.cache_type,
        batch_size=config.batch_size,
        # llama.cpp keeps a quantised cache with this attention only
        flash_attention=config.cache_type.startswith("q"),
        strict=strict,
    )
    if files.choice.reason:
        model.notices.append(f"{config.reference} runs on llama.cpp: {files.choice.reason}")
    return model


def load_native(files: CheckedModel, sizes: dict[str, Any], *, strict: bool) -> NativeModel:
    """Return a model on the native backend; StrictUnavailable if its self-check failed."""
    from pilotfish.backends.native import NativeModel

    model = NativeModel(files.path, header=files.header, tokenizer=files.tokenizer, **sizes)
    # this backend always keeps to bit-identical rows: strict mode has nothing to add
    if strict and model.exactness["level"] != "bit-identical":
        reason = model.exactness["reason"]
        model.close()
        raise StrictUnavailable(
            f"strict mode is not available for {files.path.name} here: {reason}",
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
        raise not_truncatable(role)
