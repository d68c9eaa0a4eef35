"""Sizes, colours, markers and fonts of figures, and the CSV beside each of them."""

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.base.text import no_formula, shorten

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Drawn:
    """A drawn figure, the rows of its CSV, and what its caption should say."""

    figure: "Figure"
    rows: Rows
    notes: tuple[str, ...] = ()


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


# Okabe and Ito 2008, "Color Universal Design"; yellow is left out, it is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||")
GREY = "#8A8A8A"
FONT = "DejaVu Sans"  # comes with matplotlib
TIER_STYLE = {"head": 0, "medium": 2, "tail": 1}  # places in COLOURS and MARKERS
SUFFIXES = (".svg", ".pdf", ".png")
UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # TeX points


def inches(option: str, words: str) -> float:
    """A length such as ``3.5in``, ``88mm`` or ``252pt`` (TeX points) in inches.

    >>> inches("--width", "3.5in"), round(inches("--width", "252.945pt"), 6)
    (3.5, 3.5)
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(in|cm|mm|pt)", words.strip())
    value = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 1 <= value <= 40:
        raise LmdError(
            f"{option} is {words!r}; expected a length from 1in to 40in with a unit "
            f"({', '.join(UNITS)}), such as 3.5in"
        )
    return value


def check_out(out: Path) -> None:
    """Refuse an output file, before anything is computed, that could not be written."""
    if out.suffix.lower() not in SUFFIXES:
        raise LmdError(f"--out is {out}; its name must end in {', '.join(SUFFIXES)}")
    if not out.resolve().parent.is_dir():
        raise LmdError(f"--out is {out}, but the folder {out.parent} does not exist: create it")


def need(module: str) -> None:
    """An error that says what to install if a package of the extra is missing."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise LmdError(
            f"figures need {module}, which is not installed: run pip install 'lmd[figures]'"
        )


def entry(name: str) -> str:
    """A name for a legend; matplotlib leaves out those that begin with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


@contextmanager
def drawing() -> Iterator[None]:
    """The settings of all figures, for drawing and saving; pyplot is not used."""
    need("matplotlib")
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": [FONT],
        "font.size": 8,
        "text.parse_math": False,  # names of classes may have dollar signs
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.minor.width": 0.4,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.1,
        "lines.markersize": 4,
        "hatch.linewidth": 0.5,
        "legend.frameon": False,
        "pdf.fonttype": 42,
        "svg.fonttype": "path",
        "svg.hashsalt": "lmd",
        "savefig.dpi": 300,
    }
    with mpl.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches that fits its content into itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(drawn: Drawn, out: Path) -> Path:
    """Write the figure and, beside it, its data; returns the path of the CSV.

    The same figure gives the same bytes: no time is written into it.
    """
    kind = out.suffix.lower().removeprefix(".")
    about = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    picture, text = io.BytesIO(), io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a note says it
        drawn.figure.savefig(picture, format=kind, metadata=about)
    columns = list(dict.fromkeys(key for row in drawn.rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    # Words, such as class names, are no formulas for a spreadsheet.
    writer.writerows(
        {k: no_formula(v) if isinstance(v, str) else v for k, v in row.items()}
        for row in drawn.rows
    )
    data = out.with_suffix(".csv")
    atomic_write_all({out: picture.getvalue(), data: text.getvalue().encode()}, parents=True)
    return data


def look(i: int) -> dict[str, Any]:
    """Colour, marker and line of the i-th row of a figure."""
    n = len(COLOURS)
    return {"color": COLOURS[i % n], "marker": MARKERS[i % n], "linestyle": LINES[i % n]}


def legend_below(figure: "Figure", titles: Sequence[str], handles: Sequence[Any] = ()) -> None:
    """A legend below the axes with as many columns as the width allows."""
    wide = 0.42 + 0.062 * max(len(title) for title in titles)  # inches of one entry
    columns = max(1, min(len(titles), int(figure.get_figwidth() / wide)))
    given: dict[str, Any] = {"handles": list(handles), "labels": list(titles)} if handles else {}
    figure.legend(
        loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.4, **given
    )


def plain_ticks(axis: "Axis") -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
