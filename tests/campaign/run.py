"""The campaign against faults: ``make campaign``, or ``python tests/campaign/run.py --help``.

Every experiment is drawn from its kind, its number and the seed, and its outcome is appended to
``results.jsonl``: a campaign that was interrupted continues where it stopped.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "campaign")]

import hostile  # noqa: E402
import processes  # noqa: E402

RIGHT = "right"
START, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


@dataclass(frozen=True)
class Kind:
    """A kind of experiment; ``share`` is how many there are for each kill that was asked for."""

    title: str
    right: str
    run: Callable[[Path, random.Random, int], str]
    share: float = 1.0


KINDS = {
    "kill-train": Kind(
        "`lmd train`, ended by SIGKILL or SIGTERM at a random moment, then `--resume`",
        "the same weights to the last bit, all files, no leftovers, no traceback",
        processes.kill_train,
    ),
    "kill-benchmark": Kind(
        "`lmd benchmark`, killed at a random moment, then run again",
        "the same weights in all runs, no leftovers, no traceback",
        processes.kill_benchmark,
        0.3,
    ),
    "kill-torchrun": Kind(
        "`torchrun` with two processes, killed at a random moment, then `--resume`",
        "the same weights, all files, no leftovers",
        processes.kill_torchrun,
        0.3,
    ),
    "crash-points": Kind(
        "death at the n-th write of a run (before or after its rename), then `--resume`",
        "the same weights, all files, no leftovers",
        processes.crash_point,
        0.4,
    ),
    "full-disk": Kind(
        "no space left after a random number of bytes, then `--resume` with space",
        "one line and exit code 1, or enough space; then the same weights",
        processes.full_disk,
        0.4,
    ),
    "models": Kind(
        "`model.json` or weights with random damage, loaded and used",
        "an answer or one message",
        hostile.model,
        5,
    ),
    "records": Kind(
        "`record.json`, `predictions.npz` or `history.csv` with random damage, evaluated",
        "numbers or one message",
        hostile.run_folder,
        5,
    ),
    "manifests": Kind(
        "manifests of random cells and bytes, read for training and by the doctor",
        "a table, findings or one message",
        hostile.manifest,
        5,
    ),
    "images": Kind(
        "image files with random damage, read for training, by the doctor and for prediction",
        "the same images refused by all three, or by none",
        hostile.image,
        5,
    ),
}


def main() -> int:
    """Run what is missing and print the table; the exit code is 1 if an outcome was wrong."""
    options = _options()
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = _read(folder / "results.jsonl", options.seed)
    for key, kind in KINDS.items():
        if options.only and key not in options.only:
            continue
        for number in range(max(1, round(options.kills * kind.share))):
            if (key, number) in done:
                continue
            work = folder / key / str(number)
            started = time.monotonic()
            try:
                found = kind.run(work, random.Random(f"{options.seed}/{key}/{number}"), number)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found == processes.NOT_REACHED:  # all crash points have been passed
                break
            row = {"seed": options.seed, "kind": key, "number": number, "found": found or RIGHT}
            row["seconds"] = round(time.monotonic() - started, 1)
            with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            done[key, number] = row["found"]
            print(f"{key} {number}: {row['found']} ({row['seconds']} s)", flush=True)
    table = _table(done)
    print(f"\n{table}")
    if options.page:
        _write_page(Path(options.page), table, options.seed)
    return int(any(found != RIGHT for found in done.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="kills of `lmd train`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[*KINDS], help="these kinds alone")
    parser.add_argument("--folder", default="build/campaign", help="for runs and results")
    parser.add_argument("--page", help="write the table into this page, docs/reliability.md")
    return parser.parse_args()


def _read(path: Path, seed: int) -> dict[tuple[str, int], str]:
    """The outcomes of earlier experiments; a line that was cut short is ignored."""
    done = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["seed"] == seed:
            done[row["kind"], row["number"]] = row["found"]
    return done


def _table(done: dict[tuple[str, int], str]) -> str:
    lines = ["| what | how many | outcome |", "|---|---|---|"]
    for key, kind in KINDS.items():
        found = Counter(outcome for (of, _), outcome in done.items() if of == key)
        if not found:
            continue
        wrong = "; ".join(f"**{n}: {what}**" for what, n in found.items() if what != RIGHT)
        right = f"{found[RIGHT]}: {kind.right}" if found[RIGHT] else ""
        outcome = "; ".join(text for text in (right, wrong) if text).replace("|", "\\|")
        lines.append(f"| {kind.title} | {sum(found.values())} | {outcome} |")
    return "\n".join(lines)


def _write_page(page: Path, table: str, seed: int) -> None:
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    text = page.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    made = f"Commit {commit or 'unknown'}, seed {seed}."
    page.write_text(f"{before}{START}\n{made}\n\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
