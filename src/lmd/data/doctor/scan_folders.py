"""A tolerant walk through a folder of class folders."""

import os
from pathlib import Path

from lmd.base.text import shorten
from lmd.data.doctor.findings import Case, finding
from lmd.data.doctor.scan import Scan, barred, looks_like_image, spelt
from lmd.data.reading import is_hidden, is_image
from lmd.data.sources.labelling import part_name


def scan_folders(root: Path) -> Scan:
    """All images below ``root``, with class and part where their folders say them."""
    folders = _folders(root)
    split = _means_parts(folders)
    scan = Scan(str(root), "split folders" if split else "folders", root=root, split=split)
    if split:
        for top in folders:
            part = part_name(top.name) or ""
            for folder in _folders(top):
                _add_class(scan, folder, part, fault="" if part else "unknown_split")
            _add_stray(scan, top, part)
        _check_part_folders(scan, folders)
    else:
        for folder in folders:
            _add_class(scan, folder, "")
    _add_stray(scan, root, "")
    _add_findings(scan, root)
    return scan


def _folders(root: Path) -> list[Path]:
    return [f for f in _inside(root) if f.is_dir()]


def _inside(folder: Path) -> list[Path]:
    """What is in a folder, without the file system's own; nothing, if it may not be read."""
    try:
        return sorted(f for f in folder.iterdir() if not is_hidden(f.name))
    except OSError:
        return []


def _means_parts(folders: list[Path]) -> bool:
    """Whether the folders at the top are meant as parts, even if one is misspelt or empty."""
    parts = {part_name(folder.name) for folder in folders} - {None}
    if "train" not in parts or len(folders) < 2:
        return False
    if len(parts) > 1:
        return True
    inside = [{below.name for below in _folders(folder)} for folder in folders]
    return bool(inside[0]) and all(each & inside[0] for each in inside[1:])


def _check_part_folders(scan: Scan, folders: list[Path]) -> None:
    unknown = [folder.name for folder in folders if part_name(folder.name) is None]
    bare = [f.name for f in folders if part_name(f.name) is not None and not _folders(f)]
    if unknown or bare:
        why = [f"{shorten(unknown)} is no word for a part"] if unknown else []
        why += [f"{shorten(bare)} has no class folders"] if bare else []
        scan.findings.append(
            finding(
                "part_folders",
                f"The folders at the top look like parts, but {' and '.join(why)}: training takes "
                f"{shorten([f.name for f in folders], 4)} for classes.",
                names=[*unknown, *bare],
            )
        )


def _add_class(scan: Scan, folder: Path, part: str, fault: str = "") -> None:
    assert scan.root is not None
    images: list[Path] = []
    others: list[Path] = []
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not is_hidden(name)]
        here = Path(place)
        for name in files:
            if not is_hidden(name):
                (images if is_image(here / name) else others).append(here / name)
    for path in sorted(images, key=lambda path: path.relative_to(folder).parts):
        name = spelt(path.relative_to(scan.root))
        gone = "" if path.exists() else "missing_file"  # a link that leads nowhere
        scan.cases.append(Case(name, spelt(folder.name), part=part, path=path, fault=fault or gone))
    for path in sorted(others):
        if looks_like_image(path):
            name = spelt(path.relative_to(scan.root))
            scan.cases.append(
                Case(name, spelt(folder.name), part=part, path=path, fault="ignored_file")
            )
    if not images:
        name = spelt(folder.relative_to(scan.root))
        scan.findings.append(
            finding("empty_class_folder", f"Class folder {name!r} holds no image.", names=[name])
        )


def _add_stray(scan: Scan, folder: Path, part: str) -> None:
    assert scan.root is not None
    for path in _inside(folder):
        if path.is_file() and is_image(path):
            name = spelt(path.relative_to(scan.root))
            scan.cases.append(Case(name, "", part=part, path=path, fault="stray_image"))


def _add_findings(scan: Scan, root: Path) -> None:
    barred(scan, "unknown_split", "{n} [image lies|images lie] in a folder that is no part.")
    barred(scan, "stray_image", "{n} [image lies|images lie] outside of any class folder.")
    barred(
        scan, "missing_file", "{n} [file is a link that leads|files are links that lead] nowhere."
    )
    barred(
        scan,
        "ignored_file",
        "{n} [file is an image|files are images] by content but not by name, and not used.",
    )
    if not scan.cases:
        scan.findings.append(finding("source", f"No image lies below {root}.", remedy=""))
