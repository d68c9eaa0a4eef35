"""The diagram of a method: one panel for each stage, drawn from a trace of its code."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmd.base.errors import LmdError
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lmd.benchmark.figures.tracing import Trace

COLUMNS = {"view": 0.0, "encoder": 1.35, "classifier": 2.9, "term": 4.45, "loss": 5.5}
HALF = {"view": 0.36, "encoder": 0.55, "classifier": 0.55, "term": 0.45, "loss": 0.3}
HEAD = {"arrowstyle": "-|>,head_length=0.25,head_width=0.12", "shrinkA": 0, "shrinkB": 0}
ROW = 0.55  # inches between two rows
FILLS = {"trained": "#D6E8F5", "follows": "#FBE3D3", "fixed": "#EEEEEE", "plain": "white"}
EDGES = {"trained": COLOURS[0], "follows": COLOURS[1], "fixed": GREY, "plain": "black"}
LINES = {"trained": "-", "follows": "--", "fixed": ":", "plain": "-"}


@dataclass(frozen=True)
class Node:
    """A box at a place in inches."""

    words: str
    kind: str
    y: float
    role: str = "plain"


def diagram_figure(
    name: str | None, *, stage: int | None, profile: str, width: float, height: float | None
) -> Drawn:
    """Views, networks and loss terms of each stage, and what happens before each epoch."""
    from lmd.benchmark.figures.tracing import trace_stages
    from lmd.methods import DEFAULT, find_method

    method = find_method(name or DEFAULT)
    traces = list(enumerate(trace_stages(method, method.settings({}, profile)), 1))
    if stage is not None:
        if stage > len(traces):
            raise LmdError(f"--stage is {stage}, but {method.key} has {len(traces)} stages")
        traces = [traces[stage - 1]]
    tall = [_height(trace) for _, trace in traces]
    figure = new_figure(width, height or sum(tall) * width / 7)
    figure.set_layout_engine("none")
    rows: list[dict[str, Any]] = []
    below = sum(tall)
    for (number, trace), high in zip(traces, tall, strict=True):
        below -= high
        axes = figure.add_axes((0, below / sum(tall), 1, high / sum(tall)))
        rows += _panel(axes, trace, number, high, f"{method.title}, stage {number}: {trace.title}")
    note = (
        "Traced from one evaluation of the code. Solid blue boxes are trained by gradients, dashed "
        "orange ones follow without, dotted grey ones are fixed; dashed arrows carry no gradient."
    )
    return Drawn(figure, rows, (note,))


def _height(trace: "Trace") -> float:
    encoders = sum(call.part == "encoder" for call in trace.calls)
    rows = max(encoders, len(trace.terms) if trace.calls else 0)
    return 0.75 + ROW * max(rows - 0.35, 0) + (0.75 if trace.updates else 0.0)


def _panel(
    axes: "Axes", trace: "Trace", number: int, high: float, title: str
) -> list[dict[str, Any]]:
    axes.set_xlim(-0.55, 6.45)
    axes.set_ylim(-high, 0)
    axes.axis("off")
    axes.text(-0.45, -0.16, title, fontsize=9, fontweight="bold", va="center")
    says = textwrap.shorten(trace.says, 110, placeholder=" …")
    axes.text(-0.45, -0.36, says, fontsize=7, va="center", color="#444444")
    rows = _epoch_start(axes, trace, number) if trace.updates else []
    top = -0.75 - (0.75 if trace.updates else 0.0)
    if not trace.calls:
        return rows
    nodes = _nodes(trace, top)
    for key, node in nodes.items():
        _box(axes, node, key)
    _follow(axes, nodes)
    for source, goal, gradient in _arrows(trace):
        _arrow(axes, nodes[source], nodes[goal], gradient)
        ends = [nodes[key].words.replace("\n", " ") for key in (source, goal)]
        edge = {"stage": number, "from": ends[0], "to": ends[1]}
        rows.append(edge | {"kind": "each batch", "gradient": gradient})
    return rows


def _nodes(trace: "Trace", top: float) -> dict[str, Node]:
    """All boxes of a panel by their key; encoder calls are in rows, the rest beside them."""
    encoders = [i for i, call in enumerate(trace.calls) if call.part == "encoder"]
    count = max(len(encoders), len(trace.terms))
    span = ROW * (count - 1)

    def rows(n: int) -> list[float]:
        return [top - (span * (i + 0.5) / n if n < count else ROW * i) for i in range(n)]

    found: dict[str, Node] = {}
    places = dict(zip(encoders, rows(len(encoders)), strict=True))
    for i, call in enumerate(trace.calls):
        fed = [places[e] for e, c in trace.passes if c == i]
        y = places[i] if i in places else sum(fed) / len(fed) if fed else top
        found[f"call {i}"] = Node(call.name, call.part, y, trace.roles.get(call.name, "plain"))
    for view in trace.views:
        fed = [places[i] for v, i in trace.inputs if v == view]
        found[f"view {view}"] = Node(f"{view}\nview", "view", sum(fed) / len(fed))
    sources = {t: [found[f"call {i}"].y for i, x in trace.reaches if x == t] for t in trace.terms}
    ordered = sorted(trace.terms, key=lambda t: -sum(sources[t]) / max(len(sources[t]), 1))
    for term, y in zip(ordered, rows(len(ordered)), strict=True):
        found[f"term {term}"] = Node(term, "term", y)
    if trace.terms != ["loss"]:
        found["loss"] = Node("loss", "loss", top - span / 2)
    return found


def _arrows(trace: "Trace") -> list[tuple[str, str, bool]]:
    """Pairs of keys, and whether a gradient flows back along the arrow."""
    found = [(f"view {v}", f"call {i}", trace.calls[i].gradient) for v, i in trace.inputs]
    found += [(f"call {e}", f"call {c}", trace.calls[c].gradient) for e, c in trace.passes]
    found += [(f"call {i}", f"term {t}", trace.calls[i].gradient) for i, t in trace.reaches]
    if trace.terms != ["loss"]:
        found += [(f"term {t}", "loss", True) for t in trace.terms]
    return found


def _box(axes: "Axes", node: Node, key: str, x: float | None = None, half: float = 0) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, half = COLUMNS[node.kind] if x is None else x, half or HALF[node.kind]
    lines = node.words.count("\n") + 1
    tall = 0.13 + 0.06 * (lines - 1)
    axes.add_patch(
        FancyBboxPatch(
            (x - half, node.y - tall),
            2 * half,
            2 * tall,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=FILLS[node.role],
            edgecolor=EDGES[node.role],
            linestyle=LINES[node.role],
            linewidth=1.0,
            zorder=3,
            gid=key.replace(" ", "-"),
        )
    )
    weight = "bold" if node.kind == "loss" else "normal"
    axes.text(
        x, node.y, node.words, ha="center", va="center", fontsize=7, zorder=4, fontweight=weight
    )


def _arrow(axes: "Axes", source: Node, goal: Node, gradient: bool) -> None:
    """From the right edge of a box to the left edge of another; above a classifier between them."""
    start = (COLUMNS[source.kind] + HALF[source.kind], source.y)
    end = (COLUMNS[goal.kind] - HALF[goal.kind], goal.y)
    look = _line(gradient)
    if source.kind == "encoder" and goal.kind == "term":
        left, right = (COLUMNS["classifier"] + side * HALF["classifier"] for side in (-1, 1))
        above = source.y + ROW / 2 - 0.02
        corner = (start[0], source.y + 0.08)
        path = [corner, (left - 0.08, above), (right + 0.12, above)]
        axes.plot(*zip(*path, strict=True), **look, solid_joinstyle="round", zorder=2)
        start = path[-1]
    axes.annotate("", end, start, arrowprops=HEAD | look, zorder=2)


def _line(gradient: bool) -> dict[str, Any]:
    kind = {"linestyle": "-", "color": "black"} if gradient else {"linestyle": "--", "color": GREY}
    return {"linewidth": 0.8, **kind}


def _follow(axes: "Axes", nodes: Mapping[str, Node]) -> None:
    """An arrow from the nearest trained encoder to each one that follows it without gradient."""
    encoders = [node for node in nodes.values() if node.kind == "encoder"]
    trained = [node for node in encoders if node.role == "trained"]
    for node in encoders:
        if node.role == "follows" and trained:
            near = min(trained, key=lambda other: abs(other.y - node.y))
            side = 1 if near.y > node.y else -1
            x, ends = COLUMNS["encoder"] - 0.25, (near.y - 0.13 * side, node.y + 0.13 * side)
            look = {"linewidth": 0.8, "linestyle": ":", "color": COLOURS[1]}
            axes.annotate("", (x, ends[1]), (x, ends[0]), arrowprops=HEAD | look, zorder=2)
            middle = sum(ends) / 2
            axes.text(x + 0.06, middle, "follows", fontsize=6, va="center", color=COLOURS[1])


def _epoch_start(axes: "Axes", trace: "Trace", number: int) -> list[dict[str, Any]]:
    """Before the batches of an epoch: the features that are read, and the parts that change."""
    y = -0.8
    reads = textwrap.fill("; ".join(_merged(trace.reads)) or "no images", 44)
    _box(axes, Node("features of\n" + reads, "view", y), "features", x=1.0, half=1.35)
    _box(axes, Node("start of\neach epoch", "term", y), "start", x=3.15, half=0.42)
    for end, start in ((2.73, 2.35), (4.0, 3.57)):
        axes.annotate("", (end, y), (start, y), arrowprops=HEAD | _line(True))
    words = "changes " + ", ".join(trace.updates)
    said = textwrap.fill(words, 30)
    if trace.numbers:
        said += "\n" + textwrap.shorten(", ".join(trace.numbers), 42, placeholder=" …")
    _box(axes, Node(said, "term", y, "trained"), "changes", x=5.15, half=1.15)
    return [
        {"stage": number, "from": read, "to": f"start of epoch: {part}", "kind": "each epoch"}
        for read in trace.reads or ["no images"]
        for part in trace.updates
    ]


def _merged(reads: Sequence[str]) -> list[str]:
    """Reads that differ in the view only, in one.

    >>> _merged(["train images, eval view, natural", "train images, weak view, natural"])
    ['train images (eval, weak; natural)']
    """
    views: dict[tuple[str, str], list[str]] = {}
    for read in reads:
        part, view, drawn = read.split(", ")
        views.setdefault((part, drawn), []).append(view.removesuffix(" view"))
    return [f"{part} ({', '.join(of)}; {drawn})" for (part, drawn), of in views.items()]
