"""The notes below a table: seeds, intervals, tests, tiers, counts, code and missing runs."""

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np

from lmd.benchmark.tables.forms import Line, TableData
from lmd.benchmark.tables.results import Results, RunResult
from lmd.benchmark.trials import RULE
from lmd.scoring.tiers import TIERS


def footnotes(lines: Sequence[Line]) -> dict[str, str]:
    """A letter for each note of a row; rows with the same note share it."""
    texts = list(dict.fromkeys(line.note for line in lines if line.note))
    return {text: ascii_lowercase[i] if i < 26 else f"{i + 1}" for i, text in enumerate(texts)}


def notes(results: Results, table: TableData) -> list[str]:
    """All notes, in the order in which they are printed."""
    runs = [run for (_, p), e in results.entries.items() if p in table.points for run in e.runs]
    return [
        *_numbers(results, table),
        *_tests(results, table),
        *_tuning(results, table),
        *_data(results, table),
        *_origin(runs),
        *_missing(results, table),
    ]


def _numbers(results: Results, table: TableData) -> list[str]:
    found = {run.seed for run in results.runs} or set(results.plan.seeds)
    seeds = ", ".join(str(seed) for seed in results.plan.seeds if seed in found)
    drawn = "groups (patients or lesions) of test images" if results.grouped else "test images"
    if len(found) > 1:
        said = (
            f"Values in %: mean ± standard deviation over the seeds {seeds}, with the 95 % "
            f"interval of the mean in brackets ({drawn} resampled {results.resamples} times "
            "within each class)."
        )
    else:
        said = (
            f"Values in %: one seed ({seeds}), with the 95 % interval from the run's record in "
            f"brackets ({drawn} resampled within each class)."
        )
    if _combined(results, table):
        said += (
            " Means over classes, one of which has fewer than ten test images, have intervals "
            "combined from the limits of the classes."
        )
        if any(column.metric == "auc" for column in table.columns):
            said += " AUC has no such limits, and no interval there."
    if any(getattr(cell, "mark", "") for line in table.lines for cell in line.cells):
        said += " Best bold, second best underlined."
    return [said]


def _combined(results: Results, table: TableData) -> bool:
    """Whether intervals of balanced accuracy are combined from those of the classes."""
    shown = (entry for (_, point), entry in results.entries.items() if point in table.points)
    return any(run.combines("balanced_accuracy") for entry in shown for run in entry.runs)


def _tests(results: Results, table: TableData) -> list[str]:
    if not table.tests:
        return []
    if _combined(results, table):
        return [
            f"Δ BACC: balanced accuracy minus that of {table.reference}, on the same test images, "
            "from the limits of the classes; two-sided p with Holm's correction (comparisons: "
            f"{table.tests}). Interval and p reflect the choice of test images, not the randomness "
            "of training."
        ]
    least = min(1.0, 2 * table.tests / (results.resamples + 1))
    return [
        f"Δ BACC: balanced accuracy minus that of {table.reference}, on the same "
        f"{results.resamples} resamples; two-sided p with Holm's correction (comparisons: "
        f"{table.tests}; the smallest p that these resamples can give is {least:.2g}). Interval "
        "and p reflect the choice of test images, not the randomness of training."
    ]


def _tuning(results: Results, table: TableData) -> list[str]:
    """What was chosen for which rows, and the rule; rows with equal values share an entry."""
    trials = results.plan.trials
    if not trials:
        return []
    said: dict[str, list[str]] = {}
    for line in table.lines:
        said.setdefault(line.tuning, []).append(line.heads[0])
    listed = "; ".join(f"{', '.join(rows)}: {tuning}" for tuning, rows in said.items())
    return [f"Chosen on validation with seed {trials[0].seed}: {listed}.", RULE]


def _data(results: Results, table: TableData) -> list[str]:
    """Tiers and smallest class of each point; points that agree share a note."""
    said: dict[str, list[str]] = {}
    for point in table.points:
        run = next((e.runs[0] for (_, p), e in results.entries.items() if p == point), None)
        if run is not None:
            sentence = f"{_tiers(run)} {_smallest(run)}"
            said.setdefault(sentence, []).append(results.plan.points[point].title)
    if len(said) == 1:
        return list(said)
    return [f"{'; '.join(titles)}: {sentence}" for sentence, titles in said.items()]


def _tiers(run: RunResult) -> str:
    tiers = run.record.tiers
    members: dict[str, list[str]] = {tier: [] for tier in TIERS}
    for name, tier in zip(run.record.data.classes, tiers.assignment, strict=True):
        members[tier].append(name)
    named = "; ".join(f"{tier}: {', '.join(of) or 'none'}" for tier, of in members.items())
    return f"Tiers: {tiers.rule} ({named})."


def _smallest(run: RunResult) -> str:
    classes = run.record.data.classes
    counts = np.bincount(run.labels, minlength=len(classes))
    present = np.flatnonzero(counts)
    least = int(present[np.argmin(counts[present])])
    points = 100 / (len(present) * int(counts[least]))
    absent = [name for name, n in zip(classes, counts, strict=True) if n == 0]
    without = f" No test images of {', '.join(absent)}." if absent else ""
    factor = run.record.data.imbalance_factor
    ratio = f"; imbalance factor of the training part {factor:.0f}" if factor else ""
    return (
        f"{int(counts.sum())} test images; {classes[least]} has the fewest ({int(counts[least])}), "
        f"so that one image changes balanced accuracy by up to {points:.2f} points"
        f"{ratio}.{without}"
    )


def _origin(runs: Sequence[RunResult]) -> list[str]:
    if not runs:
        return []
    records = [run.record for run in runs]
    commits = sorted({record.commit or "unknown" for record in records})
    days = sorted({record.finished[:10] for record in records if record.finished})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "unknown"
    versions = sorted({record.lmd_version for record in records})
    origin = (
        f"{len(runs)} runs of {span}, lmd {', '.join(versions)}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    )
    synthetic = any(record.data.synthetic for record in records)
    warning = "The images are synthetic: these numbers say nothing about patients."
    return [warning, origin] if synthetic else [origin]


def _missing(results: Results, table: TableData) -> list[str]:
    here = {run.name for run in results.plan.runs if run.point in table.points}
    names = [name for name in results.missing if name in here]
    if not names:
        return []
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return [f"Missing ({len(names)} of {len(here)} runs): {shown}."]
