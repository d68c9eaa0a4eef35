"""Reading ``.npz`` files; what a file declares is checked before memory is taken for it."""

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

_NOT_NPZ = "it is not an .npz file"


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name; an ``LmdError`` that says what is wrong, without the path.

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
    start = file.read(6)
    if not zipfile.is_zipfile(file):
        alone = "it is a single array, not an .npz archive: use numpy.savez"
        raise LmdError(alone if start == b"\x93NUMPY" else _NOT_NPZ)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_memory(sum(entry.file_size for entry in entries))
        for entry in entries:
            if not entry.filename.endswith(".npy"):
                raise LmdError(f"{_NOT_NPZ}: its entry {entry.filename!r} is no array")
            if entry.flag_bits & 1:
                raise LmdError("it is encrypted")
            with archive.open(entry) as member:
                _check_header(entry, member)
            with archive.open(entry) as member:
                found = np.lib.format.read_array(member, allow_pickle=False)
            yield entry.filename.removesuffix(".npy"), found


def _check_memory(declared: int) -> None:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys():
        return
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if declared > there:
        raise LmdError(
            f"its arrays have {declared / 1e9:.0f} GB, more than the {there / 1e9:.0f} GB of "
            "memory of this machine"
        )


def _check_header(entry: zipfile.ZipInfo, member: Any) -> None:
    """The shape in the header of an array must fit the bytes that follow it."""
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
    count = 1
    for length in shape:
        count *= int(length)
    declared, there = count * dtype.itemsize, entry.file_size - start.tell()
    if declared != there or min(shape, default=0) < 0:
        raise LmdError(f"array {entry.filename!r} declares {declared} bytes and has {there}")
