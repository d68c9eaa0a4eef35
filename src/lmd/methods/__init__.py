"""The table of methods: a new method is a file, a line here and a test."""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from lmd.base.errors import LmdError
from lmd.base.text import unknown

if TYPE_CHECKING:
    from lmd.methods.method import Method


class Rows(Mapping[str, "Method"]):
    """Methods by key; the module of a row is imported when the row is used."""

    def __init__(self, *modules: tuple[str, str]) -> None:
        self._modules = {key: module for module, keys in modules for key in keys.split()}

    def __getitem__(self, key: str) -> "Method":
        rows: tuple[Method, ...] = import_module(f"{__name__}.{self._modules[key]}").METHODS
        return next(row for row in rows if row.key == key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


# The modules of this package, and the keys of their rows.
METHODS = Rows(
    ("ce", "ce ce_strong"),
    ("rs", "rs rs_strong"),
    ("focal", "focal"),
    ("ldam", "ldam_rs ldam_drw"),
    ("cb_focal", "cb_focal"),
    ("decoupling", "decoupling tau_norm lws ncm"),
    ("seesaw", "seesaw seesaw_norm"),
    ("cicl", "cicl"),
    ("balanced_mixup", "bal_mixup"),
    ("weight_balancing", "cb_wd_max"),
    ("fcd", "fcd"),
    ("flexible_sampling", "fs fs_crt"),
    ("cc_sam", "cc_sam"),
    ("gcl", "gcl"),
    ("lmd.rows", "lmd lmd_wo_rrl lmd_wo_icc lmd_wo_vfc lmd_wo_fdc lmd_wo_levels lmd_wo_views"),
    ("lmd.rows", "lmd_wo_shrunk_means lmd_wo_strong lmd_with_rrl lmd_with_icc"),
    ("logit_adjustment", "balanced_softmax balanced_softmax_strong balanced_softmax_ema"),
    ("logit_adjustment", "balanced_softmax_strong_ema balanced_softmax_two_views_ema"),
    ("logit_adjustment", "logit_adjust_posthoc vs_loss"),
)
# A name under which another paper knows a row; not in METHODS, so "all" trains each once.
ALSO = Rows(("logit_adjustment", "logit_adjust"))

# The rows of the paper's tables, in its order; the last ones are LMD and its ablations.
LMD_ROWS = 5
PAPER = (
    *("ce", "rs", "focal", "ldam_rs", "cb_focal", "decoupling", "seesaw", "cicl", "bal_mixup"),
    *("cb_wd_max", "fcd", "fs", "cc_sam", "gcl"),
    *("lmd_wo_rrl", "lmd_wo_icc", "lmd_wo_vfc", "lmd_wo_fdc", "lmd"),
)
# What is trained, and what a table compares with, unless another method is named.
DEFAULT = "lmd"
# What `lmd demo` trains: the baseline, then the method that is compared with it.
DEMO = ("ce", DEFAULT)
# What `lmd choose` compares: cheap, strong and different from one another.
CANDIDATES = ("balanced_softmax", "logit_adjust_posthoc", "decoupling", "rs_strong", DEFAULT)


def find_method(key: str) -> "Method":
    """Return the row of ``METHODS`` or ``ALSO`` with this key."""
    for rows in (METHODS, ALSO):
        if key in rows:
            return rows[key]
    raise LmdError(unknown("method", key, [*METHODS, *ALSO]))


def in_paper_order(keys: Iterable[str]) -> "list[Method]":
    """Sort the rows as the paper's tables do; rows that these lack come before LMD's own rows.

    Further ablations of LMD follow the paper's.
    """
    place = {key: float(i) for i, key in enumerate(PAPER)}

    def order(method: "Method") -> float:
        last = len(PAPER) - (1 if method.ablation else LMD_ROWS)
        return place.get(method.key, last - 0.5)

    return sorted((find_method(key) for key in keys), key=order)


def related(key: str, reference: str) -> bool:
    """Whether a row is the reference itself or an ablation of it."""
    row = find_method(key)
    return key == reference or (row.ablation and row.family == find_method(reference).family)
