"""Reading ``.npz`` files; what a file declares is checked before memory is taken for it."""

import io
import math
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file by name; an ``LmdError`` says what is wrong, without the path.

    Arrays of Python objects are refused, because loading them could run code.
    """
    try:
        with path.open("rb") as file:
            return dict(_arrays(file))
    except LmdError:
        raise
    except MemoryError:
        raise LmdError("its arrays need more memory than there is") from None
    except OSError as error:
        raise LmdError(error.strerror or str(error)) from error
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for a damaged file
        raise LmdError(" ".join(str(error).split()) or "it is cut short") from error


def _arrays(file: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    start, not_npz = file.read(6), "it is not an .npz file"
    if not zipfile.is_zipfile(file):
        alone = "it is a single array, not an .npz archive: use numpy.savez"
        raise LmdError(alone if start == b"\x93NUMPY" else not_npz)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys():
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if size > memory:
                raise LmdError(
                    f"its arrays have {size / 1e9:.0f} GB, more than the {memory / 1e9:.0f} GB of "
                    "memory of this machine"
                )
        for entry in entries:
            if not entry.filename.endswith(".npy"):
                raise LmdError(f"{not_npz}: its entry {entry.filename!r} is no array")
            if entry.flag_bits & 1:
                raise LmdError("it is encrypted")
            with archive.open(entry) as member:
                _check_header(entry, member)
            with archive.open(entry) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            yield entry.filename.removesuffix(".npy"), array


def _check_header(entry: zipfile.ZipInfo, member: Any) -> None:
    """Check that the shape in the header of an array fits the bytes that follow it."""
    start = io.BytesIO(member.read(1 << 16))
    version = np.lib.format.read_magic(start)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise LmdError(f"array {entry.filename!r} has the unknown format {version}")
    shape, _, dtype = readers[version](start)
    if dtype.hasobject:
        raise LmdError(f"array {entry.filename!r}: arrays of Python objects are refused")
    declared = math.prod(map(int, shape)) * dtype.itemsize
    size = entry.file_size - start.tell()
    if declared != size or min(shape, default=0) < 0:
        raise LmdError(f"array {entry.filename!r} declares {declared} bytes and has {size}")
