"""The page in a real browser: light and dark, desktop and phone, mouse and keyboard."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, opened
from served import encoded, make_service, photo, shipped

from lmd.export.export import export_onnx
from lmd.serve.app import create_app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is absent"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    folder = shipped(tmp_path_factory.mktemp("served") / "run")
    (folder / "model-card.md").write_text("# Card\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    export_onnx(folder, folder.parent / "small.onnx")
    app = create_app(make_service(folder, folder.parent / "small.onnx"))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a.png", tmp_path / "b.tif", tmp_path / "=bad.png"]
    for path, data in zip(
        found, (encoded(photo()), encoded(photo(1), "TIFF"), b"no image"), strict=True
    ):
        path.write_bytes(data)
    return found


def open_page(browser: Browser, address: str, wide: int, scheme: str) -> None:
    browser.size(wide, 900, scheme)
    browser.errors.clear()
    browser.send("Page.navigate", url=address)
    browser.until("document.readyState === 'complete' && !!document.getElementById('files')")


@pytest.mark.parametrize(("wide", "scheme"), [(1280, "light"), (390, "dark")])
def test_one_image_and_several(
    browser: Browser, address: str, images: list[Path], wide: int, scheme: str
) -> None:
    open_page(browser, address, wide, scheme)
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == (scheme == "dark")
    browser.choose("#files", images[1])
    browser.until("document.querySelectorAll('.stage img').length === 3")  # two images, one map
    assert browser.value("document.querySelectorAll('.bars li').length") == 6
    assert "Similar training cases" in browser.value("document.body.innerText")
    assert "run: " in browser.value("document.getElementById('status').textContent")
    browser.value(
        "document.getElementById('coverage').value = '0.9';"
        "document.getElementById('options').dispatchEvent(new Event('input'))"
    )
    browser.until("document.getElementById('cards').innerText.includes('Prediction set')")
    browser.choose("#files", *images)
    browser.until("document.getElementById('status').textContent.includes('1 could not be read')")
    assert browser.value("document.querySelectorAll('#table tbody tr').length") == 3
    error = "document.querySelector('#table .problem').getBoundingClientRect().left"
    assert browser.value(error) < 0.6 * wide  # it is seen without scrolling to the side
    assert browser.value("document.documentElement.scrollWidth") <= wide
    assert browser.errors == []


def test_the_keyboard_reaches_everything_and_it_has_a_name(
    browser: Browser, address: str, images: list[Path]
) -> None:
    open_page(browser, address, 1280, "light")
    browser.choose("#files", *images[:2])
    browser.until("document.querySelectorAll('fieldset').length === 2")
    seen = []
    for _ in range(20):
        browser.press("Tab")
        seen.append(
            browser.value(
                "(() => { const e = document.activeElement; return e.id || e.dataset.row ||"
                " e.name || e.getAttribute('aria-label') || e.tagName; })()"
            )
        )
    wanted = {"files", "prevalence", "coverage", "csv", "0", "1", "heat-0"}
    assert wanted <= set(seen), seen
    unnamed = browser.value(
        "[...document.querySelectorAll('input, select, button')].filter((e) =>"
        " !(e.labels && e.labels.length) && !e.textContent.trim()).length"
    )
    assert unnamed == 0
    pictures = "[...document.querySelectorAll('img')].every((e) => e.alt)"
    assert browser.value(pictures) is True
    assert browser.errors == []


def test_an_image_is_dropped_an_error_is_shown_and_the_prevalence_is_changed(
    browser: Browser, address: str, images: list[Path]
) -> None:
    open_page(browser, address, 1280, "light")
    browser.drop(640, 450, images[0])  # anywhere on the page
    browser.until("document.querySelectorAll('.stage img').length === 3")
    assert browser.value("document.getElementById('one-title').textContent") == "a.png"
    shares = "[...document.querySelectorAll('.bars li')].map((e) => e.innerText).join()"
    before = browser.value(shares)
    browser.value("document.querySelector('input[value=\"uniform\"]').click()")
    browser.until(f"{shares} !== {before!r}")
    browser.value("document.querySelector('input[value=\"own\"]').click()")
    browser.value(
        "const first = document.getElementById('own-0'); first.value = 99;"
        "first.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.until("document.getElementById('problem').textContent.includes('the sum 100 %')")
    assert "must be 100" in browser.value("document.getElementById('own-sum').textContent")
    browser.value("document.querySelector('input[value=\"\"]').click()")
    browser.until("document.getElementById('problem').textContent === ''")
    browser.drop(640, 450, images[2])
    browser.until("document.querySelectorAll('.card .problem').length === 2")
    said = browser.value("document.querySelector('.card .problem').textContent")
    assert said == "Send a JPEG, PNG, TIFF or DICOM image."
    assert browser.errors == []


@pytest.mark.parametrize(("wide", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(
    browser: Browser, address: str, images: list[Path], wide: int, scheme: str
) -> None:
    open_page(browser, address, wide, scheme)
    browser.choose("#files", *images)
    browser.until("document.getElementById('status').textContent.includes('1 could not be read')")
    browser.until("document.querySelectorAll('.stage img').length >= 2")
    browser.value("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.value("document.querySelector('input[value=\"own\"]').click()")
    assert browser.serious() == []
