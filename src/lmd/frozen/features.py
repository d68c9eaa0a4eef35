"""Features of images in one ``.npz`` file, as any encoder gives them, read without trust."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.data.sources.arrays import class_names, label_column
from lmd.data.sources.scan import PART_NAMES, part_name, require_classes
from lmd.data.splits import check_no_leak, require_training
from lmd.data.table import ArrayImages, Table
from lmd.scoring.proportions import Kind

EXPECTED = (
    "features (N, C) and labels (N,) (and optionally split, groups, ids, classes, logits, weight, "
    "bias), or train_features, train_labels, validation_features, validation_labels, "
    "test_features, test_labels"
)
_ROWWISE = ("groups", "ids", "logits")


@dataclass(frozen=True)
class FeatureTable:
    """``features (N, C)`` float32 of the images of ``table``, whose parts are known.

    ``weight (K, C)`` and ``bias (K,)``, or ``logits (N, K)``, are those of an existing classifier,
    which answers for the class mix ``mix``. ``widths`` are those of the encoder's levels,
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
        """Return what the existing classifier says about some rows, if there is one."""
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
    """Checked features from plain or separate arrays; an ``LmdError`` says what is wrong."""
    whole = _joined(arrays, source)
    features = _floats(source, "features", whole["features"], 2)
    n, width = features.shape
    if not n or not width:
        raise LmdError(f"{source}: features is empty, its shape is {features.shape}")
    labels = label_column("labels", whole, n)
    weight, bias, logits = _head(source, whole, n, width)
    known = None if logits is None else logits.shape[1]
    known = known if weight is None else len(weight)
    given = whole.get("classes")
    if given is None and known is not None:
        if labels.dtype.kind not in "iu":
            raise LmdError(
                f"{source} has an existing classifier and labels that are text, so that the order "
                "of its classes is unknown: give the array classes (K,), the names in the order of "
                "the rows of weight or the columns of logits"
            )
        given = np.arange(known).astype(str)  # rows of the classifier are the labels
    classes, named = class_names(labels, given)
    require_classes(named, source)
    if known is not None and known != len(classes):
        raise LmdError(
            f"{source}: the existing classifier has {known} classes, but there are {len(classes)} "
            f"({', '.join(classes[:8])}); give the array classes (K,) in the order of its rows"
        )
    index = {name: k for k, name in enumerate(classes)}
    ids, groups = _ids(whole, n, source), _words(whole, "groups", n, source)
    if groups is not None:
        # Without a group, a row is one of its own.
        groups = np.where(groups == "", np.char.add("row ", ids), groups)
    table = Table(
        ids=ids,
        labels=np.array([index[name] for name in named], dtype=np.int64),
        classes=classes,
        images=ArrayImages(()),
        rows=np.arange(n),
        groups=groups,
        parts=_parts(whole, n, source),
        source=source,
        kind="features",
    )
    require_training(table)
    check_no_leak(table)
    return FeatureTable(table, features, weight, bias, logits)


def _joined(arrays: Mapping[str, NDArray[Any]], source: str) -> dict[str, NDArray[Any]]:
    """One array of each kind, from one array or from one for each part."""
    if "features" in arrays:
        return dict(arrays)
    prefixes = {w: p for w, p in PART_NAMES.items() if f"{w}_features" in arrays}
    if not prefixes:
        raise LmdError(
            f"{source} has the arrays {', '.join(arrays) or 'none'}; expected {EXPECTED}"
        )
    found = {k: v for k, v in arrays.items() if k.partition("_")[0] not in prefixes}
    split: list[str] = []
    for word, part in prefixes.items():
        if f"{word}_labels" not in arrays:
            raise LmdError(f"{source} has {word}_features, but not {word}_labels")
        if arrays[f"{word}_features"].ndim != 2:
            shape = arrays[f"{word}_features"].shape
            raise LmdError(f"{source}: {word}_features must be (N, C); its shape is {shape}")
        label_column(f"{word}_labels", arrays, len(arrays[f"{word}_features"]))
        split += [part] * len(arrays[f"{word}_features"])
    for key in ("features", "labels", *_ROWWISE):
        have = [word for word in prefixes if f"{word}_{key}" in arrays]
        if have and have != list(prefixes):
            raise LmdError(
                f"{source} has {have[0]}_{key}, but not for every part: give {key} for all or none"
            )
        if have:
            try:
                parts = [arrays[f"{word}_{key}"] for word in prefixes]
                found[key] = np.concatenate([a.reshape(-1) if a.ndim == 1 else a for a in parts])
            except ValueError:
                shapes = ", ".join(f"{w}_{key} {arrays[f'{w}_{key}'].shape}" for w in prefixes)
                raise LmdError(f"{source}: {key} of the parts do not fit: {shapes}") from None
    return found | {"split": np.array(split)}


