"""Experiments with real processes: kills, crash points and full disks."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from toys import write_npz

NOT_REACHED = "not reached"
LIMIT = 900  # seconds for one process
SETTINGS = {
    "backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 3, "batch_size": 8,
    "workers": 0,
}  # fmt: skip
GRID = """
data = "toy.npz"
methods = ["ce", "focal"]
seeds = [0]
[protocol]
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = 2
batch_size = 8
"""
# Ends the process at the n-th rename of a temporary file, before or after it.
CRASH = """
import os, pathlib, sys
left, after = int(sys.argv[1]), sys.argv[2] == "after"
del sys.argv[1:3]
replace = pathlib.Path.replace
def crash(self, target):
    global left
    left -= self.suffix in {".tmp", ".part"}
    if left < 0 and not after:
        os._exit(137)
    found = replace(self, target)
    if left < 0:
        os._exit(137)
    return found
pathlib.Path.replace = crash
from lmd.cli import main
main()
"""
# Lets no file grow beyond so many bytes, as a full disk does.
FULL = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from lmd.cli import main
main()
"""


def kill_train(work: Path, rng: random.Random, _number: int) -> str:
    """Kill one training and resume it."""
    command = [sys.executable, "-m", "lmd", *_train(work)]
    whole, seconds = _undisturbed(work.parent, [sys.executable, "-m", "lmd"])
    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
    said, code = _killed(command, rng.uniform(0, seconds), number)
    if number == signal.SIGTERM and code not in (0, 130, -signal.SIGTERM):
        return f"exit code {code} after SIGTERM"
    return _traceback(said) or _resumed(work, command, whole)


