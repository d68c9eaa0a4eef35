"""The report as a phone and a printer show it."""

import shutil
from collections.abc import Iterator

import pytest
from browser import CHROMIUM, Browser, opened
from pages import report_of
from runs_on_disk import SKIN, edited, make_run

from lmd.methods import METHODS

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium")

# Pairs of boxes in one list of facts or in one table cell that lie on one another.
OVERLAPS = """
[...document.querySelectorAll("dl div, .gaps tr, .legend")].flatMap(row => {
  const boxes = [...row.children].map(each => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return [each.textContent, range.getBoundingClientRect()];
  });
  return boxes.flatMap(([a, one], i) => boxes.slice(i + 1)
    .filter(([b, two]) => one.width && two.width && one.left < two.right - 1 &&
      two.left < one.right - 1 && one.top < two.bottom - 1 && two.top < one.bottom - 1)
    .map(([b, two]) => a + " / " + b));
})
"""
STYLE = "getComputedStyle(document.querySelector('{}')).{}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("page")
    for name, skill in (("lmd", 2.0), ("ce", 1.0)):
        make_run(folder / name, SKIN, skill=skill, title=name.upper())
    with edited(folder / "lmd") as record:
        record["method"]["settings"] = METHODS["lmd"].settings()  # with all its long names
    report_of(folder / "lmd", compare=[folder / "ce"])
    with opened(folder / "profile") as browser:
        browser.size(390, 844)
        browser.send("Page.navigate", url=f"file://{folder / 'lmd' / 'report.html'}")
        browser.until("document.readyState === 'complete'")
        yield browser
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("wide", [390, 1280])
def test_no_key_lies_on_its_value(page: Browser, wide: int) -> None:
    page.size(wide, 844)
    assert page.value("document.querySelectorAll('dl div').length") > 60
    assert page.value(OVERLAPS) == []
    assert page.value("document.documentElement.scrollWidth") == wide


def test_a_phone_shows_the_whole_comparison(page: Browser) -> None:
    page.size(390, 844)
    table = "document.querySelector('.gaps')"
    assert page.value(f"{table}.scrollWidth <= {table}.parentElement.clientWidth")
    assert page.value(f"{table}.textContent.includes('the same as balanced accuracy')")


def test_print_keeps_a_heading_its_text_and_its_chart_together(page: Browser) -> None:
    page.send("Emulation.setEmulatedMedia", media="print")
    try:
        for selector in ("#confusion h2", "#confusion h2 + p", "#counts .legend", "#recall h3 + p"):
            assert page.value(STYLE.format(selector, "breakAfter")) == "avoid", selector
        for selector in ("#confusion h2 + p", "#confusion .plot", "figure", ".scroll", "thead"):
            assert page.value(STYLE.format(selector, "breakInside")) == "avoid", selector
    finally:
        page.send("Emulation.setEmulatedMedia", media="")
