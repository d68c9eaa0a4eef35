"""The HTML templates of pages; each feature keeps its own in ``templates``."""

from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lmd.report.words import moment, percent, signed, thousands

_PACKAGE = Path(__file__).parents[1]


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the templates of all features, with the filters they share."""
    made = Environment(
        loader=FileSystemLoader(sorted(_PACKAGE.glob("*/templates"))),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"moment": moment, "signed": signed, "thousands": thousands}
    made.filters["percent"] = percent
    return made
