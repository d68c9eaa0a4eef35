"""Threads that wait passively or spin, in one run and in two runs on the same cores.

python benchmarks/threads.py [--threads N] [--repeats N]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = {"backbone": "resnet8", "weights": "none", "epochs": 4, "image_size": 32, "workers": 0}


def start(out: Path, threads: int, policy: str) -> "subprocess.Popen[bytes]":
    """Start a small training in a separate process."""
    words = [sys.executable, "-m", "lmd", "train", "synthetic", "--method", "ce"]
    words += ["--protocol", "demo", "--device", "cpu", "--out", str(out)]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    limits = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": policy}
    return subprocess.Popen(words, env=os.environ | limits, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip


def seconds(runs: int, threads: int, policy: str) -> float:
    """Mean seconds that the steps of ``runs`` trainings took side by side."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(n) for n in range(runs)]
        for process in [start(out, threads, policy) for out in outs]:
            if process.wait() != 0:
                raise SystemExit("a training failed")
        records = [json.loads((out / "record.json").read_text()) for out in outs]
    return statistics.mean(record["timings"]["stage 1 steps"] for record in records)


def main(threads: int, repeats: int) -> None:
    cases = [(runs, policy) for runs in (1, 2) for policy in ("PASSIVE", "ACTIVE")]
    found: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for runs, policy in cases:
            found[runs, policy].append(seconds(runs, threads, policy))
    load = os.getloadavg()[0]
    print(f"seconds of all steps of a run, {threads} threads each, {os.cpu_count()} cores, "
          f"median of {repeats} (load at the end {load:.1f}):")  # fmt: skip
    for (runs, policy), values in found.items():
        each = ", ".join(f"{v:.1f}" for v in values)
        print(f"  {runs} at once, {policy:8}{statistics.median(values):7.1f}   ({each})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    main(options.threads, options.repeats)
