"""Run all benchmarks and compare with the targets; exit code 1 if one is missed.

python benchmarks/run.py [stage2 stage1 inference decoding growth calibrate serving]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import HERE, Result

ALL = ("stage2", "stage1", "inference", "decoding", "growth", "calibrate", "serving")


def where() -> str:
    """Machine and commit."""
    from lmd.fit.recording import commit

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{os.cpu_count()} cores of {cpu}{load}, torch {torch.__version__}, commit {commit()}"


def main(names: list[str]) -> int:
    begun = time.perf_counter()
    results: list[Result] = []
    failed: list[str] = []
    threads = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "MKL", "OPENBLAS")}
    for name in names:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path)]
            subprocess.run(command, check=False, env=os.environ | threads)
            if path.exists():
                results += [Result(**each) for each in json.loads(path.read_text())]
            else:
                failed.append(f"{name} did not finish")
        print(f"   {time.perf_counter() - start:.0f} s\n", flush=True)
    print(f"== targets, {time.perf_counter() - begun:.0f} s in all; {where()}")
    for result in results:
        print(result.line())
    missed = failed + [r.name for r in results if not r.met]
    print("all targets met" if not missed else f"not met: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*ALL, []], metavar="NAME")
    sys.exit(main(parser.parse_args().names or list(ALL)))
