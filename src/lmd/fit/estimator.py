"""``lmd.LongTailClassifier``: training and prediction as an estimator of scikit-learn."""

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage

from lmd.base.distributed import choose_device
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.base.text import csv_text
from lmd.data.source import Columns, Source
from lmd.fit.spec import resolve
from lmd.fit.train import train_spec
from lmd.methods import DEFAULT, find_method
from lmd.predict.predictor import Predictor, fitted, load

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        assert_all_finite,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
    )
except ImportError as error:

    class MissingPackageError(LmdError, AttributeError):
        """Scikit-learn is missing; an ``AttributeError``, so that ``hasattr(lmd, …)`` works."""

    raise MissingPackageError(
        "LongTailClassifier needs scikit-learn, which is not installed: run pip install "
        "'lmd[sklearn]'"
    ) from error

MODEL = ("model.json", "model.safetensors", "novelty.safetensors")


class LongTailClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of long-tailed images with the interface of scikit-learn.

    ``method``, ``protocol``, ``settings``, ``profile`` and ``device`` are as in ``lmd.train``.
    All images given to ``fit`` are for training, but for the share ``validation`` of each class,
    which fits the temperature and chooses what the method chooses; 0 takes none. ``seed`` is that
    of the run and of this division. ``tta`` averages predictions over mirror images.

    After ``fit``: ``classes_ (K,)`` are the sorted labels, ``n_images_`` is the number of images,
    ``record_`` the record of the run, which is not scored, and ``model_files_`` the files of the
    model as bytes. Only these bytes are pickled, and reading them runs no code.
    """

    def __init__(
        self,
        method: str = DEFAULT,
        *,
        protocol: str | Path | None = "small",
        settings: Mapping[str, Any] | None = None,
        profile: str = "default",
        validation: float = 0.1,
        seed: int = 0,
        tta: bool = False,
        device: str = "auto",
        quiet: bool = True,
    ) -> None:
        self.method = method
        self.protocol = protocol
        self.settings = settings
        self.profile = profile
        self.validation = validation
        self.seed = seed
        self.tta = tta
        self.device = device
        self.quiet = quiet

    def fit(self, X: Any, y: Any, groups: Any = None) -> "LongTailClassifier":
        """Train on images ``X`` with the labels ``y (N,)``.

        ``X`` are paths, Pillow images or arrays, as for ``lmd.load(...).predict``, or one array
        ``(N, H, W)`` or ``(N, H, W, C)``. Images with the same value in ``groups (N,)`` are of one
        patient or lesion: they are all in training, or all in validation.
        """
        images = checked_images(X)
        if y is None:
            raise ValueError("fit requires y to be passed, but the target y is None")
        labels: NDArray[Any] = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        check_consistent_length(images, labels, groups)
        classes, index = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has one class ({classes[0]!r}); at least two are needed")
        paths = [str(image) for image in images if isinstance(image, str | Path)]
        if repeated := len(paths) - len(set(paths)):
            warnings.warn(
                f"{repeated} of {len(paths)} paths in X are repeated and used only once: choose a "
                "method that balances the classes instead of repeating images",
                stacklevel=2,
            )
        settings, method = self._all_settings(), find_method(self.method)
        spec = resolve(method, self.protocol, settings, self.profile, images=False)
        with tempfile.TemporaryDirectory() as place:
            names = class_names(classes)[index]
            source = write_source(Path(place), images, names, groups, spec.protocol.image_size)
            run = train_spec(
                replace(spec, source=source),
                Path(place) / "run",
                device=self.device,
                quiet=self.quiet,
                model_only=True,
            )
            files = [run.path / name for name in MODEL if (run.path / name).exists()]
            self.model_files_ = {path.name: path.read_bytes() for path in files}
            self.record_ = run.record.model_dump(mode="json")
        self.classes_ = classes
        self.n_images_ = sum(map(sum, self.record_["data"]["counts"].values()))
        self._predictor: Predictor | None = None
        self._loaded()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities ``(N, K)``, in the order of ``classes_``."""
        check_is_fitted(self)
        images, predictor = checked_images(X), self._loaded()
        raw = predictor.predict(images, tta=self.tta).probabilities.astype(np.float64)
        order = [predictor.classes.index(name) for name in class_names(self.classes_).tolist()]
        # In float64, rows of float32 probabilities do not sum to one.
        probabilities: NDArray[np.float64] = raw[:, order] / raw.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each image ``(N,)``."""
        index = self.predict_proba(X).argmax(axis=1)
        classes: NDArray[Any] = self.classes_[index]
        return classes

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder for ``lmd predict``, ``lmd serve`` and ``lmd export``."""
        check_is_fitted(self)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in MODEL:
            if name in self.model_files_:
                atomic_write(folder / name, self.model_files_[name])
            else:  # of an earlier model
                (folder / name).unlink(missing_ok=True)
        return folder

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return {key: value for key, value in state.items() if key != "_predictor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._predictor = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_files_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Images: neither a table of numbers nor sparse, and paths are text.
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags

    def _all_settings(self) -> dict[str, Any]:
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be from 0 to below 1; it is {self.validation!r}")
        seed = self.seed.item() if isinstance(self.seed, np.generic) else self.seed
        split = [1 - float(self.validation), float(self.validation), 0.0]
        fixed = {"seed": seed, "split_seed": seed, "fold": [0, 2], "split": split}
        # A search over parameters gives numpy's numbers.
        settings = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in (self.settings or {}).items()
        }
        for key in sorted(fixed.keys() & settings.keys()):
            raise ValueError(f"settings: {key!r} is set by the estimator; use seed and validation")
        return settings | fixed

    def _loaded(self) -> Predictor:
        """Return the predictor, made from the files when it is first needed."""
        if getattr(self, "_predictor", None) is None:
            with tempfile.TemporaryDirectory() as place:
                self._predictor = load(self.save(place), choose_device(self.device))
        assert self._predictor is not None
        return self._predictor


