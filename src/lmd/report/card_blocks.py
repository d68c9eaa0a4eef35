"""What a model card is made of, before it is Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """A table; the first column is text, the others are numbers or words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A command or a script; ``language`` is for highlighting."""

    text: str
    language: str = ""


Block = str | Grid | Bullets | Code


@dataclass(frozen=True)
class Section:
    """A titled part of the card."""

    title: str
    blocks: Sequence[Block]
