"""`lmd figure`: figures for papers, each with its data as CSV."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmd.base.files import check_output

if TYPE_CHECKING:
    from lmd.benchmark.figures.style import Drawn

# The module and function of each kind of figure, and packages that only it needs.
KINDS = {
    "recall": ("sweep", "recall_figure"),
    "ablation": ("comparison", "ablation_figure"),
    "difference": ("comparison", "difference_figure"),
    "cd": ("critical", "critical_figure"),
    "cost": ("comparison", "cost_figure"),
    "sweep": ("sweep", "sweep_figure"),
    "classes": ("sweep", "class_sweep_figure"),
    "tsne": ("embedding", "tsne_figure", "openTSNE"),
    "method": ("diagram", "diagram_figure"),
}
Sources = Annotated[
    Sequence[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Run folders, record files (.json), folders of a benchmark or of its records, its "
        "archive (.tar.xz), or the grid of a benchmark.",
    ),
]
Metrics = Annotated[str | None, typer.Option(help="Metrics, separated by commas.")]
Metric = Annotated[str, typer.Option(help="The metric.")]
Reference = Annotated[
    str | None, typer.Option(help="The row to compare with; by default the benchmark's.")
]


@dataclass(frozen=True)
class Rows:
    """The rows of a figure.

    Attributes:
        runs: Folder or archive of the grid's runs; default runs/NAME.
        methods: Rows to show, separated by commas; by default all.
    """

    runs: Path | None = None
    methods: str | None = None


@dataclass(frozen=True)
class Paper:
    """The file of a figure and its size.

    Attributes:
        out: The file to write, .svg, .pdf or .png; an existing one is replaced. By default
            NAME.svg.
        width: Width with its unit: in, cm, mm or pt (of TeX).
        height: Height with its unit; by default by the content.
    """

    out: Path | None = None
    width: str = "3.5in"
    height: str | None = None


@dataclass(frozen=True)
class Tsne:
    """What t-SNE shows.

    Attributes:
        data: Where the data is now; by default as in the record.
        per_class: Most images of a class.
        perplexity: Perplexity of t-SNE.
        seed: Seed of the choice of images and of t-SNE.
        device: auto, cpu, cuda or cuda:N.
    """

    data: str | None = None
    per_class: Annotated[int, typer.Option(min=2)] = 200
    perplexity: Annotated[float, typer.Option(min=2)] = 30
    seed: int = 0
    device: str = "auto"


WIDE = Paper(width="7in")


def recall(sources: Sources, *, rows: Rows = Rows(), paper: Paper = Paper()) -> None:
    """Recall of each class against its number of training images."""
    _compare("recall", sources, rows, paper)


def ablation(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metrics: Metrics = None,
    reference: Reference = None,
    paper: Paper = Paper(),
) -> None:
    """Bars of a method and its ablations, overall and for head, medium and tail."""
    _compare("ablation", sources, rows, paper, {"metrics": _names(metrics), "reference": reference})


def difference(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metric: Metric = "balanced_accuracy",
    reference: Reference = None,
    paper: Paper = Paper(),
) -> None:
    """Each row minus the reference on the same test images, with paired intervals."""
    _compare("difference", sources, rows, paper, {"metric": metric, "reference": reference})


def cd(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metric: Metric = "balanced_accuracy",
    test: str = "nemenyi",
    blocks: str = "seeds",
    ablations: Annotated[bool, typer.Option("--ablations/--no-ablations")] = True,
    paper: Paper = Paper(),
) -> None:
    """Critical-difference diagram of the methods over seeds and data sets (Demsar 2006).

    Args:
        test: nemenyi (Friedman), or wilcoxon (Holm).
        blocks: seeds: each of every data set; data: their means.
        ablations: Rank ablations of the reference too.
    """
    options = {"test": test, "blocks": blocks, "ablations": ablations}
    _compare("cd", sources, rows, paper, {"metric": metric}, **options)


def cost(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metric: Metric = "balanced_accuracy",
    paper: Paper = Paper(),
) -> None:
    """Balanced accuracy, or another metric, against minutes of computing."""
    _compare("cost", sources, rows, paper, {"metric": metric})


def sweep(
    sources: Sources, *, rows: Rows = Rows(), metrics: Metrics = None, paper: Paper = Paper()
) -> None:
    """Metrics and computing time against a swept setting."""
    _compare("sweep", sources, rows, paper, {"metrics": _names(metrics)})


def classes(sources: Sources, *, rows: Rows = Rows(), paper: Paper = WIDE) -> None:
    """Recall of each class against a swept setting, for head, medium and tail."""
    _compare("classes", sources, rows, paper)


def tsne(
    runs: Annotated[Sequence[Path], typer.Argument(metavar="RUN...")],
    *,
    options: Tsne = Tsne(),
    paper: Paper = WIDE,
) -> None:
    """Test features by t-SNE: head, medium and tail classes, and tail classes only.

    Args:
        runs: One to three run folders.
    """
    _draw("tsne", paper, lambda figure, **size: figure(runs, options, **size))


def method(
    name: str | None = None,
    *,
    stage: Annotated[int | None, typer.Option(min=1)] = None,
    profile: str = "default",
    paper: Paper = WIDE,
) -> None:
    """Diagram of each stage of a method, traced from its code.

    Args:
        name: A method; by default the one of `lmd train`.
        stage: Draw only this stage; by default all.
        profile: A profile of the method.
    """
    _draw("method", paper, lambda figure, **size: figure(name, stage, profile, **size))


def _compare(
    kind: str,
    sources: Sequence[str],
    rows: Rows,
    paper: Paper,
    shown: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Draw a figure of the runs of a study; ``shown`` are further fields of the request."""
    from lmd.benchmark.figures.series import Request, read_study

    def draw(figure: "Callable[..., Drawn]", **size: Any) -> "Drawn":
        study = read_study(sources, rows.runs)
        return figure(Request(study, _names(rows.methods), **(shown or {}), **size), **options)

    _draw(kind, paper, draw)


def _draw(kind: str, paper: Paper, draw: "Callable[..., Drawn]") -> None:
    """Check the options, draw, write the figure and its data, and print what a caption needs."""
    from lmd.benchmark.figures import style

    module, function, *packages = KINDS[kind]
    out = paper.out or Path(f"{kind}.svg")
    check_output(out, "--out", *style.SUFFIXES)
    width = style.inches("--width", paper.width)
    height = None if paper.height is None else style.inches("--height", paper.height)
    for package in ("matplotlib", "scipy", *packages):
        style.need(package)
    with style.drawing():
        figure = getattr(import_module(f"lmd.benchmark.figures.{module}"), function)
        drawn = style.with_fonts(draw(figure, width=width, height=height))
        data = style.save(drawn, out)
    for note in drawn.notes:
        typer.echo(note)
    typer.secho(f"The figure: {out}; its data: {data}", bold=True)


def _names(text: str | None) -> list[str] | None:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else None
