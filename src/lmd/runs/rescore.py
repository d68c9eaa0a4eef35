"""Numbers and reports made anew from predictions: nothing is trained, no image is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.report import write_report
from lmd.runfolder.folder import RunFolder
from lmd.scoring.definitions import definitions
from lmd.scoring.intervals import holm, paired_differences
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample
from lmd.scoring.scores import score
from lmd.scoring.tiers import Tiers


def score_parts(
    predictions: Mapping[str, Mapping[str, NDArray[Any]]],
    classes: tuple[str, ...],
    tiers: Tiers,
    train_counts: NDArray[np.int64],
    *,
    resamples: int = 1000,
) -> dict[str, Any]:
    """The record's numbers from labels, probabilities and, if known, groups of each part."""
    found: dict[str, Any] = {"metrics": {}, "per_class": {}, "confusion": {}, "notes": []}
    for part, of in predictions.items():
        one = score(
            of["labels"],
            of["probabilities"],
            classes,
            tiers,
            train_counts,
            groups=of.get("groups"),
            resamples=resamples,
            part=part,
        ).model_dump()
        for key in ("metrics", "per_class", "confusion"):
            found[key][part] = one[key]
        found["definitions"] = definitions(resamples, grouped="groups" in of)
        found["notes"] += one["notes"]
    return found


def rescore(path: Path, *, resamples: int = 1000) -> dict[str, Any]:
    """Recompute the record's numbers from ``predictions.npz`` and rewrite record and report."""
    run = RunFolder.open(path)
    record = run.read_record()
    if record["status"] != "finished":
        raise LmdError(f"{path} is not finished: go on with `lmd train --resume --out {path}`")
    arrays = run.read_predictions()
    classes = tuple(str(c) for c in arrays["classes"])
    tiers = Tiers(record["groups"]["rule"], tuple(record["groups"]["assignment"]))
    counts = np.array(record["data"]["counts"]["train"], dtype=np.int64)
    parts = {
        part: {
            key: arrays[f"{part}_{key}"]
            for key in ("labels", "probabilities", "groups")
            if f"{part}_{key}" in arrays
        }
        for part in ("validation", "test")
        if f"{part}_labels" in arrays
    }
    record |= score_parts(parts, classes, tiers, counts, resamples=resamples)
    record["notes"] = record["data"]["notes"] + record["notes"]
    run.write_record(record)
    write_report(path)
    return record


def compare_runs(a: Path, b: Path, *, resamples: int = 1000) -> str:
    """The difference of two runs in every metric, with paired intervals and p-values, as text.

    The p-values are Holm's, corrected for the number of metrics.
    """
    first, second = RunFolder.open(a), RunFolder.open(b)
    left, right = first.read_predictions(), second.read_predictions()
    order = _same_images(left, right, a, b)
    tiers = first.read_record()["groups"]["assignment"]
    mine, theirs = (
        Sample(left["test_labels"], probabilities, tiers, left.get("test_groups"))
        for probabilities in (left["test_probabilities"], right["test_probabilities"][order])
    )
    found = paired_differences(mine, theirs, resamples=resamples)
    known = {key: one for key, one in found.items() if np.isfinite(one.value)}
    corrected = dict(zip(known, holm([one.p_value for one in known.values()]), strict=True))
    lines = [
        f"{a.name} minus {b.name}, in points, on the same {len(order)} test images (paired "
        "bootstrap; p by Holm)"
    ]
    for key, one in found.items():
        title = METRICS[key].title
        if key in known:
            span = f"95 % {100 * one.low:+.2f} to {100 * one.high:+.2f}"
            lines.append(
                f"  {title:<26} {100 * one.value:+7.2f}   {span}   p = {corrected[key]:.3f}"
            )
        else:
            lines.append(f"  {title:<26} not computable")
    return "\n".join(lines)


def _same_images(left: dict[str, Any], right: dict[str, Any], a: Path, b: Path) -> Any:
    """For each test image of the left run, its place in the right one."""
    places = {name: i for i, name in enumerate(right["test_ids"].tolist())}
    names = left["test_ids"].tolist()
    if set(names) != set(places) or list(left["classes"]) != list(right["classes"]):
        raise LmdError(f"{a} and {b} were not tested on the same images: they cannot be paired")
    order = np.array([places[name] for name in names])
    if not np.array_equal(left["test_labels"], right["test_labels"][order]):
        raise LmdError(f"{a} and {b} have different labels for the same images")
    return order
