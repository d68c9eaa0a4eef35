"""The commands; heavy imports are inside them, so that ``lmd --help`` answers at once."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from lmd import __version__
from lmd.base.errors import LmdError
from lmd.cli.benchmark import benchmark, table
from lmd.cli.data import data_app
from lmd.cli.describe import describe
from lmd.cli.export import export_command
from lmd.cli.options import (
    SOURCES,
    AllowOutside,
    Device,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Quiet,
    Root,
    SkipBad,
    SplitColumn,
)

if TYPE_CHECKING:
    from lmd.runfolder.record import Record

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Long-tailed medical image diagnosis: classifiers that work on rare diseases too.",
)
app.add_typer(data_app, name="data")
app.command()(benchmark)
app.command()(table)
app.command("export")(export_command)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the protocol or of the method, e.g. --set epochs=20 --set lambda_1=1.",
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmd {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None: ...


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the two runs and the report go.")] = Path(
        "runs/demo"
    ),
    device: Device = "auto",
) -> None:
    """Train CE and LMD on the embedded synthetic images and write a report that compares them."""
    from lmd.runs.demo import run_demo

    report = run_demo(out, device=device, say=typer.echo)
    typer.secho(f"\nThe report: {report}", bold=True)


@app.command()
def train(
    data: Annotated[
        str | None,
        typer.Argument(help=SOURCES),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `lmd methods`.", show_default="LMD")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A TOML file, or the name of a protocol that ships.")
    ] = None,
    settings: Set = None,
    profile: Annotated[
        str, typer.Option(help="A method's set of values: LMD has default, paper and official.")
    ] = "default",
    weights: Annotated[
        str | None, typer.Option(help="A weight file for the backbone, 'imagenet' or 'none'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; default runs/DATA-METHOD-seedN.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in --out.")
    ] = False,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a method and write a run folder: model, predictions, record and report."""
    from lmd.methods import DEFAULT
    from lmd.runs.train import train as run_training

    given = parse_settings(settings or [])
    if weights is not None:
        given["weights"] = weights
    asked = {
        "image_column": image_column,
        "label_column": label_column,
        "group_column": group_column,
        "split_column": split_column,
        "root": str(root) if root is not None else None,
        "allow_outside": allow_outside or None,
    }
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
        columns={k: v for k, v in asked.items() if v is not None},
        device=device,
        quiet=quiet,
    )
    _print_scores(run.read_record())
    typer.secho(f"\nThe report: {run.path / 'report.html'}", bold=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    against: Annotated[
        Path | None, typer.Option(help="Another run on the same test images, for a paired test.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 1000,
) -> None:
    """Recompute every number and the report of a run from its predictions; nothing is trained."""
    from lmd.runs.rescore import compare_runs, rescore

    record = rescore(run, resamples=resamples)
    _print_scores(record)
    if against is not None:
        typer.echo("")
        typer.echo(compare_runs(run, against, resamples=resamples))
    typer.secho(f"\nThe report: {run / 'report.html'}", bold=True)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, its model.json or an .onnx file.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")],
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the CSV file if it is there.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Predict images with a shipped model: a CSV of classes and probabilities."""
    from lmd.base.device import choose_device
    from lmd.base.progress import Display
    from lmd.deploy.predict import find_images, load

    if out.exists() and not overwrite:
        raise LmdError(f"{out} exists: choose another file, or replace it with --overwrite")
    predictor = load(model, choose_device(device))
    paths = find_images(images)
    with Display() as display:
        display.start("predicting", len(paths))
        found = predictor.predict(
            paths, batch_size=batch_size, skip_bad=skip_bad, tick=lambda i, _: display.step(i)
        )
    found.write_csv(out)
    for problem in found.skipped:
        typer.secho(f"skipped: {problem}", fg="yellow", err=True)
    typer.echo(f"{len(found.names)} images predicted, {len(found.skipped)} skipped: {out}")


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method: its settings and profiles.")
    ] = None,
) -> None:
    """List every method, or describe one: paper, stages, settings and profiles."""
    from lmd.methods import METHODS, find_method

    if name is not None:
        typer.echo(describe(find_method(name)))
        return
    table = Table(*("method", "title", "stages"), box=box.SIMPLE_HEAD)
    for row in METHODS.values():
        table.add_row(row.key, row.title, " → ".join(row.stages))
    Console().print(table)
    typer.echo("`lmd methods NAME` describes one: its paper, settings and profiles.")


def parse_settings(words: list[str]) -> dict[str, Any]:
    """``key=value`` words, values read as TOML where they are, as text where not.

    >>> parse_settings(["epochs=3", "backbone=resnet8", "split=[0.6, 0.2, 0.2]"])
    {'epochs': 3, 'backbone': 'resnet8', 'split': [0.6, 0.2, 0.2]}
    """
    found: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key:
            raise LmdError(f"--set takes KEY=VALUE, not {word!r}")
        try:
            found[key.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = value
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
    texts = {key: about.model_dump() for key, about in record.definitions.items()}
    typer.echo(format_scores(scores, texts))
