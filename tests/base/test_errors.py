"""Errors keep their message, whatever it contains."""

import pickle

from lmd.base.errors import LmdError


def test_a_message_is_never_rewritten() -> None:
    for text in ("cannot read /data/scan --out/a.png", "unknown class '--root'", "use --skip-bad"):
        assert str(LmdError(text)) == text
        assert str(pickle.loads(pickle.dumps(LmdError(text)))) == text
