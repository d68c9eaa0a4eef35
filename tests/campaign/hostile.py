"""Experiments with hostile files; a traceback is any exception but ``LmdError``."""

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runs_on_disk import make_run

from lmd.base.errors import LmdError
from lmd.data.cache import decode
from lmd.data.doctor import examine
from lmd.data.sources import scan_source
from lmd.deploy.engines import TorchEngine
from lmd.deploy.predict import Predictor, load
from lmd.model import ModelSpec, build_model, save_model
from lmd.runs.rescore import rescore

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**9, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\0",
    "a" * 5000, [], {}, [[]], [None], {"x": {}}, [1] * 1000,
)  # fmt: skip
CELLS = (
    "image", "label", "split", "group", "a.png", "b.png", "../a.png", "/etc/passwd", "C:\\a.png",
    "train", "test", "", " ", "\0", "x" * 5000, "ü", '"', '"a', "\r", ".", "..", "\ufeff",
)  # fmt: skip


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut short, repeated, or with some of them changed."""
    changed = bytearray(data)
    how = rng.randrange(4)
    if how == 0:
        return bytes(changed[: rng.randrange(len(changed) + 1)])
    if how == 1:
        at = rng.randrange(len(changed) + 1)
        return bytes(changed[:at] + changed)
    for _ in range(rng.choice([1, 3, 100])):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed) if how == 2 else bytes(len(changed))


def json_changed(value: Any, rng: random.Random) -> Any:
    """The value with a few places removed or replaced, or nested very deeply."""
    for _ in range(rng.choice([1, 1, 3])):
        place, key = value, None
        while isinstance(place, dict | list) and place and (key is None or rng.random() < 0.7):
            above = place
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            place = place[key]
        if key is None:
            return value
        if rng.random() < 0.3:
            del above[key]
        else:
            above[key] = rng.choice(VALUES)
    return value


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file: JSON in its values, any file in its bytes."""
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(json_changed(json.loads(data), rng)))
    elif path.suffix == ".json" and rng.random() < 0.2:
        path.write_bytes(b"[" * 10**5)
    else:
        path.write_bytes(bytes_changed(data, rng))


def model(work: Path, rng: random.Random, _number: int) -> str:
    """Load and use a damaged model."""
    whole = work.parent / "whole"
    if not whole.exists():
        network, preprocessing = build_model("resnet8", "none", 2, image_size=16, seed=1)
        width = network.classifier.in_features
        spec = ModelSpec(("a", "b"), "resnet8", "linear", width, preprocessing, "CE", (9, 5))
        save_model(network, whole, spec)
    _fresh(whole, work)
    damage(work / rng.choice(["model.json", "model.json", "model.safetensors"]), rng)
    with contextlib.suppress(LmdError):
        load(work).predict(np.zeros((20, 20, 3), np.uint8))
    return _gone(work)


def run_folder(work: Path, rng: random.Random, _number: int) -> str:
    """Evaluate a run folder with a damaged file."""
    whole = work.parent / "whole"
    if not whole.exists():
        make_run(whole, ["a", "b", "c"], epochs=(2, 1))
    _fresh(whole, work)
    damage(work / rng.choice(["record.json", "record.json", "predictions.npz", "history.csv"]), rng)
    with contextlib.suppress(LmdError):
        rescore(work, resamples=5)
    return _gone(work)


def manifest(work: Path, rng: random.Random, _number: int) -> str:
    """Read a manifest of random cells."""
    work.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (9, 9), "red").save(work / name)
    rows = [[rng.choice(CELLS) for _ in range(rng.randrange(5))] for _ in range(rng.randrange(9))]
    head = [["image", "label", "split"]] if rng.random() < 0.7 else []
    data = "\n".join(rng.choice(",;\t").join(row) for row in [*head, *rows]).encode()
    file = work / "list.csv"
    file.write_bytes(bytes_changed(data, rng) if rng.random() < 0.3 else data)
    for read in (lambda: scan_source(file).table(skip_bad=True), lambda: examine(file)):
        with contextlib.suppress(LmdError):
            read()
    return _gone(work)


def image(work: Path, rng: random.Random, number: int) -> str:
    """Train on, examine and predict a damaged image; all must agree about it."""
    data = work / "data"
    pixels = np.random.default_rng(number).integers(0, 256, (30, 20, 3), np.uint8)
    suffix = rng.choice(["png", "jpg", "tif", "bmp", "gif", "webp", "ppm"])
    for name in ("a/0.png", "b/0.png", f"b/1.{suffix}"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(data / name)
    bad = data / "b" / f"1.{suffix}"
    damage(bad, rng)
    table = scan_source(data).table()
    _, _, skipped = decode(table, 16, folder=work / "cache", skip_bad=True)
    looks = examine(data).looks
    network, preprocessing = build_model("resnet8", "none", 2, image_size=16)
    width = network.classifier.in_features
    spec = ModelSpec(("a", "b"), "resnet8", "linear", width, preprocessing, "CE", (9, 5))
    found = Predictor(TorchEngine(network, spec)).predict([bad], skip_bad=True)
    refused = [bool(skipped), any(look.fault for look in looks), bool(found.skipped)]
    if len(set(refused)) > 1:
        return f"refused by training, doctor, prediction: {refused}"
    return _gone(work)


def _fresh(whole: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(whole, work)


def _gone(work: Path) -> str:
    shutil.rmtree(work, ignore_errors=True)
    return ""
