"""The commands; heavy imports are inside them, so that ``lmd --help`` is fast."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lmd import __version__
from lmd.base.command import parse_settings
from lmd.base.errors import LmdError, leave_terminal, use_terminal
from lmd.base.options import (
    SOURCES,
    AllowOutside,
    Device,
    Epochs,
    Final,
    Folds,
    GroupColumn,
    ImageColumn,
    ImageSize,
    KeepFeatures,
    LabelColumn,
    Log,
    NoImages,
    Quiet,
    Root,
    Seed,
    SkipBad,
    SplitColumn,
    Workers,
    given_columns,
)
from lmd.benchmark.choose_command import choose_command
from lmd.benchmark.command import benchmark, table
from lmd.benchmark.figures.command import figure_app
from lmd.cli.data import data_app
from lmd.cli.describe import methods, protocols
from lmd.crossval.command import is_cross_validation, train_folds
from lmd.evaluation.command import evaluate, print_scores
from lmd.explain.command import explain, index, show_size
from lmd.export.command import export
from lmd.frozen.command import calibrate_command
from lmd.predict.command import predict
from lmd.report.command import report, runs, show
from lmd.serve.command import serve

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
        help="A setting of the protocol or of the method, such as epochs=20 or levels=0; can be "
        "repeated.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmd {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    use_terminal()
    context.call_on_close(leave_terminal)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for both runs; a number is added if it exists.")
    ] = Path("runs/demo"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest demo in --out.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Train CE and LMD on synthetic images and write a report that compares them."""
    from lmd.cli.demo import run_demo

    report = run_demo(out, resume=resume, device=device, say=typer.echo)
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
            help="A TOML file or the name of a protocol; `lmd protocols` lists them.",
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
    seed: Seed = None,
    epochs: Epochs = None,
    image_size: ImageSize = None,
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
    no_images: NoImages = False,
    folds: Folds = None,
    final: Final = None,
    workers: Workers = None,
    log: Log = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a method and write a run folder with model, predictions, record and report."""
    from lmd.fit.train import train as run_training
    from lmd.methods import DEFAULT

    given = parse_settings(settings or [])
    own = {"weights": weights, "seed": seed, "epochs": epochs, "image_size": image_size}
    for key, value in own.items():
        if value is not None and given.setdefault(key, value) != value:
            option = f"--{key.replace('_', '-')}"
            raise LmdError(f"{option} {value} and --set {key}={given[key]} differ: give one")
    asked: dict[str, Any] = {
        "method": method or DEFAULT,
        "protocol": protocol,
        "settings": given,
        "profile": profile,
        "out": out,
        "resume": resume,
        "overwrite": overwrite,
        "skip_bad": skip_bad,
        "images": not no_images,
        "columns": given_columns(context),
        "device": device,
        "quiet": quiet,
        "log": log,
    }
    if is_cross_validation(folds, out, resume, final=final, workers=workers):
        run = train_folds(data, folds, final, workers, keep_features, asked)
    else:
        run = run_training(data, keep_features=keep_features, **asked)
    print_scores(run.record)
    if keep_features:
        show_size(run.path / "neighbours.npz")
    typer.secho(f"\nThe report: {run.path / 'report.html'}", bold=True)


app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(serve)
app.command()(methods)
app.command()(protocols)
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
