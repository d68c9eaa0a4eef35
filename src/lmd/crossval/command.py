"""`lmd train`: one run, or a cross-validation of the same settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lmd.base.command import Settings
from lmd.base.errors import LmdError
from lmd.data.source import Columns


def train(
    data: str | None = None,
    *,
    method: str | None = None,
    protocol: str | None = None,
    settings: Settings = None,
    profile: str = "default",
    weights: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    image_size: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    columns: Columns = Columns(),
    skip_bad: bool = False,
    keep_features: bool = False,
    images: bool = True,
    folds: Annotated[int | None, typer.Option(min=2)] = None,
    final: str | None = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    log: Sequence[str] | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> None:
    """Train a method and write a run folder with model, predictions, record and report.

    Args:
        method: A method; `lmd methods` lists them. By default lmd.
        protocol: A TOML file or the name of a protocol; `lmd protocols` lists them. By default the
            paper's values.
        profile: A profile of the method; `lmd methods NAME` lists them.
        weights: Weights of the backbone: a file, 'imagenet' or 'none'. By default the protocol's.
        seed: The seed of the run; by default 0.
        epochs: Epochs of the first stage. By default the protocol's.
        image_size: Side of the square images in pixels. By default the protocol's.
        out: The run folder. By default runs/DATA-METHOD-seedN.
        resume: Continue the interrupted run in --out.
        overwrite: Replace the run in --out.
        keep_features: Keep the features of the training images, for the nearest cases of `lmd
            explain`.
        folds: Cross-validate: train this many models side by side, so that every image is tested
            once.
        final: The model that --folds ships: average (the mean answer of all folds), refit (one
            more model, trained on all images) or none. By default average.
        workers: Trainings at once with --folds. By default one for each GPU or core.
        log: Report epochs and results to tensorboard, mlflow or wandb too, offline by default; can
            be repeated.
    """
    merged = dict(settings or {})
    shortcuts = {"weights": weights, "seed": seed, "epochs": epochs, "image_size": image_size}
    for key, value in shortcuts.items():
        if value is not None and merged.setdefault(key, value) != value:
            option = f"--{key.replace('_', '-')}"
            raise LmdError(f"{option} {value} and --set {key}={merged[key]} differ: give one")
    request: dict[str, Any] = {
        "protocol": protocol,
        "settings": merged,
        "profile": profile,
        "out": out,
        "resume": resume,
        "overwrite": overwrite,
        "columns": columns.changed(),
        "skip_bad": skip_bad,
        "images": images,
        "log": log,
        "device": device,
        "quiet": quiet,
    } | ({} if method is None else {"method": method})
    only_folds: dict[str, Any] = {"folds": folds, "final": final, "workers": workers}
    only_folds = {name: value for name, value in only_folds.items() if value is not None}
    if folds is not None or (resume and out is not None and (out / "folds.json").exists()):
        from lmd.crossval.folds import cross_validate

        if keep_features:
            raise LmdError(
                "--keep-features is for one model: leave it out with --folds, and run `lmd index` "
                "on a fold"
            )
        run = cross_validate(data, **request, **only_folds)
    else:
        from lmd.fit.train import train as train_run

        for name in only_folds:
            raise LmdError(f"--{name} is for a cross-validation: give --folds too")
        run = train_run(data, keep_features=keep_features, **request)
    from lmd.report.text import format_scores

    typer.echo(f"\n{format_scores(run.record)}")
    if keep_features:
        from lmd.explain.command import show_size

        show_size(run.path / "neighbours.npz")
    typer.secho(f"\nThe report: {run.path / 'report.html'}", bold=True)
