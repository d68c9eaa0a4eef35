"""Draw t-SNE of test features: all tiers above, the tail classes alone below."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.benchmark.figures.style import COLOURS, MARKERS, TIER_STYLE, Drawn, entry, new_figure
from lmd.runs.folder import Run, several_models
from lmd.runs.record import Record
from lmd.scoring.tiers import TIERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
COMPONENTS = 50  # principal components that t-SNE sees


@dataclass(frozen=True)
class Asked:
    """Options of the t-SNE figure."""

    data: str | None = None
    per_class: int = 200
    perplexity: float = 30.0
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True)
class Points:
    """The same N test images in every run: ``ids (N,)``, ``labels (N,)``, ``features (N, C)``."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]
    features: list[Floats]


def read_records(runs: Sequence[Path]) -> list[Record]:
    """The records of runs on the same test images, checked before anything is computed."""
    if not 1 <= len(runs) <= 3:
        raise LmdError(f"the tsne figure shows one to three runs; got {len(runs)}")
    records: list[Record] = []
    for path in runs:
        record = Run.open(path).record
        if record.folds is not None:
            raise LmdError(several_models(record))
        if record.status != "finished" or not (path / "model.safetensors").exists():
            raise LmdError(f"{path} has no finished model: run `lmd train --resume --out {path}`")
        if records and record.data.fingerprint != records[0].data.fingerprint:
            raise LmdError(
                f"the tsne figure needs runs on the same data, but {path} and {runs[0]} have "
                "different images or parts"
            )
        records.append(record)
    return records


def features_of(runs: Sequence[Path], records: Sequence[Record], asked: Asked) -> Points:
    """Features of the same test images in each run, at most ``per_class`` of a class."""
    from lmd.base.device import choose_device
    from lmd.base.progress import Display
    from lmd.data.dataset import plan_data
    from lmd.data.source import Source
    from lmd.runs.protocol import Protocol

    device = choose_device(asked.device)
    ids, labels, found = None, None, []
    for path, record in zip(runs, records, strict=True):
        request = record.request
        where = asked.data or request.data
        if where != "synthetic" and not Path(where).exists():
            raise LmdError(f"the data of {path} is not at {where}: say where it is with --data")
        source = replace(Source.of(request), data=where)
        data = plan_data(source, Protocol.model_validate(request.protocol))
        data = data.decode(Display(quiet=True))
        if data.fingerprint() != record.data.fingerprint:
            raise LmdError(f"the data at {where} is not that of {path}: images or parts differ")
        here = data.table.part("test")
        if ids is None or labels is None:
            chosen = _chosen(here.labels, asked)
            ids, labels = here.ids[chosen], here.labels[chosen]
        place = {name: i for i, name in enumerate(here.ids.tolist())}
        rows = np.array([place[name] for name in ids.tolist()])
        found.append(_features(path, data.part("test")[rows], device))
    assert ids is not None
    assert labels is not None
    return Points(ids, labels, found)


def _chosen(labels: NDArray[np.int64], asked: Asked) -> NDArray[np.int64]:
    """Indices of at most ``per_class`` images of each class, in their order."""
    draw = np.random.default_rng(asked.seed)
    kept = [draw.permutation(np.flatnonzero(labels == k))[: asked.per_class] for k in set(labels)]
    return np.sort(np.concatenate(kept))


def _features(path: Path, pixels: NDArray[np.uint8], device: Any) -> Floats:
    from lmd.model import load_model
    from lmd.predict.engines import TorchEngine

    engine = TorchEngine(*load_model(path), device)
    batches = [engine.features(pixels[i : i + 256]) for i in range(0, len(pixels), 256)]
    return np.concatenate(batches).astype(np.float64)


def embed(features: Sequence[Floats], perplexity: float, seed: int) -> list[Floats]:
    """One embedding ``(N, 2)`` for each run by t-SNE (van der Maaten and Hinton 2008).

    Features of different networks have no common axes, so each run has its own t-SNE. Each starts
    from the embedding of the first run, and is then rotated, reflected and scaled onto it, so that
    an image is in about the same place in all of them wherever its neighbours are the same.
    """
    from openTSNE import TSNE

    n = len(features[0])
    if n < 12:
        raise LmdError(f"t-SNE needs at least 12 test images; there are {n}")
    start: Any = "pca"
    found: list[Floats] = []
    for each in features:
        method = TSNE(
            perplexity=min(perplexity, (n - 1) / 3),
            initialization=start,
            random_state=seed,
            n_jobs=1,
            metric="euclidean",
        )
        made = np.asarray(method.fit(principal(each, COMPONENTS)), dtype=np.float64)
        if not found:
            start = made / made[:, 0].std() * 1e-4
        found.append(aligned(made, found[0]) if found else made - made.mean(0))
    return found


def principal(features: Floats, most: int) -> Floats:
    """The first principal components of features of length one: ``(N, C) → (N, ≤ most)``."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    centred = unit - unit.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(left[:, :most] * sizes[:most])


def aligned(points: Floats, goal: Floats) -> Floats:
    """``points (N, 2)`` moved, turned and mirrored onto ``goal``, at its size (Procrustes).

    >>> square = np.array([[0.0, 0], [2, 0], [2, 1], [0, 1]])
    >>> turned = 3 * square @ np.array([[0.0, 1], [-1, 0]]) + 5
    >>> bool(np.allclose(aligned(turned, square), square))
    True
    """
    centre = goal.mean(0)
    centred, wanted = points - points.mean(0), goal - centre
    left, _, right = np.linalg.svd(centred.T @ wanted)
    # The least-squares scale would shrink an embedding the more, the less it is like the goal.
    scale = np.linalg.norm(wanted) / max(float(np.linalg.norm(centred)), 1e-12)
    return np.asarray(scale * centred @ left @ right + centre)


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
