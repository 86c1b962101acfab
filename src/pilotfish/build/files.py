"""What files say before their weights are read: every refusal that their headers allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from pilotfish import gguf, models
from pilotfish.backends.gguf_tokenizer import GgufTokenizer, GgufTokens, check_tokenizer_kind
from pilotfish.backends.machine import default_threads, require_memory
from pilotfish.backends.vocabulary import check_vocabularies
from pilotfish.config import (
    DEFAULT_CONTEXT,
    EngineConfig,
    ModelConfig,
    Request,
    SpeculationConfig,
)
from pilotfish.engine.session import require_room
from pilotfish.errors import (
    CacheNotTruncatable,
    ConfigError,
    MissingExtra,
    ModelError,
    PromptError,
)
from pilotfish.generation import Prompt, prompt_ids
from pilotfish.gguf import GgufHeader
from pilotfish.text.prompt import chat_template

# a network whose header has keys of one of these keeps a state that cannot take tokens back
_STATE_KEYS = ("ssm", "wkv", "shortconv")


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which backend runs a file.

    reason   why `auto` did not take the native one; empty where it did, or where one was named
    header   the file's, where it had to be read
    """

    backend: str
    reason: str = ""
    header: GgufHeader | None = None


@dataclass(frozen=True)
class CheckedModel:
    """A model before it is loaded: its file is whole, and a backend runs it."""

    config: ModelConfig
    path: Path
    header: GgufHeader
    choice: BackendChoice

    @property
    def is_native(self) -> bool:
        """Return whether the native backend runs it."""
        return self.choice.backend == "native"

    @property
    def context_size(self) -> int:
        """Return how many tokens a sequence may hold; 0 where only the loaded model tells."""
        if self.is_native and self.config.context_size is None:
            from pilotfish.backends import native

            return native.default_context(self.header)
        trained = self.header.integer(f"{self.header.architecture}.context_length")
        return self.config.context_size or min(trained, DEFAULT_CONTEXT)

    @property
    def is_known_vocabulary(self) -> bool:
        """Return whether text becomes the same tokens here as on the backend."""
        try:
            check_tokenizer_kind(self.header)
            _ = self.tokens
        except ModelError:
            if self.is_native:
                raise
            return False  # llama.cpp may know more of it
        return True

    @cached_property
    def tokens(self) -> GgufTokens:
        """Return the tokens of the file; ModelError where only llama.cpp has them."""
        return self.tokenizer if self.is_native else GgufTokens(self.header)

    @cached_property
    def tokenizer(self) -> GgufTokenizer:
        """Return the tokenizer of the file; ModelError where only llama.cpp has it."""
        return GgufTokenizer(self.header)

    def require_truncation(self, role: str) -> None:
        """Raise CacheNotTruncatable where the header tells that rejected tokens would stay."""
        prefixes = tuple(f"{self.header.architecture}.{key}." for key in _STATE_KEYS)
        if any(key.startswith(prefixes) for key in self.header.metadata):
            raise not_truncatable(role)


@dataclass(frozen=True, slots=True)
class CheckedPair:
    """A target and perhaps a draft model before they are loaded."""

    target: CheckedModel
    draft: CheckedModel | None = None

    @property
    def lacks_chat_template(self) -> bool:
        """Return whether no chat can be written for the target, as far as its header tells."""
        if not self.target.is_known_vocabulary:
            return False
        try:
            chat_template(self.target.tokenizer)
        except PromptError:
            return True
        return False

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        """Raise what the request would be refused with once the models are loaded, as far as the
        target's header tells; PromptError or ContextLengthExceeded."""
        if self.target.is_known_vocabulary:
            ids = prompt_ids(prompt, request, self.target.tokenizer)
            if self.target.context_size:
                require_room(ids, self.target.context_size)


Check: TypeAlias = Callable[[CheckedPair], object]
"""Told what headers say, before weights are read: what it raises ends the loading."""


def check_files(config: EngineConfig) -> CheckedPair:
    """Return the files a configuration needs, after every check that needs no weights."""
    speculation = config.speculation
    if speculation.drafter == "model" and config.draft is None:
        raise ConfigError("--drafter model needs a draft model", hint="name one with --draft")
    asks_draft = config.draft is not None and asks_draft_model(speculation)
    target = check_model(config.target)
    if speculation.drafter != "none":
        target.require_truncation("target")
    draft = check_model(config.draft) if asks_draft and config.draft is not None else None
    if draft is not None:
        draft.require_truncation("draft")
        if target.is_known_vocabulary and draft.is_known_vocabulary:
            check_vocabularies(target.tokens, draft.tokens)
    _check_memory(target, draft, config)
    return CheckedPair(target, draft)


def check_model(config: ModelConfig) -> CheckedModel:
    """Return one model after the checks of its file alone."""
    path = models.resolve(config.reference)
    choice = choose_backend(config, path)
    header = gguf.check_file(path) if choice.header is None else choice.header
    return CheckedModel(config, path, header, choice)


def asks_draft_model(speculation: SpeculationConfig) -> bool:
    """Return whether a draft model takes part in drafting, if there is one."""
    return speculation.drafter in ("auto", "model") and speculation.num_speculative_tokens != 0


def choose_backend(config: ModelConfig, path: Path) -> BackendChoice:
    """Return the backend that runs the file `path` under the configuration.

    `auto` is native where that can run the file here, else llama. Raises ModelError when the
    native one was asked for and cannot, ModelFileError for a damaged file, and MissingExtra when
    the backend that is left is not installed.
    """
    if config.backend == "llama":
        _require_llama("the llama.cpp backend")
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
    _require_llama(f"{path.name} ({reason})")
    return BackendChoice("llama", reason, header)


def native_sizes(model: CheckedModel, engine: EngineConfig, *, as_draft: bool) -> dict[str, Any]:
    """Return the sizes of a native model; as a draft it is as small as the configuration says."""
    speculation, config = engine.speculation, model.config
    return {
        "context_size": model.context_size,
        "max_sessions": engine.num_places,
        # pages of caches grow with their use, and kept ones are limited together
        "most_cached_tokens": engine.max_sessions * model.context_size + engine.kept_tokens,
        "threads": default_threads() if config.threads is None else config.threads,
        "cache_type": config.cache_type,
        "head_size": speculation.draft_head_size if as_draft else 0,
        "requantize": speculation.draft_requantize if as_draft else False,
    }


def not_truncatable(role: str) -> CacheNotTruncatable:
    """Return the refusal of a model that cannot discard rejected tokens."""
    return CacheNotTruncatable(
        f"the {role} model keeps recurrent state and cannot discard rejected tokens",
        hint="run it with --drafter none" if role == "target" else "choose another draft model",
    )


def _require_llama(needed_for: str) -> None:
    if find_spec("llama_cpp") is None:
        raise MissingExtra("llama", needed_for=needed_for)


def _check_memory(target: CheckedModel, draft: CheckedModel | None, config: EngineConfig) -> None:
    """Raise NotEnoughMemory where native models do not fit together, and ConfigError for sizes that
    the backend does not have. What llama.cpp maps of a file shares memory with the cache of files,
    and is checked step by step."""
    needed = 0
    for model in (target, draft):
        if model is None or not model.is_native:
            continue
        from pilotfish.backends.native import loading

        sizes = native_sizes(model, config, as_draft=model is draft)
        options = loading.LoadOptions(**sizes, instructions="auto")
        needed += loading.needed_bytes(model.header, options)
    if needed:
        name = target.path.name if draft is None else f"{target.path.name} with its draft model"
        require_memory(name, needed)
