"""Every method, one line each: a new one is its file, its line here and its test."""

from lmd.method import Method
from lmd.methods import (
    balanced_mixup,
    balanced_softmax,
    cb_focal,
    ce,
    focal,
    ldam,
    lmd,
    logit_adjustment,
    rs,
    seesaw,
    vs_loss,
)

METHODS: dict[str, Method] = {
    method.key: method
    for method in (
        *ce.METHODS,
        *rs.METHODS,
        *focal.METHODS,
        *ldam.METHODS,
        *cb_focal.METHODS,
        *seesaw.METHODS,
        *balanced_mixup.METHODS,
        *lmd.METHODS,
        *balanced_softmax.METHODS,
        *logit_adjustment.METHODS,
        *vs_loss.METHODS,
    )
}
