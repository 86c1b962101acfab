"""What a reply may be: JSON schemas, compiled to the tokens that may follow at each place."""

from pilotfish.grammar.constraint import JsonConstraint
from pilotfish.grammar.grammars import Grammar, JsonGrammars, check_schema
from pilotfish.grammar.schema import Schema

__all__ = ["Grammar", "JsonConstraint", "JsonGrammars", "Schema", "check_schema"]
