"""The commands; heavy imports are inside them, so that ``lmd --help`` is fast."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmd import __version__
from lmd.base.errors import LmdError
from lmd.cli.benchmark import benchmark, table
from lmd.cli.calibrate import calibrate_command
from lmd.cli.choose import choose_command
from lmd.cli.data import data_app
from lmd.cli.describe import methods
from lmd.cli.explain import explain, index, show_size
from lmd.cli.figure import figure_app
from lmd.cli.options import (
    SOURCES,
    AllowOutside,
    Costs,
    Coverage,
    Device,
    GroupColumn,
    ImageColumn,
    KeepFeatures,
    LabelColumn,
    Overwrite,
    Prevalence,
    Quiet,
    ReferAbove,
    Root,
    SkipBad,
    SplitColumn,
    given_columns,
)
from lmd.cli.predict import predict
from lmd.cli.serve import serve
from lmd.cli.show import report, runs, show

if TYPE_CHECKING:
    from lmd.runfolder.record import Record

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train, compare and ship classifiers for long-tailed medical images.",
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the protocol or of the method, such as epochs=20 or lambda_1=1; can be "
        "repeated.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmd {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None: ...


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for both runs; a number is added if it exists.")
    ] = Path("runs/demo"),
    device: Device = "auto",
) -> None:
    """Train CE and LMD on synthetic images and write a report that compares them."""
    from lmd.runs.demo import run_demo

    report = run_demo(out, device=device, say=typer.echo)
    typer.secho(f"\nThe report: {report}", bold=True)


@app.command()
def train(
    context: typer.Context,
    data: Annotated[str | None, typer.Argument(help=SOURCES)] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A method; `lmd methods` lists them.", show_default="lmd"),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="A TOML file, or the name of a protocol of lmd, such as small.",
            show_default="the paper's values",
        ),
    ] = None,
    settings: Set = None,
    profile: Annotated[
        str, typer.Option(help="A profile of the method; `lmd methods NAME` lists them.")
    ] = "default",
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the backbone: a file, 'imagenet' or 'none'.",
            show_default="the protocol's",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder.", show_default="runs/DATA-METHOD-seedN"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the interrupted run in --out.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --out.")
    ] = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    keep_features: KeepFeatures = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a method and write a run folder with model, predictions, record and report."""
    from lmd.methods import DEFAULT
    from lmd.runs.train import train as run_training

    given = parse_settings(settings or [])
    if weights is not None:
        given["weights"] = weights
    run = run_training(
        data,
        method=method or DEFAULT,
        protocol=protocol,
        settings=given,
        profile=profile,
        out=out,
        resume=resume,
        overwrite=overwrite,
        skip_bad=skip_bad,
        keep_features=keep_features,
        columns=given_columns(context),
        device=device,
        quiet=quiet,
    )
    _print_scores(run.read_record())
    if keep_features:
        show_size(run.path / "neighbours.npz")
    typer.secho(f"\nThe report: {run.path / 'report.html'}", bold=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    against: Annotated[
        Path | None,
        typer.Option(help="The folder of another run on the same test images, to compare with."),
    ] = None,
    prevalence: Prevalence = None,
    costs: Costs = None,
    coverage: Coverage = None,
    refer_above: ReferAbove = None,
    resamples: Annotated[int, typer.Option(min=1, help="Number of bootstrap resamples.")] = 1000,
) -> None:
    """Compute all numbers and the report of a run again from its predictions."""
    from lmd.runs.rescore import check_comparable, compare_runs, rescore
    from lmd.scoring.definitions import format_decisions
    from lmd.scoring.rules import Wanted

    wanted = Wanted(prevalence, costs, coverage, refer_above)
    if against is not None:
        check_comparable(run, against)
    record = rescore(run, resamples=resamples, wanted=wanted)
    _print_scores(record)
    if wanted != Wanted() and record.decisions is not None:
        typer.echo(f"\n{format_decisions(record.decisions, record.sets)}")
    if against is not None:
        typer.echo("")
        typer.echo(compare_runs(run, against, resamples=resamples))
    typer.secho(f"\nThe report: {run / 'report.html'}", bold=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder or its model.json.")],
    onnx: Annotated[Path, typer.Option("--onnx", help="The ONNX file to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Export a trained model as one ONNX file: uint8 RGB pixels in, probabilities out."""
    from lmd.deploy.engines import OnnxEngine
    from lmd.deploy.export import export_onnx

    written = export_onnx(run, onnx, overwrite=overwrite)
    engine = OnnxEngine(written)
    side, classes = engine.image_size, len(engine.classes)
    typer.echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, {classes} classes")
    size = "(B, H, W, 3), RGB, any size"
    if engine.rule == "v1":
        size = f"(B, {side}, {side}, 3), RGB, already resized"
    typer.echo(f"in   images         uint8 {size}")
    typer.echo(f"out  probabilities  float32 (B, {classes})")
    typer.echo(f"Try it: lmd predict {written} IMAGES --out predictions.csv")


app.command()(predict)
app.command()(serve)
app.command()(methods)
app.command()(explain)
app.command()(index)
app.command()(show)
app.command()(runs)
app.command()(report)
app.command("choose")(choose_command)
app.command("calibrate")(calibrate_command)
app.command()(benchmark)
app.command()(table)
app.add_typer(figure_app, name="figure")
app.add_typer(data_app, name="data")


def parse_settings(words: list[str]) -> dict[str, Any]:
    """``key=value`` words; a value is read as TOML or ``null``, and otherwise as text.

    >>> parse_settings(["epochs=3", "backbone=resnet8", "split=[0.6, 0.2, 0.2]", "imbalance=null"])
    {'epochs': 3, 'backbone': 'resnet8', 'split': [0.6, 0.2, 0.2], 'imbalance': None}
    """
    found: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key:
            raise LmdError(f"--set takes KEY=VALUE, not {word!r}")
        try:
            found[key.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = None if value == "null" else value
    return found


def _print_scores(record: "Record") -> None:
    from lmd.scoring.definitions import format_scores
    from lmd.scoring.estimates import PartScores

    typer.echo(f"\n{record.method.title} on {record.data.source}, test part")
    scores = PartScores(
        metrics=record.metrics["test"],
        per_class=record.per_class["test"],
        confusion=record.confusion["test"],
        notes=record.notes,
    )
    typer.echo(format_scores(scores, record.definitions))
