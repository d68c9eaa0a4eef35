"""`--log`: the real trackers have what the run has, and never stop or slow down training."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import write_npz

import lmd
from lmd.base.errors import LmdError
from lmd.fit import tracking
from lmd.fit import tracking as trackers
from lmd.runs.folder import Run
from lmd.runs.record import Record

SETTINGS = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 2, "workers": 0}
# The packages use deprecated functions of one another.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that reports to all three trackers at once, without their settings."""
    folder = tmp_path_factory.mktemp("tracked")
    data = write_npz(folder / "toy.npz")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
            patch.delenv(name, raising=False)
        patch.setattr(tracking, "PATIENCE", 600.0)  # of a busy machine
        done = lmd.train(
            data, method="ce", settings=SETTINGS, out=folder / "run", quiet=True, log=[*NAMES]
        )
    return done.path


NAMES = ("tensorboard", "mlflow", "wandb")


def curves(run: Path) -> dict[str, list[float]]:
    rows = Run.open(run).read_history()
    return {key: [float(row[key] or 0) for row in rows] for key in ("loss", "lr", "val_bacc")}


def balanced_accuracy(run: Path) -> float:
    value = Run.open(run).record.metrics["test"]["balanced_accuracy"].value
    assert value is not None
    return value


def test_tensorboard_has_the_run(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    for name, values in curves(run).items():
        events = found.Scalars(name)
        assert [one.step for one in events] == [1, 2]
        assert [one.value for one in events] == pytest.approx(values, rel=1e-6)
    last = found.Scalars("test/balanced_accuracy")[0].value
    assert last == pytest.approx(balanced_accuracy(run), rel=1e-6)
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| method | ce |" in text


def test_tensorboard_shows_the_new_run_after_an_old_one(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = Run.open(run).record
    for known, values in ((0, (0.5, 0.4, 0.3)), (0, (0.9, 0.8)), (2, (0.7,))):
        tracker = trackers.TensorBoard(tmp_path, record, known)
        for step, value in enumerate(values, known + 1):
            tracker.epoch(step, {"loss": value})
        tracker.end(None)
        time.sleep(1.1)  # files are told apart by their second
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    events = [(one.step, one.value) for one in found.Scalars("loss")]
    assert events == [(1, pytest.approx(0.9)), (2, pytest.approx(0.8)), (3, pytest.approx(0.7))]


def test_mlflow_has_the_run(run: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("lmd")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["method"] == "ce"
    assert found.data.params["protocol.epochs"] == "2"
    assert found.data.metrics["test/balanced_accuracy"] == balanced_accuracy(run)
    for name, values in curves(run).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert [(one.step, one.value) for one in history] == [(1, values[0]), (2, values[1])]


def wandb_records(file: Path) -> list[Any]:
    """The records in a file of wandb, which has no public reader: the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, found = file.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:  # no room for a header
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # complete
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def test_wandb_has_the_run_offline(run: Path) -> None:
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    rows, summary = [], {}
    for record in wandb_records(file):
        row = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        rows += [row] if row else []
        for item in record.summary.update:
            summary["/".join(item.nested_key) or item.key] = item.value_json
    assert [row["_step"] for row in rows] == ["1", "2"]
    for name, values in curves(run).items():
        assert [float(row[name]) for row in rows] == pytest.approx(values)
    assert float(summary["test/balanced_accuracy"]) == pytest.approx(balanced_accuracy(run))


class Recording:
    """A tracker that remembers; ``broken`` fails at an epoch, ``slow`` takes its time."""

    seen: list[tuple[str, Any]] = []  # noqa: RUF012

    def __init__(self, run: Path, record: Record, known: int) -> None:
        self.seen.append(("start", trackers.identity(run, record)))

    def epoch(self, step: int, numbers: dict[str, float]) -> None:
        self.seen.append(("epoch", step))

    def end(self, numbers: dict[str, float] | None) -> None:
        self.seen.append(("end", numbers and sorted(numbers)[:1]))


class Broken(Recording):
    """Fails at its first epoch."""

    def epoch(self, step: int, numbers: dict[str, float]) -> None:
        super().epoch(step, numbers)
        raise ConnectionError("the server\nis away")


class Slow(Recording):
    """Needs longer for one epoch than the run may wait."""

    def epoch(self, step: int, numbers: dict[str, float]) -> None:
        time.sleep(30)


Use = Callable[[type[Recording]], list[tuple[str, Any]]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """``use(kind)``: TensorBoard is replaced; returns what it will have seen."""

    def replace(kind: type[Recording]) -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = []
        monkeypatch.setattr(kind, "seen", seen)
        monkeypatch.setitem(trackers.TRACKERS, "tensorboard", kind)
        return seen

    return replace


def trained(folder: Path, **more: Any) -> Path:
    data = folder / "toy.npz"
    write_npz(data)
    given: dict[str, Any] = {"settings": SETTINGS, "out": folder / "run", "log": "tensorboard"}
    return lmd.train(data, method="ce", **given | more).path


def test_a_failing_tracker_warns_once_and_training_goes_on(
    tmp_path: Path, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = use(Broken)
    run = trained(tmp_path)
    assert Run.open(run).record.status == "finished"
    said = capsys.readouterr().err
    assert said.count("--log tensorboard failed") == 1
    assert "ConnectionError: the server is away" in said
    assert [what for what, _ in seen] == ["start", "epoch"]


def test_a_slow_tracker_does_not_hold_up_the_run(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(Slow)
    monkeypatch.setattr(tracking, "PATIENCE", 0.2)
    run = trained(tmp_path)
    assert sum(row["seconds"] for row in Run.open(run).record.history) < 30  # type: ignore[misc]
    assert "it takes too long to write" in capsys.readouterr().err


def test_a_resumed_run_goes_on_and_needs_no_tracker(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmd.training.loop import StageTraining

    seen = use(Recording)
    epoch = StageTraining._epoch

    def stop(self: StageTraining, number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt
        epoch(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(StageTraining, "_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, quiet=True)
    assert [what for what, _ in seen] == ["start", "epoch", "end"]
    assert seen[-1] == ("end", None)
    begun = seen[0]
    seen.clear()
    run = trained(tmp_path, resume=True, quiet=True)
    assert seen == [begun, ("epoch", 2), ("end", ["test/accuracy"])]
    # Trackers are no part of what was asked for.
    assert "log" not in Run.open(run).record.request.model_dump()
    assert trained(tmp_path, resume=True, quiet=True, log=None) == run


def test_unknown_and_absent_trackers_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LmdError, match="there is no 'comet'; choose from tensorboard, mlflow"):
        trained(tmp_path, log=["comet"])
    monkeypatch.setattr("lmd.base.errors.find_spec", lambda _: None)
    with pytest.raises(LmdError, match=r"pip install 'lmd\[mlflow\]'"):
        trained(tmp_path, log="mlflow")
    assert not (tmp_path / "run").exists()
