"""Turns the files of a run into what the page shows: rows, tiles, tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmd.report.words import interval, measure, seconds, setting, thousands
from lmd.runfolder.reading import RunFiles, number
from lmd.scoring.tiers import TIERS

Row = dict[str, Any]


def class_rows(run: RunFiles) -> list[Row]:
    """One row per class, most training images first: numbers, and the same as text."""
    assignment = run.section("groups", "assignment") or []
    counts = run.section("data", "counts")
    scored = {entry["name"]: entry for entry in run.section("per_class", run.part or "") or []}
    rows = []
    for k, name in enumerate(run.classes):
        entry = scored.get(name, {})
        row: Row = {
            "name": name,
            "group": entry.get("group") or (assignment[k] if k < len(assignment) else ""),
            "support": entry.get("support", 0),
            "units": entry.get("units"),
            "order": k,
        }
        for part in ("train", "validation", "test"):
            given = counts.get(part) or []
            row[part] = int(given[k]) if k < len(given) else None
        for key in ("recall", "precision", "f1"):
            triple = entry.get(key) or {}
            row[key] = number(triple.get("value"))
            row[f"{key}_text"] = measure(key, row[key])
            row[f"{key}_interval"] = interval(key, triple)
        recall = entry.get("recall") or {}
        row["low"], row["high"] = number(recall.get("low")), number(recall.get("high"))
        rows.append(row)
    return sorted(rows, key=lambda row: -(row["train"] or 0))


def metric_rows(run: RunFiles) -> list[Row]:
    """Every metric of the reported part with interval and definition, in the record's order."""
    rows = []
    for key, given in run.section("metrics", run.part or "").items():
        triple = given if isinstance(given, Mapping) else {"value": given}
        value = number(triple.get("value"))
        definition = run.section("definitions", key)
        rows.append(
            {
                "key": key,
                "title": definition.get("title") or key.replace("_", " ").capitalize(),
                "definition": definition.get("definition", ""),
                "value": value,
                "low": number(triple.get("low")),
                "high": number(triple.get("high")),
                "text": measure(key, value),
                "interval": interval(key, triple),
            }
        )
    return rows


def find_metric(metrics: Sequence[Row], key: str) -> Row | None:
    """The row of one metric, if it was recorded."""
    return next((row for row in metrics if row["key"] == key), None)


def group_rows(metrics: Sequence[Row], classes: Sequence[Row]) -> list[Row]:
    """Balanced accuracy of head, medium and tail: the record's, else the mean of the recalls."""
    rows = []
    for group in TIERS:
        members = [row for row in classes if row["group"] == group]
        if not members:
            continue
        found = find_metric(metrics, f"bacc_{group}")
        if found is None:
            recalls = [row["recall"] for row in members if row["recall"] is not None]
            value = sum(recalls) / len(recalls) if recalls else None
            found = {"value": value, "low": None, "high": None, "interval": ""}
            found["text"] = measure(f"bacc_{group}", value)
        rows.append({**found, "group": group, "classes": len(members)})
    return rows


def tiles(metrics: Sequence[Row], classes: Sequence[Row]) -> list[Row]:
    """The figures beside the headline: accuracy, macro F1, and the weakest class."""
    chosen = []
    for key in ("accuracy", "macro_f1", "auc"):
        found = find_metric(metrics, key)
        if found is not None:
            chosen.append({**found, "note": ""})
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


def facts(run: RunFiles) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was run, as titled lists of name and value."""
    method, data, model = (run.section(key) for key in ("method", "data", "model"))
    about = {
        "Run": {key: run.record.get(key) for key in ("name", "created", "finished", "status")},
        "Method": {key: method.get(key) for key in ("title", "key", "profile", "paper", "note")},
        "Settings of the method": method.get("settings") or {},
        "Protocol": run.section("protocol"),
        "Model": {**model, "parameters": thousands(number(model.get("parameters")))},
        "Data": _data_facts(data, run.section("groups")),
        "Versions and machine": {
            "lmd": run.record.get("lmd_version"),
            "commit": run.record.get("commit"),
            **run.section("machine"),
        },
        "Time": _time_facts(run),
    }
    lists = []
    for title, values in about.items():
        # Settings keep the names under which they are given; the rest is for reading.
        typed = title in {"Settings of the method", "Protocol"}
        pairs = [(k if typed else k.replace("_", " "), setting(v)) for k, v in values.items()]
        shown = [(key, value) for key, value in pairs if value not in ("", "[]", "{}")]
        if shown:
            lists.append((title, shown))
    return lists


def _data_facts(data: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    factor = number(data.get("imbalance_factor"))
    skipped = data.get("skipped") or []
    return {
        "source": data.get("source"),
        "kind": data.get("kind"),
        "synthetic": "yes" if data.get("synthetic") else "no",
        "fingerprint": data.get("fingerprint"),
        "imbalance factor": None if factor is None else f"{factor:.4g}",
        "split by patient or lesion": "yes" if data.get("grouped") else "no",
        "skipped images": len(skipped),
        "groups": groups.get("rule"),
    }


def _time_facts(run: RunFiles) -> dict[str, str]:
    stages = {
        f"stage {i}: {stage.get('name', '')}, {stage.get('epochs', '?')} epochs": stage.get(
            "seconds"
        )
        for i, stage in enumerate(run.record.get("stages") or [], 1)
    }
    return {key: seconds(number(v)) for key, v in {**run.section("timings"), **stages}.items()}
