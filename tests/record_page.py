"""Generates a page of the docs: ``python tests/record_page.py > docs/record.md``."""

from typing import Any

from lmd.runs.record import FORMAT, Record

_INTRODUCTION = f"""# record.json

Every run folder has a `record.json` with what was asked for, what was run, and every number. This
page describes format {FORMAT}; it is generated from the models in `src/lmd/runs/record.py`.

A field with a default may be absent. A value that cannot be computed is `null`, and a note says
why; for example, the part may have no image of a class. K is the number of classes. From Python:

```python
from pathlib import Path
from lmd.runs.folder import Run

record = Run.open(Path("runs/NAME")).record
record.metrics["test"]["balanced_accuracy"].value
```
"""


def page() -> str:
    """The page as Markdown, with one table per model and the record first."""
    schema = Record.model_json_schema()
    models = schema.pop("$defs")
    tables = [
        _table("Record", schema),
        *(_table(name, models[name]) for name in _order(schema, models)),
    ]
    return "\n".join([_INTRODUCTION, *tables])


def _order(schema: dict[str, Any], models: dict[str, Any]) -> list[str]:
    """Names of the models, in the order of first mention."""
    found: dict[str, None] = {}
    for name in _references(schema):
        found |= dict.fromkeys([name, *_order(models[name], models)])
    return list(found)


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for entry in value for name in _references(entry)]
    if not isinstance(value, dict):
        return []
    own = [_name(value)] if "$ref" in value else []
    return own + [name for entry in value.values() for name in _references(entry)]


def _table(title: str, model: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {_kind(field)} | {_default(field)} | {field.get('description', '')} |"
        for name, field in model["properties"].items()
    ]
    about = model.get("description", "").replace("``", "`")
    head = ["| field | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", about, "", *head, *rows, ""])


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        return f"[{_name(field)}](#{_name(field).lower()})"
    if "anyOf" in field:
        return " or ".join(_kind(option) for option in field["anyOf"])
    if "const" in field or "enum" in field:
        values = field.get("enum") or [field["const"]]
        return " or ".join(f"`{value}`" for value in values)
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_kind(field['items'])}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"object of {_kind(inner)}" if isinstance(inner, dict) else "object"
    return str(kind)


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return ""
    words = {None: "null", False: "false", True: "true"}
    value = field["default"]
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


def _name(field: dict[str, Any]) -> str:
    return str(field["$ref"].rsplit("/", 1)[-1])


if __name__ == "__main__":
    print(page(), end="")
