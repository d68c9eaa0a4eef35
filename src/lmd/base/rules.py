"""What a setting must be, in words: from pydantic's models and errors, in one place."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from lmd.base.text import as_toml, unknown

MAX_IMAGE_SIZE = 4096  # a batch of 64 such images has 13 GB; larger ones are a mistake
_TYPES = {
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "string": "text",
    "object": "a table",
    "null": "null",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}
Schema = Mapping[str, Any]


def complaints(
    error: ValidationError,
    model: type[BaseModel],
    values: Mapping[str, Any],
    *,
    what: str = "setting",
    owner: str = "",
) -> list[str]:
    """One sentence for each wrong setting: its name, what it must be, and its value.

    ``owner`` follows the name, such as "of method 'ce'".
    """
    schema = model.model_json_schema()
    found: dict[str, str] = {}
    for problem in error.errors():
        place, rule, siblings, value = _locate(schema, problem["loc"], values)
        name = f"{what} {place!r}{f' {owner}' if owner else ''}"
        if problem["type"] == "extra_forbidden":
            above, _, last = place.rpartition(".")
            found[place] = (f"{above}: " if above else "") + unknown(what, last, siblings)
        elif problem["type"] == "missing":
            found[place] = f"{name} is missing"
        elif problem["type"] == "value_error":
            said = str(problem["ctx"]["error"])
            found[place] = f"{name} {said}" if said.startswith("must ") else said
        else:
            found[place] = f"{name} must be {rule}; it is {as_toml(value)}"
    return list(found.values())


def rule_of(schema: Schema) -> str:
    """What a value must be, from its JSON schema; an own ``rule`` in it wins.

    >>> rule_of({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'a number of at least 0 and below 1'
    >>> rule_of({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number of at least 1, or null'
    """
    for key in ("rule", "const"):
        if key in schema:
            return str(schema[key])
    if "anyOf" in schema:
        return ", or ".join(rule_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(str(choice) for choice in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        few = "one or more values" if schema.get("minItems") else "values"
        return f"a list of {few}, each {rule_of(schema.get('items', {}))}"
    return _within(_TYPES.get(str(kind), "a valid value"), schema)


def _within(what: str, schema: Schema) -> str:
    if schema.get("minProperties"):
        return f"{what} with one or more entries"
    if "minimum" in schema and "maximum" in schema:
        return f"{what} from {schema['minimum']:g} to {schema['maximum']:g}"
    bounds = [f"{words} {schema[key]:g}" for key, words in _BOUNDS.items() if key in schema]
    return " ".join([what, " and ".join(bounds)]).strip()


def _locate(
    schema: Schema, place: Iterable[int | str], values: Any
) -> tuple[str, str, list[str], Any]:
    """The dotted name of a setting, its rule, the names beside it, and its value.

    Below lists and choices of several types the whole value is meant.
    """
    names: list[str] = []
    siblings: list[str] = []
    known = schema.get("$defs", {})
    for word in place:
        if "properties" not in schema:
            break
        siblings = list(schema["properties"])
        names.append(str(word))
        values = values.get(word) if isinstance(values, Mapping) else None
        schema = _followed(schema["properties"].get(word, {}), known)
    return ".".join(names), rule_of(schema), siblings, values


def _followed(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    """A schema, or the one that it refers to; of "this or null" the first."""
    options = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if len(options) == 1 and "$ref" in options[0]:
        schema = options[0]
    return known[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema
