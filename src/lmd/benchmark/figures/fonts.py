"""Fonts for names in other scripts, from those that the machine has."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from lmd.base.text import shorten
from lmd.benchmark.figures.style import FONT, Drawn

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry


def with_fonts(drawn: Drawn) -> Drawn:
    """The figure with fonts for all characters, and a note if there are none for some."""
    from matplotlib.text import Text

    texts = [text for text in drawn.figure.findobj(Text) if isinstance(text, Text)]
    missing = {c for text in texts for c in text.get_text() if c.isprintable()}
    missing -= _covered(_usual(), missing)
    if not missing:
        return drawn
    fonts, left = _find(missing)
    for text in texts:
        text.set_fontfamily([FONT, *fonts])
    if not left:
        return drawn
    said = (
        f"No font of this machine has the characters {shorten(sorted(left))}, which are drawn as "
        "boxes: install one, such as Noto Sans CJK, and draw the figure again."
    )
    return replace(drawn, notes=(*drawn.notes, said))


def _find(missing: set[str]) -> tuple[list[str], set[str]]:
    """Installed fonts that have the characters, and the characters that none has."""
    from matplotlib.font_manager import fontManager

    def rank(font: "FontEntry") -> tuple[bool, bool, bool, str]:
        upright = font.style == "normal"
        return (
            str(font.weight) not in ("400", "normal"),
            not upright,
            "Sans" not in font.name,
            font.name,
        )

    left, found = set(missing), list[str]()
    real = (font for font in fontManager.ttflist if not font.name.startswith("Last Resort"))
    for font in sorted(real, key=rank):
        if not left:
            break
        if gained := _covered(font.fname, left):
            found.append(font.name)
            left -= gained
    return found, left


def _usual() -> str:
    from matplotlib.font_manager import findfont

    return findfont(FONT)


def _covered(path: str, characters: Iterable[str]) -> set[str]:
    """The characters that a font file has; none if it cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):
        return set()
    return {c for c in characters if font.get_char_index(ord(c))}
