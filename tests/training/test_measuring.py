"""Small tools of the loop, and what it may use of torch."""

import re

import torch
from toys import ROOT

from lmd.training.loop import evaluating

PRIVATE = (
    r"\btorch(\.[a-z]\w*)*\._[a-z]|from torch[\w.]*\._|from torch[\w.]* import .*\b_[a-zA-Z]"
    r"|_execution_engine|_foreach_|_NormBase|\.__class__ ="
)


def test_evaluating_puts_every_mode_back() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    module[1].eval()
    with evaluating(module):
        assert not any(m.training for m in module.modules())
    assert [m.training for m in module.modules()] == [True, True, False]


def test_only_what_torch_has_made_public_is_used() -> None:
    for path in (ROOT / "src" / "lmd").rglob("*.py"):
        assert not re.search(PRIVATE, path.read_text(encoding="utf-8")), path
    assert re.search(PRIVATE, "torch.nn.modules.batchnorm._NormBase")
