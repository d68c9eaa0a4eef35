"""`lmd figure`: figures for papers, each with its data as CSV."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.options import Device

if TYPE_CHECKING:
    from lmd.benchmark.figures.style import Drawn

figure_app = typer.Typer(
    no_args_is_help=True,
    help="Draw figures for a paper: SVG, PDF or PNG, each with its data as CSV beside it.",
)

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Run folders, record files (.json), folders of a benchmark or of its records, or the "
        "grid of a benchmark.",
    ),
]
Reference = Annotated[
    str | None, typer.Option(help="The row to compare with.", show_default="the benchmark's")
]
Runs = Annotated[Path | None, typer.Option(help="Folder of the grid's runs; default runs/NAME.")]
Methods = Annotated[
    str | None, typer.Option(help="Rows to show, separated by commas.", show_default="all")
]
Metrics = Annotated[str | None, typer.Option(help="Metrics, separated by commas.")]
Metric = Annotated[str, typer.Option(help="The metric.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The file to write, .svg, .pdf or .png; an existing one is replaced.",
        show_default="NAME.svg",
    ),
]
Width = Annotated[str, typer.Option(help="Width with its unit: in, cm, mm or pt (of TeX).")]
Height = Annotated[
    str | None, typer.Option(help="Height with its unit.", show_default="by the content")
]


@figure_app.command()
def recall(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Recall of each class against its number of training images."""
    from lmd.benchmark.figures.recall import recall_figure
    from lmd.benchmark.figures.sources import read_study

    def draw(wide: float, high: float | None) -> "Drawn":
        study = read_study(sources, runs)
        return recall_figure(study, methods=_listed(methods), width=wide, height=high)

    _make("recall", out, width, height, draw)


