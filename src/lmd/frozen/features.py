"""Features of images in one ``.npz`` file, as any encoder gives them, read without trust."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.data.scan import PART_NAMES, part_name, require_classes
from lmd.data.sources import class_names, label_column
from lmd.data.splits import check_no_leak, require_training
from lmd.data.table import ArrayImages, Table
from lmd.scoring.proportions import Kind

EXPECTED = (
    "features (N, C) and labels (N,) (and optionally split, groups, ids, classes, logits, weight, "
    "bias), or train_features, train_labels, validation_features, validation_labels, "
    "test_features, test_labels"
)
ROWWISE = ("features", "labels", "groups", "ids", "logits")
BLOCK = 65536  # rows of features that are checked at a time


@dataclass(frozen=True)
class FeatureTable:
    """``features (N, C)`` float32 of the images of ``table``, whose parts are known.

    ``weight (K, C)`` and ``bias (K,)``, or ``logits (N, K)``, are of an existing classifier, which
    answers for the class mix ``mix``. ``widths`` are the widths of the encoder's levels,
    ``mean_images`` shrinks the means of the class Gaussians. ``single`` rounds the new classifier
    to float32, as an image model has it.
    """

    table: Table
    features: NDArray[np.float32]
    weight: NDArray[np.float64] | None = None
    bias: NDArray[np.float64] | None = None
    logits: NDArray[np.float32] | None = None
    widths: Sequence[int] | None = None
    mean_images: float = 0.0
    mix: Kind = "training"
    single: bool = False

    def rows(self, part: str) -> NDArray[np.int64]:
        """Return the rows of one part."""
        assert self.table.parts is not None
        return np.flatnonzero(self.table.parts == part)

    def existing_logits(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the logits of the existing classifier for some rows, if there is one."""
        if self.weight is not None and self.bias is not None:
            return np.asarray(self.features[rows] @ self.weight.T + self.bias)
        return None if self.logits is None else self.logits[rows].astype(np.float64)


def read_features(path: Path) -> FeatureTable:
    """Read features from an ``.npz`` file."""
    if not path.is_file():
        raise LmdError(f"{path} does not exist")
    try:
        arrays = read_npz(path)
    except LmdError as error:
        raise LmdError(
            f"{path} cannot be read as .npz ({error}): save plain arrays with numpy.savez"
        ) from None
    return feature_table(arrays, str(path))


def feature_table(arrays: Mapping[str, NDArray[Any]], source: str) -> FeatureTable:
    """Check features in plain arrays or in arrays for each part."""
    try:
        features = _checked(_joined(arrays), source)
    except LmdError as error:
        raise LmdError(f"{source}: {error}") from None
    require_classes(features.table.label_names().tolist(), source)
    require_training(features.table)
    check_no_leak(features.table)
    return features


def _checked(arrays: Mapping[str, NDArray[Any]], source: str) -> FeatureTable:
    features = _floats("features", arrays["features"], 2)
    n, width = features.shape
    if not n or not width:
        raise LmdError(f"features is empty, its shape is {features.shape}")
    labels = label_column("labels", arrays, n)
    classes, label_names, existing = _classifier(arrays, labels, width)
    ids = _column("ids", arrays, n)
    if ids is None:
        ids = np.arange(n).astype(np.str_)
    elif len(np.unique(ids)) < n:
        raise LmdError("ids must differ from one another")
    groups = _column("groups", arrays, n)
    if groups is not None:
        # A row without a group is a group by itself.
        groups = np.where(groups == "", np.char.add("row ", ids), groups)
    split = _column("split", arrays, n)
    if split is None:
        split = np.full(n, "train")
    words, places = np.unique(split, return_inverse=True)
    parts = [part_name(str(word)) for word in words]
    if None in parts:
        word = str(words[parts.index(None)])
        raise LmdError(f"split must be train, validation or test in every row; it is also {word!r}")
    index = {name: k for k, name in enumerate(classes)}
    table = Table(
        ids=ids,
        labels=np.array([index[name] for name in label_names], dtype=np.int64),
        classes=classes,
        images=ArrayImages(()),
        rows=np.arange(n),
        groups=groups,
        parts=np.array(parts, dtype="U10")[places],
        source=source,
        kind="features",
    )
    return FeatureTable(table, features, **existing)


