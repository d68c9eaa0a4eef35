"""The model card of a run: what the model is, what it was tested on, and where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import get_args

from lmd.report.words import (
    NONE,
    fitted_on,
    interval,
    listing,
    measure,
    percent,
    setting,
    thousands,
)
from lmd.runs.record import Record, TablePart
from lmd.scoring.estimates import Calibration, ClassScore, Estimate
from lmd.scoring.metrics import METRICS, PER_CLASS


@dataclass(frozen=True)
class Grid:
    """A table; the first column is text, the others are numbers or words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A command or a script; ``language`` is for highlighting."""

    text: str
    language: str = ""


Block = str | Grid | Bullets | Code


@dataclass(frozen=True)
class Section:
    """A titled part of the card."""

    title: str
    blocks: Sequence[Block]


FEW = 10  # images of a class that are too few for a firm number
GUARANTEES = {"class": "the class", "tier": "its tier", "all": "all images", "always": "always in"}


def card_sections(
    record: Record, script: Code | None, more: Sequence[Section] = ()
) -> list[Section]:
    """All of the card but its title.

    ``script`` shows how to use the model, if there is one; ``more`` follow the numbers, such as
    those of an export.
    """
    found = [
        Section("Intended use", _use(record)),
        Section("Limits", [Bullets(_limits(record))]),
        Section("Data", _data(record)),
        Section("Training", _training(record)),
        Section("Numbers", _numbers(record)),
        Section("Probabilities", _probabilities(record)),
        Section("Prediction sets", _sets(record)),
        Section("Images unlike the training images", _novelty(record)),
        *more,
        *([] if script is None else [Section("How to use it", [script])]),
        Section("How it was made", _provenance(record)),
    ]
    return [section for section in found if section.blocks]


def summary(record: Record) -> str:
    """One paragraph about the model."""
    classes = record.data.classes
    words = (
        f"An image classifier of {len(classes)} classes ({listing(classes)}), trained with "
        f"{record.method.title} on {data_name(record)}."
    )
    if record.part is not None:
        found = record.metrics[record.part]["balanced_accuracy"]
        words += (
            f" Balanced accuracy on the {record.part_title}: "
            f"{measure('balanced_accuracy', found.value)}{_span('balanced_accuracy', found)}."
        )
    return words


def data_name(record: Record) -> str:
    """The data without the folders of the machine that trained on it."""
    return PurePath(record.data.source).name or record.data.source


def _use(record: Record) -> list[Block]:
    return [
        "Research on images like those it was trained on: same kind of image, same classes, "
        "similar devices. It gives probabilities to a person who decides.",
        "It is not a medical device. Do not use it for diagnosis or to decide about a patient "
        "without an assessment of your own images (`lmd evaluate RUN --data YOURS.csv`) and "
        "the approval that your country asks for.",
        *(
            ["It was trained on synthetic images, so it says nothing about any disease."]
            if record.data.synthetic
            else []
        ),
    ]


def _limits(record: Record) -> list[str]:
    classes, counts = record.data.classes, record.data.counts
    lines = [
        f"It answers every image with one of its {len(classes)} classes, also one that shows "
        "none of them."
    ]
    scored: Sequence[ClassScore] = record.per_class[record.part] if record.part else []
    known = [row for row in scored if row.recall.value is not None]
    weak = [row.name for row in known if (row.recall.value or 0) < 0.5]
    if weak:
        lines.append(f"It finds fewer than half of the images of {listing(weak)}.")
    absent = [row.name for row in scored if not row.support]
    if absent:
        lines.append(f"Nothing is known about {listing(absent)}: no image was scored.")
    few = [row.name for row in known if row.support < FEW]
    if few:
        lines.append(
            f"{listing(few)}: scored on fewer than {FEW} images; read the interval, not the value."
        )
    rare = [name for name, n in zip(classes, counts["train"], strict=True) if n < FEW]
    if rare:
        lines.append(f"{listing(rare)}: trained on fewer than {FEW} images.")
    if record.part == "validation":
        lines.append("No test part was scored: the numbers are of validation images, and too good.")
    if not record.data.grouped:
        lines.append(
            "Patients are unknown: images of one patient may be in several parts, and the "
            "intervals treat every image as a patient of its own."
        )
    lines.append(
        "The numbers hold for images from the same place. Another hospital, device or year needs "
        "its own test."
    )
    return lines + [note for note in record.notes if note not in lines]


def _data(record: Record) -> list[Block]:
    data, counts = record.data, record.data.counts
    parts: list[TablePart] = [part for part in get_args(TablePart) if any(counts.get(part, []))]
    rows = [
        (name, record.tiers.assignment[k], *(thousands(counts[part][k]) for part in parts))
        for k, name in enumerate(data.classes)
    ]
    total = ("all", "", *(thousands(sum(counts[part])) for part in parts))
    about = [
        f"Source: {data_name(record)} ({data.kind}).",
        f"Tiers: {record.tiers.rule.rstrip('.')}.",
        f"Groups (patients or lesions): {_groups(record)}.",
    ]
    if data.imbalance_factor:
        about.append(f"Imbalance factor: {data.imbalance_factor:.4g}.")
    if data.skipped:
        about.append(f"Images left out: {len(data.skipped)}.")
    return [Bullets(about), Grid(("Class", "Tier", *parts), [*rows, total])]


def _groups(record: Record) -> str:
    if not record.data.grouped:
        return "unknown"
    divided = any("are in more than one part" in note for note in record.data.notes)
    return "some are in more than one part" if divided else "never in two parts"


def _training(record: Record) -> list[Block]:
    method, model = record.method, record.model
    lines = [f"Method: {method.title}. {method.paper}".strip()]
    lines += [method.note] if method.note else []
    lines += [
        f"Backbone: {model.backbone}, weights: {PurePath(model.weights).name}, "
        f"{thousands(model.parameters)} parameters.",
        f"Shipped: {model.selected.rstrip('.')}.",
    ]
    lines += [
        f"Stage {i}: {stage.name}, {stage.epochs} epochs."
        for i, stage in enumerate(record.stages, 1)
    ]
    rows = [
        *((key, setting(value)) for key, value in method.settings.items()),
        *((f"{key} (chosen)", f"{value:.4g}") for key, value in method.chosen.items()),
        *((key, setting(value)) for key, value in record.protocol.items()),
    ]
    shown = [(key, value) for key, value in rows if value not in ("", "[]", "{}", NONE)]
    blocks: list[Block] = [Bullets(lines)]
    return blocks + ([Grid(("Setting", "Value"), shown)] if shown else [])


def _numbers(record: Record) -> list[Block]:
    if record.part is None:
        return ["No part was scored."]
    rows = [
        (METRICS[key].title, measure(key, one.value), interval(key, one) or NONE)
        for key, one in record.metrics[record.part].items()
        if key in METRICS
    ]
    per_class = [
        (
            row.name,
            row.tier,
            thousands(row.support),
            *(_cell(k, getattr(row, k)) for k in PER_CLASS),
        )
        for row in record.per_class[record.part]
    ]
    blocks: list[Block] = [
        f"On the {record.part_title}, with 95 % intervals.",
        Grid(("Metric", "Value", "95 % interval"), rows),
        Grid(("Class", "Tier", "Images", "Recall", "Precision", "F1"), per_class),
    ]
    about = record.definitions.get("interval")
    return blocks + ([f"Intervals: {about.definition}"] if about else [])


def _temperature(record: Record) -> str:
    where, value = fitted_on(record), f"{record.model.temperature:.4g}"
    if where is None:
        return "Temperature: none was fitted."
    if record.folds is not None:
        each = ", ".join(f"{fold.temperature:.3g}" for fold in record.folds.runs)
        value = f"each fold has its own ({each})"
        if record.folds.final == "refit":
            value += ", and so has the shipped model"
    return f"Temperature: {value}, fitted on {where}; the model file applies it."


def _probabilities(record: Record) -> list[Block]:
    model = record.model
    mixes = {"uniform": "all classes equally frequent", "training": "the mix of the training part"}
    mix = "unknown" if model.prior is None else mixes[model.prior]
    lines = [
        f"Prior: {mix}. Where classes have another mix, exchange it: "
        '`lmd predict --prevalence "A=0.9,B=0.1"`.',
        _temperature(record),
    ]
    found: Calibration | None = record.calibration.get(record.part) if record.part else None
    if found is not None and record.part is not None:
        after = record.metrics[record.part]["ece"].value
        errors = {"Expected calibration error": (found.before.value, after)}
        if found.matched_after is not None:
            both = found.matched_before, found.matched_after
            errors["With images counted in the mix of the prior"] = both
        fitted = fitted_on(record) is not None
        for what, (without, shipped) in errors.items():
            before = f"{measure('ece', without)} without the temperature, " if fitted else ""
            lines.append(f"{what}: {before}{measure('ece', shipped)}{' with it' * fitted}.")
    return [Bullets(lines)]


def _sets(record: Record) -> list[Block]:
    found = record.sets
    if found is None:
        return []
    rows = [
        (
            one.name,
            _cell("recall", one.coverage),
            NONE if one.size.value is None else f"{one.size.value:.2f}",
            GUARANTEES[one.guarantee],
            thousands(one.images)
            + ("" if one.group_count is None else f" ({thousands(one.group_count)})"),
        )
        for one in found.per_class
    ]
    behind = "By validation images"
    if any(one.group_count is not None for one in found.per_class):
        behind += " (patients or lesions)"
    total = ("all images", _cell("recall", found.coverage), f"{found.size.value:.2f}", "", "")
    return [
        f"Sets that should contain the true class with a probability of "
        f"{100 * found.requested:g} %, calibrated on the validation part and counted on the "
        f"{record.part_title}.",
        Grid(
            ("Class", "Coverage", "Mean size", "Guaranteed for", behind),
            [*rows, total],
        ),
    ]


def _novelty(record: Record) -> list[Block]:
    found = record.novelty
    if found is None:
        return []
    words = (
        "The model flags images that are farther from its training images than "
        f"{percent(found.above, 0)} of {thousands(found.images)} validation images."
    )
    if found.flagged is not None:
        share = _cell("recall", found.flagged)
        words += f" On the test part it flags {share}: false flags."
    return [words]


def _provenance(record: Record) -> list[Block]:
    made = record.finished or record.created
    lines = [
        f"lmd {record.lmd_version}, commit {record.commit or 'unknown'}, torch "
        f"{record.machine.torch}, {record.machine.device}; finished {made[:10]}.",
        f"Fingerprint of the data: {record.data.fingerprint}",
        "Licence: name it in the head of this file; it depends on the images and on the weights "
        "that training began with.",
    ]
    return [Bullets(lines), Code(record.command)]


def _cell(key: str, found: Estimate) -> str:
    return f"{measure(key, found.value)}{_span(key, found)}"


def _span(key: str, found: Estimate) -> str:
    span = interval(key, found)
    return f" ({span})" if span else ""
