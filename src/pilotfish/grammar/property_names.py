"""Names of properties that must satisfy a schema of their own, said in other keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotfish.errors import ConfigError
from pilotfish.grammar.keywords import asks_nothing

_HINT = "name them in properties, or give patternProperties and additionalProperties: false"


def with_property_names(schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
    """Return a schema whose `propertyNames` is said by `properties` or `patternProperties`.

    Raises ConfigError where it cannot be.
    """
    result = dict(schema)
    names = _resolved(result.pop("propertyNames", True), root)
    if names is True:
        return result
    values = result.get("additionalProperties", True)
    asked = set()
    if isinstance(names, dict):
        asked = {name for name in names if not asks_nothing(name, names[name], names)}
        asked -= {"type"} if names.get("type") == "string" else set()
        if not asked:
            return result
    if not asked or result.get("properties") or result.get("patternProperties"):
        raise ConfigError("propertyNames is not enforced beside properties", hint=_HINT)
    if asked == {"pattern"}:
        named = {"patternProperties": {names["pattern"]: values}}
    elif asked == {"enum"} and isinstance(names["enum"], list):
        named = {"properties": {name: values for name in names["enum"] if isinstance(name, str)}}
    elif asked == {"const"} and isinstance(names["const"], str):
        named = {"properties": {names["const"]: values}}
    else:
        message = "propertyNames is enforced with a pattern, an enum or a const alone"
        raise ConfigError(message, hint=_HINT)
    return {**result, **named, "additionalProperties": False}


def _resolved(schema: Any, root: Any) -> Any:
    """Return what a schema that is only a reference stands for, where it is found at once."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or len(schema) > 1:
        return schema
    fragment, _, path = schema["$ref"].partition("#/")
    found = root
    for step in path.split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return schema if fragment or found is None else found
