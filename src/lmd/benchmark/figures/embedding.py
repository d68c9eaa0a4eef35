"""Draw t-SNE of test features: all tiers above, the tail classes alone below."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from lmd.base.errors import LmdError
from lmd.benchmark.figures.command import Tsne
from lmd.benchmark.figures.style import Drawn, Style, legend_name, new_figure, point_style
from lmd.runs.folder import Run, several_models
from lmd.runs.record import Record
from lmd.scoring.proportions import Floats
from lmd.scoring.tiers import TIERS

COMPONENTS = 50  # principal components that t-SNE sees
TIER_STYLE = {"head": 0, "medium": 2, "tail": 1}  # places in COLOURS and MARKERS


@dataclass(frozen=True)
class Points:
    """The same N test images in every run: ``ids (N,)``, ``labels (N,)``, ``features (N, C)``."""

    ids: NDArray[Any]
    labels: NDArray[np.int64]
    features: list[Floats]


def read_records(runs: Sequence[Path]) -> list[Record]:
    """Read the records of runs on the same test images, and check them."""
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


def features_of(runs: Sequence[Path], records: Sequence[Record], options: Tsne) -> Points:
    """Compute features of the same test images in each run, at most ``per_class`` of a class."""
    from lmd.base.distributed import choose_device
    from lmd.base.progress import Display
    from lmd.data.dataset import plan_data
    from lmd.data.source import Source
    from lmd.model.files import load_model
    from lmd.predict.engines import TorchEngine
    from lmd.predict.predictor import Predictor, in_batches
    from lmd.runs.protocol import Protocol

    device = choose_device(options.device)
    points: Points | None = None
    for path, record in zip(runs, records, strict=True):
        request = record.request
        where = options.data or request.data
        if where != "synthetic" and not Path(where).exists():
            raise LmdError(f"the data of {path} is not at {where}: say where it is with --data")
        source = replace(Source.of(request), data=where)
        data = plan_data(source, Protocol.model_validate(request.protocol))
        data = data.decode(Display(quiet=True))
        if data.fingerprint() != record.data.fingerprint:
            raise LmdError(f"the data at {where} is not that of {path}: images or parts differ")
        here = data.table.part("test")
        if points is None:
            draw, labels = np.random.default_rng(options.seed), here.labels
            drawn = [draw.permutation(np.flatnonzero(labels == k)) for k in set(labels)]
            chosen = np.sort(np.concatenate([rows[: options.per_class] for rows in drawn]))
            points = Points(here.ids[chosen], here.labels[chosen], [])
        place = {name: i for i, name in enumerate(here.ids.tolist())}
        rows = np.array([place[name] for name in points.ids.tolist()])
        predictor = Predictor(TorchEngine(*load_model(path), device))
        features = predictor.infer(in_batches(data.part("test")[rows])).features
        assert features is not None
        points.features.append(features.astype(np.float64))
    assert points is not None
    return points


def embed(features: Sequence[Floats], perplexity: float, seed: int) -> list[Floats]:
    """Embed each run as ``(N, 2)`` by t-SNE (van der Maaten and Hinton 2008).

    Features of different networks have no common axes, so each run has its own t-SNE. Each starts
    from the embedding of the first run, and is then rotated, reflected and scaled onto it, so that
    an image is in about the same place in all of them wherever its neighbours are the same.
    """
    from openTSNE import TSNE

    n = len(features[0])
    if n < 12:
        raise LmdError(f"t-SNE needs at least 12 test images; there are {n}")
    start: Any = "pca"
    embeddings: list[Floats] = []
    for of_run in features:
        fixed: Style = {"random_state": seed, "n_jobs": 1, "metric": "euclidean"}
        method = TSNE(perplexity=min(perplexity, (n - 1) / 3), initialization=start, **fixed)
        unit = of_run / np.maximum(np.linalg.norm(of_run, axis=1, keepdims=True), 1e-12)
        left, sizes, _ = np.linalg.svd(unit - unit.mean(0), full_matrices=False)
        components = left[:, :COMPONENTS] * sizes[:COMPONENTS]
        xy: Floats = np.asarray(method.fit(components), dtype=np.float64)
        if embeddings:
            embeddings.append(aligned(xy, embeddings[0]))
        else:
            start = xy / xy[:, 0].std() * 1e-4
            embeddings.append(xy - xy.mean(0))
    return embeddings


def aligned(points: Floats, goal: Floats) -> Floats:
    """Move, turn and mirror ``points (N, 2)`` onto ``goal``, at its size (Procrustes).

    >>> square = np.array([[0.0, 0], [2, 0], [2, 1], [0, 1]])
    >>> turned = 3 * square @ np.array([[0.0, 1], [-1, 0]]) + 5
    >>> bool(np.allclose(aligned(turned, square), square))
    True
    """
    centre = goal.mean(0)
    centred, target = points - points.mean(0), goal - centre
    turn, _ = orthogonal_procrustes(centred, target)
    # The least-squares scale would shrink an embedding the more, the less it is like the goal.
    scale = np.linalg.norm(target) / max(float(np.linalg.norm(centred)), 1e-12)
    return np.asarray(scale * centred @ turn + centre)


def tsne_figure(
    runs: Sequence[Path], options: Tsne, *, width: float, height: float | None
) -> Drawn:
    """Draw one column for each run, with the same test images."""
    records = read_records(runs)
    points = features_of(runs, records, options)
    embeddings = embed(points.features, options.perplexity, options.seed)
    tiers, classes = np.array(records[0].tiers.assignment), records[0].data.classes
    tier_of, columns = tiers[points.labels], len(runs)
    cell = (width - 1.1) / columns
    figure = new_figure(width, height or min(2 * cell, 0.9 * width) + 0.3)
    axes = figure.subplots(2, columns, squeeze=False, sharex=True, sharey=True)
    titles = [record.method.title for record in records]
    rows: list[dict[str, Any]] = []
    for (above, below), record, xy in zip(axes.T, records, embeddings, strict=True):
        title = record.method.title
        several = titles.count(title) > 1
        above.set_title(f"{title} ({record.name})" if several else title)
        for tier in TIERS:
            size = 7 if tier == "tail" else 4
            _scatter(above, xy[tier_of == tier], tier, size, point_style(TIER_STYLE[tier]))
        others = xy[tier_of != "tail"]
        below.scatter(others[:, 0], others[:, 1], s=2, color="#DDDDDD", linewidths=0)
        for i, k in enumerate(np.flatnonzero(tiers == "tail").tolist()):
            _scatter(below, xy[points.labels == k], classes[k], 8, point_style(i))
        for name, k, (x, y) in zip(points.ids, points.labels, xy.tolist(), strict=True):
            row = {"run": record.name, "method": record.method.key, "image": str(name)}
            row |= {"class": classes[k], "tier": str(tiers[k])}
            rows.append(row | {"x": round(x, 4), "y": round(y, 4)})
    for panel in axes.ravel():
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(visible=True, color="#BBBBBB")
    # Beside each row of panels; both rows are as wide as the wider legend.
    legend: Style = {"title_fontsize": 7, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    legend |= {"handletextpad": 0.2, "markerscale": 1.6, "alignment": "left"}
    for panel, title in zip(axes[:, -1], ("all classes", "tail classes"), strict=True):
        panel.legend(title=title, **legend)
    notes = [
        f"{len(points.ids)} test images, at most {options.per_class} of a class; features of "
        f"length one, t-SNE with perplexity {options.perplexity:g}, seed {options.seed}."
    ]
    if columns > 1:
        notes.append(
            "Each run has its own t-SNE, which starts from that of the first run and is rotated, "
            "mirrored and scaled onto it (Procrustes); distances between far groups mean nothing."
        )
    return Drawn(figure, rows, tuple(notes))


def _scatter(panel: Axes, xy: Floats, name: str, size: float, style: Style) -> None:
    if len(xy):
        style = style | {"label": legend_name(name, 18), "linewidths": 0, "alpha": 0.85}
        panel.scatter(xy[:, 0], xy[:, 1], s=size, **style)
