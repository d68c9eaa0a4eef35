"""`lmd demo`: a baseline and a method on the synthetic images, side by side."""

from collections.abc import Iterator
from functools import partial
from itertools import count, takewhile
from pathlib import Path

import typer

from lmd.base.errors import LmdError
from lmd.base.files import whole


def demo(*, out: Path = Path("runs/demo"), resume: bool = False, device: str = "auto") -> None:
    """Train CE and LMD on synthetic images and write a report that compares them.

    Args:
        out: Folder for both runs; a number is added if it exists.
        resume: Continue the newest demo in --out.
    """
    from lmd.evaluation.evaluate import compare_runs
    from lmd.fit.train import train
    from lmd.methods import DEMO, METHODS
    from lmd.report.page import write_report

    folder = next(path for path in _names(out) if not path.exists())
    if resume:
        folder = [out, *takewhile(Path.exists, _names(out))][-1]
    baseline, method = (METHODS[key] for key in DEMO)
    typer.echo(f"Training {baseline.title}, then {method.title}, on synthetic images of 8 classes.")
    of_demo = partial(train, "synthetic", protocol="demo", resume=resume, device=device)
    runs = {key: of_demo(method=key, out=folder / key) for key in DEMO}
    report = write_report(runs[method.key], compare=[runs[baseline.key]])
    for key, run in runs.items():
        metrics = run.record.metrics["test"]
        mean, tail = metrics["balanced_accuracy"], metrics["bacc_tail"]
        typer.echo(
            f"{METHODS[key].title:>4}: balanced accuracy {mean.text('.1p')}, "
            f"tail {tail.text('.1p')}"
        )
    typer.echo("")
    typer.echo(compare_runs(runs[method.key].path, runs[baseline.key].path))
    typer.secho(f"\nThe report: {report}", bold=True)


def _names(out: Path) -> Iterator[Path]:
    """Generate ``out``, ``out-2``, ``out-3``, …"""
    out = whole(out)
    if not out.name:
        raise LmdError(f"--out is {out}, which has no name: give another folder")
    yield out
    yield from (out.with_name(f"{out.name}-{number}") for number in count(2))
