"""The t-SNE figure: head, medium and tail classes above, the tail classes alone below."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.benchmark.figures.embedding import Asked, Floats, embed, features_of, read_records
from lmd.benchmark.figures.style import COLOURS, MARKERS, TIER_STYLE, Drawn, entry, new_figure
from lmd.runfolder.record import Record
from lmd.scoring.tiers import TIERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def tsne_figure(runs: Sequence[Path], asked: Asked, *, width: float, height: float | None) -> Drawn:
    """One column for each run, with the same test images."""
    records = read_records(runs)
    points = features_of(runs, records, asked)
    embeddings = embed(points.features, asked.perplexity, asked.seed)
    tiers = np.array(records[0].tiers.assignment)
    columns = len(runs)
    cell = (width - 1.1) / columns
    figure = new_figure(width, height or min(2 * cell, 0.9 * width) + 0.3)
    axes = figure.subplots(2, columns, squeeze=False, sharex=True, sharey=True)
    for j, (record, xy) in enumerate(zip(records, embeddings, strict=True)):
        axes[0, j].set_title(_title(record, records))
        _tiers(axes[0, j], xy, tiers[points.labels])
        _tail(axes[1, j], xy, points.labels, tiers, records[0].data.classes)
    for panel in axes.ravel():
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set_visible(True)
            side.set_color("#BBBBBB")
    _legends(figure, axes)
    rows = _rows(records, embeddings, points.ids, points.labels, tiers)
    note = (
        f"{len(points.ids)} test images, at most {asked.per_class} of a class; features of length "
        f"one, t-SNE with perplexity {asked.perplexity:g}, seed {asked.seed}."
    )
    how = (
        "Each run has its own t-SNE, which starts from that of the first run and is rotated, "
        "mirrored and scaled onto it (Procrustes); distances between far groups mean nothing."
    )
    return Drawn(figure, rows, (note, how) if columns > 1 else (note,))


def _title(record: Record, records: Sequence[Record]) -> str:
    titles = [each.method.title for each in records]
    same = titles.count(record.method.title) > 1
    return f"{record.method.title} ({record.name})" if same else record.method.title


def _tiers(panel: "Axes", xy: Floats, tiers: NDArray[Any]) -> None:
    for tier in TIERS:
        at, inside = TIER_STYLE[tier], tiers == tier
        if inside.any():
            _scatter(panel, xy[inside], at, tier, 7 if tier == "tail" else 4)


def _tail(
    panel: "Axes",
    xy: Floats,
    labels: NDArray[np.int64],
    tiers: NDArray[Any],
    classes: Sequence[str],
) -> None:
    others = tiers[labels] != "tail"
    panel.scatter(xy[others, 0], xy[others, 1], s=2, color="#DDDDDD", linewidths=0)
    for i, k in enumerate(np.flatnonzero(tiers == "tail").tolist()):
        if (labels == k).any():
            _scatter(panel, xy[labels == k], i, classes[k], 8)


def _scatter(panel: "Axes", xy: Floats, at: int, label: str, size: float) -> None:
    n = len(COLOURS)
    # After all colours, the markers go on with the next one.
    marker = MARKERS[(at + at // n) % n]
    colour = COLOURS[at % n]
    x, y = xy.T
    panel.scatter(
        x, y, s=size, color=colour, marker=marker, label=entry(label), linewidths=0, alpha=0.85
    )


def _legends(figure: "Figure", axes: NDArray[Any]) -> None:
    """Beside each row of panels; both rows are as wide as the wider legend."""
    for row, title in zip(axes, ("all classes", "tail classes"), strict=True):
        handles, names = row[-1].get_legend_handles_labels()
        short = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
        row[-1].legend(
            handles,
            short,
            title=title,
            title_fontsize=7,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            handletextpad=0.2,
            markerscale=1.6,
            alignment="left",
        )


def _rows(
    records: Sequence[Record],
    embeddings: Sequence[Floats],
    ids: NDArray[Any],
    labels: NDArray[np.int64],
    tiers: NDArray[Any],
) -> list[dict[str, Any]]:
    classes = records[0].data.classes
    return [
        {
            "run": record.name,
            "method": record.method.key,
            "image": str(name),
            "class": classes[k],
            "tier": str(tiers[k]),
            "x": round(float(x), 4),
            "y": round(float(y), 4),
        }
        for record, xy in zip(records, embeddings, strict=True)
        for name, k, (x, y) in zip(ids.tolist(), labels.tolist(), xy.tolist(), strict=True)
    ]
