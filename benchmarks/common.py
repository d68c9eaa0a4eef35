"""What the benchmarks share: data, clocks, memory measurement, and targets."""

import contextlib
import ctypes
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Result:
    """A measured number and its target, a lower bound if ``at_least``, else an upper bound."""

    name: str
    value: float
    target: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    def line(self) -> str:
        sign, word = "≥" if self.at_least else "≤", "met" if self.met else "NOT MET"
        return f"{self.name}: {self.value:.3g} (target {sign} {self.target:g}): {word}"


def one_thread() -> None:
    """Use one thread on both sides of every ratio, which other work disturbs least."""
    torch.set_num_threads(1)


def clock(work: Callable[[], Any], now: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    gc.collect()
    start = now()
    work()
    return now() - start


def side_by_side(
    sides: dict[str, Callable[[], Any]],
    repeats: int,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each side, measured in turns, so that a busy moment affects all sides."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, work in sides.items():
            found[name].append(clock(work, now))
    return found


def median_ratio(slow: list[float], fast: list[float]) -> float:
    """Median of slow / fast over the turns."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB."""
    # ru_maxrss is only the fallback: a child process inherits its parent's.
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 1024
    unit = 1024 if sys.platform == "linux" else 1024 * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def above(base: Callable[[], Any], work: Callable[[Any], Any]) -> tuple[float, float]:
    """Seconds, and peak memory in MB, of ``work(base())`` above what ``base`` needed."""
    given = base()
    gc.collect()
    # Return freed memory, which would hide what the work needs.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    # Reset the peak: memory that making the data needed does not count.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = peak_mb()
    seconds = clock(lambda: work(given))
    return seconds, peak_mb() - before


def in_process(script: str, *arguments: str) -> dict[str, Any]:
    """Run ``benchmarks/SCRIPT`` in a separate process; the last line of its output is JSON."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(arguments)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def finish(results: list[Result], path: str | None) -> int:
    """Print all results and write them for ``run.py``; returns 1 if a target is missed."""
    for result in results:
        print(result.line(), flush=True)
    if path:
        Path(path).write_text(json.dumps([asdict(r) for r in results]))
    return 0 if all(r.met for r in results) else 1


def long_tailed_features(
    n: int, classes: int, channels: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Class-balanced rectified features like an encoder's ``(N, C)``, and labels ``(N,)``."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    mixing = torch.randn(channels, channels, generator=g) / channels**0.5
    centres = 0.3 * torch.randn(classes, channels, generator=g)
    features = torch.empty(n, channels)
    for rows in torch.arange(n).split(8192):
        noise = torch.randn(len(rows), channels, generator=g)
        features[rows] = (noise @ mixing + centres[labels[rows]]).relu_()
    return features, labels


def pixels(n: int, size: int, seed: int = 0) -> np.ndarray:
    """Smooth random uint8 images ``(N, S, S, 3)``."""
    import cv2

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
    return np.stack([cv2.resize(c, (size, size), interpolation=cv2.INTER_CUBIC) for c in coarse])


def photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files of 600 x 450 px, as in archives of dermatoscopic images."""
    import cv2

    coarse = np.random.default_rng(0).integers(0, 256, (count, 15, 20, 3), dtype=np.uint8)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path, each in zip(paths, coarse, strict=True):
        cv2.imwrite(str(path), cv2.resize(each, (600, 450), interpolation=cv2.INTER_CUBIC))
    return paths
