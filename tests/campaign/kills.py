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
import time
from pathlib import Path
from typing import Any

import forked
from toys import write_npz
from trainings import (
    LIMIT,
    LMD,
    TORCHRUN,
    Outcome,
    cache_of,
    clean_up,
    clock_of,
    finished,
    kill,
    killed,
    moment_of,
    phase_of,
    processes_for,
    resumed,
    resumed_child,
    seconds_of,
    start,
    traceback_in,
    train,
    undisturbed,
    wrong_in,
)

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


def kill_process(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Kill a real process at a random moment of its life, and resume it."""
    whole = undisturbed(work.parents[1], LMD)
    moment = rng.uniform(0, seconds_of(whole))
    said, _ = killed([*LMD, *train(work)], moment, signal.SIGKILL)
    return Outcome(traceback_in(said), phase_of(work)).then(lambda: resumed_child(work, whole))


def end_process(work: Path, rng: random.Random, _number: int) -> Outcome:
    """End a real process by SIGTERM, and resume it."""
    whole = undisturbed(work.parents[1], LMD)
    moment = rng.uniform(0, seconds_of(whole))
    said, code = killed([*LMD, *train(work)], moment, signal.SIGTERM)
    wrong = traceback_in(said)
    if code not in (0, 130, -signal.SIGTERM):
        wrong = wrong or f"exit code {code} after SIGTERM: {said[-300:]}"
    return Outcome(wrong, phase_of(work)).then(lambda: resumed_child(work, whole))


def kill_phase(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill a forked child at a random moment of one phase; each third one twice."""
    whole = undisturbed(work.parents[1], LMD)
    where = []
    for _ in range(2 if number % 3 == 2 else 1):
        aim = AIMS[(number + len(where)) % len(AIMS)]
        ended = forked.command(
            train(work), cache=cache_of(work), stop=moment_of(work, aim, rng, signal.SIGKILL)
        )
        if ended.code != -signal.SIGKILL and ended.problem(0):
            return Outcome(ended.problem(0), ended.phase)
        where.append(ended.phase)
    return Outcome(resumed_child(work, whole), ", then ".join(where))


def end_phase(work: Path, rng: random.Random, number: int) -> Outcome:
    """End a forked child by SIGTERM at a random moment of one phase."""
    whole = undisturbed(work.parents[1], LMD)
    stop = moment_of(work, AIMS[number % len(AIMS)], rng, signal.SIGTERM)
    ended = forked.command(train(work), cache=cache_of(work), stop=stop)
    if ended.code == 130 and "interrupted: run the same command" not in ended.said:
        return Outcome(f"no message after SIGTERM: {ended.said[-300:]}", ended.phase)
    wrong = "" if ended.code == 130 else ended.problem(0)
    found = Outcome(wrong or traceback_in(ended.said), ended.phase)
    return found.then(lambda: resumed_child(work, whole))


def kill_ranks(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill one or both of two forked children that share a run as under torchrun."""
    whole = work.parent / "whole"
    if not whole.exists():
        for child in _ranks(whole):
            if problem := child.ended().problem(0):
                raise RuntimeError(f"undisturbed: {problem}")
    aim, delay, _ = moment_of(work, AIMS[number % len(AIMS)], rng, signal.SIGKILL)
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
    found = Outcome("", where) if "Traceback" not in said else Outcome(traceback_in(said), where)
    if found.wrong:
        return found
    for child in _ranks(work):
        found = found.then(lambda child=child: child.ended().problem(0))
    return Outcome(clean_up(work, found.wrong or wrong_in(work, whole)), where)


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
            cache=cache_of(out),
            variables=shared | {"MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]


def kill_torchrun(work: Path, rng: random.Random, number: int) -> Outcome:
    """Kill the launcher, one of its processes or all of them, and resume."""
    whole = undisturbed(work.parent, TORCHRUN, "--device", "cpu")
    command = [*TORCHRUN, *train(work), "--device", "cpu"]
    who = ("all", "the launcher", "one process")[number % 3]
    process = start(command)
    end = time.monotonic() + rng.uniform(0, seconds_of(whole))
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    where = phase_of(work)
    workers = [pid for pid in processes_for(work) if pid != process.pid]
    if who != "one process" or not workers:
        kill(process.pid)
    for pid in {"all": workers, "one process": workers[-1:]}.get(who, []):
        kill(pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=LIMIT)
    found = resumed(work, TORCHRUN, whole, "--device", "cpu")
    return Outcome(found, where)


def kill_benchmark(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Kill a benchmark and run it again."""
    work.parent.mkdir(parents=True, exist_ok=True)
    data = write_npz(work.parent / "toy.npz", (12, 6, 3))
    grid = work.parent / "grid.toml"
    grid.write_text(GRID, encoding="utf-8")
    command = [*LMD, "benchmark", str(grid), "--workers", "2", "--out"]
    whole = data.with_name("whole")
    if not clock_of(whole).exists():
        started = time.monotonic()
        said, code = finished([*command, str(whole)])
        if code != 0:
            return Outcome(f"undisturbed: {said[-300:]}")
        clock_of(whole).write_text(str(time.monotonic() - started))
    moment = rng.uniform(0, seconds_of(whole))
    said, _ = killed([*command, str(work)], moment, signal.SIGKILL)
    runs = [phase_of(path.parent) for path in work.glob("*/record.json")]
    where = ", ".join(sorted({*runs})) or "start-up"
    again, code = finished([*command, str(work)])
    if code != 0:
        return Outcome(f"exit code {code}: {again[-300:]}", where)
    logs = "".join(path.read_text(errors="replace") for path in (work / "logs").glob("*.txt"))
    wrong = traceback_in(said + again + logs)
    expected = sorted(path.parent.name for path in whole.glob("*/model.safetensors"))
    assert len(expected) == 2
    for name in expected:
        if difference := wrong_in(work / name, whole / name):
            wrong = wrong or f"{name}: {difference}"
    return Outcome(clean_up(work, wrong), where)


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

    ended = forked.command(train(work), cache=cache_of(work), before=install)
    if ended.code == 0:
        shutil.rmtree(work)
        return Outcome(reached=False)
    wrong = ended.problem(137) if ended.code != 137 else traceback_in(ended.said)
    name = "after its rename" if after else "before its rename"
    return Outcome(wrong, name).then(lambda: resumed_child(work, whole))


def full_disk(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train with a limit on the size of files, as on a full disk, then without."""
    whole = undisturbed(work.parents[1], LMD)
    limit = int(10 ** rng.uniform(0, 6))

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    shutil.rmtree(cache_of(work), ignore_errors=True)  # so that it needs space as well
    ended = forked.command(train(work), cache=cache_of(work), before=fill)
    where = "enough space" if ended.code == 0 else "one line"
    return Outcome(ended.problem(0, 1), where).then(lambda: resumed_child(work, whole))
