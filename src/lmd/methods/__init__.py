"""The table of methods: a new method is a file, a line here and a test."""

from collections.abc import Iterable

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.methods import (
    balanced_mixup,
    balanced_softmax,
    cb_focal,
    cc_sam,
    ce,
    cicl,
    decoupling,
    fcd,
    flexible_sampling,
    focal,
    gcl,
    ldam,
    lmd,
    logit_adjustment,
    rs,
    seesaw,
    vs_loss,
    weight_balancing,
)
from lmd.methods.method import Method

METHODS: dict[str, Method] = {
    method.key: method
    for method in (
        *ce.METHODS,
        *rs.METHODS,
        *focal.METHODS,
        *ldam.METHODS,
        *cb_focal.METHODS,
        *decoupling.METHODS,
        *seesaw.METHODS,
        *cicl.METHODS,
        *balanced_mixup.METHODS,
        *weight_balancing.METHODS,
        *fcd.METHODS,
        *flexible_sampling.METHODS,
        *cc_sam.METHODS,
        *gcl.METHODS,
        *lmd.METHODS,
        *balanced_softmax.METHODS,
        *logit_adjustment.METHODS,
        *vs_loss.METHODS,
    )
}

# Names of rows under which other papers know them; not in METHODS, so "all" trains each once.
ALSO: dict[str, Method] = {method.key: method for method in balanced_softmax.ALSO}

# The rows of the paper's tables, in its order; the last five are LMD and its ablations.
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


def find_method(key: str) -> Method:
    """The row of ``METHODS`` with this key, or one that it is also known as."""
    if key not in METHODS and key not in ALSO:
        raise LmdError(unknown("method", key, [*METHODS, *ALSO]))
    return METHODS.get(key) or ALSO[key]


def in_paper_order(keys: Iterable[str]) -> list[Method]:
    """The rows in the order of the paper's tables; others come before LMD's own rows.

    Further ablations of LMD follow those of the paper.
    """
    own = next(i for i, key in enumerate(PAPER) if METHODS[key].ablation)
    place = {key: float(i) for i, key in enumerate(PAPER)}

    def order(method: Method) -> float:
        return place.get(method.key, (len(PAPER) - 1 if method.ablation else own) - 0.5)

    return sorted((find_method(key) for key in keys), key=order)


def related(key: str, reference: str) -> bool:
    """Whether a row is the reference itself or an ablation of it."""
    row = find_method(key)
    return key == reference or (row.ablation and row.family == find_method(reference).family)
