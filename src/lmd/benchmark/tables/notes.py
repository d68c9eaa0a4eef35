"""What a reader must know, under every table: seeds, intervals, tiers, counts, code, gaps."""

from collections.abc import Sequence

import numpy as np

from lmd.benchmark.tables.forms import Line, TableData
from lmd.benchmark.tables.results import Results, RunResult
from lmd.scoring.tiers import TIERS

MARKS = "abcdefghijklmnopqrstuvwxyz"


def footnotes(lines: Sequence[Line]) -> dict[str, str]:
    """A mark for each note of a row; rows with the same note share it."""
    texts = list(dict.fromkeys(note for line in lines for note in line.notes))
    return {text: MARKS[i] if i < len(MARKS) else f"{i + 1}" for i, text in enumerate(texts)}


def notes(results: Results, table: TableData) -> list[str]:
    """Sentences in the order in which they are printed."""
    runs = [run for (_, p), e in results.entries.items() if p in table.points for run in e.runs]
    return [
        *_numbers(results, table),
        *_tests(results, table),
        *_data(results, table),
        *_origin(runs),
        *_missing(results, table),
    ]


def _numbers(results: Results, table: TableData) -> list[str]:
    seeds = results.plan.seeds
    named = ", ".join(str(seed) for seed in seeds)
    if len(seeds) > 1:
        said = (
            f"Values in %: mean ± standard deviation over the seeds {named}; in brackets the 95 % "
            "interval of the mean over seeds"
        )
    else:
        said = f"Values in %: one seed ({named}), in brackets the 95 % interval of the run's record"
    drawn = "groups (patients or lesions) of test images" if results.grouped else "test images"
    # A record has resamples of its own.
    often = f" {results.resamples} times" if len(seeds) > 1 else ""
    said += f" ({drawn} resampled{often} within each class)."
    if any(getattr(cell, "mark", "") for line in table.lines for cell in line.cells):
        said += " Best bold, second best underlined."
    return [said]


def _tests(results: Results, table: TableData) -> list[str]:
    if not table.tests:
        return []
    least = min(1.0, 2 * table.tests / (results.resamples + 1))
    return [
        f"Δ BACC: balanced accuracy minus that of {table.reference}, on the same "
        f"{results.resamples} resamples; p two-sided, after Holm's correction (comparisons: "
        f"{table.tests}; the least that these resamples can show is {least:.2g}). Interval and p "
        "speak of the choice of test images, not of the randomness of training."
    ]


def _data(results: Results, table: TableData) -> list[str]:
    """Tiers and the smallest class of each point, said once where points agree."""
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
    without = f" No test image of {', '.join(absent)}." if absent else ""
    factor = run.record.data.imbalance_factor
    ratio = f"; imbalance factor of the training part {factor:.0f}" if factor else ""
    return (
        f"{int(counts.sum())} test images, fewest of {classes[least]} "
        f"({int(counts[least])}): one image moves balanced accuracy by up to {points:.2f} points"
        f"{ratio}.{without}"
    )


def _origin(runs: Sequence[RunResult]) -> list[str]:
    if not runs:
        return []
    records = [run.record for run in runs]
    commits = sorted({record.commit or "unknown" for record in records})
    days = sorted({record.finished[:10] for record in records if record.finished})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "unknown"
    versions = sorted({record.lmd_version for record in records})
    said = [
        f"{len(runs)} runs of {span}, lmd {', '.join(versions)}, "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."
    ]
    if any(record.data.synthetic for record in records):
        said.insert(0, "The images are synthetic: these numbers say nothing about patients.")
    return said


def _missing(results: Results, table: TableData) -> list[str]:
    here = {run.name for run in results.plan.runs if run.point in table.points}
    names = [name for name in results.missing if name in here]
    if not names:
        return []
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return [f"Missing ({len(names)} of {len(here)} runs): {shown}."]
