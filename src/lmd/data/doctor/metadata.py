"""Checks the metadata of image files."""

from collections.abc import Mapping
from typing import Any

# Bytes of one value of each TIFF type; entry 0 does not exist.
TYPE_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)


def metadata_problem(info: Mapping[Any, Any]) -> str:
    """What is wrong with the EXIF block or colour profile of an opened image; empty if nothing."""
    exif, profile = info.get("exif"), info.get("icc_profile")
    problem = exif_problem(exif) if isinstance(exif, bytes) else ""
    return problem or (profile_problem(profile) if isinstance(profile, bytes) else "")


def exif_problem(block: bytes) -> str:
    """What is wrong with an EXIF block: its first directory and all values must lie inside it."""
    block = block.removeprefix(b"Exif\0\0")
    order: Any = {b"II*\0": "little", b"MM\0*": "big"}.get(block[:4])
    if order is None:
        return "the EXIF block has no TIFF header"
    start = int.from_bytes(block[4:8], order)
    if start + 2 > len(block):
        return "the EXIF directory lies outside its block"
    entries = int.from_bytes(block[start : start + 2], order)
    if start + 2 + 12 * entries > len(block):
        return f"the EXIF directory of {entries} entries is cut off"
    for i in range(entries):
        entry = block[start + 2 + 12 * i : start + 14 + 12 * i]
        kind, count = int.from_bytes(entry[2:4], order), int.from_bytes(entry[4:8], order)
        if not 0 < kind < len(TYPE_SIZES):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} has an unknown type"
        size = TYPE_SIZES[kind] * count
        if size > 4 and int.from_bytes(entry[8:12], order) + size > len(block):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} lies outside its block"
    return ""


def profile_problem(profile: bytes) -> str:
    """What is wrong with the length or signature of a colour profile (ICC.1:2022, 7.2)."""
    if len(profile) < 128 or profile[36:40] != b"acsp":
        return "the colour profile has no valid header"
    if int.from_bytes(profile[:4], "big") > len(profile):
        return "the colour profile is cut off"
    return ""
