"""Turns the record of a run into the rows, tiles and lists of the page."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lmd.report.words import NONE, interval, measure, seconds, setting, thousands
from lmd.runs.record import Record
from lmd.scoring.estimates import Estimate
from lmd.scoring.tiers import TIERS

Row = dict[str, Any]
UNKNOWN = Estimate(value=None)
_CHOSEN_BY = "balanced_accuracy"


def class_rows(record: Record) -> list[Row]:
    """One row per class, most training images first, with its numbers and their texts."""
    scored = {row.name: row for row in record.per_class.get(record.part, [])} if record.part else {}
    rows = []
    for k, name in enumerate(record.data.classes):
        found = scored.get(name)
        row: Row = {
            "name": name,
            "tier": found.tier if found else record.tiers.assignment[k],
            "support": found.support if found else 0,
            "units": found.units if found else None,
            "order": k,
        }
        for part in ("train", "validation", "test"):
            counts = record.data.counts.get(part)
            # All folds of a cross-validation together have no validation part.
            known = counts if counts and (record.folds is None or any(counts)) else None
            row[part] = known[k] if known else None
        for key in ("recall", "precision", "f1"):
            estimate: Estimate = getattr(found, key) if found else UNKNOWN
            row[key] = estimate.value
            row[f"{key}_text"] = measure(key, estimate.value)
            row[f"{key}_interval"] = interval(key, estimate)
        recall = found.recall if found else UNKNOWN
        row["low"], row["high"] = recall.low, recall.high
        rows.append(row)
    return sorted(rows, key=lambda row: -(row["train"] or 0))


def metric_rows(record: Record) -> list[Row]:
    """One row for each metric of the reported part, with its interval and definition."""
    rows = []
    for key, found in record.metrics.get(record.part, {}).items() if record.part else ():
        about = record.definitions.get(key)
        rows.append(
            {
                "key": key,
                "title": about.title if about else key.replace("_", " ").capitalize(),
                "definition": about.definition if about else "",
                **found.model_dump(),
                "text": measure(key, found.value),
                "interval": interval(key, found),
            }
        )
    return rows


def candidate_rows(record: Record) -> list[Row]:
    """One row for each classifier that ``lmd calibrate`` compared."""

    def shown(found: Estimate | None) -> Row | None:
        if found is None:
            return None
        texts = {"text": measure(_CHOSEN_BY, found.value), "interval": interval(_CHOSEN_BY, found)}
        return {"value": found.value, **texts}

    return [
        {
            "title": row.title,
            "chosen": row.chosen,
            "held_out": shown(row.held_out),
            "test": shown(row.test),
            "worst_class": row.worst_class or NONE,
            "worst": {"value": row.worst_recall, "text": measure("recall", row.worst_recall)},
            "settings": ", ".join(f"{key} {value:g}" for key, value in row.settings.items()),
        }
        for row in record.candidates
    ]


def find_metric(metrics: Sequence[Row], key: str) -> Row | None:
    """The row of one metric, if it was recorded."""
    return next((row for row in metrics if row["key"] == key), None)


def tier_rows(metrics: Sequence[Row], classes: Sequence[Row]) -> list[Row]:
    """Balanced accuracy of the tiers that have classes."""
    sizes = Counter(row["tier"] for row in classes)
    found = {tier: find_metric(metrics, f"bacc_{tier}") for tier in TIERS if sizes[tier]}
    return [{**row, "tier": tier, "classes": sizes[tier]} for tier, row in found.items() if row]


def tiles(metrics: Sequence[Row], classes: Sequence[Row]) -> list[Row]:
    """The numbers beside the headline: accuracy, macro F1, AUC and the lowest recall."""
    found = (find_metric(metrics, key) for key in ("accuracy", "macro_f1", "auc"))
    chosen = [{**row, "note": ""} for row in found if row is not None]
    known = [row for row in classes if row["recall"] is not None]
    if known:
        worst = min(known, key=lambda row: row["recall"])
        chosen.append(
            {
                "title": "Lowest recall",
                "text": worst["recall_text"],
                "interval": worst["recall_interval"],
                "note": worst["name"],
            }
        )
    return chosen


def facts(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was run, as titled lists of names and values."""
    method, model = record.method, record.model
    about: dict[str, dict[str, Any]] = {
        "Run": {key: getattr(record, key) for key in ("name", "created", "finished", "status")},
        "Method": {
            key: getattr(method, key) for key in ("title", "key", "profile", "paper", "note")
        },
        "Settings of the method": method.settings,
        "Chosen by the method": {key: f"{value:.4g}" for key, value in method.chosen.items()},
        "Protocol": record.protocol,
        "Model": {**model.model_dump(), "parameters": thousands(model.parameters)},
        "Data": _data_facts(record),
        "Versions and machine": {
            "lmd": record.lmd_version,
            "commit": record.commit,
            **record.machine.model_dump(),
        },
        "Time": _time_facts(record),
    }
    lists = []
    for title, values in about.items():
        # Settings keep the names that users type.
        typed = title in {"Settings of the method", "Chosen by the method", "Protocol"}
        pairs = [(k if typed else k.replace("_", " "), setting(v)) for k, v in values.items()]
        shown = [(key, value) for key, value in pairs if value not in ("", "[]", "{}")]
        if shown:
            lists.append((title, shown))
    return lists


def _data_facts(record: Record) -> dict[str, Any]:
    data = record.data
    return {
        "source": data.source,
        "kind": data.kind,
        "synthetic": "yes" if data.synthetic else "no",
        "fingerprint": data.fingerprint,
        "imbalance factor": data.imbalance_factor and f"{data.imbalance_factor:.4g}",
        "split by patient or lesion": "yes" if data.grouped else "no",
        "skipped images": len(data.skipped),
        "tiers": record.tiers.rule,
    }


def _time_facts(record: Record) -> dict[str, str]:
    times = dict(record.timings)
    for i, stage in enumerate(record.stages, 1):
        times[f"stage {i}: {stage.name}, {stage.epochs} epochs"] = stage.seconds
    return {key: seconds(value) for key, value in times.items()}
