"""Whether the metadata of an image file are well formed."""

from collections.abc import Mapping
from typing import Any

# Bytes of one value of each TIFF type; entry 0 does not exist.
TYPE_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)


def metadata_problem(info: Mapping[Any, Any]) -> str:
    """What is wrong with the EXIF block or colour profile of an opened image, or nothing."""
    exif, profile = info.get("exif"), info.get("icc_profile")
    if isinstance(exif, bytes) and (problem := exif_problem(exif)):
        return problem
    if isinstance(profile, bytes) and (problem := profile_problem(profile)):
        return problem
    return ""


def exif_problem(block: bytes) -> str:
    """What is wrong with an EXIF block: its first directory and its values must lie within it."""
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
    """What is wrong with a colour profile: its length and its mark (ICC.1:2022, 7.2)."""
    if len(profile) < 128 or profile[36:40] != b"acsp":
        return "the colour profile has no valid header"
    if int.from_bytes(profile[:4], "big") > len(profile):
        return "the colour profile is cut off"
    return ""
