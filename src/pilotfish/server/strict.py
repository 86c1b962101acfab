"""Objects of a request: a field that is neither known nor asks for nothing is refused by name."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from pilotfish.server.complaints import UnknownField
from pilotfish.server.ignored import IgnoredFields, UnsupportedFields, is_neutral


def _describe_ignored(schema: dict[str, Any], model: type[StrictObject]) -> None:
    """Add the fields that are ignored to a description; any other may be null."""
    properties = schema.setdefault("properties", {})
    for name in model.UNREAD:
        properties.setdefault(name, {"description": "accepted; changes nothing"})
    for name, field in model.UNSUPPORTED.items():
        neutral = {"enum": [None, "", [], {}, *field.neutral]}
        properties.setdefault(name, {**neutral, "description": "asks for nothing"})
    schema["additionalProperties"] = {"type": "null"}


class StrictObject(BaseModel):
    """An object whose unknown fields are refused, but for those that ask for nothing."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra=_describe_ignored,
    )
    # where its objects are in a request, for the names of what is ignored
    PLACE: ClassVar[str] = ""
    UNREAD: ClassVar[tuple[str, ...]] = ()
    UNSUPPORTED: ClassVar[UnsupportedFields] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        """Leave out what is ignored; name the first field that is neither ignored nor known, one
        however many there are."""
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in value if name not in known]
        for name in unknown:
            if not cls.asks_nothing(name, value[name]):
                instead = {name: field.instead for name, field in cls.UNSUPPORTED.items()}
                raise UnknownField(name, known=known, unsupported=instead)
        if unknown and isinstance(info.context, IgnoredFields):
            info.context.add(cls.PLACE, unknown)
        return {name: value[name] for name in value if name in known} if unknown else value

    @classmethod
    def asks_nothing(cls, name: str, value: Any) -> bool:
        """Return whether a field that is not known has nothing to say."""
        unsupported = cls.UNSUPPORTED.get(name)
        if unsupported is not None:
            return is_neutral(value, unsupported)
        return value is None or name in cls.UNREAD
