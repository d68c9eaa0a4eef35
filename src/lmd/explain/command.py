"""`lmd explain` and `lmd index`: why a model predicts what it predicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lmd.base.errors import LmdError
from lmd.predict.command import report_left_out


def explain(
    model: Path,
    images: Sequence[Path],
    *,
    out: Path,
    neighbours: Annotated[int | None, typer.Option(min=0)] = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: str = "auto",
) -> None:
    """Show where a model looks: heat maps of the two most probable classes of each image.

    Args:
        model: A run folder or its model.json.
        images: Images or folders of images.
        out: The folder to write.
        neighbours: Nearest training cases to list; needs `lmd index` or `lmd train
            --keep-features`. By default 5 if the run has their features.
        overwrite: Replace earlier explanations in --out.
    """
    from lmd.base.distributed import choose_device
    from lmd.base.progress import Display
    from lmd.explain.explanation import PAGE, check_out, explain_images
    from lmd.predict.onnx_files import OnnxEngine
    from lmd.predict.predictor import find_images, load

    if model.suffix.lower() == ".onnx":
        raise LmdError(OnnxEngine.no_heat_maps)
    check_out(out, overwrite=overwrite)
    predictor = load(model, choose_device(device))
    others: list[Path] = []
    paths = find_images(images, others)
    with Display() as display:
        display.start("explaining", len(paths))
        cases, skipped = explain_images(
            model, predictor, paths, out,
            neighbours=neighbours, skip_bad=skip_bad, tick=display.step,
        )  # fmt: skip
    report_left_out(skipped, others)
    flagged = sum(bool(case.get("unlike_training")) for case in cases)
    typer.echo(f"{len(cases)} images explained, {len(skipped)} skipped")
    if flagged:
        typer.echo(f"{flagged} images are unlike the training images")
    typer.secho(f"The page: {out / PAGE}", bold=True)


def index(
    run: Path,
    *,
    data: str | None = None,
    with_names: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> None:
    """Keep the features of a run's training images, so that `explain` finds the nearest cases.

    Args:
        run: A run folder.
        data: Where its images are now. By default the data that the run was trained on.
        with_names: Also keep the names of the image files. They may identify patients.
        overwrite: Replace an earlier neighbours.npz.
    """
    from lmd.base.distributed import choose_device
    from lmd.base.progress import Display
    from lmd.data.dataset import images_of_run
    from lmd.explain.neighbours import FILE, Neighbours, size_line
    from lmd.model.files import weights_digest
    from lmd.predict.predictor import in_batches, load
    from lmd.runs.folder import of_one_model

    record = of_one_model(run).record
    if (run / FILE).exists() and not overwrite:
        raise LmdError(f"{run / FILE} exists: use --overwrite to replace it")
    predictor = load(run, choose_device(device))
    with Display(quiet=quiet) as display:
        dataset = images_of_run(record, data, display)
        part, images = dataset.table.part("train"), dataset.part("train")
        display.say(size_line(len(part), predictor.engine.spec.feature_dim))
        display.start("computing features", len(part))
        features = predictor.infer(in_batches(images, display.step)).features
        display.stop()
    assert features is not None
    names = part.ids.tolist() if with_names else None
    neighbours = Neighbours.of(features, part.labels, part.classes, names)
    show_size(neighbours.save(run, weights_digest(run)), with_names=with_names)


def show_size(path: Path, *, with_names: bool = False) -> None:
    """Print how large the kept features are, if they exist."""
    if path.exists():
        names = "with" if with_names else "without"
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        typer.echo(f"\nFeatures of the training images, {names} file names: {path} ({size})")
