"""Several real processes against one; this file is also what each of those processes runs.

Training is compared in float64. The processes add up the same numbers in another order, which
changes the last bits (2⁻⁵³ ≈ 1e-16) of every sum; a handful of steps makes 1e-14 of it. Whatever
was wrong in principle (a mean over the wrong images, BatchNorm by the slice) shows far above that.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from toys import ROOT, quick, toy_images, weights_of, write_npz

from lmd.base.distributed import NotShareable, check_same, cut, in_turn, joined, rank, world
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.loaders import training_batches
from lmd.fit.train import train
from lmd.methods import METHODS
from lmd.methods.stage import Task
from lmd.model import Normalise, build_model
from lmd.runs.protocol import Protocol
from lmd.training.loop import Trainer

EXACT = 1e-12
# Batches of 8, 8 and 2 images: uneven for three processes, of which one has nothing at last.
COUNTS = (9, 5, 3, 1)
CPU = torch.device("cpu")
# Resampling, counts over the batch, relations and a teacher, two views in one pass, two streams,
# two passes in one step, noise, an average; with stage 2 of each.
TWO = (
    *("ce", "rs", "seesaw", "lmd", "cicl", "bal_mixup", "fcd", "gcl"),
    "balanced_softmax_two_views_ema",
)
SMALL = {"backbone": "resnet8", "weights": "none", "image_size": 16, "batch_size": 9, "workers": 0}

Job = dict[str, Any]


class InDouble(Normalise):
    """Images in float64."""

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return super().__call__(images).double()


class Stopping(Display):
    """Stops training after the n-th epoch's checkpoint."""

    def __init__(self, after: int | None) -> None:
        super().__init__(Console(quiet=True), quiet=True)
        self.left = after or -1

    def say(self, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def make_trainer(key: str, folder: Path, stop: int | None = None) -> Trainer:
    method = METHODS[key]
    torch.manual_seed(0)
    with default_double():
        model, base = build_model("resnet8", "none", len(COUNTS), head=method.head, image_size=16)
    if method.head == "cosine":  # which computes in float32 whatever it is given
        model.classifier.float()
    task = Task(torch.tensor(COUNTS), model.classifier.in_features)
    # Without the search on validation, which only takes time here.
    settings = {"shrinkage": 0.5, "weight_penalty": 0.01} if key == "lmd" else quick(key)
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)

    def stages() -> Any:
        return method.start(model, task, settings)

    return Trainer(
        model=model,
        stages=stages,
        train=toy_images(COUNTS),
        validation=toy_images((3,) * len(COUNTS), seed=1),
        protocol=Protocol(
            image_size=16, backbone="resnet8", weights="none", epochs=2, stage2_epochs=2,
            batch_size=8, workers=0,
        ),
        normalise=InDouble(base.mean, base.std, CPU),
        folder=folder,
        device=CPU,
        display=Stopping(stop),
    )  # fmt: skip


class default_double:
    """New tensors are float64 inside."""

    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


def fit(job: Job, out: Path) -> None:
    """Train one job; the first process keeps weights, logits and loss terms at the end."""
    folder = out / job["folder"]
    trainer = make_trainer(job["key"], folder, job.get("stop"))
    with default_double():
        try:
            trainer.fit(resume=job.get("resume", False))
        except KeyboardInterrupt:
            return
        logits = trainer.predict(toy_images((7,) * 10, seed=2))
    if rank() == 0:
        losses = torch.tensor([row["loss"] for row in trainer.progress.history if "loss" in row])
        found = weights_of(trainer.model) | {"logits": logits, "losses": losses}
        save_file({k: v.contiguous() for k, v in found.items()}, folder / "end.safetensors")


def refused(out: Path) -> None:
    """What a method says that mixes images before they are encoded."""
    settings = SMALL | {"mixup": 1.0}
    data, folder = out / "toy.npz", out / "refused"
    try:
        train(data, method="gcl", settings=settings, out=folder, device="cpu", quiet=True)
    except LmdError as error:
        (out / f"refused-{rank()}.txt").write_text(str(error))


