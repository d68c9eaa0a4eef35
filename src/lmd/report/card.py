"""The model card of a run: Markdown from a template, and a page with the same content."""

import re
from pathlib import Path, PurePath
from typing import Any

from markupsafe import Markup, escape

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write_all
from lmd.report.page import environment, write_report
from lmd.report.text import fitted_on, setting
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.estimates import MISSING
from lmd.scoring.metrics import METRICS

MARKDOWN, PAGE = "model-card.md", "model-card.html"
FEW = 10  # images of a class that are too few for a firm number


def write_pages(run: Run) -> None:
    """Write the report and the card into the folder of a run."""
    write_report(run)
    write_card(run.record, run.path)


def write_card(record: Record, folder: Path, *, exported: Path | None = None) -> Path:
    """Write the card of a run to its folder, or beside an ``exported`` file.

    Returns the path of the Markdown file.
    """
    path = folder / MARKDOWN if exported is None else _beside(exported, MARKDOWN)
    text = card_text(record, folder, exported)
    page = environment().get_template("card.html").render(record=record, sections=_sections(text))
    atomic_write_all({path: text.encode(), path.with_suffix(".html"): page.encode()})
    return path


def card_page(model: Path) -> str | None:
    """Return the card of a run folder, a file in it, or an ``.onnx`` file, as HTML.

    It is one document without scripts, which needs nothing else; ``None`` if there is no card.
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


def _beside(exported: Path, name: str) -> Path:
    """Return the path of an exported file's card; ``model-card.md`` is the card of a run."""
    stem = exported.stem
    if stem == "model" and (exported.parent / "record.json").exists():
        stem = "model-onnx"
    return exported.with_name(name.replace("model", stem, 1))


def card_text(record: Record, folder: Path, exported: Path | None = None) -> str:
    """Return the card as Markdown, with the metadata of the Hugging Face Hub on top."""
    markdown = environment().overlay(autoescape=False, finalize=escaped)
    data, part = record.data, record.part
    # Without the folders of the machine that trained on it.
    name = PurePath(data.source).name or data.source
    loads = "classifier" if (folder / "classifier.npz").exists() else ""  # what a script can load
    if exported or (folder / "model.json").exists() or (folder / "average.json").exists():
        loads = "model"
    metrics = record.metrics[part] if part else {}
    text = markdown.get_template("card.md").render(
        record=record,
        data_name=name,
        dataset=Path(name).stem or "data",
        weights=PurePath(record.model.weights).name,
        metrics={key: value for key, value in metrics.items() if key in METRICS},
        titles={key: metric.title for key, metric in METRICS.items()},
        limits=_limits(record),
        few=FEW,
        divided=any("are in more than one part" in note for note in data.notes),
        parts=[part for part in ("train", "validation", "test") if any(data.counts.get(part, []))],
        settings=_settings(record),
        fitted_on=fitted_on(record),
        errors=record.calibration.get(part) if part else None,
        model_file=exported.name if exported else record.name,
        command=Markup(record.command),
        loads=loads,
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _limits(record: Record) -> dict[str, list[str]]:
    """Return the classes that are weak, absent, scored on few images, and trained on few."""
    rows = record.per_class[record.part] if record.part else []
    recalls = {row.name: row.recall.value for row in rows if row.recall.value is not None}
    counts = zip(record.data.classes, record.data.counts["train"], strict=True)
    return {
        "weak": [name for name, recall in recalls.items() if recall < 0.5],
        "absent": [row.name for row in rows if not row.support],
        "few": [row.name for row in rows if row.name in recalls and row.support < FEW],
        "rare": [name for name, images in counts if images < FEW],
    }


def _settings(record: Record) -> list[tuple[str, str]]:
    """Return all settings of the run that are not empty, as text."""
    method = record.method
    rows = [
        *((key, setting(value)) for key, value in method.settings.items()),
        *((f"{key} (chosen)", f"{value:.4g}") for key, value in method.chosen.items()),
        *((key, setting(value)) for key, value in record.protocol.items()),
    ]
    return [(key, value) for key, value in rows if value not in ("", "[]", "{}", MISSING)]


def escaped(value: Any) -> Any:
    """Return text of one line in which nothing but code spans means something to Markdown.

    >>> escaped("a_b*c and `--set x_y=1`"), escaped("`a_b")
    ('a\\\\_b\\\\*c and `--set x_y=1`', '\\\\`a\\\\_b')
    """
    if isinstance(value, Markup):
        return value
    pieces = _CODE.split(" ".join(str(value).split()))
    return "".join(
        piece if i % 2 else re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", piece)
        for i, piece in enumerate(pieces)
    )


_CODE = re.compile(r"((?<!\\)`[^`]*`)")  # splits into text and, at odd places, code spans
_BLOCK = re.compile(r"^```.*?^```$|(?:^(?!```)[^\n]+\n)+", re.MULTILINE | re.DOTALL)
Block = tuple[str, Any]


def _sections(markdown: str) -> list[tuple[Markup, list[Block]]]:
    """Return the title of each section of a card with its blocks, as the page shows them.

    A block is ``code`` or ``text`` with its content, a ``list`` of lines or a ``table`` of rows.
    """
    sections: list[tuple[Markup, list[Block]]] = []
    _, _, body = markdown.partition("\n---\n")
    for block in _BLOCK.findall(body):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("#"):
            sections.append((_as_html(lines[0].lstrip("# ")), []))
        elif lines[0].startswith("```"):
            sections[-1][1].append(("code", "\n".join(lines[1:-1])))
        elif lines[0].startswith("- "):
            sections[-1][1].append(("list", [_as_html(line[2:]) for line in lines]))
        elif lines[0].startswith("| "):
            rows = [re.split(r" (?<!\\)\| ", f"{line[2:]} ")[:-1] for line in lines]
            cells = [[_as_html(cell.strip()) for cell in row] for row in rows]
            sections[-1][1].append(("table", [cells[0], *cells[2:]]))
        else:
            sections[-1][1].append(("text", _as_html(lines[0])))
    return sections


def _as_html(text: str) -> Markup:
    """Return one line of a card as HTML: code spans, and text without its backslashes."""
    html = Markup()
    for i, piece in enumerate(_CODE.split(text)):
        if i % 2:
            html += Markup("<code>{}</code>").format(piece[1:-1])
        else:
            html += escape(re.sub(r"\\(.)", r"\1", piece))
    return html
