"""``lmd predict``: probabilities, decisions and prediction sets of new images, as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lmd.base.errors import LmdError
from lmd.base.text import counted, shorten
from lmd.decisions.decide import Decide


def say_passed_over(others: Sequence[Path]) -> None:
    """Name the files in folders of images that are not images."""
    if others:
        text = "{n} [file is|files are] not [an image|images] and [was|were] passed over: "
        names = shorten([str(path) for path in others])
        typer.secho(counted(len(others), text) + names, fg="yellow", err=True)


def predict(
    model: Path,
    images: Sequence[Path],
    *,
    out: Path,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    decide: Decide = Decide(),
    skip_bad: bool = False,
    unlike_above: float | None = None,
    tta: bool = False,
    overwrite: bool = False,
    device: str = "auto",
) -> None:
    """Predict images with a trained model and write classes and probabilities as CSV.

    Args:
        model: A run folder, its model.json or an .onnx file.
        images: Images or folders of images.
        out: The CSV file to write.
        batch_size: Images per batch.
        unlike_above: Flag images farther from the training images than this share of the
            validation images. By default 0.99.
    """
    from lmd.base.distributed import choose_device
    from lmd.base.files import check_output
    from lmd.base.progress import Display
    from lmd.decisions.policy import describe_guarantees
    from lmd.predict.predictor import find_images, load

    check_output(out, "--out", ".csv")
    if out.exists() and not overwrite:
        raise LmdError(f"{out} exists: choose another file, or use --overwrite to replace it")
    others: list[Path] = []
    paths = find_images(images, others)
    predictor = load(model, choose_device(device))
    with Display() as display:
        display.start("predicting", len(paths))
        found = predictor.predict(
            paths,
            batch_size=batch_size,
            skip_bad=skip_bad,
            tick=display.step,
            **vars(decide),
            unlike_above=unlike_above,
            tta=tta,
        )
    found.write_csv(out)
    if decide.coverage is not None and found.policy.sets is not None:
        for line in describe_guarantees(found.policy.sets, found.classes, decide.coverage):
            typer.echo(line)
    if found.policy.refers:
        typer.echo(f"{int(found.decided.refer.sum())} of {len(found.names)} images are referred")
    for problem in found.skipped:
        typer.secho(f"skipped: {problem}", fg="yellow", err=True)
    say_passed_over(others)
    for note in found.notes:
        typer.echo(note)
    typer.echo(f"{len(found.names)} images predicted, {len(found.skipped)} skipped: {out}")
    if found.unlike_training is not None:
        typer.echo(f"{int(found.unlike_training.sum())} images are unlike the training images")
