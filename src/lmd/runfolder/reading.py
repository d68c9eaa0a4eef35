"""Reading ``record.json``: checked, and brought to the current format."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lmd.base.errors import LmdError
from lmd.runfolder.record import FORMAT, Record

_DEEPEST = 50  # levels of nesting; a real record has six
_NEW_NAMES = {"groups": "tiers", "group": "tier"}  # of keys in records of format 1


def read_record(path: Path) -> Record:
    """Read a record; the error for a damaged file says what is wrong and what to do."""
    remedy = "restore the file, or remove the run folder and train the run again"
    try:
        found = json.loads(path.read_bytes())
        nested = _nested(found, _DEEPEST)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not valid JSON ({error})"
        raise LmdError(f"{path} cannot be read: {why}; {remedy}") from None
    if not isinstance(found, dict) or nested:
        why = "nested too deeply" if nested else f"a JSON {type(found).__name__}, not an object"
        raise LmdError(f"{path} is not a record: it is {why}; {remedy}")
    if found.get("format") not in (1, FORMAT):
        raise LmdError(
            f"{path}: field 'format' must be 1 or {FORMAT}, it is {found.get('format')!r}; "
            "read it with the version of lmd that made the run"
        )
    try:
        return Record.model_validate(upgrade(found))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        where = f"field {field!r}: " if field else ""
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise LmdError(f"{path}: {where}{problem['msg']}{more}; {remedy}") from None


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record to the current format; in format 1, tiers were called groups.

    >>> upgrade({"format": 1, "groups": {"rule": "thirds"}})
    {'format': 2, 'tiers': {'rule': 'thirds'}}
    """
    return record if record["format"] != 1 else _renamed(record) | {"format": FORMAT}


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {_NEW_NAMES.get(key, key): _renamed(entry) for key, entry in value.items()}


def _nested(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than ``levels``."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_nested(entry, levels - 1) for entry in inner)
