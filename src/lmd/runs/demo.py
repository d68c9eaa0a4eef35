"""The demonstration: CE and LMD on the embedded synthetic images, side by side."""

from collections.abc import Callable
from pathlib import Path

from lmd.report import write_report
from lmd.runs.rescore import compare_runs
from lmd.runs.train import train
from lmd.scoring.estimates import Estimate


def run_demo(out: Path, *, device: str = "auto", say: Callable[[str], None]) -> Path:
    """Train both under the same protocol; returns the report that compares them."""
    folder = _free(out)
    say("Synthetic images, 8 classes, imbalance factor 100: CE first, then LMD.")
    runs = {
        method: train(
            "synthetic", method=method, protocol="demo", out=folder / method, device=device
        )
        for method in ("ce", "lmd")
    }
    report = write_report(runs["lmd"].read(), compare=[runs["ce"].read()])
    for method, run in runs.items():
        metrics = run.read_record().metrics["test"]
        shown = [
            f"{title} {_points(metrics[key])}"
            for key, title in (("balanced_accuracy", "balanced accuracy"), ("bacc_tail", "tail"))
        ]
        say(f"{method.upper():>4}: {', '.join(shown)}")
    say("")
    say(compare_runs(runs["lmd"].path, runs["ce"].path))
    return report


def _points(found: Estimate) -> str:
    value, low, high = (100 * (x or 0.0) for x in (found.value, found.low, found.high))
    return f"{value:5.1f} ({low:.1f} to {high:.1f})"


def _free(out: Path) -> Path:
    """``out``, or the first of ``out-2``, ``out-3`` … that is not there yet."""
    number, found = 1, out
    while found.exists():
        number += 1
        found = out.with_name(f"{out.name}-{number}")
    return found
