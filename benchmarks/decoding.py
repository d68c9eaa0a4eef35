"""From a JPEG file to the pixels of a model: what decoding at full size costs.

    python benchmarks/decoding.py [FOLDER] [--size 64] [--json FILE]

Compares the rule (decode at full size, then ``lmd.data.images.resize``) with full decoding alone.
FOLDER has JPEG files; without it, synthetic ones of 600 x 450 px are made. Times are those of the
processor.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import cv2
from common import Result, finish, median_ratio, photographs, side_by_side

from lmd.data.images import read_image, resize

FILES = 200


def measure(paths: list[Path], size: int, repeats: int) -> list[Result]:
    cv2.setNumThreads(1)
    ways = {
        "decode alone": lambda path: read_image(path).size,
        "decode and resize": lambda path: resize(read_image(path), size),
    }
    sides = {name: lambda way=way: [way(p) for p in paths] for name, way in ways.items()}
    seconds = side_by_side(sides, repeats, time.process_time)
    height, width = read_image(paths[0]).shape[:2]
    print(f"{len(paths)} files, the first of {width} x {height} px, to {size} px, ms per image:")
    for name, taken in seconds.items():
        print(f"  {name:18}{1000 * statistics.median(taken) / len(paths):8.2f}")
    whole = seconds["decode and resize"]
    added = median_ratio(whole, seconds["decode alone"])
    return [Result("decoding: time with resizing over decoding alone", added, 2, False)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if options.folder:
            files = sorted(options.folder.rglob("*.jpg"))[:FILES]
        else:
            files = photographs(Path(made), FILES)
        sys.exit(finish(measure(files, options.size, options.repeats), options.json))