def kill_torchrun(work: Path, rng: random.Random, _number: int) -> str:
    """Kill the launcher, or all processes, and resume."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lmd"]
    command = [sys.executable, *words, *_train(work), "--device", "cpu"]
    whole, seconds = _undisturbed(work.parent, [sys.executable, *words])
    _killed(command, rng.uniform(0, seconds), signal.SIGKILL)
    if rng.random() < 0.5:
        _kill_workers(work)
    return _resumed(work, command, whole)


def kill_benchmark(work: Path, rng: random.Random, _number: int) -> str:
    """Kill a benchmark and run it again."""
    work.mkdir(parents=True, exist_ok=True)
    data = write_npz(work.parent / "toy.npz", (12, 6, 3))
    grid = work.parent / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    command = [sys.executable, "-m", "lmd", "benchmark", str(grid), "--workers", "2", "--out"]
    whole = data.with_name("whole")
    if not (whole / "seconds").exists():
        started = time.monotonic()
        said, code = _finished([*command, str(whole)])
        if code != 0:
            return f"undisturbed: {said[-300:]}"
        (whole / "seconds").write_text(str(time.monotonic() - started))
    number = rng.choice([signal.SIGKILL, signal.SIGTERM])
    moment = rng.uniform(0, float((whole / "seconds").read_text()))
    said, _ = _killed([*command, str(work)], moment, number)
    again, code = _finished([*command, str(work)])
    if code != 0:
        return f"exit code {code}: {again[-300:]}"
    logs = "".join(path.read_text(errors="replace") for path in (work / "logs").glob("*.txt"))
    expected = sorted(path.parent.name for path in whole.glob("*/model.safetensors"))
    for name in expected:
        problem = _wrong(work / name, whole / name)
        if problem:
            return f"{name}: {problem}"
    return _clean_up(work, _traceback(said + again + logs))


def crash_point(work: Path, _rng: random.Random, number: int) -> str:
    """Die at one write of a run; even numbers before its rename, odd ones after it."""
    whole, _ = _undisturbed(work.parent, [sys.executable, "-m", "lmd"])
    when = ("before", "after")[number % 2]
    said, code = _finished([sys.executable, "-c", CRASH, str(number // 2), when, *_train(work)])
    if code == 0:
        shutil.rmtree(work)
        return NOT_REACHED
    if code != 137:
        return f"exit code {code}: {said[-300:]}"
    return _resumed(work, [sys.executable, "-m", "lmd", *_train(work)], whole)


def full_disk(work: Path, rng: random.Random, _number: int) -> str:
    """Train with a limit on the size of files, then without."""
    whole, _ = _undisturbed(work.parent, [sys.executable, "-m", "lmd"])
    limit = int(10 ** rng.uniform(0, 6))
    said, code = _finished([sys.executable, "-c", FULL, str(limit), *_train(work)])
    if code not in (0, 1) or (code == 1 and "error: " not in said):
        return f"exit code {code} with room for {limit} bytes: {said[-300:]}"
    return _traceback(said) or _resumed(work, [sys.executable, "-m", "lmd", *_train(work)], whole)


def _train(out: Path) -> list[str]:
    """The words of the training that all these experiments disturb; images are files."""
    data = out.parent / "data"
    if not data.exists():
        _write_images(data)
    words = ["train", str(data), "--method", "ce", "--out", str(out), "--resume", "--quiet"]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    return words


def _write_images(folder: Path) -> None:
    from PIL import Image
    from toys import toy_images

    images = toy_images((20, 12, 8), size=24)
    part = folder.with_name("data.part")
    shutil.rmtree(part, ignore_errors=True)
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        (part / f"class{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(part / f"class{label}" / f"{i}.png")
    part.rename(folder)


def _undisturbed(folder: Path, start: Sequence[str]) -> tuple[Path, float]:
    """A run that nothing disturbs, and its seconds; made once."""
    whole, clock = folder / "whole", folder / "seconds"
    if not clock.exists():
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        said, code = _finished([*start, *_train(whole)])
        if code != 0:
            raise RuntimeError(f"the undisturbed run failed: {said[-500:]}")
        clock.write_text(str(time.monotonic() - started))
    return whole, float(clock.read_text())


def _environment(command: Sequence[str]) -> dict[str, str]:
    """One cache for each folder of experiments, beside it."""
    at = [Path(word).parent for i, word in enumerate(command) if command[i - 1] == "--out"]
    cache = str(at[0] / "cache") if at else ""
    return os.environ | {"LMD_CACHE": cache, "OMP_NUM_THREADS": "1"}


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        list(command),
        env=_environment(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _killed(command: Sequence[str], after: float, number: signal.Signals) -> tuple[str, int]:
    """Output and exit code of a process that gets a signal after so many seconds."""
    process = _start(command)
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


def _kill_workers(work: Path) -> None:
    """Kill what a killed launcher left: the processes that were started for this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if os.fsencode(work) in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def _finished(command: Sequence[str]) -> tuple[str, int]:
    process = _start(command)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it did not end within {LIMIT} s", -1
    return said, process.returncode


def _resumed(work: Path, command: Sequence[str], whole: Path) -> str:
    """What is wrong after the run was continued to its end; empty if nothing is."""
    limit = time.monotonic() + LIMIT
    said, code = _finished(command)
    # The workers of a killed launcher may go on, and then they hold the lock.
    while code != 0 and "another training is running" in said and time.monotonic() < limit:
        time.sleep(2)
        said, code = _finished(command)
    if code != 0:
        return f"exit code {code} of --resume: {said[:600]}"
    return _clean_up(work, _traceback(said) or _wrong(work, whole))


def _wrong(run: Path, whole: Path) -> str:
    """How a run differs from one that nothing disturbed."""
    found, expected = _files(run), _files(whole)
    if found != expected:
        return f"it lacks {sorted(expected - found)} and has {sorted(found - expected)}"
    parts = sorted(path.name for path in (run.parent / "cache").rglob("*.part"))
    if parts:
        return f"the cache has {parts}"
    weights = "model.safetensors"
    same = (run / weights).read_bytes() == (whole / weights).read_bytes()
    return "" if same else "the weights differ"


def _files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


def _traceback(said: str) -> str:
    return f"a traceback: {said[-300:]}" if "Traceback" in said else ""


def _clean_up(work: Path, problem: str) -> str:
    """Remove the folder of an experiment unless there is something to look at."""
    if not problem:
        shutil.rmtree(work, ignore_errors=True)
    return problem
