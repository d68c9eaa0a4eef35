"""A folder of class folders, with or without folders for the parts above them."""

import os
from pathlib import Path

import numpy as np

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.data.reading import FileImages, file_signature, is_hidden, is_image
from lmd.data.sources.labelling import class_order, encode, part_name, require_classes
from lmd.data.table import Table


def open_folders(root: Path, *, skip_bad: bool = False) -> Table:
    """``root/CLASS/**/*`` or ``root/{train,validation,test}/CLASS/**/*``.

    Ids are paths relative to the root, classes are in alphabetical order, hidden files and files
    that are no images are passed over.
    """
    split = _is_split_tree(root)
    tops = _folders(root) if split else [root]
    skipped = _stray(root, skip_bad)
    files: list[Path] = []
    names: list[str] = []
    parts: list[str] = []
    for top in tops:
        if split:
            skipped += _stray(top, skip_bad)
        for folder in _folders(top):
            found = images_below(folder)
            if not found:
                skipped.append(_empty(folder, skip_bad))
            files += found
            names += [folder.name] * len(found)
            parts += [part_name(top.name) or ""] * len(found)
    if not files:
        raise LmdError(f"{root} holds no image in a class folder: expected {root}/CLASS/*.jpg")
    require_classes(names, root)
    ids = [file.relative_to(root).as_posix() for file in files]
    classes = class_order(names)
    return Table(
        ids=np.array(ids, dtype=np.str_),
        labels=encode(names, classes),
        classes=classes,
        images=FileImages(tuple(files)),
        rows=np.arange(len(files), dtype=np.int64),
        parts=np.array(parts, dtype=np.str_) if split else None,
        source=str(root),
        kind="split folders" if split else "folders",
        signature=file_signature(ids, files),
        skipped=tuple(skipped),
    )


def images_below(folder: Path) -> list[Path]:
    """All images in a folder and in the folders below it, in order of their paths."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        here = Path(place)
        found += [here / name for name in files if not is_hidden(name) and is_image(here / name)]
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _folders(root: Path) -> list[Path]:
    return sorted(f for f in root.iterdir() if f.is_dir() and not is_hidden(f.name))


def _is_split_tree(root: Path) -> bool:
    """Two or three folders, all named after parts, train among them, with folders in each."""
    folders = _folders(root)
    parts = {part_name(folder.name) for folder in folders}
    return (
        len(parts) > 1
        and "train" in parts
        and None not in parts
        and all(_folders(folder) for folder in folders)
    )


def _stray(folder: Path, skip_bad: bool) -> list[str]:
    """Images that lie above the class folders belong to no class."""
    stray = sorted(
        f.name for f in folder.iterdir() if f.is_file() and not is_hidden(f.name) and is_image(f)
    )
    if stray and not skip_bad:
        raise LmdError(
            f"{folder} holds {len(stray)} images outside of any class folder "
            f"({shorten(stray)}): move them into folders named after their classes, "
            "or leave them out with skip_bad"
        )
    return [f"{folder / name}: outside of any class folder" for name in stray]


def _empty(folder: Path, skip_bad: bool) -> str:
    if not skip_bad:
        raise LmdError(
            f"class folder {folder} holds no image: fill or remove it, "
            "or leave it out with skip_bad"
        )
    return f"{folder}: a class folder without images"
