"""The training that the experiments disturb, and how a run is compared with a whole one."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import forked

LIMIT = 900.0  # seconds for one process
LMD = (sys.executable, "-m", "lmd")
TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
    "lmd",
)  # fmt: skip
SETTINGS = {
    "backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 2, "stage2_epochs": 2,
    "batch_size": 8, "workers": 0, "virtual_features": 50, "m_step": "sgd",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What was ``wrong``, nothing if it is empty, and ``where`` a process died."""

    wrong: str = ""
    where: str = ""
    reached: bool = True

    def then(self, check: Callable[[], str]) -> "Outcome":
        """This outcome, and if nothing is wrong so far that of another check."""
        return self if self.wrong else Outcome(check(), self.where)


def train(out: Path) -> list[str]:
    """The words of the training that all these experiments disturb; images are files."""
    data = (out.parent if out.name == "whole" else out.parents[1]) / "data"
    if not data.exists():
        write_images(data)
    words = ["train", str(data), "--method", "lmd", "--out", str(out), "--resume", "--quiet"]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    return words


def write_images(folder: Path) -> None:
    """A folder of three classes with 28 images."""
    from PIL import Image
    from toys import toy_images

    images = toy_images((14, 8, 6), size=24)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        (part / f"class{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(part / f"class{label}" / f"{i}.png")
    part.rename(folder)


def phase_of(run: Path) -> str:
    """Where a run is, by its files."""
    if not (run / "record.json").exists():
        return "start-up or decoding"
    if '"status": "finished"' in (run / "record.json").read_text(encoding="utf-8"):
        return "end" if (run / "report.html").exists() else "report"
    if (run / "model.safetensors").exists():
        return "writing"
    history = run / "history.csv"
    stages = [line[:2] for line in history.read_text().splitlines()] if history.exists() else []
    if stages.count("2,") == SETTINGS["stage2_epochs"]:
        return "scoring"
    return "stage 2" if stages.count("1,") == SETTINGS["epochs"] else "stage 1"


def cache_of(out: Path) -> Path:
    """One cache for each kind of experiment."""
    return out.parent / "cache"


def undisturbed(folder: Path, start: Sequence[str], *more: str) -> Path:
    """A run of a real process that nothing disturbs, made once."""
    whole = folder / "whole"
    if not clock_of(whole).exists():
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        said, code = finished([*start, *train(whole), *more])
        if code != 0:
            raise RuntimeError(f"the undisturbed run failed: {said[-500:]}")
        clock_of(whole).write_text(str(time.monotonic() - started))
    return whole


def clock_of(whole: Path) -> Path:
    """The file with the seconds that a whole run took."""
    return whole.with_name("seconds")


def seconds_of(whole: Path) -> float:
    """How long a whole run took."""
    return float(clock_of(whole).read_text())


_spans: dict[str, float] = {}


def moment_of(work: Path, aim: str, rng: random.Random, number: signal.Signals) -> forked.Stop:
    """A random moment of a phase, whose length a child that nothing disturbs has measured."""
    if not _spans:
        timed = work.parent / "timed"
        shutil.rmtree(timed, ignore_errors=True)
        ended = forked.command(train(timed), cache=timed.with_name("empty"))
        whole = undisturbed(work.parents[1], LMD)
        if problem := ended.problem(0) or wrong_in(timed, whole):
            raise RuntimeError(f"the undisturbed child: {problem}")
        shutil.rmtree(timed.with_name("empty"), ignore_errors=True)
        _spans.update(ended.spans)
    if aim == "decoding":
        shutil.rmtree(cache_of(work), ignore_errors=True)  # else nothing is decoded
    return aim, rng.uniform(0, _spans[aim]), number


def start(command: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a process in a session of its own, with the cache of its kind of experiment."""
    at = [Path(word) for i, word in enumerate(command) if command[i - 1] == "--out"]
    return subprocess.Popen(
        list(command),
        env=os.environ | {"LMD_CACHE": str(cache_of(at[0])), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def killed(command: Sequence[str], after: float, number: signal.Signals) -> tuple[str, int]:
    """Output and exit code of a process that gets a signal after so many seconds."""
    process = start(command)
    try:
        said, _ = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        try:
            said, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "it did not end within 60 s of the signal", -1
    return said, process.returncode


def processes_for(work: Path) -> list[int]:
    """The processes that were started for a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if os.fsencode(work) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return sorted(found)


def kill(pid: int) -> None:
    """SIGKILL, if the process still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def finished(command: Sequence[str]) -> tuple[str, int]:
    """Output and exit code of a process that may run to its end."""
    process = start(command)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it did not end within {LIMIT} s", -1
    return said, process.returncode


def resumed(work: Path, start: Sequence[str], whole: Path, *more: str) -> str:
    """What is wrong after the run was continued to its end; empty if nothing is."""
    limit = time.monotonic() + LIMIT
    command = [*start, *train(work), *more]
    said, code = finished(command)
    # The processes of a killed launcher may go on, and then they hold the lock.
    while code != 0 and "another training is running" in said and time.monotonic() < limit:
        time.sleep(2)
        said, code = finished(command)
    if code != 0:
        return f"exit code {code} of --resume: {said[:600]}"
    return clean_up(work, traceback_in(said) or wrong_in(work, whole))


def resumed_child(work: Path, whole: Path) -> str:
    """As ``resumed``, in a forked child."""
    ended = forked.command(train(work), cache=cache_of(work))
    return clean_up(work, ended.problem(0) or wrong_in(work, whole))


def wrong_in(run: Path, whole: Path) -> str:
    """How a run differs from one that nothing disturbed."""
    found, expected = _files(run), _files(whole)
    if found != expected:
        return f"it lacks {sorted(expected - found)} and has {sorted(found - expected)}"
    parts = sorted(path.name for path in cache_of(run).rglob("*.part"))
    if parts:
        return f"the cache has {parts}"
    for name in ("model.safetensors", "model.json", "novelty.safetensors", "predictions.npz"):
        if (run / name).read_bytes() != (whole / name).read_bytes():
            return f"{name} differs"
    return ""


def _files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


def traceback_in(said: str) -> str:
    """What is wrong with an output that has a traceback."""
    return f"a traceback: {said[-300:]}" if "Traceback" in said else ""


def clean_up(work: Path, problem: str) -> str:
    """Remove the folder of an experiment unless there is something to look at."""
    if not problem:
        shutil.rmtree(work, ignore_errors=True)
    return problem
