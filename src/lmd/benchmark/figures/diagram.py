"""Draw the diagram of a method: one panel for each stage, from a trace of its code.

A stage is run on a tiny network with random images. An arrow leads from one thing to another that
changes if only the first is changed.
"""

import textwrap
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, Style, new_figure
from lmd.methods import DEFAULT, find_method
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Task, prepare
from lmd.model import Model, build_model

COUNTS = (12, 8, 5, 3)
IMAGES, SIZE = 8, 16


@dataclass(frozen=True)
class Call:
    """One call of the encoder or classifier of a network; its name has both words."""

    name: str
    part: str
    gradient: bool
    input: Tensor
    output: Tensor


@dataclass
class Trace:
    """A stage, and the arrows among "view V", "call I", "term T" and "loss"."""

    title: str
    summary: str
    calls: dict[str, Call] = field(default_factory=dict)  # by "call I"
    terms: list[str] = field(default_factory=list)
    arrows: list[tuple[str, str]] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)  # of "NETWORK PART"
    reads: list[str] = field(default_factory=list)  # features that an epoch starts with
    updates: list[str] = field(default_factory=list)  # what the start of an epoch changes
    numbers: list[str] = field(default_factory=list)  # what it writes into the history

    def called(self, part: str) -> list[str]:
        """Return the calls of all encoders, or of all classifiers."""
        return [key for key, call in self.calls.items() if call.part == part]


