"""What every route needs: the service, what the server is called, and what is loaded."""

from __future__ import annotations

import difflib
import hashlib
import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pilotfish import __version__
from pilotfish.server.bodies import Bodies
from pilotfish.server.errors import ApiError
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service
from pilotfish.text import ReasoningMarks, TokenTexts, reasoning_marks


class Serving:
    """A service under a name, with the facts that replies and descriptions repeat."""

    def __init__(self, service: Service, options: ServerOptions) -> None:
        self.service = service
        self.options = options
        self.engine = service.engine
        self.bodies = Bodies(options)
        self.texts = TokenTexts(service.engine.tokenizer)
        self.started_at = int(time.time())

    @property
    def model_name(self) -> str:
        """Return what the model is called."""
        return self.options.model_name

    @cached_property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """Return the marks around what the model thinks, or None where it has none."""
        return reasoning_marks(self.engine.tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """Return a word that stays the same as long as version and models do."""
        models = {
            side: facts and {name: facts.get(name) for name in ("description", "bytes", "library")}
            for side, facts in self.engine.facts.models.items()
        }
        text = json.dumps([__version__, self.model_name, models], sort_keys=True)
        return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def description(self) -> dict[str, Any]:
        """Return what is loaded and how it drafts, as the loaded objects say."""
        facts = self.engine.facts
        return {
            "target": _plain(facts.models.get("target")),
            "draft": _plain(facts.models.get("draft")),
            "speculation": facts.speculation,
            "exactness": _plain(facts.exactness),
            "notices": list(self.engine.notices),
        }

    def check_model(self, name: str | None) -> None:
        """Raise ApiError unless the name, where one is given, is that of the model."""
        if name is None or name == self.model_name:
            return
        known = self.model_name
        close = difflib.get_close_matches(name[:200], [known], n=1)
        hint = f"did you mean {known}?" if close else f"the server has {known}"
        raise ApiError(
            404,
            f"there is no model {json.dumps(name[:100])} ({hint})",
            param="model",
            code="model_not_found",
        )


def _plain(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if facts is None else dict(facts)