def work(out: Path, jobs: list[Job]) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    with joined(CPU):
        print(f"process {rank()} of {world()}")
        for job in jobs:
            if job["key"] == "refused":
                refused(out)
            else:
                fit(job, out)
        check_same([1.0, 2.0])
        with pytest.raises(NotShareable, match=r"their losses are \[2.0, 3.0"):
            check_same([1.0, 2.0 + rank()])
        order = in_turn(lambda: note(out / "order.txt"))
        assert order >= 1
    assert not torch.distributed.is_initialized()


def note(path: Path) -> int:
    with path.open("a") as file:
        file.write(f"{rank()}\n")
    return len(path.read_text().splitlines())


def environment(**more: str) -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    return found | {
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths, **more,
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def torchrun(processes: int, *words: str) -> str:
    """Run it to a good end, and return what it printed."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    start += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [*start, *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def difference(a: Path, b: Path) -> dict[str, float]:
    """Relative difference of every tensor."""
    first, second = load_file(a), load_file(b)
    assert first.keys() == second.keys()
    return {
        k: float((v.double() - second[k].double()).norm() / v.double().norm().clamp_min(1e-30))
        for k, v in first.items()
    }


def alone(out: Path, job: Job) -> Path:
    folder = {"folder": f"alone-{job['key']}"}
    fit(job | folder, out)
    return out / folder["folder"] / "end.safetensors"


@pytest.mark.slow
def test_two_processes_end_where_one_does(tmp_path: Path) -> None:
    """Every kind of method, both resumptions, a refusal and the order of turns, in one start."""
    write_npz(tmp_path / "toy.npz")
    jobs: list[Job] = [{"key": key, "folder": key} for key in TWO]
    # One process stopped in stage 2, two go on; two stopped in stage 1, one goes on.
    fit({"key": "lmd", "folder": "one-two", "stop": 3}, tmp_path)
    jobs += [{"key": "lmd", "folder": "one-two", "resume": True}]
    jobs += [{"key": "lmd", "folder": "two-one", "stop": 1}, {"key": "refused"}]
    said = torchrun(2, __file__, str(tmp_path), json.dumps(jobs))
    assert said.split("\n") == ["process 0 of 2", ""]

    for key in TWO:
        found = difference(alone(tmp_path, {"key": key}), tmp_path / key / "end.safetensors")
        # A cosine classifier rounds as float32 does.
        limit = 1e-5 if METHODS[key].head == "cosine" else EXACT
        assert max(found.values()) < limit, (key, found)
    whole = tmp_path / "alone-lmd" / "end.safetensors"
    assert not (tmp_path / "two-one" / "end.safetensors").exists()
    fit({"key": "lmd", "folder": "two-one", "resume": True}, tmp_path)
    for folder in ("one-two", "two-one"):
        found = difference(whole, tmp_path / folder / "end.safetensors")
        assert max(found.values()) < EXACT, (folder, found)

    first, other = ((tmp_path / f"refused-{n}.txt").read_text() for n in (0, 1))
    assert first == other
    assert "'gcl'" in first
    assert "without torchrun" in first
    assert (tmp_path / "order.txt").read_text() == "0\n1\n"


@pytest.mark.slow
def test_three_processes_of_which_one_has_no_image(tmp_path: Path) -> None:
    job = {"key": "cicl", "folder": "cicl"}
    torchrun(3, __file__, str(tmp_path), json.dumps([job]))
    found = difference(alone(tmp_path, job), tmp_path / "cicl" / "end.safetensors")
    assert max(found.values()) < EXACT, found


def write_folders(root: Path) -> Path:
    for k, count in enumerate((30, 16, 10)):
        images = toy_images((0,) * k + (count,), seed=k)
        (root / f"class{k}").mkdir(parents=True)
        for i, image in enumerate(images.pixels):
            assert cv2.imwrite(str(root / f"class{k}" / f"{i}.png"), image)
    return root


def as_words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.slow
def test_the_command_with_torchrun(tmp_path: Path) -> None:
    data = write_folders(tmp_path / "images")
    # What is chosen on a few validation images may turn over by rounding: here it is given.
    settings = SMALL | {"epochs": 2, "stage2_epochs": 2, "lr": 0.0001, "virtual_features": 200}
    settings |= {"shrinkage": 0.5, "weight_penalty": 0.01}
    words = ["-m", "lmd", "train", str(data), "--out", str(tmp_path / "two"), "--device", "cpu"]
    said = torchrun(2, *words, *as_words(settings))
    assert said.count("The report:") == 1
    decoded = Path(os.environ["LMD_CACHE"]) / "images"
    assert len(list(decoded.glob("*.pixels"))) == 1

    one = train(data, settings=settings, out=tmp_path / "one", device="cpu", quiet=True)
    found = load_file(one.path / "model.safetensors")
    shared = load_file(tmp_path / "two" / "model.safetensors")
    assert found.keys() == shared.keys(), "what ships is a plain model"
    record = json.loads((tmp_path / "two" / "record.json").read_text())
    assert record["status"] == "finished"
    assert record["machine"]["processes"] == 2
    # In float32 rounding starts at 6e-8, and every step multiplies it. Here one process with two
    # threads differs from one with one thread by 5e-5 in probabilities and 9e-6 in weights, and so
    # do two processes; BatchNorm by the slice would make it 0.15 and 2e-2.
    a, b = (np.load(p / "predictions.npz") for p in (one.path, tmp_path / "two"))
    assert (a["test_ids"] == b["test_ids"]).all()
    assert np.abs(a["test_probabilities"] - b["test_probabilities"]).max() < 1e-3
    total = sum(float(v.double().square().sum()) for v in found.values())
    apart = sum(float((v.double() - shared[k].double()).square().sum()) for k, v in found.items())
    assert (apart / total) ** 0.5 < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_ends_the_other(tmp_path: Path, number: signal.Signals) -> None:
    """Without torchrun, which would end it anyway: one killed, and one that hangs."""
    data, out, port = write_npz(tmp_path / "toy.npz"), tmp_path / "run", str(free_port())
    words = [sys.executable, "-m", "lmd", "train", str(data), "--out", str(out), "--method", "ce"]
    words += as_words(SMALL | {"epochs": 100000})
    processes = []
    for n in ("0", "1"):
        own = environment(
            RANK=n, LOCAL_RANK=n, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", LMD_TIMEOUT="3",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        )  # fmt: skip
        processes.append(
            subprocess.Popen(
                words, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        )
    first, other = processes
    try:
        limit = time.monotonic() + 60
        while not (out / "history.csv").exists():
            assert time.monotonic() < limit, "the run never got there"
            assert first.poll() is None, first.communicate()[1]
            time.sleep(0.02)
        other.send_signal(number)
        started = time.monotonic()
        _, said = first.communicate(timeout=40)
        assert time.monotonic() - started < 30
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
    assert first.returncode == 1
    message = re.sub(r"\s+", " ", said)
    assert "another of the 2 processes of this run has ended or did not answer" in message
    assert "--resume" in message
    assert "Traceback" not in said


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_slices_make_the_batch_of_one_process(processes: int) -> None:
    images = toy_images((20, 7, 3))

    def epoch(share: tuple[int, int]) -> list[Any]:
        return list(
            training_batches(
                images, [None, 1 / np.array([20.0, 7, 3])], views=("strong", "weak"),
                batch_size=8, seed=3, workers=0, share=share,
            )
        )  # fmt: skip

    whole = epoch((0, 1))
    parts = [epoch((p, processes)) for p in range(processes)]
    for b, streams in enumerate(whole):
        for s, (views, labels, _) in enumerate(streams):
            assert all(torch.equal(part[b][s][1], labels) for part in parts)
            for name, view in views.items():
                together = torch.cat([part[b][s][0][name] for part in parts])
                assert torch.equal(together, view)


def test_cuts_cover_a_batch() -> None:
    for size in range(12):
        for n in range(1, 6):
            cuts = [cut(size, p, n) for p in range(n)]
            assert [i for c in cuts for i in range(size)[c]] == list(range(size))
            lengths = [c.stop - c.start for c in cuts]
            assert max(lengths) - min(lengths) <= 1


def test_alone_nothing_is_joined() -> None:
    with joined(CPU):
        assert (rank(), world()) == (0, 1)
        assert in_turn(lambda: 5) == 5
    assert issubclass(NotShareable, LmdError)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with (
        pytest.raises(LmdError, match="WORLD_SIZE must be a whole number; it is 'two'"),
        joined(CPU),
    ):
        pass


def test_variables_without_a_meeting_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LmdError, match="start them with torchrun"), joined(CPU):
        pass


if __name__ == "__main__":
    work(Path(sys.argv[1]), json.loads(sys.argv[2]))
