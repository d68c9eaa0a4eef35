"""Pictures of mistakes: those of the file, what the predictions say, and not unless wanted."""

from pathlib import Path

import numpy as np
import pytest
from pages import page, report_of
from runs_on_disk import SKIN, make_run

from lmd.base.errors import LmdError
from lmd.explain.examples import Examples, choose_looks
from lmd.report.page import write_report
from lmd.runs.folder import Run


def made(folder: Path, heat: bool = True) -> list[int]:
    """A run with pictures of two mistakes and two hits; returns their places."""
    make_run(folder, SKIN, epochs=(1,))
    of = Run(folder).read_predictions().parts["test"]
    chosen = [int(i) for places in choose_looks(of.labels, of.probabilities, 2) for i in places]
    shades = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((8, 8, 3), np.uint8)
    maps = np.full((4, 8, 8), 200, np.uint8) if heat else None
    file = Examples(of.ids[chosen], shades, maps).to_bytes()
    (folder / "examples.npz").write_bytes(file)
    return chosen


def test_the_choice_is_by_confidence() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1, 1], 200)
    labels = rng.integers(0, 3, 200)
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    mistakes, hits = choose_looks(labels, probabilities)
    assert len(mistakes) == len(hits) == 8
    assert not right[mistakes].any()
    assert right[hits].all()
    assert sure[mistakes].min() >= np.delete(np.where(right, 0, sure), mistakes).max()
    assert sure[hits].max() <= np.delete(np.where(right, sure, 1), hits).min()
    assert len(choose_looks(probabilities.argmax(1), probabilities)[0]) == 0


@pytest.mark.parametrize("heat", [True, False])
def test_it_shows_the_pictures_and_what_was_said(tmp_path: Path, heat: bool) -> None:
    chosen = made(tmp_path / "run", heat)
    found = page(report_of(tmp_path / "run"))
    sources = [value for tag, key, value in found.attributes if (tag, key) == ("img", "src")]
    assert len(sources) == 4 * (1 + heat)
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    of = Run(tmp_path / "run").read_predictions().parts["test"]
    text = found.text[found.text.index("Most confident mistakes") :]
    for i in chosen:
        said, true = of.probabilities[i].argmax(), of.labels[i]
        sure = f"with {100 * of.probabilities[i].max():.1f} %"
        words = f"{SKIN[said]} {sure}" + ("" if said == true else f", but it is {SKIN[true]}")
        assert words in text
        assert of.ids[i] in text
    names = {value for tag, key, value in found.attributes if (tag, key) == ("img", "alt")}
    assert f"Image {of.ids[chosen[0]]}" in names
    assert ("evidence for the predicted class" in text or "Evidence" in str(names)) == heat


def test_no_images_means_none(tmp_path: Path) -> None:
    made(tmp_path / "run")
    run = Run(tmp_path / "run")
    html = write_report(run, images=False).read_text(encoding="utf-8")
    assert "<img" not in html
    assert "Images worth a look" not in html


def test_pictures_of_another_run_are_left_out(tmp_path: Path) -> None:
    made(tmp_path / "run")
    ids = np.array(["another/1.jpg"])
    file = Examples(ids, np.zeros((1, 8, 8, 3), np.uint8)).to_bytes()
    (tmp_path / "run" / "examples.npz").write_bytes(file)
    assert "<img" not in report_of(tmp_path / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", "heat", "shape"])
def test_a_damaged_file_gets_one_line(tmp_path: Path, content: bytes | str) -> None:
    made(tmp_path / "run")
    path = tmp_path / "run" / "examples.npz"
    if isinstance(content, str):
        with np.load(path) as file:
            arrays = dict(file)
        arrays |= {"heat": arrays["heat"][:2]} if content == "heat" else {"pictures": np.zeros(3)}
        np.savez(path, **arrays)
    else:
        path.write_bytes(content)
    with pytest.raises(LmdError, match=r"examples\.npz cannot be read: .*; remove it") as error:
        report_of(tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_page_of_eight_runs_and_many_classes_stays_small(tmp_path: Path) -> None:
    classes = [f"finding number {k} of the upper gastrointestinal tract" for k in range(23)]
    for i in range(8):
        make_run(tmp_path / f"run{i}", classes, seed=i, epochs=(200, 100))
    path = report_of(tmp_path / "run0", compare=[tmp_path / f"run{i}" for i in range(1, 8)])
    assert path.stat().st_size < 2_000_000
