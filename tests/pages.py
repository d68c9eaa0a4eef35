"""Reads a page of HTML strictly, for tests of what it shows."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from lmd.report.page import write_report
from lmd.runs.folder import Run

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Parses a page strictly: every element is closed, in order; ids are unique."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"
        assert len(self.ids) == len(set(self.ids)), "an id is used twice"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in {"style", "script"}:
            self.words.append(data)


def report_of(folder: Path, *, compare: Sequence[Path] = ()) -> Path:
    """Write the report of a run folder from its files."""
    run, *others = (Run.open(each) for each in (folder, *compare))
    return write_report(run, compare=others)


def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def shown(value: float) -> str:
    # ``Page.text`` has plain spaces only.
    return f"{100 * value:.1f} %"
