"""Experiments with processes that die: kills, crash points and full disks."""

import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
from toys import write_npz

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
GRID = """
data = "toy.npz"
methods = ["ce", "lmd"]
seeds = [0]
[protocol]
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = 2
stage2_epochs = 1
batch_size = 8
[protocol.methods.lmd]
virtual_features = 50
m_step = "sgd"
"""
AIMS = ("decoding", "stage 1", "stage 2", "scoring", "writing", "report")


@dataclass(frozen=True)
class Outcome:
    """What was ``wrong``, nothing if it is empty, and ``where`` a process died."""

    wrong: str = ""
    where: str = ""
    reached: bool = True

    def then(self, check: Callable[[], str]) -> "Outcome":
        """This outcome, and if nothing is wrong so far that of another check."""
        return self if self.wrong else Outcome(check(), self.where)


def kill_process(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Kill a real process at a random moment of its life, and resume it."""
    whole = undisturbed(work.parents[1], LMD)
    moment = rng.uniform(0, _seconds(whole))
    said, _ = _killed([*LMD, *train(work)], moment, signal.SIGKILL)
    return Outcome(_traceback(said), phase_of(work)).then(lambda: _resumed_child(work, whole))


def end_process(work: Path, rng: random.Random, _number: int) -> Outcome:
    """End a real process by SIGTERM, and resume it."""
    whole = undisturbed(work.parents[1], LMD)
    moment = rng.uniform(0, _seconds(whole))
    said, code = _killed([*LMD, *train(work)], moment, signal.SIGTERM)
    wrong = _traceback(said)
    if code not in (0, 130, -signal.SIGTERM):
        wrong = wrong or f"exit code {code} after SIGTERM: {said[-300:]}"
    return Outcome(wrong, phase_of(work)).then(lambda: _resumed_child(work, whole))


def kill_phase(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill a forked child at a random moment of one phase; each third one twice."""
    whole = undisturbed(work.parents[1], LMD)
    where = []
    for _ in range(2 if number % 3 == 2 else 1):
        aim = AIMS[(number + len(where)) % len(AIMS)]
        ended = forked.command(
            train(work), cache=_cache(work), stop=_moment(work, aim, rng, signal.SIGKILL)
        )
        if ended.code != -signal.SIGKILL and ended.problem(0):
            return Outcome(ended.problem(0), ended.phase)
        where.append(ended.phase)
    return Outcome(_resumed_child(work, whole), ", then ".join(where))


def end_phase(work: Path, rng: random.Random, number: int) -> Outcome:
    """End a forked child by SIGTERM at a random moment of one phase."""
    whole = undisturbed(work.parents[1], LMD)
    stop = _moment(work, AIMS[number % len(AIMS)], rng, signal.SIGTERM)
    ended = forked.command(train(work), cache=_cache(work), stop=stop)
    if ended.code == 130 and "interrupted: run the same command" not in ended.said:
        return Outcome(f"no message after SIGTERM: {ended.said[-300:]}", ended.phase)
    wrong = "" if ended.code == 130 else ended.problem(0)
    found = Outcome(wrong or _traceback(ended.said), ended.phase)
    return found.then(lambda: _resumed_child(work, whole))


def kill_ranks(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill one or both of two forked children that share a run as under torchrun."""
    whole = work.parent / "whole"
    if not whole.exists():
        for child in _ranks(whole):
            if problem := child.ended().problem(0):
                raise RuntimeError(f"undisturbed: {problem}")
    aim, delay, _ = _moment(work, AIMS[number % len(AIMS)], rng, signal.SIGKILL)
    ranks = _ranks(work)
    while all(child.running(0.005) for child in ranks):
        if ranks[0].marks.phase >= forked.PHASES.index(aim):
            time.sleep(delay)
            break
    who = [ranks[:1], ranks[1:], ranks][number % 3]
    for child in (child for child in who if child.status is None):
        child.signal(signal.SIGKILL)
    where = who[0].phase
    # The launcher ends the others as soon as one is gone.
    for child in (child for child in ranks if child not in who and child.running()):
        child.signal(signal.SIGTERM)
    said = "".join(child.ended().said for child in ranks if child not in who)
    for child in ranks:
        if child.status is None:
            child.ended()
    found = Outcome("", where) if "Traceback" not in said else Outcome(_traceback(said), where)
    if found.wrong:
        return found
    for child in _ranks(work):
        found = found.then(lambda child=child: child.ended().problem(0))
    return Outcome(_clean_up(work, found.wrong or _wrong(work, whole)), where)


def _ranks(out: Path) -> list[forked.Child]:
    """Two children with the variables that torchrun sets."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    words = [*train(out), "--device", "cpu"]
    return [
        forked.Child(
            lambda: forked.main(words),
            cache=_cache(out),
            variables=shared | {"MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]


def kill_torchrun(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill the launcher, one of its processes or all of them, and resume."""
    whole = undisturbed(work.parent, TORCHRUN, "--device", "cpu")
    command = [*TORCHRUN, *train(work), "--device", "cpu"]
    who = ("all", "the launcher", "one process")[number % 3]
    process = _start(command)
    end = time.monotonic() + rng.uniform(0, _seconds(whole))
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    where = phase_of(work)
    workers = [pid for pid in _processes_for(work) if pid != process.pid]
    if who != "one process" or not workers:
        _kill(process.pid)
    for pid in {"all": workers, "one process": workers[-1:]}.get(who, []):
        _kill(pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=LIMIT)
    found = _resumed(work, TORCHRUN, whole, "--device", "cpu")
    return Outcome(found, where)


def kill_benchmark(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Kill a benchmark and run it again."""
    work.parent.mkdir(parents=True, exist_ok=True)
    data = write_npz(work.parent / "toy.npz", (12, 6, 3))
    grid = work.parent / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    command = [*LMD, "benchmark", str(grid), "--workers", "2", "--out"]
    whole = data.with_name("whole")
    if not _clock(whole).exists():
        started = time.monotonic()
        said, code = _finished([*command, str(whole)])
        if code != 0:
            return Outcome(f"undisturbed: {said[-300:]}")
        _clock(whole).write_text(str(time.monotonic() - started))
    moment = rng.uniform(0, _seconds(whole))
    said, _ = _killed([*command, str(work)], moment, signal.SIGKILL)
    runs = [phase_of(path.parent) for path in work.glob("*/record.json")]
    where = ", ".join(sorted({*runs})) or "start-up"
    again, code = _finished([*command, str(work)])
    if code != 0:
        return Outcome(f"exit code {code}: {again[-300:]}", where)
    logs = "".join(path.read_text(errors="replace") for path in (work / "logs").glob("*.txt"))
    wrong = _traceback(said + again + logs)
    expected = sorted(path.parent.name for path in whole.glob("*/model.safetensors"))
    assert len(expected) == 2
    for name in expected:
        if difference := _wrong(work / name, whole / name):
            wrong = wrong or f"{name}: {difference}"
    return Outcome(_clean_up(work, wrong), where)


def crash_point(work: Path, _rng: random.Random, number: int) -> Outcome:
    """Die at one write of a run; even numbers before its rename, odd ones after it."""
    whole = undisturbed(work.parents[1], LMD)
    left, after = number // 2, number % 2 == 1
    replace = pathlib.Path.replace

    def crash(path: Path, target: Path) -> Any:
        nonlocal left
        left -= path.suffix in {".tmp", ".part"}
        if left < 0:
            if after:
                replace(path, target)
            os._exit(137)
        return replace(path, target)

    def install() -> None:
        pathlib.Path.replace = crash  # type: ignore[method-assign, assignment]

    ended = forked.command(train(work), cache=_cache(work), before=install)
    if ended.code == 0:
        shutil.rmtree(work)
        return Outcome(reached=False)
    wrong = ended.problem(137) if ended.code != 137 else _traceback(ended.said)
    name = "after its rename" if after else "before its rename"
    return Outcome(wrong, name).then(lambda: _resumed_child(work, whole))


def full_disk(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train with a limit on the size of files, as on a full disk, then without."""
    whole = undisturbed(work.parents[1], LMD)
    limit = int(10 ** rng.uniform(0, 6))

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    shutil.rmtree(_cache(work), ignore_errors=True)  # so that it needs space as well
    ended = forked.command(train(work), cache=_cache(work), before=fill)
    where = "enough space" if ended.code == 0 else "one line"
    return Outcome(ended.problem(0, 1), where).then(lambda: _resumed_child(work, whole))


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


def _cache(out: Path) -> Path:
    """One cache for each kind of experiment."""
    return out.parent / "cache"


def undisturbed(folder: Path, start: Sequence[str], *more: str) -> Path:
    """A run of a real process that nothing disturbs, made once."""
    whole = folder / "whole"
    if not _clock(whole).exists():
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        said, code = _finished([*start, *train(whole), *more])
        if code != 0:
            raise RuntimeError(f"the undisturbed run failed: {said[-500:]}")
        _clock(whole).write_text(str(time.monotonic() - started))
    return whole


def _clock(whole: Path) -> Path:
    return whole.with_name("seconds")


def _seconds(whole: Path) -> float:
    return float(_clock(whole).read_text())


_spans: dict[str, float] = {}


def _moment(work: Path, aim: str, rng: random.Random, number: signal.Signals) -> forked.Stop:
    """A random moment of a phase, whose length a child that nothing disturbs has measured."""
    if not _spans:
        timed = work.parent / "timed"
        shutil.rmtree(timed, ignore_errors=True)
        ended = forked.command(train(timed), cache=timed.with_name("empty"))
        whole = undisturbed(work.parents[1], LMD)
        if problem := ended.problem(0) or _wrong(timed, whole):
            raise RuntimeError(f"the undisturbed child: {problem}")
        shutil.rmtree(timed.with_name("empty"), ignore_errors=True)
        _spans.update(ended.spans)
    if aim == "decoding":
        shutil.rmtree(_cache(work), ignore_errors=True)  # else nothing is decoded
    return aim, rng.uniform(0, _spans[aim]), number


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    at = [Path(word) for i, word in enumerate(command) if command[i - 1] == "--out"]
    return subprocess.Popen(
        list(command),
        env=os.environ | {"LMD_CACHE": str(_cache(at[0])), "OMP_NUM_THREADS": "1"},
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


def _processes_for(work: Path) -> list[int]:
    """The processes that were started for a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if os.fsencode(work) in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return sorted(found)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _finished(command: Sequence[str]) -> tuple[str, int]:
    process = _start(command)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"it did not end within {LIMIT} s", -1
    return said, process.returncode


def _resumed(work: Path, start: Sequence[str], whole: Path, *more: str) -> str:
    """What is wrong after the run was continued to its end; empty if nothing is."""
    limit = time.monotonic() + LIMIT
    command = [*start, *train(work), *more]
    said, code = _finished(command)
    # The processes of a killed launcher may go on, and then they hold the lock.
    while code != 0 and "another training is running" in said and time.monotonic() < limit:
        time.sleep(2)
        said, code = _finished(command)
    if code != 0:
        return f"exit code {code} of --resume: {said[:600]}"
    return _clean_up(work, _traceback(said) or _wrong(work, whole))


def _resumed_child(work: Path, whole: Path) -> str:
    ended = forked.command(train(work), cache=_cache(work))
    return _clean_up(work, ended.problem(0) or _wrong(work, whole))


def _wrong(run: Path, whole: Path) -> str:
    """How a run differs from one that nothing disturbed."""
    found, expected = _files(run), _files(whole)
    if found != expected:
        return f"it lacks {sorted(expected - found)} and has {sorted(found - expected)}"
    parts = sorted(path.name for path in _cache(run).rglob("*.part"))
    if parts:
        return f"the cache has {parts}"
    for name in ("model.safetensors", "model.json", "novelty.safetensors", "predictions.npz"):
        if (run / name).read_bytes() != (whole / name).read_bytes():
            return f"{name} differs"
    return ""


def _files(run: Path) -> set[str]:
    return {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}


def _traceback(said: str) -> str:
    return f"a traceback: {said[-300:]}" if "Traceback" in said else ""


def _clean_up(work: Path, problem: str) -> str:
    """Remove the folder of an experiment unless there is something to look at."""
    if not problem:
        shutil.rmtree(work, ignore_errors=True)
    return problem
