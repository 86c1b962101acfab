"""Where the figures of a command come from: its words, the models, the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pilotfish import __version__
from pilotfish.config import EngineConfig

if TYPE_CHECKING:
    from pilotfish.build import ModelPair


def origin(
    context: typer.Context, config: EngineConfig, pair: ModelPair, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a document says about models, memory and where its figures come from."""
    from pilotfish.accounting.provenance import peak_memory_bytes, provenance, total_memory_bytes
    from pilotfish.backends import machine

    described = {
        side: None
        if facts.get(side) is None or model is None
        else model_facts(model.reference, facts[side])
        for side, model in (("target", config.target), ("draft", config.draft))
    }
    return {
        "models": described,
        "memory": {
            "target": pair.target.facts.memory_bytes,
            "draft": None if pair.draft is None else pair.draft.facts.memory_bytes,
            "peak_process": peak_memory_bytes(),
        },
        "calibration": None if pair.calibration is None else pair.calibration.report_dict(),
        "provenance": provenance(
            ["pilotfish", context.command.name or "", *typed_options(context)],
            version=__version__,
            processor=machine.processor_name(),
            cores=machine.count_cores(machine.GRANTED_CPUS),
            memory_bytes=total_memory_bytes(),
            threads=pair.target.facts.threads,
        ),
    }


def model_facts(reference: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a model with its name in place of its path."""
    file = Path(facts["path"]).name
    kept = {key: value for key, value in facts.items() if key != "path"}
    return {"name": file if reference.endswith(file) else reference, "file": file, **kept}


def typed_options(context: typer.Context) -> list[str]:
    """Return the options of a command as they were typed, in the command's order."""
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            flag = [max(parameter.opts, key=len)]
            if parameter.param_type_name == "argument":
                flag = []
            words += flag if value is True else [*flag, str(value)]
    return words
