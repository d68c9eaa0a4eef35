"""Experiments with damaged and hostile files, each through the command line in a forked child.

Right is an answer, or one message and exit code 1; after a message nothing that was there differs.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forked
import hostile
import numpy as np
from kills import GRID
from noise import add_to_tree, bytes_changed, damage, toml_changed
from PIL import Image
from toys import write_npz
from trainings import LMD, Outcome, train, undisturbed, write_images

CELLS = (
    "image", "label", "split", "group", "a.png", "b.png", "../a.png", "/etc/passwd", "C:\\a.png",
    "/dev/zero", "train", "test", "", " ", "\0", "x" * 5000, "ü", '"', '"a', "\r", ".", "..",
    "\ufeff", "=1+1",
)  # fmt: skip
QUICK = [
    "--method", "ce", "--quiet", "--set", "backbone=resnet8", "--set", "weights=none", "--set",
    "image_size=16", "--set", "epochs=1", "--set", "batch_size=8", "--set", "workers=0",
]  # fmt: skip


def model(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Use a run with a damaged model."""
    name = rng.choice(["model.json", "model.json", "model.safetensors", "novelty.safetensors"])
    _copy(base(work) / "run", work)
    damage(work / name, rng)
    out = work.with_suffix(".csv")
    words = ["predict", str(work), str(_image(work)), "--out", str(out)]
    found = _judged(work, name, words, keep=True)
    if not found.wrong and name != "model.json" and out.exists():
        same = out.read_bytes() == (base(work) / "right.csv").read_bytes()
        found = Outcome("" if same else "another answer", name)
    return _cleared(work, found)


