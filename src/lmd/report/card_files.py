"""A model card as Markdown, with the metadata of the Hugging Face Hub on top, and as HTML."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.report.card import Block, Bullets, Code, Grid, Section, card_sections, data_name, summary
from lmd.report.html import environment
from lmd.runs.record import Record
from lmd.scoring.metrics import METRICS

MARKDOWN, PAGE = "model-card.md", "model-card.html"
_PREDICT = """import lmd

model = lmd.load("{model}")
found = model.predict("image.jpg")
found.labels, found.probabilities
"""
_CLASSIFY = """import lmd

classifier = lmd.load_classifier("{model}")
classifier.predict_proba(features)  # (N, C), as the encoder gives them
"""


def write_card(
    record: Record, folder: Path, *, exported: Path | None = None, more: Sequence[Section] = ()
) -> Path:
    """Write the card of a run to its folder, or beside an ``exported`` file; returns the Markdown.

    ``more`` are sections about what the record does not know, such as an exported file.
    """
    path = folder / MARKDOWN if exported is None else _beside(exported, MARKDOWN)
    script = _script(record, folder, exported)
    sections, about = card_sections(record, script, more), summary(record)
    atomic_write_all(
        {
            path: as_markdown(record, about, sections).encode(),
            path.with_suffix(".html"): as_page(record, about, sections).encode(),
        }
    )
    return path


def _script(record: Record, folder: Path, exported: Path | None) -> Code | None:
    """How to use the model; ``None`` if a folder has none."""
    if exported is not None:
        return Code(_PREDICT.format(model=exported.name), "python")
    if (folder / "model.json").exists() or (folder / "average.json").exists():
        return Code(_PREDICT.format(model=record.name), "python")
    if (folder / "classifier.npz").exists():
        return Code(_CLASSIFY.format(model=record.name), "python")
    return None


def _beside(exported: Path, name: str) -> Path:
    """The card of an exported file; in a run folder, ``model-card.md`` is that of the run."""
    stem = exported.stem
    if stem == "model" and (exported.parent / "record.json").exists():
        stem = "model-onnx"
    return exported.with_name(name.replace("model", stem, 1))


def card_page(model: Path) -> str | None:
    """The card of a run folder, a file in it, or an ``.onnx`` file, as HTML; ``None`` without one.

    It is one document without scripts, which needs nothing else.
    """
    path = model / PAGE if model.is_dir() else model.parent / PAGE
    if model.suffix.lower() == ".onnx":
        path = _beside(model, PAGE)
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LmdError(f"model card {path} cannot be read: {error}") from None


def as_markdown(record: Record, about: str, sections: Sequence[Section]) -> str:
    """The card as Markdown."""
    lines = ["---", *_yaml(metadata(record)), "---", "", f"# {_escaped(record.name)}", ""]
    lines += [_escaped(about), ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(lines)


def as_page(record: Record, about: str, sections: Sequence[Section]) -> str:
    """The card as one HTML document."""
    kinds = {str: "text", Grid: "grid", Bullets: "bullets", Code: "code"}
    shown = [
        (section.title, [(kinds[type(block)], block) for block in section.blocks])
        for section in sections
    ]
    return (
        environment().get_template("card.html").render(record=record, about=about, sections=shown)
    )


def metadata(record: Record) -> dict[str, Any]:
    """The metadata that the Hugging Face Hub reads from the head of a card."""
    about: dict[str, Any] = {
        "library_name": "lmd",
        "pipeline_tag": "image-classification",
        "license": "unknown",
        "tags": ["lmd", "image-classification", "medical", "long-tailed"],
    }
    if record.part is None:
        return about
    values = [
        {"type": key, "name": METRICS[key].title, "value": round(one.value, 6)}
        for key, one in record.metrics[record.part].items()
        if key in METRICS and one.value is not None
    ]
    name = data_name(record)
    result = {
        "task": {"type": "image-classification", "name": "Image classification"},
        "dataset": {"name": name, "type": Path(name).stem or "data", "split": record.part},
        "metrics": values,
    }
    about["metrics"] = [value["type"] for value in values]
    about["model-index"] = [{"name": record.name, "results": [result]}]
    return about


def _block(block: Block) -> list[str]:
    if isinstance(block, Code):
        return [f"```{block.language}", block.text.rstrip(), "```"]
    if isinstance(block, Bullets):
        return [f"- {_escaped(line)}" for line in block.lines]
    if isinstance(block, Grid):
        rows = [block.head, ["---"] * len(block.head), *block.rows]
        cells = [[_escaped(cell).replace("|", "\\|") for cell in row] for row in rows]
        return [f"| {' | '.join(row)} |" for row in cells]
    return [_escaped(block)]


def _escaped(words: str) -> str:
    """Text of one line in which nothing but code spans means something to Markdown.

    >>> _escaped("a_b*c and `--set x_y=1`")
    'a\\\\_b\\\\*c and `--set x_y=1`'
    """
    pieces = re.split(r"(`[^`]*`)", " ".join(words.split()))
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_\[\]<>#])", r"\\\1", piece)
        for piece in pieces
    )


def _yaml(value: Any, indent: int = 0) -> list[str]:
    """Mappings and lists as block YAML; scalars as JSON, which YAML contains."""
    space = "  " * indent
    if isinstance(value, dict):
        lines = []
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                lines += [f"{space}{key}:", *_yaml(inner, indent + 1)]
            else:
                lines.append(f"{space}{key}: {json.dumps(inner, ensure_ascii=False)}")
        return lines
    found = []
    for inner in value:
        if isinstance(inner, dict):
            first, *rest = _yaml(inner, indent + 1)
            found += [f"{space}- {first.strip()}", *rest]
        else:
            found.append(f"{space}- {json.dumps(inner, ensure_ascii=False)}")
    return found
