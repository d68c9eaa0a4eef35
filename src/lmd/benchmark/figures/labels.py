"""Places for labels, so that no two overlap."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places at least ``gap`` apart within ``[low, high]``, as near to the given ones as possible.

    The order stays. If there is not enough room, the places are evenly spaced.

    >>> spread([0.0, 0.1, 5.0], 1.0, 0.0, 10.0)
    [0.0, 1.0, 5.0]
    """
    n = len(places)
    if n < 2:
        return list(places)
    gap = min(gap, (high - low) / (n - 1))
    order = np.argsort(places, kind="stable")
    # Less i gaps, the places must not decrease: pooled means of violators are the nearest such.
    wanted = [places[k] - i * gap for i, k in enumerate(order)]
    blocks: list[tuple[float, int]] = []
    for value in wanted:
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    result = [0.0] * n
    for i, k in enumerate(order):
        result[k] = float(min(max(flat[i], low), high - (n - 1) * gap) + i * gap)
    return result


def label_points(
    axes: "Axes",
    points: Sequence[tuple[float, float, str]],
    marks: Sequence[tuple[float, float]],
) -> None:
    """A label beside each point, where it covers no mark and no other label if possible."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    assert isinstance(figure.canvas, FigureCanvasAgg)
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[no-untyped-call]
    frame, size = axes.get_window_extent(renderer), figure.dpi / 72
    centres = [axes.transData.transform(mark) for mark in marks]
    reach = 4.5 * size

    def around(centre: NDArray[np.float64]) -> Bbox:
        return Bbox.from_bounds(centre[0] - reach, centre[1] - reach, 2 * reach, 2 * reach)

    taken = [around(centre) for centre in centres]
    # What must stay readable: labels, and the points that have one.
    named = [axes.transData.transform((x, y)) for x, y, _ in points]
    labels = [around(centre) for centre in named]
    for x, y, words in points:
        here, costs = axes.transData.transform((x, y)), []
        for offset in _offsets():
            tried = _annotated(axes, x, y, words, offset)
            box = tried.get_window_extent(renderer)
            tried.remove()
            outside = box.width * box.height - _overlap(box, frame)
            covered = sum(_overlap(box, other) for other in taken)
            covered += 10 * sum(_overlap(box, other) for other in labels)
            near = _near(box, _others(centres, here), 2 * reach)
            near += 10 * _near(box, _others(named, here), 2 * reach)
            costs.append(covered + 5 * outside + near + 0.5 * size * max(map(abs, offset)))
        best = _annotated(axes, x, y, words, _offsets()[int(np.argmin(costs))])
        labels.append(best.get_window_extent(renderer))


def _offsets() -> list[tuple[float, float]]:
    """Candidate offsets in points, near ones first."""
    near = [(5, 0), (-5, 0), (0, 6), (0, -6), (5, 5), (-5, 5), (5, -5), (-5, -5)]
    return [(dx * k, dy * k) for k in (1, 2, 3, 4.5, 6.5, 9, 12) for dx, dy in near]


def _annotated(
    axes: "Axes", x: float, y: float, words: str, offset: tuple[float, float]
) -> "Annotation":
    from matplotlib.patheffects import withStroke

    dx, dy = offset
    arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": "#555555", "shrinkA": 0, "shrinkB": 2}
    return axes.annotate(
        words,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        fontsize=6.5,
        path_effects=[withStroke(linewidth=1.5, foreground="white")],
        arrowprops=arrow if max(abs(dx), abs(dy)) > 7 else None,
    )


def _overlap(a: "Bbox", b: "Bbox") -> float:
    """The area that two boxes have in common."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(max(width, 0.0) * max(height, 0.0))


def _others(
    centres: Sequence[NDArray[np.float64]], here: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    return [centre for centre in centres if tuple(centre) != tuple(here)]


def _near(box: "Bbox", centres: Sequence[NDArray[np.float64]], reach: float) -> float:
    """A cost for each other mark beside which a label stands: it could be taken for its label."""
    total = 0.0
    for x, y in centres:
        away = max(box.x0 - x, x - box.x1, box.y0 - y, y - box.y1, 0.0)
        total += 4 * max(reach - away, 0.0)
    return float(total)
