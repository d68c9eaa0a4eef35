"""The report in a real browser: sorting, saving, dark mode, phone and print."""

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Browser, opened
from pages import report_of
from runs_on_disk import SKIN, make_run

from lmd.data.synthetic import render
from lmd.explain.examples import Examples, choose_looks
from lmd.runs.folder import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is absent"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with pictures, with another run side by side."""
    folder = tmp_path_factory.mktemp("report")
    make_run(folder / "lmd", SKIN)
    make_run(folder / "ce", SKIN, skill=1.0, title="CE")
    of = Run(folder / "lmd").read_predictions().parts["test"]
    chosen = [int(i) for places in choose_looks(of.labels, of.probabilities) for i in places]
    pictures = np.stack([render(0, int(of.labels[i]), i, 64) for i in chosen])
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    heat = np.broadcast_to(np.minimum(ramp, ramp[:, None]), (len(chosen), 64, 64))
    examples = Examples(of.ids[chosen], pictures, np.ascontiguousarray(heat))
    (folder / "lmd" / "examples.npz").write_bytes(examples.to_bytes())
    return report_of(folder / "lmd", compare=[folder / "ce"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as found:
        yield found


def open_page(browser: Browser, report: Path, wide: int, scheme: str = "light") -> None:
    browser.size(wide, 900, scheme)
    browser.errors.clear()
    browser.send("Page.navigate", url=report.as_uri())
    browser.until("document.readyState === 'complete' && !!document.querySelector('.save')")


def test_every_table_sorts_by_every_column(browser: Browser, report: Path) -> None:
    open_page(browser, report, 1280)
    column = (
        "[...document.querySelectorAll('.classes tbody tr')].map((r) => +r.cells[4].dataset.value)"
    )
    head = "document.querySelectorAll('.classes thead button')[4]"
    browser.value(f"{head}.click()")
    values = browser.value(column)
    assert values == sorted(values, reverse=True)
    browser.value(f"{head}.click()")
    assert browser.value(column) == sorted(values)
    assert browser.value(f"{head}.parentElement.getAttribute('aria-sort')") == "ascending"
    tables = "document.querySelectorAll('table')"
    assert browser.value(f"{tables}.length") >= 6
    heads = f"[...{tables}].flatMap((t) => [...t.tHead.rows[0].cells])"
    assert browser.value(f"{heads}.every((e) => e.querySelector('button'))")
    assert browser.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_is_saved_with_its_data(
    browser: Browser, report: Path, tmp_path: Path, scheme: str
) -> None:
    open_page(browser, report, 1280, scheme)
    dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")
    browser.downloads(tmp_path)
    menu = "document.querySelector('.plot[data-name=\"recall\"] .save')"
    browser.value(f"{menu}.open = true")
    for kind in (0, 2):  # SVG, CSV
        browser.value(f"{menu}.querySelectorAll('button')[{kind}].click()")
    end = time.monotonic() + 60
    while {path.name for path in tmp_path.iterdir()} != {"recall.svg", "recall.csv"}:
        assert time.monotonic() < end, list(tmp_path.iterdir())
        time.sleep(0.1)
    drawing = (tmp_path / "recall.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<svg")
    assert 'xmlns="http://www.w3.org/2000/svg"' in drawing
    assert "class=" not in drawing.replace('class="chart fluid"', "")
    # In print colours, whatever the screen has.
    assert {"rgb(0, 114, 178)", "rgb(213, 94, 0)"} <= set(re.findall(r'fill="([^"]+)"', drawing))
    data = (tmp_path / "recall.csv").read_text(encoding="utf-8").splitlines()
    assert data[0] == "class,tier,recall,low,high,training_images,images"
    assert len(data) == 1 + len(SKIN)
    assert browser.errors == []


def test_a_figure_is_printed_alone_on_a_page_of_its_size(browser: Browser, report: Path) -> None:
    open_page(browser, report, 1280)
    menu = "document.querySelector('.plot[data-name=\"reliability\"]')"
    browser.value(f"window.print = () => 0; {menu}.querySelectorAll('.save button')[1].click()")
    wide, high = browser.value(
        f"['width', 'height'].map((k) => +{menu}.querySelector('svg').getAttribute(k))"
    )
    pdf = base64.b64decode(browser.send("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 1
    box = re.findall(rb"/MediaBox\s*\[([^\]]+)\]", pdf)[0].split()
    assert float(box[2]) == pytest.approx(0.75 * (wide + 16), abs=1.5)
    assert float(box[3]) == pytest.approx(0.75 * (high + 16), abs=1.5)
    browser.value("dispatchEvent(new Event('afterprint'))")
    assert browser.value("document.getElementById('sheet')") is None
    whole = base64.b64decode(browser.send("Page.printToPDF")["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", whole)) > 3


def test_a_phone_shows_all_of_it(browser: Browser, report: Path) -> None:
    open_page(browser, report, 390)
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.value("[...document.images].every((e) => e.complete && e.naturalWidth > 0)")
    fluid = "[...document.querySelectorAll('.fluid')].map((e) => e.getBoundingClientRect())"
    assert browser.value(f"{fluid}.length") > 4
    assert browser.value(f"{fluid}.every((box) => box.width > 300 && box.right <= 390)")


@pytest.mark.parametrize(("wide", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(browser: Browser, report: Path, wide: int, scheme: str) -> None:
    open_page(browser, report, wide, scheme)
    browser.value("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    assert browser.serious() == []
