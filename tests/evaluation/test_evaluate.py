"""`lmd evaluate RUN`: the numbers of a run again, from its predictions."""

from pathlib import Path

import pytest
from toys import write_npz
from typer.testing import CliRunner

import lmd
from lmd.cli.commands import app
from lmd.runs.folder import Run

SETTINGS = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 1, "workers": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("evaluate")
    data = write_npz(folder / "toy.npz")
    return lmd.train(data, method="ce", settings=SETTINGS, out=folder / "run", quiet=True)


def test_intervals_of_fewer_resamples_do_not_replace_better_ones(run: Run) -> None:
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    fewer = lmd.evaluate(run, resamples=20, coverage=0.7, quiet=True)
    assert {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before
    # The numbers are those of the call all the same.
    record = fewer.record
    assert record.resamples == 20
    assert "with 20 resamples" in record.definitions["interval"].definition
    assert record.sets is not None
    assert record.sets.requested == 0.7
    assert fewer.metrics.keys() == run.metrics.keys()
    for key, found in fewer.metrics.items():
        assert found.value == run.metrics[key].value
    assert fewer.metrics != run.metrics
    done = CliRunner().invoke(app, ["evaluate", str(run.path), "--resamples", "20"])
    assert "Nothing was written" in done.output
    assert "with 1000 resamples" in done.output


def test_better_intervals_replace_the_ones_of_the_record(run: Run, tmp_path: Path) -> None:
    lmd.evaluate(run, resamples=1200, quiet=True)
    assert Run.open(run.path).record.resamples == 1200
    assert "with 1200 resamples" in (run.path / "report.html").read_text(encoding="utf-8")