class _Epoch:
    """What the loop lends a stage, in the middle of training, with features of noise."""

    index, total, steps = 1, 3, 1
    val_recall: Tensor | None = None

    def __init__(self, width: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.width = width
        self.reads: list[str] = []

    def features(
        self, drawn: str = "natural", part: str = "train", view: str = "eval"
    ) -> tuple[Tensor, Tensor]:
        self.reads.append(f"{part} images, {view} view, {drawn}")
        labels = torch.arange(len(COUNTS)).repeat_interleave(6)
        noise = torch.randn(len(labels), self.width, generator=self.generator)
        return noise + labels[:, None], labels


class _Probe:
    """Evaluates the loss of a stage, with all calls of its networks, some of them changed."""

    def __init__(self, stage: Stage, epoch: _Epoch) -> None:
        self.stage, self.generator = stage, epoch.generator
        named = stage.named_modules(remove_duplicate=False)
        unique = {id(m): (n, m) for n, m in named if isinstance(m, Model) and n != "part"}
        networks = dict(unique.values())
        self.parts: dict[str, nn.Module] = {}  # by "NETWORK PART"
        for name, model in networks.items():
            # The trained network beside a teacher is the student; one alone has no name.
            shown = name.removesuffix(".model") if len(networks) > 1 else ""
            if "teacher" in networks:
                shown = "student" if name == "model" else name
            for part in ("encoder", "classifier"):
                title, module = f"{shown} {part}".strip(), getattr(model, part)
                self.parts[title] = module
                module.register_forward_hook(partial(self._record, title, part))
        self.views = {view: torch.rand(IMAGES, 3, SIZE, SIZE) for view in stage.views}
        self.labels = torch.arange(len(COUNTS)).repeat(IMAGES // len(COUNTS))
        self.streams = len(stage.class_weights(epoch))

    def evaluate(
        self, view: str = "", call: str = "", replay: Mapping[str, Call] | None = None
    ) -> dict[str, Tensor]:
        """Return all terms from the same state, with a view or call changed, others replayed."""
        self.calls: dict[str, Call] = {}
        self.changed, self.replay = call, replay or {}
        state, drawn = deepcopy(self.stage.state_dict()), self.generator.get_state()
        views = {name: images + 0.1 * (name == view) for name, images in self.views.items()}
        torch.manual_seed(0)
        terms = self.stage.loss(*[Batch(views, self.labels)] * self.streams)
        self.stage.load_state_dict(state, strict=False)
        self.generator.set_state(drawn)
        return {name: value.detach().clone() for name, value in terms.items()}

    def _record(
        self, name: str, part: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        key = f"call {len(self.calls)}"
        if key in self.replay:
            output = self.replay[key].output
        elif key == self.changed:
            noise = torch.Generator().manual_seed(7)
            output = output + 0.1 * torch.randn(output.shape, generator=noise)
        tensors = (tensor.detach().clone() for tensor in (inputs[0], output))
        self.calls[key] = Call(name, part, torch.is_grad_enabled(), *tensors)
        return output


def trace_stages(method: Method, settings: Mapping[str, Any]) -> list[Trace]:
    """Trace every stage; nothing is trained between them but one step of each."""
    model, _ = build_model("resnet8", "none", len(COUNTS), head=method.head, image_size=SIZE)
    task = Task(torch.tensor(COUNTS), model.classifier.in_features)
    traces: list[Trace] = []
    with torch.random.fork_rng(devices=[]):
        try:
            stages = method.start(model, task, settings)
            for stage, titles in zip(stages, method.stages, strict=False):
                # Of a title such as "label loss or RRL", what the stage is, or the first of them.
                titled = [t for t in titles.split(" or ") if t.lower() == stage.name.lower()]
                traces.append(_trace(stage, (titled or titles.split(" or "))[0], model))
        except (NotImplementedError, RuntimeError) as error:
            raise LmdError(
                f"method {method.key!r}: stage {len(traces) + 1} cannot be drawn, because it does "
                f"not compute its loss from one batch in `loss` ({error or 'it has no loss'})"
            ) from error
    return traces


def _trace(stage: Stage, title: str, model: Model) -> Trace:
    summary = (type(stage).__doc__ or "").strip().split("\n\n")[0]
    trace = Trace(title, " ".join(summary.replace("``", "").split()))
    groups = prepare(stage)
    optimizer = torch.optim.SGD(groups, lr=0.1) if groups else None
    epoch = _Epoch(model.classifier.in_features)
    before = deepcopy(stage.state_dict())
    trace.numbers = list(stage.start_epoch(epoch) or ())
    trace.reads = list(dict.fromkeys(epoch.reads))
    # Of model.classifier.weight, the classifier changes; of gaussians.mean, the Gaussians.
    owners = [name.rpartition(".")[0] for name in _changed(before, stage.state_dict())]
    parts = (owner.removeprefix("model.").split(".")[0] for owner in owners if owner)
    trace.updates = list(dict.fromkeys(parts))
    if optimizer is None or not stage.views or not stage.class_weights(epoch):
        return trace
    probe = _Probe(stage, epoch)
    _find_arrows(trace, probe)
    weights = {name: deepcopy(part.state_dict()) for name, part in probe.parts.items()}
    stage.step(optimizer, *[Batch(probe.views, probe.labels)] * probe.streams)
    for name, part in probe.parts.items():
        moved = _changed(weights[name], part.state_dict())
        follows = any(parameter in moved for parameter, _ in part.named_parameters())
        trained = any(p.requires_grad for p in part.parameters())
        trace.roles[name] = "trained" if trained else "follows" if follows else "fixed"
    return trace


def _find_arrows(trace: Trace, probe: _Probe) -> None:
    terms = probe.evaluate()
    calls = trace.calls = probe.calls
    trace.terms = [key for key in terms if key != "loss"] or ["loss"]
    encoders, classifiers = trace.called("encoder"), trace.called("classifier")
    for view in probe.views:
        probe.evaluate(view)
        seen = [c for c in encoders if not torch.equal(calls[c].input, probe.calls[c].input)]
        trace.arrows += [(f"view {view}", call) for call in seen]
    reached = []
    for key in calls:
        values = probe.evaluate(call=key)
        if key in encoders:
            after = probe.calls
            fed = [c for c in classifiers if not torch.equal(calls[c].output, after[c].output)]
            trace.arrows += [(key, call) for call in fed]
            # What still changes with the classifiers' outputs held depends on features directly.
            values = probe.evaluate(call=key, replay={c: calls[c] for c in classifiers})
        reached += [(key, f"term {t}") for t in trace.terms if not torch.equal(terms[t], values[t])]
    trace.arrows += reached
    if trace.terms != ["loss"]:
        trace.arrows += [(f"term {term}", "loss") for term in trace.terms]


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [n for n, v in after.items() if n not in before or not torch.equal(before[n], v)]


# The place of each column of boxes and half their width, in inches.
COLUMNS = {
    "view": (0.0, 0.36),
    "encoder": (1.35, 0.55),
    "classifier": (2.9, 0.55),
    "term": (4.45, 0.45),
    "loss": (5.5, 0.3),
}
ROW = 0.55  # inches between two rows
EPOCH = 0.75  # inches of the boxes of an epoch's start
HEAD: Style = {"arrowstyle": "-|>,head_length=0.25,head_width=0.12", "shrinkA": 0, "shrinkB": 0}
SOLID: Style = {"linewidth": 0.8, "linestyle": "-", "color": "black"}
DASHED: Style = {"linewidth": 0.8, "linestyle": "--", "color": GREY}
DOTTED: Style = {"linewidth": 0.8, "linestyle": ":", "color": COLOURS[1]}
# Fill, edge and line of the boxes of each role.
BOXES = {
    "trained": ("#D6E8F5", COLOURS[0], "-"),
    "follows": ("#FBE3D3", COLOURS[1], "--"),
    "fixed": ("#EEEEEE", GREY, ":"),
    "plain": ("white", "black", "-"),
}


@dataclass(frozen=True)
class Node:
    """A box at a place in inches."""

    text: str
    part: str
    y: float
    role: str = "plain"


def diagram_figure(
    name: str | None, stage: int | None, profile: str, *, width: float, height: float | None
) -> Drawn:
    """Draw views, networks and loss terms of each stage, and what happens before each epoch."""
    method = find_method(name or DEFAULT)
    traces = list(enumerate(trace_stages(method, method.settings({}, profile)), 1))
    if stage is not None:
        if stage > len(traces):
            raise LmdError(f"--stage is {stage}, but {method.key} has {len(traces)} stages")
        traces = [traces[stage - 1]]
    tall = []
    for _, trace in traces:
        boxes = max(len(trace.called("encoder")), len(trace.terms) if trace.calls else 0)
        tall.append(0.75 + ROW * max(boxes - 0.35, 0) + (EPOCH if trace.updates else 0.0))
    figure = new_figure(width, height or sum(tall) * width / 7)
    figure.set_layout_engine("none")
    rows: list[dict[str, Any]] = []
    below = sum(tall)
    for (number, trace), high in zip(traces, tall, strict=True):
        below -= high
        place = (0, below / sum(tall), 1, high / sum(tall))
        axes = figure.add_axes(place, xlim=(-0.55, 6.45), ylim=(-high, 0))
        axes.axis("off")
        title = f"{method.title}, stage {number}: {trace.title}"
        axes.text(-0.45, -0.16, title, fontsize=9, fontweight="bold", va="center")
        summary = textwrap.shorten(trace.summary, 110, placeholder=" …")
        axes.text(-0.45, -0.36, summary, fontsize=7, va="center", color="#444444")
        edges = _draw_epoch_start(axes, trace) if trace.updates else []
        edges += _draw_batch(axes, trace) if trace.calls else []
        rows += [{"stage": number, **edge} for edge in edges]
    note = (
        "Traced from one evaluation of the code. Solid blue boxes are trained by gradients, dashed "
        "orange ones follow without, dotted grey ones are fixed; dashed arrows carry no gradient."
    )
    return Drawn(figure, rows, (note,))


def _draw_epoch_start(axes: Axes, trace: Trace) -> list[dict[str, Any]]:
    """Draw the features that are read before the batches of an epoch, and what changes."""
    y = -0.8
    views: dict[tuple[str, str], list[str]] = {}
    for read in trace.reads:  # join those that differ in the view only
        part, view, drawn = read.split(", ")
        views.setdefault((part, drawn), []).append(view.removesuffix(" view"))
    merged = (f"{part} ({', '.join(of)}; {drawn})" for (part, drawn), of in views.items())
    reads = textwrap.fill("; ".join(merged) or "no images", 44)
    changes = textwrap.fill("changes " + ", ".join(trace.updates), 30)
    if trace.numbers:
        changes += "\n" + textwrap.shorten(", ".join(trace.numbers), 42, placeholder=" …")
    _draw_box(axes, Node("features of\n" + reads, "view", y), "features", 1.0, 1.35)
    _draw_box(axes, Node("start of\neach epoch", "term", y), "start", 3.15, 0.42)
    _draw_box(axes, Node(changes, "term", y, "trained"), "changes", 5.15, 1.15)
    for end, start in ((2.73, 2.35), (4.0, 3.57)):
        axes.annotate("", (end, y), (start, y), arrowprops=HEAD | SOLID)
    return [
        {"from": read, "to": f"start of epoch: {part}", "kind": "each epoch"}
        for read in trace.reads or ["no images"]
        for part in trace.updates
    ]


def _draw_batch(axes: Axes, trace: Trace) -> list[dict[str, Any]]:
    """Draw what happens with each batch; return the arrows, and whether a gradient flows back."""
    nodes = _nodes(trace, -0.75 - (EPOCH if trace.updates else 0.0))
    for key, node in nodes.items():
        _draw_box(axes, node, key, *COLUMNS[node.part])
    encoders = [node for node in nodes.values() if node.part == "encoder"]
    trained = [node for node in encoders if node.role == "trained"]
    for node in encoders:
        if node.role == "follows" and trained:
            near = min(trained, key=lambda other: abs(other.y - node.y))
            side = 0.13 if near.y > node.y else -0.13
            x, start, end = COLUMNS["encoder"][0] - 0.25, near.y - side, node.y + side
            axes.annotate("", (x, end), (x, start), arrowprops=HEAD | DOTTED, zorder=2)
            style: Style = {"fontsize": 6, "va": "center", "color": COLOURS[1]}
            axes.text(x + 0.06, (start + end) / 2, "follows", **style)
    rows = []
    for source, goal in trace.arrows:
        call = trace.calls.get(goal) or trace.calls.get(source)
        gradient = call is None or call.gradient
        _draw_arrow(axes, nodes[source], nodes[goal], gradient)
        ends = (nodes[key].text.replace("\n", " ") for key in (source, goal))
        row = dict(zip(("from", "to"), ends, strict=True))
        rows.append(row | {"kind": "each batch", "gradient": gradient})
    return rows


def _nodes(trace: Trace, top: float) -> dict[str, Node]:
    """Return all boxes by their key; encoder calls are in rows, the rest beside them."""
    encoders = trace.called("encoder")
    count = max(len(encoders), len(trace.terms))
    span = ROW * (count - 1)
    nodes: dict[str, Node] = {}

    def rows(n: int) -> list[float]:
        return [top - (span * (i + 0.5) / n if n < count else ROW * i) for i in range(n)]

    def beside(key: str, default: float) -> float:
        """Return the mean height of the boxes with an arrow from or to this one."""
        joined = [a if b == key else b for a, b in trace.arrows if key in (a, b)]
        return fmean([nodes[other].y for other in joined if other in nodes] or [default])

    places = dict(zip(encoders, rows(len(encoders)), strict=True))
    for key, call in trace.calls.items():
        y = places[key] if key in places else beside(key, top)
        nodes[key] = Node(call.name, call.part, y, trace.roles.get(call.name, "plain"))
    for key in dict.fromkeys(source for source, _ in trace.arrows if source.startswith("view ")):
        nodes[key] = Node(f"{key.removeprefix('view ')}\nview", "view", beside(key, top))
    ordered = sorted(trace.terms, key=lambda term: beside(f"term {term}", 0.0), reverse=True)
    for term, y in zip(ordered, rows(len(ordered)), strict=True):
        nodes[f"term {term}"] = Node(term, "term", y)
    if trace.terms != ["loss"]:
        nodes["loss"] = Node("loss", "loss", top - span / 2)
    return nodes


def _draw_box(axes: Axes, node: Node, key: str, x: float, half: float) -> None:
    tall = 0.13 + 0.06 * node.text.count("\n")
    fill, edge, line = BOXES[node.role]
    look: Style = {"facecolor": fill, "edgecolor": edge, "linestyle": line, "linewidth": 1.0}
    look |= {"boxstyle": "round,pad=0,rounding_size=0.05", "gid": key.replace(" ", "-")}
    corner = (x - half, node.y - tall)
    axes.add_patch(FancyBboxPatch(corner, 2 * half, 2 * tall, zorder=3, **look))
    style: Style = {"ha": "center", "va": "center", "fontsize": 7, "zorder": 4}
    axes.text(x, node.y, node.text, weight="bold" if node.part == "loss" else "normal", **style)


def _draw_arrow(axes: Axes, source: Node, goal: Node, gradient: bool) -> None:
    """Draw from the right edge of a box to the left edge of another, above a classifier between."""
    (x, half), (goal_x, goal_half) = COLUMNS[source.part], COLUMNS[goal.part]
    start, end = (x + half, source.y), (goal_x - goal_half, goal.y)
    style = SOLID if gradient else DASHED
    if source.part == "encoder" and goal.part == "term":
        x, half = COLUMNS["classifier"]
        left, right, above = x - half - 0.08, x + half + 0.12, source.y + ROW / 2 - 0.02
        path = [(start[0], source.y + 0.08), (left, above), (right, above)]
        axes.plot(*zip(*path, strict=True), **style, solid_joinstyle="round", zorder=2)
        start = path[-1]
    axes.annotate("", end, start, arrowprops=HEAD | style, zorder=2)