def checked_images(X: Any) -> list[Any]:
    """Return the images in ``X``, one by one; a ``ValueError`` says what else it is."""
    if hasattr(X, "tocsr") or hasattr(X, "todense"):
        raise TypeError("X is sparse; give paths, Pillow images or dense arrays of images")
    if isinstance(X, str | Path | PillowImage):
        raise ValueError("X must have several images: give a list")
    if hasattr(X, "to_numpy"):  # a column of paths in a data frame
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.dtype.kind not in "UO":
        if X.ndim not in (3, 4):
            raise ValueError(
                f"X is an array of shape {X.shape}; give images (N, H, W) or (N, H, W, C), or "
                "a list of paths. Reshape your data if it is a table of features: "
                "lmd.calibrate is for these"
            )
        if X.dtype.kind == "f":
            raise ValueError(
                f"X is of type {X.dtype}; give uint8 or uint16: (X * 255).astype('uint8') for "
                "values from 0 to 1"
            )
    images = list(X)
    if not images:
        raise ValueError("X has 0 sample(s) (no images), while a minimum of 1 is required.")
    return images


def class_names(classes: NDArray[Any]) -> NDArray[np.str_]:
    """Return the names ``(K,)`` of the classes in the model: labels as text, or else numbers.

    >>> class_names(np.array(["naevus", "melanoma"])).tolist(), class_names(np.array([" ", "a"]))
    (['naevus', 'melanoma'], array(['0', '1'], dtype='<U21'))
    """
    names = [str(name) for name in classes.tolist()]
    plain = all(name and name == name.strip() for name in names)
    if plain and len(set(names)) == len(names):
        return np.array(names, dtype=np.str_)
    return np.arange(len(names)).astype(np.str_)


def write_source(
    place: Path, images: Sequence[Any], names: NDArray[np.str_], groups: Any, size: int
) -> Source:
    """Write a manifest of paths, or a file of images with sides of ``size``.

    An image with a missing group (None or NaN) is a group of its own.
    """
    group = [
        "" if value is None or value != value else str(value)  # noqa: PLR0124
        for value in (() if groups is None else column_or_1d(groups))
    ]
    if all(isinstance(image, str | Path) for image in images):
        paths = [str(Path(image).expanduser().resolve()) for image in images]
        columns = {"image": paths, "label": names.tolist()}
        columns |= {} if groups is None else {"group": group}
        text = csv_text([*columns], zip(*columns.values(), strict=True), exact=True)
        atomic_write(place / "images.csv", text.encode())
        return Source(place / "images.csv", Columns(allow_outside=True))
    pixels = [fitted(image, f"image {i}", size).pixels for i, image in enumerate(images)]
    more: dict[str, Any] = {} if groups is None else {"groups": np.array(group, dtype=np.str_)}
    np.savez(place / "images.npz", images=np.stack(pixels), labels=names, **more)
    return Source(place / "images.npz")
