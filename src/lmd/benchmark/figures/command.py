"""`lmd figure`: figures for papers, each with its data as CSV."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lmd.benchmark.figures.series import Request
    from lmd.benchmark.figures.style import Drawn

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


WIDE = Paper(width="7in")


def recall(sources: Sources, *, rows: Rows = Rows(), paper: Paper = Paper()) -> None:
    """Recall of each class against its number of training images."""
    from lmd.benchmark.figures.sweep import recall_figure

    _compare("recall", recall_figure, sources, rows, paper)


def ablation(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metrics: Metrics = None,
    reference: Reference = None,
    paper: Paper = Paper(),
) -> None:
    """Bars of a method and its ablations, overall and for head, medium and tail."""
    from lmd.benchmark.figures.comparison import ablation_figure

    options = {"metrics": _names(metrics), "reference": reference}
    _compare("ablation", ablation_figure, sources, rows, paper, **options)


def difference(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metric: Metric = "balanced_accuracy",
    reference: Reference = None,
    paper: Paper = Paper(),
) -> None:
    """Each row minus the reference on the same test images, with paired intervals."""
    from lmd.benchmark.figures.comparison import difference_figure

    options = {"metric": metric, "reference": reference}
    _compare("difference", difference_figure, sources, rows, paper, **options)


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
    from lmd.benchmark.figures.critical import critical_figure

    figure = partial(critical_figure, test=test, blocks=blocks, ablations=ablations)
    _compare("cd", figure, sources, rows, paper, metric=metric)


def cost(
    sources: Sources,
    *,
    rows: Rows = Rows(),
    metric: Metric = "balanced_accuracy",
    paper: Paper = Paper(),
) -> None:
    """Balanced accuracy, or another metric, against minutes of computing."""
    from lmd.benchmark.figures.comparison import cost_figure

    _compare("cost", cost_figure, sources, rows, paper, metric=metric)


def sweep(
    sources: Sources, *, rows: Rows = Rows(), metrics: Metrics = None, paper: Paper = Paper()
) -> None:
    """Metrics and computing time against a swept setting."""
    from lmd.benchmark.figures.sweep import sweep_figure

    _compare("sweep", sweep_figure, sources, rows, paper, metrics=_names(metrics))


def classes(sources: Sources, *, rows: Rows = Rows(), paper: Paper = WIDE) -> None:
    """Recall of each class against a swept setting, for head, medium and tail."""
    from lmd.benchmark.figures.sweep import class_sweep_figure

    _compare("classes", class_sweep_figure, sources, rows, paper)


def tsne(
    runs: Annotated[Sequence[Path], typer.Argument(metavar="RUN...")],
    *,
    data: str | None = None,
    per_class: Annotated[int, typer.Option(min=2)] = 200,
    perplexity: Annotated[float, typer.Option(min=2)] = 30,
    seed: int = 0,
    device: str = "auto",
    paper: Paper = WIDE,
) -> None:
    """Test features by t-SNE: head, medium and tail classes, and tail classes only.

    Args:
        runs: One to three run folders.
        data: Where the data is now; by default as in the record.
        per_class: Most images of a class.
        perplexity: Perplexity of t-SNE.
        seed: Seed of the choice of images and of t-SNE.
    """
    from lmd.benchmark.figures.embedding import Options, tsne_figure

    options = Options(data, per_class, perplexity, seed, device)
    _draw("tsne", paper, partial(tsne_figure, runs, options), "openTSNE")


def method(
    name: str | None = None,
    *,
    stage: Annotated[int | None, typer.Option(min=1)] = None,
    profile: str = "default",
    paper: Paper = WIDE,
) -> None:
    """Diagram of each stage of a method, traced from its code.

    Args:
        name: A method; by default that of `lmd train`.
        stage: Draw only this stage; by default all.
        profile: A profile of the method.
    """
    from lmd.benchmark.figures.diagram import diagram_figure

    _draw("method", paper, partial(diagram_figure, name, stage=stage, profile=profile))


def _compare(
    name: str,
    figure: "Callable[[Request], Drawn]",
    sources: Sequence[str],
    rows: Rows,
    paper: Paper,
    **options: Any,
) -> None:
    """Draw a figure of the runs of a study."""
    from lmd.benchmark.figures.series import Request, read_study

    def draw(**size: Any) -> "Drawn":
        study, methods = read_study(sources, rows.runs), _names(rows.methods)
        return figure(Request(study, methods, **options, **size))

    _draw(name, paper, draw)


def _draw(name: str, paper: Paper, figure: "Callable[..., Drawn]", *packages: str) -> None:
    """Check the options, draw, write the figure and its data, and say what a caption needs."""
    from lmd.benchmark.figures.style import check_out, drawing, inches, need, save, with_fonts

    out = paper.out or Path(f"{name}.svg")
    check_out(out)
    width = inches("--width", paper.width)
    height = None if paper.height is None else inches("--height", paper.height)
    for package in ("matplotlib", "scipy", *packages):
        need(package)
    with drawing():
        drawn = with_fonts(figure(width=width, height=height))
        data = save(drawn, out)
    for note in drawn.notes:
        typer.echo(note)
    typer.secho(f"The figure: {out}; its data: {data}", bold=True)


def _names(text: str | None) -> list[str] | None:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else None
