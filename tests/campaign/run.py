"""The campaign against faults: ``make campaign``, or ``python tests/campaign/run.py --help``.

Every experiment is drawn from its kind, its number and the seed, and its outcome is appended to
``results.jsonl``: a campaign that was interrupted continues where it stopped.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: children are forked
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "campaign")]

import attacks  # noqa: E402
import forked  # noqa: E402
import kills  # noqa: E402
from trainings import Outcome  # noqa: E402

RIGHT = "right"
START, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


@dataclass(frozen=True)
class Kind:
    """A kind of experiment and how many there are of it; ``group`` is for the sums."""

    title: str
    right: str
    run: Callable[[Path, random.Random, int], Outcome]
    count: int
    group: str


SAME = "the same weights and predictions to the last bit, all files, no leftovers"
MESSAGE = "an answer, or one message and nothing changed"
KILL, DEATH, INPUT = "kills -9", "other ends", "damaged or hostile inputs"
KINDS = {
    "kill-process": Kind(
        "`lmd train` as a process, killed at a random moment from its start on, then `--resume`",
        SAME,
        kills.kill_process,
        15,
        KILL,
    ),
    "kill-phase": Kind(
        "`lmd train`, killed at a random moment of a chosen phase, every third one twice, then "
        "`--resume`",
        SAME,
        kills.kill_phase,
        90,
        KILL,
    ),
    "kill-benchmark": Kind(
        "`lmd benchmark` with two runs, killed at a random moment, then run again",
        SAME,
        kills.kill_benchmark,
        4,
        KILL,
    ),
    "kill-torchrun": Kind(
        "`torchrun` with two processes: the launcher, one process or all killed, then `--resume`",
        SAME,
        kills.kill_torchrun,
        3,
        KILL,
    ),
    "kill-ranks": Kind(
        "two processes that share a run as under `torchrun`: one or both killed in a chosen phase, "
        "then `--resume`",
        SAME,
        kills.kill_ranks,
        12,
        KILL,
    ),
    "end-phase": Kind(
        "`lmd train`, ended by SIGTERM at a random moment of a chosen phase, then `--resume`",
        f"one line; then {SAME}",
        kills.end_phase,
        12,
        DEATH,
    ),
    "end-process": Kind(
        "`lmd train` as a process, ended by SIGTERM at a random moment, then `--resume`",
        f"one line; then {SAME}",
        kills.end_process,
        3,
        DEATH,
    ),
    "crash-points": Kind(
        "death at the n-th write of a run, before or after its rename, then `--resume`",
        SAME,
        kills.crash_point,
        60,
        DEATH,
    ),
    "full-disk": Kind(
        "no space left after a random number of bytes, then `--resume` with space",
        f"one line, or enough space; then {SAME}",
        kills.full_disk,
        20,
        DEATH,
    ),
    "models": Kind(
        "`lmd predict` with damaged `model.json`, weights or `novelty.safetensors`",
        MESSAGE,
        attacks.model,
        40,
        INPUT,
    ),
    "onnx": Kind(
        "`lmd predict` with a damaged ONNX file: bytes, metadata", MESSAGE, attacks.onnx, 24, INPUT
    ),
    "neighbours": Kind(
        "`lmd explain` with damaged `neighbours.npz`", MESSAGE, attacks.explained, 12, INPUT
    ),
    "records": Kind(
        "`evaluate`, `show`, `runs`, `report`, `index` or `train --resume` with damaged "
        "`record.json`, `predictions.npz` or `history.csv`",
        MESSAGE,
        attacks.run_folder,
        50,
        INPUT,
    ),
    "checkpoints": Kind(
        "`lmd train --resume` with a damaged checkpoint",
        "one message and nothing changed, or the same weights to the last bit",
        attacks.checkpoint,
        30,
        INPUT,
    ),
    "cache": Kind(
        "`lmd train` with a damaged image cache",
        "the same weights to the last bit",
        attacks.cache,
        12,
        INPUT,
    ),
    "manifests": Kind(
        "manifests of random cells and bytes: doctor, `train`, `train --skip-bad`",
        MESSAGE,
        attacks.manifest,
        40,
        INPUT,
    ),
    "arrays": Kind(
        "`.npz` of random arrays and bytes, and bombs: doctor, `train`, `train --skip-bad`",
        MESSAGE,
        attacks.arrays,
        30,
        INPUT,
    ),
    "folders": Kind(
        "folders with pipes, sockets, devices, loops of links and strange names: doctor, `train`, "
        "`train --skip-bad`, `predict`",
        MESSAGE,
        attacks.tree,
        30,
        INPUT,
    ),
    "images": Kind(
        "hostile images and images with random damage: doctor, `train`, `train --skip-bad`, "
        "`predict`",
        f"{MESSAGE}; refused by all or by none",
        attacks.image,
        80,
        INPUT,
    ),
    "settings": Kind(
        "`benchmark --dry-run` with a damaged grid, `train` with a damaged protocol",
        MESSAGE,
        attacks.settings,
        40,
        INPUT,
    ),
    "tables": Kind(
        "`lmd predict` with damaged `--costs` and `--prevalence`",
        MESSAGE,
        attacks.tables,
        20,
        INPUT,
    ),
    "features": Kind("`lmd calibrate` with damaged features", MESSAGE, attacks.features, 16, INPUT),
}


def main() -> int:
    """Run what is missing and print the table; the exit code is 1 if an outcome was wrong."""
    options = _options()
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results, commit = folder / "results.jsonl", _commit()
    done = _read(results, options.seed)
    forked.warm_up()
    passed: set[str] = set()
    for key, number in _order(options.share, options.only):
        if (key, number) in done or key in passed or number % options.parts != options.part:
            continue
        started = time.monotonic()
        found = _one(KINDS[key], folder / key / str(number), f"{options.seed}/{key}", number)
        if not found.reached:  # all crash points have been passed
            passed.add(key)
            continue
        row = {"seed": options.seed, "kind": key, "number": number, "where": found.where}
        row["commit"] = commit
        row |= {"found": found.wrong or RIGHT, "seconds": round(time.monotonic() - started, 1)}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        done[key, number] = row
        print(f"{key} {number} ({row['seconds']} s, {found.where}): {row['found']}", flush=True)
    table = _table(done)
    print(f"\n{table}")
    if options.page:
        commits = Counter(row["commit"] for row in done.values())
        _write_page(Path(options.page), table, options.seed, commits)
    return int(any(row["found"] != RIGHT for row in done.values()))


def _order(share: float, only: list[str] | None) -> list[tuple[str, int]]:
    """All experiments, those of all kinds mixed, so that a part of the campaign is a sample."""
    counts = {key: round(share * kind.count) for key, kind in KINDS.items()}
    found = [
        (i / n, key, i) for key, n in counts.items() if key in (only or KINDS) for i in range(n)
    ]
    return [(key, number) for _, key, number in sorted(found, key=lambda one: one[0])]


def _one(kind: Kind, work: Path, seed: str, number: int) -> Outcome:
    try:
        return kind.run(work, random.Random(f"{seed}/{number}"), number)
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {error}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="the share to run; 0 only prints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[*KINDS], help="these kinds alone")
    parser.add_argument("--folder", default="build/campaign", help="for runs and results")
    parser.add_argument("--parts", type=int, default=1, help="share the experiments among so many")
    parser.add_argument("--part", type=int, default=0, help="which of the parts, from 0 on")
    parser.add_argument("--page", help="write the table into this page, docs/reliability.md")
    return parser.parse_args()


def _read(path: Path, seed: int) -> dict[tuple[str, int], dict[str, Any]]:
    """The outcomes of earlier experiments; a line that was cut short is ignored."""
    done = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["seed"] == seed:
            done[row["kind"], row["number"]] = row
    return done


def _table(done: dict[tuple[str, int], dict[str, Any]]) -> str:
    lines = ["| what | how many | right | right means |", "|---|---|---|---|"]
    wrong, sums, places = [], Counter[str](), Counter[str]()
    for key, kind in KINDS.items():
        rows = [row for (of, _), row in done.items() if of == key]
        if not rows:
            continue
        right = sum(row["found"] == RIGHT for row in rows)
        lines.append(f"| {kind.title} | {len(rows)} | {right} | {kind.right} |")
        sums[kind.group] += len(rows)
        wrong += [f"{key} {row['number']}: {row['found']}" for row in rows if row["found"] != RIGHT]
        if kind.group == KILL:
            places.update(where for row in rows for where in row["where"].split(", then "))
    late = places.pop("end", 0)  # all was written when the kill came
    texts = [f"{n} {what}" for what, n in sums.items() if what != KILL]
    if sums[KILL]:
        texts.insert(0, f"{places.total()} {KILL} in {sums[KILL]} experiments")
    text = "\n".join(lines) + f"\n\nIn sum: {', '.join(texts)}."
    if places:
        text += " Where the kills met a run, by its marks or by its files: "
        text += "; ".join(f"{where} {n}" for where, n in sorted(places.items())) + "."
        text += f" {late} more came too late and are not counted." if late else ""
    if wrong:
        text += "\n\nWrong:\n\n" + "\n".join(f"- {' '.join(one.split())}" for one in wrong)
    return text


def _commit() -> str:
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    return found or "unknown"


def _write_page(page: Path, table: str, seed: int, commits: Counter[str]) -> None:
    """Write the table between its marks; experiments may be of several commits."""
    text = page.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    of = ", ".join(f"{commit} ({n} experiments)" for commit, n in commits.items())
    made = f"`make campaign`, seed {seed}, at commit {of}."
    page.write_text(f"{before}{START}\n{made}\n\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