def explained(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Explain an image with a run whose features of training images are damaged."""
    _copy(base(work) / "run", work)
    damage(work / "neighbours.npz", rng)
    words = ["explain", str(work), str(_image(work)), "--out", str(work.with_suffix(".pages"))]
    return _judged(work, "neighbours.npz", words)


def onnx(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Use a damaged ONNX file: its bytes, or its metadata."""
    import onnx as format_

    work.mkdir(parents=True, exist_ok=True)
    file, where = work / "model.onnx", "bytes"
    shutil.copy(base(work) / "model.onnx", file)
    if rng.random() < 0.5:
        where = "metadata"
        found = format_.load(file)
        one = rng.choice(list(found.metadata_props))
        one.value = rng.choice(["", "x", "[]", "{}", "[" * 10**5, one.value[:-3], one.value * 2])
        format_.save(found, file)
    else:
        file.write_bytes(bytes_changed(file.read_bytes(), rng))
    words = ["predict", str(file), str(_image(work)), "--out", str(work.with_suffix(".csv"))]
    return _judged(work, where, words)


def run_folder(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Read a run folder with a damaged file."""
    name = rng.choice(["record.json", "record.json", "predictions.npz", "history.csv"])
    _copy(base(work) / "run", work)
    damage(work / name, rng)
    whole = str(base(work) / "run")
    words: list[str] = rng.choice(
        [
            ["evaluate", str(work), "--resamples", "5"],
            ["evaluate", str(work), "--resamples", "5", "--coverage", "0.8"],
            ["show", str(work)],
            ["show", whole, str(work)],
            ["runs", str(work.parent)],
            ["report", str(work), whole, "--out", str(work.with_suffix(".html"))],
            ["index", str(work)],
            ["train", "--resume", "--quiet", "--out", str(work)],
        ]
    )
    return _judged(work, name, words, words[0] in {"evaluate", "report", "index", "train"})


def checkpoint(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Resume a run whose checkpoint is damaged: an error, or the right weights."""
    _copy(base(work) / "half", work)
    damage(work / "checkpoint" / "state.safetensors", rng)
    words = ["train", "--resume", "--quiet", "--out", str(work)]
    record = ("record.json",)
    found = _judged(work, "state.safetensors", words, True, rewritten=record, keep=True)
    model = work / "model.safetensors"
    if not found.wrong and model.exists():
        same = model.read_bytes() == (base(work) / "run" / "model.safetensors").read_bytes()
        found = Outcome("" if same else "it has other weights", found.where)
    return _cleared(work, found)


def cache(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train with a damaged image cache: always the right weights."""
    own = work.with_suffix(".cache")
    _copy(base(work) / "cache", own)
    for file in sorted((own / "images").iterdir()):
        damage(file, rng)
    ended = forked.command(train(work), cache=own)
    wrong = ended.problem(0)
    if not wrong:
        right = base(work) / "run" / "model.safetensors"
        same = (work / "model.safetensors").read_bytes() == right.read_bytes()
        wrong = "" if same else "it has other weights"
    return _cleared(work, Outcome(wrong, "pixels"))


def manifest(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train on and examine a manifest of random cells or bytes."""
    work.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (9, 9), "red").save(work / name)
    rows = [[rng.choice(CELLS) for _ in range(rng.randrange(5))] for _ in range(rng.randrange(9))]
    head = [["image", "label", "split"]] if rng.random() < 0.7 else []
    data = "\n".join(rng.choice(",;\t").join(row) for row in [*head, *rows]).encode()
    file = work / "list.csv"
    file.write_bytes(bytes_changed(data, rng) if rng.random() < 0.3 else data)
    return _read_data(work, file, "cells")


def arrays(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train on and examine an .npz of random arrays or bytes, or one that is a bomb."""
    work.mkdir(parents=True)
    file = work / "data.npz"
    shape = rng.choice([(9, 8, 8, 3), (9, 8, 8), (9, 8), (0, 8, 8, 3), (9, 3, 8, 8), (1, 1, 1, 1)])
    kind = rng.choice(["uint8", "float32", "int64", "uint16", "complex64", "bool", "U3"])
    images = np.zeros(shape, kind)
    if kind == "float32" and images.size:
        images.flat[0] = rng.choice([0.5, 2.0, float("nan")])
    labels = rng.choice([np.arange(9) % 3, np.zeros(9, int), np.arange(9.0), np.arange(4)])
    more = rng.choice([{}, {"splits": np.array(["x"] * 9)}, {"classes": np.array(["a", "a"])}])
    if rng.random() < 0.2:
        more = {"objects": np.array([print, None], dtype=object)}
    np.savez(file, **{rng.choice(["images", "train_images"]): images, "labels": labels, **more})
    where = "arrays"
    if rng.random() < 0.4:
        where = "bytes"
        file.write_bytes(bytes_changed(file.read_bytes(), rng))
    elif rng.random() < 0.2:
        where = "bomb"
        np.savez_compressed(file, images=np.zeros((30000, 128, 128), np.uint8), labels=labels)
    return _read_data(work, file, where)


def tree(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Train on, examine and predict a folder with pipes, loops of links and the like."""
    data = work / "data"
    write_images(_made(data))
    kinds = [add_to_tree(data, rng) for _ in range(rng.choice([1, 2, 4]))]
    return _read_data(work, data, ", ".join(sorted({*kinds})), predict=True)


def image(work: Path, rng: random.Random, number: int) -> Outcome:
    """Train on, examine and predict a damaged image; all must agree about it."""
    data = work / "data"
    pixels = np.random.default_rng(number).integers(0, 256, (30, 20, 3), np.uint8)
    suffix = rng.choice(["png", "jpg", "tif", "bmp", "gif", "webp", "ppm"])
    for name in ("a/0.png", "a/2.png", "b/0.png", f"b/1.{suffix}"):
        Image.fromarray(pixels).save(_made(data / name))
    bad = data / "b" / f"1.{suffix}"
    strange = sorted(hostile.files().items())
    if number < len(strange):
        where, content = strange[number]
        bad.unlink()
        bad = bad.with_suffix(".dcm" if where.startswith("dicom") else ".png")
        bad.write_bytes(content)
    else:
        where = suffix
        damage(bad, rng)
    refused = forked.Child(lambda: _agreed(data, bad, work), cache=work / "cache").ended()
    if wrong := refused.problem(0):
        return Outcome(wrong, where)
    return _read_data(work, data, where, predict=True)


def settings(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Plan a damaged grid, or start with a damaged protocol."""
    work.mkdir(parents=True)
    file = work / "file.toml"
    write_npz(work / "toy.npz", (12, 6, 3))
    grid = rng.random() < 0.6
    text = GRID if grid else GRID[GRID.index("backbone") : GRID.index("[protocol.methods")]
    changed = toml_changed(text, rng)
    file.write_bytes(
        changed.encode() if rng.random() < 0.8 else bytes_changed(changed.encode(), rng)
    )
    words = ["benchmark", str(file), "--dry-run", "--out", str(work / "out")]
    if not grid:
        out = work.with_suffix(".run")
        words = ["train", str(work / "toy.npz"), "--protocol", str(file), "--method", "ce"]
        words += ["--set", "epochs=1", "--set", "backbone=resnet8", "--set", "weights=none"]
        words += ["--set", "image_size=16", "--out", str(out), "--quiet"]
    return _judged(work, "grid" if grid else "protocol", words)


def tables(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Predict with costs or a mix of classes from a damaged table."""
    work.mkdir(parents=True)
    option, what = rng.choice([("--costs", "cost"), ("--prevalence", "prevalence")])
    rows = [["class", what], *([f"class{i}", str(rng.choice([0, 1, 0.3, -1]))] for i in range(3))]
    for _ in range(rng.choice([0, 1, 3])):
        row = rng.choice(rows)
        row[rng.randrange(2)] = rng.choice([*CELLS, "nan", "1e999", "-0.0", "class0"])
    data = "\n".join(",".join(row) for row in rows).encode()
    file = work / "table.csv"
    file.write_bytes(bytes_changed(data, rng) if rng.random() < 0.4 else data)
    words = ["predict", str(base(work) / "run"), str(_image(work)), option, str(file)]
    return _judged(work, what, [*words, "--out", str(work.with_suffix(".csv"))])


def features(work: Path, rng: random.Random, _number: int) -> Outcome:
    """Calibrate damaged features."""
    work.mkdir(parents=True)
    file = work / "features.npz"
    labels = np.repeat(["a", "b", "c"], [20, 12, 8])
    values = np.random.default_rng(0).normal(size=(40, 6)).astype(rng.choice(["f4", "f8", "i8"]))
    if rng.random() < 0.4:
        values.flat[rng.randrange(values.size)] = rng.choice([0, 10**18])
    more = rng.choice([{}, {"groups": np.arange(rng.choice([40, 9]))}, {"weight": np.ones((2, 6))}])
    np.savez(file, features=values[: rng.choice([40, 40, 3, 0])], labels=labels, **more)
    if rng.random() < 0.6:
        file.write_bytes(bytes_changed(file.read_bytes(), rng))
    words = ["calibrate", str(file), "--out", str(work.with_suffix(".run")), "--quiet"]
    return _judged(work, "features.npz", words)


def base(work: Path) -> Path:
    """Whole files that the experiments damage, made once for the campaign."""
    folder = work.parents[1] / "base"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _copy(undisturbed(work.parents[1], LMD), folder / "run")
        run = str(folder / "run")
        steps: list[tuple[Sequence[str], int, dict[str, Any]]] = [
            (["index", run], 0, {}),
            (["export", run, "--onnx", str(folder / "model.onnx")], 0, {}),
            (["predict", run, str(_image(work)), "--out", str(folder / "right.csv")], 0, {}),
            (train(folder / "half"), 9, {"before": _end_in_stage_2}),
        ]
        for words, code, options in steps:
            ended = forked.command(words, cache=folder / "cache", **options)
            if ended.code != code:
                raise RuntimeError(f"{words[0]}: {ended.said}")
        (folder / "done").touch()
    return folder


def _end_in_stage_2() -> None:
    """Let this process end after the first epoch of the second stage."""
    from lmd.training.loop import StageTraining

    save = StageTraining._save

    def saved(self: StageTraining, epochs_done: int) -> None:
        save(self, epochs_done)
        if self.index == 1:
            os._exit(9)

    StageTraining._save = saved  # type: ignore[method-assign]


def _read_data(work: Path, data: Path, where: str, *, predict: bool = False) -> Outcome:
    """Examine a source, train on it with or without --skip-bad, and predict its images."""
    skip = ["--skip-bad"] if int(work.name) % 2 else []
    jobs: list[tuple[list[str], tuple[int, ...]]] = [
        (["data", "doctor", str(data), "--quiet"], (0, 1, 3, 4)),
        (["train", str(data), *QUICK, *skip, "--out", str(work.with_suffix(".run"))], (0, 1)),
    ]
    if predict:
        out = str(work.with_suffix(".csv"))
        run = str(base(work) / "run")
        jobs.append((["predict", run, str(data), *skip, "--out", out], (0, 1)))
    before = _state(work)
    for words, codes in jobs:
        ended = forked.command(words, cache=work.with_suffix(".cache"))
        wrong = ended.problem(*codes)
        if not wrong and _state(work) != before:
            wrong = "the data was changed"
        if wrong:
            return Outcome(f"{' '.join(words[:2])}: {wrong}", where)
    return _cleared(work, Outcome("", where))


def _agreed(data: Path, bad: Path, work: Path) -> int:
    """Whether training, the doctor and prediction refuse the same image."""
    from lmd.base.progress import Display
    from lmd.data.cache import decode
    from lmd.data.sources import scan_source
    from lmd.doctor.examine import examine
    from lmd.predict.predictor import load

    _, _, skipped = decode(
        scan_source(data).table(), 16, Display(quiet=True), folder=work / "cache", skip_bad=True
    )
    looks = examine(data).looks
    found = load(base(work) / "run").predict([bad], skip_bad=True)
    refused = [bool(skipped), any(look.fault for look in looks), bool(found.skipped)]
    print("" if len(set(refused)) == 1 else f"refused by training, doctor, prediction: {refused}")
    return int(len(set(refused)) > 1)


def _judged(
    work: Path,
    where: str,
    words: list[str],
    writes: bool = False,
    *,
    rewritten: tuple[str, ...] = (),
    keep: bool = False,
) -> Outcome:
    """Run a command on damaged files; a command that fails or only reads must not change them.

    Those that are ``rewritten`` may change: the record of a run that is resumed names its machine.
    """
    before = _state(work)
    ended = forked.command(words, cache=base(work) / "cache")
    wrong = ended.problem(0, 1)
    lost = [name for name in _lost(before, _state(work)) if name not in rewritten]
    if not wrong and (ended.code or not writes) and lost:
        wrong = f"{words[0]} ended with {ended.code} and changed {lost}"
    found = Outcome(wrong, where)
    return found if keep else _cleared(work, found)


def _lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The files that are gone or differ."""
    return sorted(name for name, digest in before.items() if after.get(name) != digest)


def _state(work: Path) -> dict[str, str]:
    """The files of an experiment and their contents."""
    files = sorted(path for path in work.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(work)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != ".lock"
    }


def _image(work: Path) -> Path:
    return sorted((work.parents[1] / "data").rglob("*.png"))[0]


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy(whole: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(whole, work)


def _cleared(work: Path, found: Outcome) -> Outcome:
    """Remove what an experiment made unless there is something to look at."""
    if not found.wrong:
        for path in work.parent.glob(f"{work.name}*"):
            if path.name.split(".")[0] == work.name:
                _remove(path)
    return found


def _remove(path: Path) -> None:
    remove: Callable[[Path], object] = shutil.rmtree if path.is_dir() else Path.unlink
    remove(path)
