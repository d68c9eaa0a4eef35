"""Sizes, colours, markers and fonts of figures, and the CSV beside each of them."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.base.text import csv_text, shorten
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import Floats

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

# Okabe and Ito 2008, "Color Universal Design"; yellow is left out, it is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))
MOST = len(COLOURS)  # rows that colours and markers can tell apart
GREY = "#8A8A8A"
FONT = "DejaVu Sans"  # comes with matplotlib
SUFFIXES = (".svg", ".pdf", ".png")
UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # TeX points
Style = dict[str, Any]  # keyword arguments of matplotlib


@dataclass(frozen=True)
class Drawn:
    """A drawn figure, the rows of its CSV, and what its caption should say."""

    figure: "Figure"
    rows: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def with_fonts(drawn: Drawn) -> Drawn:
    """Give all texts fonts for their characters, and note the characters that no font has."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font
    from matplotlib.text import Text

    def rank(font: "FontEntry") -> tuple[bool, bool, bool, bool, str]:
        bold, slanted = str(font.weight) not in ("400", "normal"), font.style != "normal"
        return font.name != FONT, bold, slanted, "Sans" not in font.name, font.name

    texts = [text for text in drawn.figure.findobj(Text) if isinstance(text, Text)]
    missing = set(filter(str.isprintable, "".join(text.get_text() for text in texts)))
    families = [FONT]
    for font in sorted(fontManager.ttflist, key=rank) if missing else ():
        try:
            glyphs = FT2Font(font.fname)
        except (OSError, RuntimeError):
            continue
        covered = {c for c in missing if glyphs.get_char_index(ord(c))}
        if covered and not font.name.startswith("Last Resort"):
            families.append(font.name)
            missing -= covered
        if not missing:
            break
    for text in texts:
        text.set_fontfamily(list(dict.fromkeys(families)))
    if not missing:
        return drawn
    note = (
        f"No font of this machine has the characters {shorten(sorted(missing))}, which are drawn "
        "as boxes: install one, such as Noto Sans CJK, and draw the figure again."
    )
    return replace(drawn, notes=(*drawn.notes, note))


def inches(option: str, length: str) -> float:
    """Convert a length such as ``3.5in``, ``88mm`` or ``252pt`` (TeX points) to inches.

    >>> inches("--width", "3.5in"), round(inches("--width", "252.945pt"), 6)
    (3.5, 3.5)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(in|cm|mm|pt)", length.strip())
    value = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 1 <= value <= 40:
        raise LmdError(
            f"{option} is {length!r}; expected a length from 1in to 40in with a unit "
            f"({', '.join(UNITS)}), such as 3.5in"
        )
    return value


def need(module: str) -> None:
    """Refuse to go on without a package of the extra, and say what to install."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise LmdError(
            f"figures need {module}, which is not installed: run pip install 'lmd[figures]'"
        )


def legend_name(name: str, most: int = 200) -> str:
    """Shorten a name for a legend; matplotlib leaves out those that begin with an underscore."""
    name = name if len(name) <= most else f"{name[: most - 1]}…"
    return f"\u200b{name}" if name.startswith("_") else name


def drawing() -> AbstractContextManager[None]:
    """Return a context with the settings of all figures, for drawing and saving without pyplot."""
    import matplotlib as mpl

    return mpl.rc_context(fname=Path(__file__).with_name("figure.mplstyle"))


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches that fits its content into itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(drawn: Drawn, out: Path) -> Path:
    """Write the figure and, beside it, its data, both without the time; return the CSV's path."""
    format = out.suffix.lower().removeprefix(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[format]
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a note says it
        drawn.figure.savefig(picture, format=format, metadata=metadata)
    columns = list(dict.fromkeys(key for row in drawn.rows for key in row))
    data = out.with_suffix(".csv")
    table = csv_text(columns, drawn.rows)
    atomic_write_all({out: picture.getvalue(), data: table.encode()}, parents=True)
    return data


def row_style(i: int) -> Style:
    """Return colour, marker and line of the i-th row of a figure."""
    i %= MOST
    return {"color": COLOURS[i], "marker": MARKERS[i], "linestyle": LINES[i]}


def point_style(i: int) -> Style:
    """Return colour and marker of the i-th class; after all colours, the markers go on."""
    return {"color": COLOURS[i % MOST], "marker": MARKERS[(i + i // MOST) % MOST]}


def legend_below(figure: "Figure", titles: Sequence[str], handles: Sequence[Any] = ()) -> None:
    """Add a legend below the axes with as many columns as the width allows."""
    wide = 0.42 + 0.062 * max(len(title) for title in titles)  # inches of one entry
    columns = max(1, min(len(titles), int(figure.get_figwidth() / wide)))
    entries: Style = {"handles": handles, "labels": titles} if handles else {}
    figure.legend(
        loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2.4, **entries
    )


def plain_ticks(axis: "Axis") -> None:
    """Put ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def whiskers(rows: Sequence[Mapping[str, Any]], column: str) -> Floats:
    """Return the distances to the limits of ``column`` in points, 0 where there are none."""
    limits = np.array([[row[key] for key in (column, "low", "high")] for row in rows], np.float64)
    value, low, high = 100 * limits.reshape(-1, 3).T
    return np.nan_to_num(np.stack([value - low, high - value]))


def axis_title(metric: str, *, short: bool = False) -> str:
    """Return the title of an axis with a hundred times the metric.

    >>> axis_title("balanced_accuracy"), axis_title("mcc"), axis_title("auc", short=True)
    ('balanced accuracy, %', 'MCC × 100', 'AUC × 100')
    """
    about = METRICS[metric]
    title = about.short if short else about.title
    if not short and not title.isupper():
        title = title[0].lower() + title[1:]
    return f"{title}, %" if about.rate else f"{title} × 100"
