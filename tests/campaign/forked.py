"""Commands in forked children: torch is imported once, and every child has limits.

A child is what ``lmd`` would be a moment after its imports. Start-up is tested with real processes.
"""

import importlib
import mmap
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("start-up", "decoding", "stage 1", "stage 2", "scoring", "writing", "report", "end")
SECONDS = 600.0  # after these a child hangs
MEMORY = 2 << 30  # bytes that a child may take beside what it was born with
SPACE = 4 << 30  # bytes of address space beside that of the parent
NEEDED = (
    "cv2", "pydicom", "onnx", "onnxruntime", "lmd.cli.commands", "lmd.fit.train",
    "lmd.evaluation.evaluate", "lmd.frozen.calibrate", "lmd.explain.explanation",
    "lmd.predict.predictor",
    "lmd.export.export", "lmd.doctor.command", "lmd.doctor.examine", "lmd.benchmark.run",
    "lmd.benchmark.planning", "lmd.benchmark.tables",
)  # fmt: skip
Stop = tuple[str, float, signal.Signals]


@dataclass(frozen=True)
class Ended:
    """How a child ended: output, exit code (negative: a signal), and its bytes of memory.

    ``phase`` is where the child was, and ``spans`` are the seconds that each phase took.
    """

    said: str
    code: int
    seconds: float
    memory: int
    phase: str
    spans: Mapping[str, float]
    hung: bool = False

    def problem(self, *codes: int) -> str:
        """What is wrong with a command that had to end with one of these codes."""
        longest = max(map(len, self.said.splitlines()), default=0)
        faults = {
            f"no end after {SECONDS:.0f} s": self.hung,
            "a traceback": "Traceback" in self.said,
            f"exit code {self.code}": self.code not in codes,
            "a warning of Python": "Warning: " in self.said,
            f"exit code {self.code} without a message": self.code and "rror" not in self.said,
            f"a line of {longest} characters": longest > 2000,
            f"{self.memory / 2**30:.1f} GB of memory": self.memory > MEMORY,
        }
        found = [what for what, wrong in faults.items() if wrong]
        return f"{', '.join(found)}: {self.said.strip()[-400:]}" if found else ""


class Marks:
    """The phase of a child and the times at which phases began, in shared memory."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * (len(PHASES) + 1))
        self.set(0)

    def set(self, phase: int) -> None:
        """Note that a phase begins."""
        self.memory[:8] = struct.pack("d", phase)
        self.memory[8 * (phase + 1) : 8 * (phase + 2)] = struct.pack("d", time.monotonic())

    @property
    def phase(self) -> int:
        """The phase that began last."""
        return int(struct.unpack("d", self.memory[:8])[0])

    def spans(self, end: float) -> dict[str, float]:
        """Seconds of each phase that began."""
        times = struct.unpack(f"{len(PHASES)}d", self.memory[8 : 8 * (len(PHASES) + 1)])
        begun = [(t, name) for t, name in zip(times, PHASES, strict=True) if t]
        ends = [t for t, _ in begun[1:]] + [end]
        return {name: stop - t for (t, name), stop in zip(begun, ends, strict=True)}

    def install(self) -> None:
        """Let the training of this process say where it is."""
        from lmd.fit import train
        from lmd.training.loop import StageTraining

        stage = StageTraining.run

        def run(self_: StageTraining, *given: Any) -> Any:
            self.set(PHASES.index(f"stage {min(self_.index, 1) + 1}"))
            return stage(self_, *given)

        StageTraining.run = run  # type: ignore[method-assign, assignment]
        for name, phase in (
            ("prepare", "decoding"),
            ("_predict", "scoring"),
            ("_finish", "writing"),
            ("write_report", "report"),
        ):
            setattr(train, name, self._marked(getattr(train, name), PHASES.index(phase)))

    def _marked(self, call: Callable[..., Any], phase: int) -> Callable[..., Any]:
        def marked(*given: Any, **named: Any) -> Any:
            self.set(phase)
            return call(*given, **named)

        return marked


def warm_up() -> None:
    """Import what the commands need, without starting a thread."""
    import torch

    torch.set_num_threads(1)
    for name in NEEDED:
        importlib.import_module(name)


def command(words: Sequence[str], *, stop: Stop | None = None, **options: Any) -> Ended:
    """Run ``lmd`` with these words in a child to its end; for the options see ``Child``."""
    return Child(lambda: main(words), **options).ended(stop)


class Child:
    """A forked process that does ``before`` and ``work``, with its own cache and variables."""

    def __init__(
        self,
        work: Callable[[], int],
        *,
        cache: Path,
        before: Callable[[], object] = lambda: None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.marks, (self.pipe, writing) = Marks(), os.pipe()
        sys.stdout.flush()
        self.born = _memory()
        self.started = time.monotonic()
        self.phase, self.hung = PHASES[-1], False
        self.said = bytearray()
        self.status: tuple[int, Any] | None = None
        self.number = os.fork()
        if self.number == 0:
            os.close(self.pipe)
            os.environ.update({"LMD_CACHE": str(cache), **(variables or {})})
            _live(work, before, self.marks, writing)
        os.close(writing)

    def running(self, wait: float = 0.05) -> bool:
        """Wait a moment, read what the child says, and end it if it hangs."""
        if select.select([self.pipe], [], [], wait)[0]:
            self.said += os.read(self.pipe, 1 << 16)
        ended, status, usage = os.wait4(self.number, os.WNOHANG)
        if ended:
            self.status = (status, usage)
        elif time.monotonic() - self.started > SECONDS:
            self.hung = True
            os.kill(self.number, signal.SIGKILL)
        return not ended

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, and note the phase in which it arrives."""
        os.kill(self.number, signal.SIGSTOP)
        self.phase = PHASES[self.marks.phase]
        os.kill(self.number, number)
        os.kill(self.number, signal.SIGCONT)

    def ended(self, stop: Stop | None = None) -> Ended:
        """How it ends; ``stop`` is a phase, seconds after its beginning, and a signal."""
        due = float("inf")
        while self.running(0.005 if stop else 0.05):
            if stop and due == float("inf") and self.marks.phase >= PHASES.index(stop[0]):
                due = time.monotonic() + stop[1]
            if stop and time.monotonic() >= due:
                self.signal(stop[2])
                stop = None
        while select.select([self.pipe], [], [], 0)[0] and (rest := os.read(self.pipe, 1 << 16)):
            self.said += rest
        os.close(self.pipe)
        end = time.monotonic()
        assert self.status is not None
        status, usage = self.status
        return Ended(
            self.said.decode("utf-8", "replace"),
            os.waitstatus_to_exitcode(status),
            end - self.started,
            max(0, usage.ru_maxrss * 1024 - self.born),
            self.phase,
            self.marks.spans(end),
            self.hung,
        )


def main(words: Sequence[str]) -> int:
    """The exit code of ``lmd`` with these words, in this process."""
    from lmd import cli

    sys.argv = ["lmd", *words]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _live(
    work: Callable[[], int],
    before: Callable[[], object],
    marks: Marks,
    writing: int,
) -> None:
    """The life of a child; it does not return."""
    code = 1
    try:
        os.setsid()
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + SPACE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        marks.install()
        before()
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
