"""Draw the diagram of a method: one panel for each stage, from a trace of its code."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.benchmark.figures.style import COLOURS, GREY, Drawn, new_figure
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Task, prepare
from lmd.model import Model, build_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTS = (12, 8, 5, 3)
IMAGES, SIZE = 8, 16


@dataclass(frozen=True)
class Call:
    """One call of the encoder or classifier of a network of the stage."""

    network: str
    part: Literal["encoder", "classifier"]
    gradient: bool

    @property
    def name(self) -> str:
        """Both words, as a diagram shows them."""
        return f"{self.network} {self.part}".strip()


@dataclass
class Trace:
    """A stage: its calls by index, and the edges among views, calls and loss terms."""

    title: str
    says: str
    views: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)
    inputs: list[tuple[str, int]] = field(default_factory=list)  # view, encoder call
    passes: list[tuple[int, int]] = field(default_factory=list)  # encoder call, classifier call
    reaches: list[tuple[int, str]] = field(default_factory=list)  # call, term
    roles: dict[str, str] = field(default_factory=dict)  # of "NETWORK PART"
    reads: list[str] = field(default_factory=list)  # features that an epoch starts with
    updates: list[str] = field(default_factory=list)  # what the start of an epoch changes
    numbers: list[str] = field(default_factory=list)  # what it writes into the history


class _Run:
    """What the loop lends a stage, in the middle of training, with features of noise."""

    index, total, steps = 1, 3, 1
    val_recall: Tensor | None = None

    def __init__(self, width: Callable[[], int]) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.width = width
        self.asked: list[str] = []

    def features(
        self, drawn: str = "natural", part: str = "train", view: str = "eval"
    ) -> tuple[Tensor, Tensor]:
        self.asked.append(f"{part} images, {view} view, {drawn}")
        labels = torch.arange(len(COUNTS)).repeat_interleave(6)
        noise = torch.randn(len(labels), self.width(), generator=self.generator)
        return noise + labels[:, None], labels


class _Probe:
    """Records the calls of all networks of a stage, and changes or replaces their outputs."""

    def __init__(self, stage: Stage) -> None:
        named = stage.named_modules(remove_duplicate=False)
        unique = {id(m): (n, m) for n, m in named if isinstance(m, Model) and n != "part"}
        self.networks = dict(unique.values())
        self.calls: list[Call] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.change: int | None = None
        self.replay: dict[int, Tensor] = {}
        for name, model in self.networks.items():
            for part in ("encoder", "classifier"):
                getattr(model, part).register_forward_hook(self._hook(name, part))

    def _hook(self, name: str, part: Any) -> Callable[..., Tensor]:
        def hook(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            index = len(self.calls)
            self.calls.append(Call(self.named(name), part, torch.is_grad_enabled()))
            self.inputs.append(given[0].detach().clone())
            if index in self.replay:
                output = self.replay[index]
            elif index == self.change:
                noise = torch.Generator().manual_seed(7)
                output = output + 0.1 * torch.randn(output.shape, generator=noise)
            self.outputs.append(output.detach().clone())
            return output

        return hook

    def named(self, name: str) -> str:
        """The trained network beside a teacher is the student; one alone has no name."""
        if "teacher" in self.networks:
            return "student" if name == "model" else name
        return "" if len(self.networks) == 1 else name.removesuffix(".model")


def trace_stages(method: Method, settings: Mapping[str, Any]) -> list[Trace]:
    """A trace of every stage; nothing is trained between them but one step of each."""
    model, _ = build_model("resnet8", "none", len(COUNTS), head=method.head, image_size=SIZE)
    task = Task(torch.tensor(COUNTS), model.classifier.in_features)
    found: list[Trace] = []
    with torch.random.fork_rng(devices=[]):
        try:
            for stage, title in zip(
                method.stages_for(model, task, settings), method.stages, strict=False
            ):
                found.append(_trace(stage, _title(stage, title), model))
        except (NotImplementedError, RuntimeError) as error:
            raise LmdError(
                f"method {method.key!r}: stage {len(found) + 1} cannot be drawn, because it does "
                f"not compute its loss from one batch in `loss` ({error or 'it has no loss'})"
            ) from error
    return found


def _title(stage: Stage, title: str) -> str:
    """Of a title such as "label loss or RRL", what the stage is, or the first of them."""
    kinds = title.split(" or ")
    return next((kind for kind in kinds if kind.lower() == stage.name.lower()), kinds[0])


def _trace(stage: Stage, title: str, model: Model) -> Trace:
    about = (type(stage).__doc__ or "").strip().split("\n\n")[0]
    trace = Trace(title, " ".join(about.replace("``", "").split()))
    groups = prepare(stage)
    optimizer = torch.optim.SGD(groups, lr=0.1) if groups else None
    run = _Run(lambda: model.classifier.in_features)
    before = _state(stage)
    numbers = stage.start_epoch(run, optimizer)
    trace.reads = list(dict.fromkeys(run.asked))
    trace.numbers = list(numbers or ())
    moved = [name for name in _changed(before, _state(stage)) if "." in name]
    trace.updates = list(dict.fromkeys(_owner(name) for name in moved))
    streams = len(stage.class_weights(run))
    names = stage.view_names()
    if not streams or not names or optimizer is None:
        return trace
    probe = _Probe(stage)
    views = {n: torch.rand(IMAGES, 3, SIZE, SIZE) for n in names}
    labels = torch.arange(len(COUNTS)).repeat(IMAGES // len(COUNTS))

    def terms(changed: str | None = None) -> dict[str, Tensor]:
        """One evaluation of the loss from the same state, perhaps with one view changed."""
        probe.calls, probe.inputs, probe.outputs = [], [], []
        kept, drawn = _state(stage), run.generator.get_state()
        seen = {n: v + 0.1 * (n == changed) for n, v in views.items()}
        torch.manual_seed(0)
        result = stage.loss(*[Batch(seen, labels)] * streams)
        stage.load_state_dict(kept, strict=False)
        run.generator.set_state(drawn)
        return {key: value.detach().clone() for key, value in result.items()}

    _edges(trace, probe, terms, list(names))
    weights = {n: m.state_dict() for n, m in _parts(probe).items()}
    weights = {n: {k: v.clone() for k, v in of.items()} for n, of in weights.items()}
    stage.step(optimizer, *[Batch(views, labels)] * streams)
    for name, part in _parts(probe).items():
        trained = any(p.requires_grad for p in part.parameters())
        moved = _changed(weights[name], part.state_dict())
        learned = {n for n, _ in part.named_parameters()}
        trace.roles[name] = "trained" if trained else "follows" if learned & set(moved) else "fixed"
    return trace


def _edges(
    trace: Trace, probe: _Probe, terms: Callable[..., dict[str, Tensor]], names: Sequence[str]
) -> None:
    base = terms()
    trace.calls, trace.views = list(probe.calls), []
    inputs, outputs = probe.inputs, probe.outputs
    trace.terms = [key for key in base if key != "loss"] or ["loss"]
    encoders = [i for i, call in enumerate(trace.calls) if call.part == "encoder"]
    classifiers = [i for i, call in enumerate(trace.calls) if call.part == "classifier"]
    for view in names:
        terms(view)
        fed = [i for i in encoders if not torch.equal(inputs[i], probe.inputs[i])]
        trace.inputs += [(view, i) for i in fed]
        trace.views += [view] if fed else []
    for i in range(len(trace.calls)):
        probe.change = i
        found = terms()
        if i in encoders:
            after = probe.outputs
            trace.passes += [(i, c) for c in classifiers if not torch.equal(outputs[c], after[c])]
            # What still changes with the classifiers' outputs held depends on features directly.
            probe.replay = {c: outputs[c] for c in classifiers}
            found = terms()
            probe.replay = {}
        probe.change = None
        trace.reaches += [(i, t) for t in trace.terms if not torch.equal(base[t], found[t])]


def _parts(probe: _Probe) -> dict[str, nn.Module]:
    return {
        f"{probe.named(name)} {part}".strip(): getattr(model, part)
        for name, model in probe.networks.items()
        for part in ("encoder", "classifier")
    }


def _state(stage: Stage) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in stage.state_dict().items()}


def _changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    return [n for n, v in after.items() if n not in before or not torch.equal(before[n], v)]


def _owner(name: str) -> str:
    """The part of a stage that a parameter belongs to.

    >>> _owner("model.classifier.weight"), _owner("gaussians.mean")
    ('classifier', 'gaussians')
    """
    words = name.split(".")[:-1]
    return words[1] if words[0] == "model" and len(words) > 1 else words[0]


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
