"""``lmd predict``: probabilities, decisions and prediction sets of new images, as CSV."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lmd.base.errors import LmdError
from lmd.base.text import counted, shorten
from lmd.decisions.decide import Decide


def report_left_out(skipped: Sequence[str], others: Sequence[Path]) -> None:
    """Print why images were skipped, and which files in folders of images are not images."""
    for problem in skipped:
        typer.secho(f"skipped: {problem}", fg="yellow", err=True)
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
        result = predictor.predict(
            paths, batch_size=batch_size, skip_bad=skip_bad, tick=display.step,
            **vars(decide), unlike_above=unlike_above, tta=tta,
        )  # fmt: skip
    result.write_csv(out)
    if decide.coverage is not None and result.policy.sets is not None:
        lines = describe_guarantees(result.policy.sets, result.classes, decide.coverage)
        typer.echo("\n".join(lines))
    if result.policy.refers:
        typer.echo(f"{int(result.decided.refer.sum())} of {len(result)} images are referred")
    report_left_out(result.skipped, others)
    for note in result.notes:
        typer.echo(note)
    typer.echo(f"{len(result)} images predicted, {len(result.skipped)} skipped: {out}")
    if result.unlike_training is not None:
        typer.echo(f"{int(result.unlike_training.sum())} images are unlike the training images")
