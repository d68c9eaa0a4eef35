"""Every method, one line each: a new one is its file, its line here and its test."""

from lmd.method import Method
from lmd.methods import ce, lmd

METHODS: dict[str, Method] = {
    method.key: method
    for method in (
        *ce.METHODS,
        *lmd.METHODS,
    )
}
