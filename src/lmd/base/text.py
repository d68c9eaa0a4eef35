"""Text for messages: shortened lists, singular and plural."""

import re
from collections.abc import Sequence

LONG = 200  # characters of a name in a message


def clipped(text: str, most: int = LONG) -> str:
    """A text with its middle left out if it is very long.

    >>> clipped("abcdefghij", most=5), clipped("abc", most=5)
    ('abc…j', 'abc')
    """
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"


def shorten(items: Sequence[str], most: int = 3) -> str:
    """The first few items, and how many more there are.

    >>> shorten(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    listed = ", ".join(map(clipped, items[:most]))
    return listed if len(items) <= most else f"{listed} and {len(items) - most} more"


def counted(n: int, text: str) -> str:
    """Fill in ``{n}`` and choose between ``[singular|plural]``.

    >>> counted(1, "{n} [image is|images are] grey"), counted(2, "{n} [image is|images are] grey")
    ('1 image is grey', '2 images are grey')
    """
    chosen = re.sub(r"\[([^|\]]*)\|([^\]]*)\]", r"\1" if n == 1 else r"\2", text)
    return chosen.replace("{n}", str(n))
