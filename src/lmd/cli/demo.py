"""The demo: a baseline and a method on the synthetic images, side by side."""

from collections.abc import Callable, Iterator
from itertools import count, takewhile
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.files import whole
from lmd.evaluation.evaluate import compare_runs
from lmd.fit.train import train
from lmd.methods import DEMO, METHODS
from lmd.report.page import write_report


def run_demo(
    out: Path, *, resume: bool = False, device: str = "auto", say: Callable[[str], None]
) -> Path:
    """Train both under the same protocol and return the report that compares them.

    ``resume`` continues the newest demo instead of a new one.
    """
    folder = _newest(out) if resume else next(path for path in _names(out) if not path.exists())
    baseline, method = (METHODS[key] for key in DEMO)
    say(f"Training {baseline.title}, then {method.title}, on synthetic images of 8 classes.")
    runs = {
        key: train(
            "synthetic",
            method=key,
            protocol="demo",
            out=folder / key,
            resume=resume,
            device=device,
        )
        for key in DEMO
    }
    report = write_report(runs[method.key], compare=[runs[baseline.key]])
    for key, run in runs.items():
        metrics = run.record.metrics["test"]
        shown = [
            f"{title} {metrics[name].text('.1p')}"
            for name, title in (("balanced_accuracy", "balanced accuracy"), ("bacc_tail", "tail"))
        ]
        say(f"{METHODS[key].title:>4}: {', '.join(shown)}")
    say("")
    say(compare_runs(runs[method.key].path, runs[baseline.key].path))
    return report


def _names(out: Path) -> Iterator[Path]:
    """``out``, ``out-2``, ``out-3``, …"""
    out = whole(out)
    if not out.name:
        raise LmdError(f"--out is {out}, which has no name: give another folder")
    yield out
    yield from (out.with_name(f"{out.name}-{number}") for number in count(2))


def _newest(out: Path) -> Path:
    """The last of these that exists; ``out`` if none does."""
    return [*takewhile(Path.exists, _names(out))][-1] if out.exists() else out
