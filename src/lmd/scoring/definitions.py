"""Definitions of a record's numbers, and the numbers as plain text."""

import textwrap
from collections.abc import Mapping, Sequence

from lmd.base.text import text_table
from lmd.scoring.estimates import (
    Decisions,
    Definition,
    External,
    PartScores,
    SetScores,
    number_text,
)
from lmd.scoring.intervals import LEVEL, SMALL_CLASS
from lmd.scoring.metrics import METRICS, PER_CLASS

UNPRICED = "the costs have no column refer, which says what referring an image costs"


def definitions(resamples: int = 1000, grouped: bool = False) -> dict[str, Definition]:
    """Title and definition of every number of ``score`` and of its interval.

    ``grouped`` says whether the patient or lesion of each image is known.
    """
    level = f"{100 * LEVEL:g} %"
    alike = (
        " Images of one group (patient or lesion) count less than images of different groups, "
        "by the design effect of Rao and Scott."
        if grouped
        else ""
    )
    drawn, taken, units = (
        ("groups (patients or lesions) with all their images", "", "groups")
        if grouped
        else ("images", ", and treats every image as a patient of its own", "images")
    )
    texts = {
        "Recall": "Share of the images of the class that are predicted as the class. Interval: "
        f"Wilson's for a proportion, {level}.{alike}",
        "Precision": "Share of the images predicted as the class that are of the class; 0 if the "
        f"class is never predicted. Interval: Wilson's for a proportion, {level}; 0 to 1 if the "
        f"class is never predicted, because the part then says nothing about it.{alike}",
        "F1": "Harmonic mean of precision and recall. Interval: percentiles of F1 with recall and "
        f"false positive rate drawn from their Beta posteriors under Jeffreys' prior, {level}."
        f"{alike}",
        "Interval": f"{level} percentile interval of a bootstrap with {resamples} resamples that "
        f"draws {drawn} within each true class, widened to contain the value where the resamples "
        "of a biased metric leave it outside. In a mean over classes with a small one (fewer than "
        f"{SMALL_CLASS} {units}), this interval would be too narrow, or have no width; the limits "
        "of the classes, as in the per-class columns, are then combined by squares (MOVER). AUC "
        "has no limits for classes, and then no interval. Kappa, MCC and ECE have none where all "
        "resamples agree. The interval "
        f"covers the choice of test images, not the randomness of training{taken}.",
    }
    found = {
        key: Definition(title=metric.title, definition=metric.definition)
        for key, metric in METRICS.items()
    }
    return found | {t.lower(): Definition(title=t, definition=d) for t, d in texts.items()}


def format_scores(scores: PartScores, texts: Mapping[str, Definition]) -> str:
    """Return one part as plain text: values, intervals, classes and notes."""
    rows = [(texts[key].title, *one.cells()) for key, one in scores.metrics.items()]
    lines = [text_table([("Metric", "value", f"{100 * LEVEL:g} % interval"), None, *rows])]
    grouped = any(row.units is not None for row in scores.per_class)
    header = ["Class", "tier", "train", "images (lesions, patients)" if grouped else "images"]
    for column in PER_CLASS:
        header += [column, "interval"]
    table: list[Sequence[str] | None] = [header, None]
    for row in scores.per_class:
        images = f"{row.support} ({row.units})" if grouped else str(row.support)
        cells = [row.name, row.tier, str(row.train), images]
        for column in PER_CLASS:
            cells += getattr(row, column).cells()
        table.append(cells)
    lines += ["", text_table(table)]
    if scores.notes:
        lines += ["", "Notes", *(_wrapped(note, "- ") for note in scores.notes)]
    return "\n".join(lines)


def format_definitions(texts: Mapping[str, Definition]) -> str:
    """Return what each number means as plain text."""
    return "\n".join(_wrapped(f"{text.title}: {text.definition}", "- ") for text in texts.values())


def format_decisions(decisions: Decisions, sets: SetScores | None) -> str:
    """Decisions and prediction sets of each class as plain text."""
    fixed = f"sens. at {100 * decisions.fixed_specificity:g} % spec."
    head = ("Class", "prevalence", "recall", "interval", "referred", "specificity", "PPV", "NPV")
    table: list[Sequence[str] | None] = [(*head, fixed), None]
    for row in decisions.per_class:
        rest = (row.referred, row.specificity, row.ppv, row.npv, row.fixed)
        numbers = (*row.recall.cells(), *(one.value_text() for one in rest))
        table.append((row.name, number_text(row.prevalence), *numbers))
    how = "least expected cost" if decisions.costs else "highest probability"
    lines = [f"Decisions by the {how}; prevalence: {decisions.prevalence}", text_table(table)]
    lines.append(f"Referred: {100 * decisions.referred:.1f} % of images at this prevalence")
    if decisions.unpriced:
        lines.append(f"Mean cost of one image: not known, because {UNPRICED}")
    elif decisions.mean_cost is not None:
        lines.append(f"Mean cost of one image at this prevalence: {decisions.mean_cost:.4g}")
    if sets is None:
        return "\n".join(lines)
    rows: list[Sequence[str]] = [
        (one.name, one.guarantee, str(one.images), *one.coverage.cells(), *one.size.cells())
        for one in sets.per_class
    ]
    rows.append(("All images", "", "", *sets.coverage.cells(), *sets.size.cells()))
    top = ("Class", "guaranteed for", "by images", "coverage", "interval", "set size", "interval")
    lines += ["", f"Prediction sets with a coverage of {100 * sets.requested:g} %"]
    return "\n".join([*lines, text_table([top, None, *rows])])


def format_external(found: External, sets: SetScores | None) -> str:
    """What differs between the images of another place and the run's own, as plain text."""
    home = f"{found.run}, {found.home_part}"
    rows: list[Sequence[str] | None] = [
        ("", home, "interval", "here", "interval", "difference", "interval"),
        None,
    ]
    for key, one in found.metrics.items():
        numbers = (*one.home.cells(), *one.here.cells(), *one.difference.cells())
        rows.append((METRICS[key].title, *numbers))
    mean = found.confidence
    pairs = {"Mean confidence": (mean.home, mean.here)}
    if found.coverage is not None and sets is not None:
        title = f"Coverage of {100 * sets.requested:g} % sets, all images"
        pairs[title] = (found.coverage, sets.coverage)
    for title, both in pairs.items():
        rows.append((title, *both[0].cells(), *both[1].cells(), "", ""))
    lines = [f"Here and in {home} part, on the classes that both have", text_table(rows)]
    shares: list[Sequence[str] | None] = [("Class", "train", found.home_part, "here"), None]
    shares += [
        (one.name, *(f"{100 * share:.1f} %" for share in (one.train, one.home, one.here)))
        for one in found.classes
    ]
    apart = f"differs by {100 * found.mix_distance:.0f} % (0: the same, 100: no class in common)"
    lines += ["", f"Class mix: {apart}", text_table(shares)]
    lines.append(
        f"If {home} part had the class mix of here, its mean confidence would be "
        f"{mean.expected:.3f}."
    )
    if found.flagged is not None:
        lines.append(f"Unlike the training images: {found.flagged.text()}")
    for other in found.unknown:
        flags = ""
        if other.flagged is not None:
            flags = f", unlike the training images: {other.flagged:.3f}"
        lines.append(
            f"Not scored, unknown to the model: {other.name} ({other.images} images, mean "
            f"confidence {other.confidence:.3f}{flags})"
        )
    return "\n".join(lines)


def _wrapped(text: str, mark: str) -> str:
    return textwrap.fill(text, 98, initial_indent=mark, subsequent_indent=" " * len(mark))