@figure_app.command()
def ablation(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    metrics: Metrics = None,
    reference: Reference = None,
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Bars of a method and its ablations, overall and for head, medium and tail."""
    from lmd.benchmark.figures.ablation import ablation_figure
    from lmd.benchmark.figures.sources import read_study

    def draw(wide: float, high: float | None) -> "Drawn":
        return ablation_figure(
            read_study(sources, runs),
            metrics=_listed(metrics),
            reference=reference,
            methods=_listed(methods),
            width=wide,
            height=high,
        )

    _make("ablation", out, width, height, draw)


@figure_app.command()
def difference(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    metric: Metric = "balanced_accuracy",
    reference: Reference = None,
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Each row minus the reference on the same test images, with paired intervals."""
    from lmd.benchmark.figures.difference import difference_figure
    from lmd.benchmark.figures.sources import read_study

    def draw(wide: float, high: float | None) -> "Drawn":
        return difference_figure(
            read_study(sources, runs),
            methods=_listed(methods),
            reference=reference,
            metric=metric,
            width=wide,
            height=high,
        )

    _make("difference", out, width, height, draw)


@figure_app.command()
def cd(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    metric: Metric = "balanced_accuracy",
    test: Annotated[str, typer.Option(help="nemenyi (Friedman), or wilcoxon (Holm).")] = "nemenyi",
    blocks: Annotated[
        str, typer.Option(help="seeds: each of every data set; data: their means.")
    ] = "seeds",
    ablations: Annotated[bool, typer.Option(help="Rank ablations of the reference too.")] = True,
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Critical-difference diagram of the methods over seeds and data sets (Demsar 2006)."""
    from lmd.benchmark.figures.critical import critical_figure
    from lmd.benchmark.figures.sources import read_study

    def draw(wide: float, high: float | None) -> "Drawn":
        return critical_figure(
            read_study(sources, runs),
            methods=_listed(methods),
            metric=metric,
            test=test,
            blocks=blocks,
            width=wide,
            height=high,
            ablations=ablations,
        )

    _make("cd", out, width, height, draw, ("scipy",))


@figure_app.command()
def cost(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    metric: Metric = "balanced_accuracy",
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Balanced accuracy, or another metric, against minutes of computing."""
    from lmd.benchmark.figures.cost import cost_figure
    from lmd.benchmark.figures.sources import read_study

    def draw(wide: float, high: float | None) -> "Drawn":
        study = read_study(sources, runs)
        named = _listed(methods)
        return cost_figure(study, methods=named, metric=metric, width=wide, height=high)

    _make("cost", out, width, height, draw)


@figure_app.command()
def sweep(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    metrics: Metrics = None,
    out: Out = None,
    width: Width = "3.5in",
    height: Height = None,
) -> None:
    """Metrics and computing time against a swept setting."""
    from lmd.benchmark.figures.sources import read_study
    from lmd.benchmark.figures.sweep import sweep_figure

    def draw(wide: float, high: float | None) -> "Drawn":
        study = read_study(sources, runs)
        named, keys = _listed(methods), _listed(metrics)
        return sweep_figure(study, methods=named, metrics=keys, width=wide, height=high)

    _make("sweep", out, width, height, draw)


@figure_app.command()
def classes(
    sources: Sources,
    runs: Runs = None,
    methods: Methods = None,
    out: Out = None,
    width: Width = "7in",
    height: Height = None,
) -> None:
    """Recall of each class against a swept setting, for head, medium and tail."""
    from lmd.benchmark.figures.sources import read_study
    from lmd.benchmark.figures.sweep import class_sweep_figure

    def draw(wide: float, high: float | None) -> "Drawn":
        study = read_study(sources, runs)
        return class_sweep_figure(study, methods=_listed(methods), width=wide, height=high)

    _make("classes", out, width, height, draw)


@figure_app.command()
def tsne(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One to three run folders.")],
    data: Annotated[
        str | None, typer.Option(help="Where the data is now.", show_default="as in the record")
    ] = None,
    per_class: Annotated[int, typer.Option(min=2, help="Most images of a class.")] = 200,
    perplexity: Annotated[float, typer.Option(min=2, help="Perplexity of t-SNE.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the choice of images and of t-SNE.")] = 0,
    device: Device = "auto",
    out: Out = None,
    width: Width = "7in",
    height: Height = None,
) -> None:
    """Test features by t-SNE: head, medium and tail classes, and tail classes only."""
    from lmd.benchmark.figures.embedding import Asked, tsne_figure

    asked = Asked(data, per_class, perplexity, seed, device)

    def draw(wide: float, high: float | None) -> "Drawn":
        return tsne_figure(runs, asked, width=wide, height=high)

    _make("tsne", out, width, height, draw, ("openTSNE",))


@figure_app.command()
def method(
    name: Annotated[
        str | None, typer.Argument(help="A method.", show_default="the default of `lmd train`")
    ] = None,
    stage: Annotated[
        int | None, typer.Option(min=1, help="Draw only this stage.", show_default="all")
    ] = None,
    profile: Annotated[str, typer.Option(help="A profile of the method.")] = "default",
    out: Out = None,
    width: Width = "7in",
    height: Height = None,
) -> None:
    """Diagram of each stage of a method, traced from its code."""
    from lmd.benchmark.figures.diagram import diagram_figure

    def draw(wide: float, high: float | None) -> "Drawn":
        return diagram_figure(name, stage=stage, profile=profile, width=wide, height=high)

    _make("method", out, width, height, draw)


def _make(
    name: str,
    out: Path | None,
    width: str,
    height: str | None,
    draw: "Callable[[float, float | None], Drawn]",
    needs: tuple[str, ...] = (),
) -> None:
    """Check the options, draw, write the figure and its data, and say what a caption needs."""
    from lmd.benchmark.figures.style import check_out, drawing, inches, need, save, with_fonts

    out = out or Path(f"{name}.svg")
    check_out(out)
    wide = inches("--width", width)
    high = None if height is None else inches("--height", height)
    for package in ("matplotlib", *needs):
        need(package)
    with drawing():
        drawn = with_fonts(draw(wide, high))
        data = save(drawn, out)
    for note in drawn.notes:
        typer.echo(note)
    typer.secho(f"The figure: {out}; its data: {data}", bold=True)


def _listed(words: str | None) -> list[str] | None:
    """Words between commas."""
    return [word.strip() for word in words.split(",") if word.strip()] if words else None
