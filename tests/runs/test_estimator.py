"""``LongTailClassifier``: scikit-learn's own checks, and images in every form."""

import pickle
import pickletools
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
from sklearn.utils.validation import validate_data
from toys import toy_images

import lmd
from lmd.base.errors import LmdError
from lmd.runs.estimator import LongTailClassifier

QUICK = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 2, "workers": 0}


def quick(**more: Any) -> LongTailClassifier:
    return LongTailClassifier(**{"method": "ce", "settings": QUICK, "device": "cpu"} | more)


TABLE = "X is a table of numbers, and images are needed"
# Checks that do not apply. Those of TABLE train on a table; ``AsImages`` below passes many of them.
NOT_APPLICABLE = dict.fromkeys(
    [
        "check_fit_score_takes_y",
        "check_estimators_overwrite_params",
        "check_dont_overwrite_parameters",
        "check_estimators_fit_returns_self",
        "check_readonly_memmap_input",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_pipeline_consistency",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_classifier_data_not_an_array",
        "check_classifiers_one_label",
        "check_classifiers_classes",
        "check_classifiers_train",
        "check_supervised_y_2d",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_dict_unchanged",
        "check_fit_idempotent",
        "check_fit_check_is_fitted",
        "check_n_features_in",
        "check_fit2d_predict1d",
        "check_fit2d_1feature",
        "check_requires_y_none",
        "check_dtype_object",
        "check_estimators_nan_inf",
        "check_estimators_empty_data_messages",
        "check_estimator_sparse_tag",
        "check_estimator_sparse_array",
        "check_estimator_sparse_matrix",
        "check_complex_data",
        "check_classifiers_regression_target",
        "check_supervised_y_no_nan",
        "check_fit1d",
        "check_fit2d_1sample",
        "check_decision_proba_consistency",
    ],
    TABLE,
)


def test_the_checks_of_scikit_learn() -> None:
    """All checks that apply pass; those that do not are listed, and really fail or are skipped."""
    results = checks.check_estimator(
        quick(), expected_failed_checks=NOT_APPLICABLE, on_fail=None, on_skip=None
    )
    by = {status: {r["check_name"] for r in results if r["status"] == status} for status in STATUS}
    assert by["failed"] == set(), [r["exception"] for r in results if r["status"] == "failed"]
    passed = by["passed"]
    print(sorted(passed))
    assert passed >= {
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_estimators_unfitted",
        "check_mixin_order",
        "check_valid_tag_types",
    }
    unneeded = set(NOT_APPLICABLE) & passed
    assert unneeded == set(), "these pass: take them off the list"


STATUS = ("passed", "failed", "skipped", "xfail")


class AsImages(LongTailClassifier):
    """Rows of a table as pixels, so that checks with tables can train."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> "AsImages":
        X, y = validate_data(self, X, y, dtype=np.float64)
        super().fit(self._pixels(X), y, groups)
        return self

    def predict_proba(self, X: Any) -> Any:
        checks.check_is_fitted(self) if hasattr(checks, "check_is_fitted") else None
        if not hasattr(self, "n_features_in_"):
            raise NotFittedError("fit it first")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return super().predict_proba(self._pixels(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        return tags

    @staticmethod
    def _pixels(X: Any) -> Any:
        wide = np.resize(np.clip(128 + 40 * X, 0, 255), (len(X), 16 * 16))
        if X.shape[1]:
            wide = np.clip(128 + 40 * np.tile(X, (1, 256 // X.shape[1] + 1))[:, :256], 0, 255)
        return wide.reshape(len(X), 16, 16).astype(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        checks.check_estimators_overwrite_params,
        checks.check_dont_overwrite_parameters,
        checks.check_estimators_fit_returns_self,
        checks.check_estimators_pickle,
        checks.check_dict_unchanged,
        checks.check_fit_idempotent,
        checks.check_fit_check_is_fitted,
        checks.check_methods_subset_invariance,
        checks.check_methods_sample_order_invariance,
        checks.check_classifiers_one_label,
        checks.check_classifiers_regression_target,
        checks.check_supervised_y_no_nan,
        checks.check_requires_y_none,
        checks.check_n_features_in,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.filterwarnings("default")
def test_checks_with_tables_turned_into_images(check: Any) -> None:
    settings = QUICK | {"epochs": 1}
    check("AsImages", AsImages("ce", settings=settings, device="cpu"))


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
    names = {arg for op, arg, _ in pickletools.genops(content) if op.name == "GLOBAL"}
    texts = {
        arg for op, arg, _ in pickletools.genops(content) if isinstance(arg, str) and "torch" in arg
    }
    assert not any("torch" in str(name) for name in names)
    assert texts <= {t for t in texts if not t.startswith("torch.")}
    again = pickle.loads(content)
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