def _joined(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Join the arrays of the parts, if there is one for each part."""
    if "features" in arrays:
        return dict(arrays)
    parts = {word: part for word, part in PART_NAMES.items() if f"{word}_features" in arrays}
    if not parts:
        raise LmdError(f"it has the arrays {', '.join(arrays) or 'none'}; expected {EXPECTED}")
    joined = {k: v for k, v in arrays.items() if k.partition("_")[0] not in parts}
    split: list[str] = []
    for word, part in parts.items():
        features = arrays[f"{word}_features"]
        if features.ndim != 2:
            raise LmdError(f"{word}_features must be (N, C); its shape is {features.shape}")
        label_column(f"{word}_labels", arrays, len(features))
        split += [part] * len(features)
    for key in ROWWISE:
        names = [f"{word}_{key}" for word in parts if f"{word}_{key}" in arrays]
        if not names:
            continue
        if len(names) < len(parts):
            raise LmdError(f"it has {names[0]}, but not for every part: give {key} for all or none")
        blocks = [arrays[name] for name in names]
        try:
            joined[key] = np.concatenate([a.reshape(-1) if a.ndim == 1 else a for a in blocks])
        except ValueError:
            shapes = ", ".join(f"{name} {arrays[name].shape}" for name in names)
            raise LmdError(f"{key} of the parts do not fit: {shapes}") from None
    return joined | {"split": np.array(split)}


def _floats(name: str, array: NDArray[Any], ndim: int) -> NDArray[np.float32]:
    if array.ndim != ndim or array.dtype.kind not in "fiu":
        shape = {1: "(K,)", 2: "(N, C)"}[ndim]
        raise LmdError(f"{name} must be numbers {shape}; it is {array.dtype} {array.shape}")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, dtype=np.float32)
    for start in range(0, len(floats), BLOCK):
        bad = ~np.isfinite(floats[start : start + BLOCK])
        if bad.any():
            rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
            raise LmdError(
                f"{name} must be finite numbers within float32; row {start + rows[0]} has NaN, "
                "infinity or a larger number: remove such rows, or encode them again"
            )
    return floats


def _classifier(
    arrays: Mapping[str, NDArray[Any]], labels: NDArray[Any], width: int
) -> tuple[tuple[str, ...], list[str], dict[str, Any]]:
    """Return the classes, the name of each label, and an existing classifier if there is one."""
    existing: dict[str, NDArray[Any]] = {}
    count = 0
    if "logits" in arrays:
        existing["logits"] = logits = _floats("logits", arrays["logits"], 2)
        count = logits.shape[1]
        if len(logits) != len(labels):
            raise LmdError(f"logits has {len(logits)} rows for {len(labels)} rows of features")
    if "weight" in arrays:
        existing["weight"] = weight = _floats("weight", arrays["weight"], 2).astype(np.float64)
        count = len(weight)
        if weight.shape[1] != width:
            raise LmdError(
                f"weight must be (K, C) with C = {width}, the width of the features; it is "
                f"{weight.shape}" + ("; transpose it" if count == width else "")
            )
        bias = _floats("bias", arrays.get("bias", np.zeros(count)), 1)
        if len(bias) != count:
            raise LmdError(f"bias has {len(bias)} entries for {count} classes")
        existing["bias"] = bias.astype(np.float64)
    elif "bias" in arrays:
        raise LmdError("it has bias, but not weight: give both")
    names = arrays.get("classes")
    if names is None and count:
        if labels.dtype.kind not in "iu":
            raise LmdError(
                "there is an existing classifier and labels that are text, so that the order of "
                "its classes is unknown: give the array classes (K,), the names in the order of "
                "the rows of weight or the columns of logits"
            )
        names = np.arange(count).astype(str)
    classes, label_names = class_names(labels, names)
    if count and count != len(classes):
        raise LmdError(
            f"the existing classifier has {count} classes, but there are {len(classes)} "
            f"({', '.join(classes[:8])}); give the array classes (K,) in the order of its rows"
        )
    return classes, label_names, existing


def _column(name: str, arrays: Mapping[str, NDArray[Any]], n: int) -> NDArray[np.str_] | None:
    if name not in arrays:
        return None
    values = arrays[name].reshape(-1)
    if len(values) != n or values.dtype.kind not in "iuUS":
        raise LmdError(
            f"{name} must be {n} integers or strings, one for each row; it is "
            f"{arrays[name].dtype} {arrays[name].shape}"
        )
    return values.astype(np.str_)