def _floats(source: str, name: str, array: NDArray[Any], ndim: int) -> NDArray[np.float32]:
    if array.ndim != ndim or array.dtype.kind not in "fiu":
        shape = {1: "(K,)", 2: "(N, C)"}[ndim]
        raise LmdError(
            f"{source}: {name} must be numbers {shape}; it is {array.dtype} {array.shape}"
        )
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=np.float32)
    for start in range(0, len(found), 65536):
        bad = ~np.isfinite(found[start : start + 65536])
        if bad.any():
            rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
            raise LmdError(
                f"{source}: {name} must be finite numbers within float32; row {start + rows[0]} "
                f"has NaN, infinity or a larger number: remove such rows, or encode them again"
            )
    return found


def _head(
    source: str, arrays: Mapping[str, NDArray[Any]], n: int, width: int
) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None, NDArray[np.float32] | None]:
    """Weight, bias and logits of an existing classifier, as far as they are given."""
    logits = weight = bias = None
    if "logits" in arrays:
        logits = _floats(source, "logits", arrays["logits"], 2)
        if len(logits) != n:
            raise LmdError(f"{source}: logits has {len(logits)} rows for {n} rows of features")
    if "weight" in arrays:
        weight = _floats(source, "weight", arrays["weight"], 2).astype(np.float64)
        if weight.shape[1] != width:
            raise LmdError(
                f"{source}: weight must be (K, C) with C = {width}, the width of the features; it "
                f"is {weight.shape}" + ("; transpose it" if len(weight) == width else "")
            )
        bias = np.zeros(len(weight))
        if "bias" in arrays:
            bias = _floats(source, "bias", arrays["bias"], 1).astype(np.float64)
        if len(bias) != len(weight):
            raise LmdError(f"{source}: bias has {len(bias)} entries for {len(weight)} classes")
    elif "bias" in arrays:
        raise LmdError(f"{source} has bias, but not weight: give both")
    return weight, bias, logits


def _words(
    arrays: Mapping[str, NDArray[Any]], name: str, n: int, source: str
) -> NDArray[np.str_] | None:
    if name not in arrays:
        return None
    values = arrays[name].reshape(-1)
    if len(values) != n or values.dtype.kind not in "iuUS":
        raise LmdError(
            f"{source}: {name} must be {n} integers or strings, one for each row; it is "
            f"{arrays[name].dtype} {arrays[name].shape}"
        )
    return values.astype(np.str_)


def _ids(arrays: Mapping[str, NDArray[Any]], n: int, source: str) -> NDArray[np.str_]:
    found = _words(arrays, "ids", n, source)
    if found is None:
        return np.arange(n).astype(np.str_)
    if len(np.unique(found)) < n:
        raise LmdError(f"{source}: ids must differ from one another")
    return found


def _parts(arrays: Mapping[str, NDArray[Any]], n: int, source: str) -> NDArray[np.str_]:
    """The part of every row; without a split all rows are for training."""
    words = _words(arrays, "split", n, source)
    if words is None:
        return np.full(n, "train", dtype="U10")
    distinct, places = np.unique(words, return_inverse=True)
    names = [part_name(str(word)) for word in distinct]
    if None in names:
        word = str(distinct[names.index(None)])
        raise LmdError(
            f"{source}: split must be train, validation or test in every row; it is also {word!r}"
        )
    return np.array(names, dtype="U10")[places]
