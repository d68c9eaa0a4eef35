"""How the time of a run is spent, from its record.

python benchmarks/breakdown.py RUN [RUN …]
"""

import argparse
import json
from pathlib import Path

# Parts measured inside other parts, so that no second is counted twice.
INSIDE = {
    "features": "start of epoch",
    "student": "steps",
    "teacher": "steps",
    "losses": "steps",
    "backward and update": "steps",
}
BESIDE_EPOCHS = ("checkpoint", "decode")
# Names of what remains after the inner parts are subtracted.
PLAIN = {
    "stage 2 start of epoch": "stage 2 M step",
    "stage 1 steps": "stage 1 rest of a step",
    "stage 2 steps": "stage 2 rest of a step",
}


def breakdown(record: dict) -> list[tuple[str, float]]:
    """Seconds of each part, longest first; ``other`` is the time that was not measured."""
    seconds = {k: float(v) for k, v in record.get("timings", {}).items() if k != "views"}
    other = sum(stage["seconds"] for stage in record.get("stages", []))
    for key, value in list(seconds.items()):
        stage, number, what = (*key.split(" ", 2), "", "")[:3]
        if stage == "stage" and what in INSIDE:
            outer = f"stage {number} {INSIDE[what]}"
            if outer in seconds:
                seconds[outer] -= value
        elif key not in BESIDE_EPOCHS:
            other -= value
    if other > 0:
        seconds["other"] = other
    seconds = {PLAIN.get(key, key): value for key, value in seconds.items()}
    return sorted(seconds.items(), key=lambda item: -item[1])


def table(record: dict) -> str:
    """The breakdown as text."""
    rows = breakdown(record)
    total = sum(v for _, v in rows)
    lines = [f"{record['name']}: {record['method']['title']}, {total:.1f} s"]
    lines += [f"  {k:22}{v:10.2f} s{100 * v / max(total, 1e-9):7.1f} %" for k, v in rows]
    if "views" in record.get("timings", {}):
        # Made by worker processes meanwhile; without workers, waiting includes them.
        lines.append(f"  {'views, meanwhile':22}{record['timings']['views']:10.2f} s")
    for number, stage in enumerate(record.get("stages", []), 1):
        each = stage["seconds"] / max(stage["epochs"], 1)
        lines.append(
            f"  stage {number} {stage['name']}: {stage['epochs']} epochs, {each:.2f} s each"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for run in parser.parse_args().runs:
        print(table(json.loads((run / "record.json").read_text())))
