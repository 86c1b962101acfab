"""What commands that ask prompts share: which prompts, how they are answered, where files go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pilotfish.bench.workload import Workload
from pilotfish.cli.arguments import as_number, naming_options, option
from pilotfish.config import Request
from pilotfish.errors import ConfigError
from pilotfish.types import SamplingSettings

WHAT, HOW, OUTPUT = "Workload", "Measuring", "Output"


@dataclass(frozen=True, kw_only=True)
class AskingOptions:
    """How many prompts are asked, and how they are answered."""

    limit: Annotated[
        str | None,
        option(
            "--limit", panel=WHAT, about="Ask only N prompts, of all categories alike.", metavar="N"
        ),
    ] = None
    raw: Annotated[
        bool, option("--raw", panel=WHAT, about="Send prompts as they are: no chat template.")
    ] = False
    max_tokens: Annotated[
        str, option("--max-tokens", panel=WHAT, about="Longest reply.  Default: 128.", metavar="N")
    ] = "128"
    temperature: Annotated[
        str,
        option(
            "--temperature", panel=WHAT, about="0 takes the likeliest token (default).", metavar="X"
        ),
    ] = "0"
    seed: Annotated[
        str, option("--seed", panel=WHAT, about="Of every reply.  Default: 0.", metavar="N")
    ] = "0"

    def request(self) -> Request:
        """Return how replies are made; ConfigError names the wrong option."""
        with naming_options():
            return Request(
                max_tokens=as_number(self.max_tokens),
                seed=as_number(self.seed),
                raw=self.raw,
                settings=SamplingSettings(temperature=as_number(self.temperature)),
            )

    def limited(self, workload: Workload) -> Workload:
        """Return as many of the prompts as were asked for; ConfigError names a wrong limit."""
        if self.limit is None:
            return workload
        with naming_options():
            return workload.limited(as_number(self.limit))


def check_writable(flag: str, name: str | None) -> None:
    """Raise ConfigError, before anything is measured, if a file could not be written."""
    if name is None:
        return
    path = Path(name).absolute()
    if path.is_dir():
        raise ConfigError(f"{flag} {name} is a folder", hint="name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag}: there is no folder {path.parent}")
