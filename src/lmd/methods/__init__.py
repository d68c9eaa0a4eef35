"""Every method, one line each: a new one is its file, its line here and its test."""

from lmd.contract.method import Method
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
