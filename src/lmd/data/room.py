"""A limit on the pixels that threads decode at once, so that huge images fit into the memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from lmd.base.paths import FILE, what_is
from lmd.data.pixels import quiet_decoders

SMALL = 1 << 22  # images of fewer pixels are decoded without asking


@dataclass
class Room:
    """Room for ``most`` pixels; an image that is larger waits until it has the room alone."""

    most: int
    taken: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for ``pixels``, and hold it inside the context."""
        share = 0 if pixels < SMALL else min(pixels, self.most)
        with self.changed:
            self.changed.wait_for(lambda: self.taken + share <= self.most)
            self.taken += share
        try:
            yield
        finally:
            with self.changed:
                self.taken -= share
                self.changed.notify_all()


ROOM = Room(1 << 26)


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Hold room for the pixels of an image file, from before it is decoded until it is resized."""
    with ROOM.hold(pixels_of(path)):
        yield


def pixels_of(path: Path) -> int:
    """Width times height by the header of a file; 0 if it is small or cannot be read."""
    from lmd.data.reading import MAX_PIXELS, is_dicom  # which imports this module

    try:
        if what_is(path) != FILE:
            return 0
        if is_dicom(path):
            import pydicom

            wanted = ["Rows", "Columns"]
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
            found = int(header.Rows) * int(header.Columns)
        else:
            with quiet_decoders(), Image.open(path) as image:
                found = image.width * image.height
    except Exception:  # Broken files raise many kinds of errors; reading the pixels names them.
        return 0
    return found if found <= MAX_PIXELS else 0  # larger ones are not decoded
