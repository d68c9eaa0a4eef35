"""``LongTailClassifier``: scikit-learn's own checks, and images in every form."""

import inspect
import io
import pickle
import pickletools
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils import estimator_checks as checks
from sklearn.utils.validation import check_is_fitted, validate_data
from toys import toy_images

import lmd
from lmd.base.errors import LmdError
from lmd.fit.estimator import LongTailClassifier

QUICK = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 2, "workers": 0}


def quick(**more: Any) -> LongTailClassifier:
    return LongTailClassifier(**{"method": "ce", "settings": QUICK, "device": "cpu"} | more)


class AsImages(LongTailClassifier):
    """Rows of a table as pixels, because scikit-learn checks estimators with tables only."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> "AsImages":
        X, y = validate_data(self, X, y, dtype=np.float64)
        super().fit(self._pixels(X), y, groups)
        return self

    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return super().predict_proba(self._pixels(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        tags.classifier_tags.poor_score = True  # one epoch is not enough to learn
        return tags

    @staticmethod
    def _pixels(X: Any) -> Any:
        wide = np.tile(X, (1, -(-256 // X.shape[1])))[:, :256]
        return np.clip(128 + 40 * wide, 0, 255).reshape(len(X), 16, 16).astype(np.uint8)


# Checks that scikit-learn skips, and why.
SKIPPED = {
    "check_array_api_input": "needs SCIPY_ARRAY_API, for arrays of other libraries",
    "check_classifier_data_not_an_array": "its second half needs pandas; the first half passes",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn() -> None:
    """The whole list passes: cloning, pickling, labels of any type, errors, and all others."""
    estimator = AsImages("ce", settings=QUICK | {"epochs": 1}, validation=0.0, device="cpu")
    results = checks.check_estimator(estimator, on_fail=None, on_skip=None)
    assert [r for r in results if r["status"] == "failed"] == []
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= set(SKIPPED)
    passed = {r["check_name"] for r in results if r["status"] == "passed"}
    assert passed >= {"check_estimators_pickle", "check_classifiers_train", "check_fit_idempotent"}


@pytest.fixture(scope="module")
def fitted() -> LongTailClassifier:
    images = toy_images((20, 10, 6))
    names = np.array(["naevus", "melanoma", "keratosis"])[images.labels]
    settings = QUICK | {"epochs": 12, "lr": 0.1, "batch_size": 8}
    return quick(settings=settings).fit(images.pixels, names)


def test_it_learns_and_answers_in_the_order_of_its_classes(fitted: LongTailClassifier) -> None:
    new = toy_images((5, 5, 5), seed=3)
    names = np.array(["naevus", "melanoma", "keratosis"])[new.labels]
    assert fitted.classes_.tolist() == ["keratosis", "melanoma", "naevus"]
    probabilities = fitted.predict_proba(new.pixels)
    assert probabilities.shape == (15, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(
        fitted.predict(new.pixels), fitted.classes_[probabilities.argmax(1)]
    )
    assert fitted.score(new.pixels, names) > 0.8
    assert fitted.n_images_ == 36


def test_all_images_are_for_training_or_validation(fitted: LongTailClassifier) -> None:
    counts = fitted.record_["data"]["counts"]
    assert sum(map(sum, counts.values())) == 36
    assert sum(counts["test"]) == 0
    assert sum(counts["validation"]) == 4  # a tenth of each class, at least one


def test_its_pickle_is_our_file_format(fitted: LongTailClassifier, tmp_path: Path) -> None:
    content = pickle.dumps(fitted)
    used: set[str] = set()

    class Watching(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            used.add(module.split(".", maxsplit=1)[0])
            return super().find_class(module, name)

    # Plain values and numpy: no object of torch, and the weights as the bytes of our files.
    again = Watching(io.BytesIO(content)).load()
    assert used == {"lmd", "numpy"}
    weights = [arg for _, arg, _ in pickletools.genops(content) if isinstance(arg, bytes)]
    assert fitted.model_files_["model.safetensors"] in weights
    new = toy_images((3, 3, 3), seed=4).pixels
    np.testing.assert_array_equal(again.predict_proba(new), fitted.predict_proba(new))
    fresh = clone(again)
    assert not hasattr(fresh, "classes_")
    assert fresh.get_params() == fitted.get_params()
    # The same files are a model for every other command.
    found = lmd.load(again.save(tmp_path / "model"))
    assert sorted(found.classes) == ["keratosis", "melanoma", "naevus"]
    order = [found.classes.index(name) for name in fitted.classes_]
    probabilities = found.predict(list(new)).probabilities[:, order]
    np.testing.assert_allclose(probabilities, fitted.predict_proba(new), atol=1e-6)


def test_paths_arrays_and_pillow_images_are_the_same(
    fitted: LongTailClassifier, tmp_path: Path
) -> None:
    new = toy_images((2, 2, 2), seed=4).pixels
    expected = fitted.predict_proba(new)
    paths = [tmp_path / f"{i}.png" for i in range(len(new))]
    for path, pixels in zip(paths, new, strict=True):
        Image.fromarray(pixels).save(path)
    for given in (list(new), paths, [str(p) for p in paths], [Image.open(p) for p in paths]):
        np.testing.assert_array_equal(fitted.predict_proba(given), expected)
    np.testing.assert_array_equal(fitted.predict_proba(np.array([str(p) for p in paths])), expected)


def test_training_on_paths_is_training_on_arrays(tmp_path: Path) -> None:
    images = toy_images((6, 4))
    paths = []
    for i, pixels in enumerate(images.pixels):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    one = quick(validation=0.0).fit(paths, images.labels)
    other = quick(validation=0.0).fit(list(images.pixels), images.labels)
    assert one.classes_.tolist() == [0, 1]
    assert len(one.record_["data"]["counts"]["train"]) == 2
    assert one.predict(paths).dtype == images.labels.dtype
    # The order of the images is another one, so the weights are; their number is the same.
    assert one.record_["data"]["counts"] == other.record_["data"]["counts"]


def test_groups_stay_together() -> None:
    images = toy_images((12, 8))
    groups = np.arange(20) // 2
    found = quick(validation=0.25).fit(images.pixels, images.labels, groups=groups)
    assert found.record_["data"]["grouped"] is True
    assert all(n % 2 == 0 for part in found.record_["data"]["counts"].values() for n in part)


def test_it_works_in_cross_validation() -> None:
    images = toy_images((12, 8))
    folds = StratifiedKFold(2)
    found = cross_val_score(
        quick(), list(images.pixels), images.labels, cv=folds, scoring="balanced_accuracy"
    )
    assert found.shape == (2,)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (np.zeros((4, 7)), "lmd.calibrate"),
        (np.zeros((4, 8, 8)), "give uint8 or uint16"),
        ([], "0 sample"),
        ("one.png", "give a list"),
    ],
)
def test_what_is_not_images_is_refused(images: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        quick().fit(images, [0, 1, 0, 1])


def test_wrong_arguments_are_refused() -> None:
    images = toy_images((4, 4))
    fit = partial(LongTailClassifier.fit, X=images.pixels, y=images.labels)
    with pytest.raises(ValueError, match="validation must be from 0"):
        fit(quick(validation=1.0))
    with pytest.raises(ValueError, match="'seed' is set by the estimator"):
        fit(quick(settings=QUICK | {"seed": 3}))
    with pytest.raises(LmdError, match="unknown setting 'epoch'"):
        fit(quick(settings={"epoch": 3}))
    with pytest.raises(ValueError, match="one class"):
        quick().fit(images.pixels, np.zeros(8))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(images.pixels, images.labels[:5])
    with pytest.raises(NotFittedError):
        quick().predict(images.pixels)


def test_missing_groups_are_no_patient() -> None:
    images = toy_images((20, 12)).pixels
    labels = np.repeat([0, 1], [20, 12])
    groups = np.where(np.arange(32) < 24, np.nan, np.arange(32))
    model = quick(validation=0.25).fit(images, labels, groups)
    assert min(model.record_["data"]["counts"]["validation"]) > 0


def test_numbers_of_numpy_and_repeated_paths(tmp_path: Path) -> None:
    images = toy_images((8, 4))
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for path, pixels in zip(paths, images.pixels, strict=True):
        Image.fromarray(pixels).save(path)
    labels = images.labels.tolist()
    model = quick(seed=np.int64(1), settings=QUICK | {"epochs": np.int64(1)}, validation=0)
    with pytest.warns(UserWarning, match="4 of 16 paths in X are repeated"):
        model.fit(paths + paths[8:], labels + labels[8:])
    assert model.n_images_ == 12
    # A folder of an earlier model is replaced as a whole.
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "novelty.safetensors").write_bytes(b"of another model")
    assert lmd.load(model.save(tmp_path / "model")).predict(paths[:1]).labels


def test_without_scikit_learn_the_name_is_absent_and_its_use_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "LongTailClassifier" in dict(inspect.getmembers(lmd))
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "lmd.fit.estimator")
    assert not hasattr(lmd, "LongTailClassifier")
    assert "LongTailClassifier" not in dict(inspect.getmembers(lmd))
    with pytest.raises(LmdError, match=r"run pip install 'lmd\[sklearn\]'"):
        _ = lmd.LongTailClassifier


def test_a_fit_makes_the_model_and_nothing_that_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwanted(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in ("report.card.write_pages", "explain.examples.write_examples"):
        monkeypatch.setattr(f"lmd.{name}", unwanted)
    monkeypatch.setattr("lmd.fit.train.recording.scored", unwanted)
    images = toy_images((12, 8))
    found = quick().fit(images[:], images.labels)
    assert {"model.json", "model.safetensors"} <= found.model_files_.keys()
    assert found.record_["status"] == "finished"
