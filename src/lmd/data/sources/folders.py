"""Walk folders, and read a folder of class folders with or without folders for the parts."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, SPECIAL, listing_problem, what_is
from lmd.base.text import counted, printable, shorten
from lmd.data.findings import finding
from lmd.data.images import is_image
from lmd.data.sources.scan import Case, Scan, part_name

LOOP = "it links to a folder that contains it"


@dataclass
class Tree:
    """What is below a folder; ``unlisted`` folders and ``special`` entries by path, with why.

    ``files`` are regular files and broken links, those of a folder before those of its subfolders.
    ``special`` are pipes, sockets and devices, which are never opened.
    """

    files: list[Path] = field(default_factory=list)
    unlisted: dict[Path, str] = field(default_factory=dict)
    special: dict[Path, str] = field(default_factory=dict)


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to the system: ``.DS_Store``, ``__MACOSX``."""
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini", "@eaDir"}


def tree_below(root: Path) -> Tree:
    """Everything below a folder that is not hidden; links are followed, loops of links are not."""
    tree, waiting = Tree(), [(root, _identities(root))]
    while waiting:  # not recursive: folders may be nested deeper than Python calls may be
        folder, above = waiting.pop()
        try:
            state = folder.stat()
            with os.scandir(folder) as entries:
                shown = [entry for entry in entries if not is_hidden(entry.name)]
        except OSError as error:
            tree.unlisted[folder] = error.strerror or str(error)
            continue
        here = (state.st_dev, state.st_ino)
        if here in above:
            tree.unlisted[folder] = LOOP
            continue
        inside = _sort_in(tree, folder, sorted(shown, key=lambda entry: entry.name))
        waiting += [(path, above | {here}) for path in reversed(inside)]
    return tree


def _identities(root: Path) -> frozenset[tuple[int, int]]:
    """Device and inode of all folders that contain this one."""
    try:
        states = [parent.stat() for parent in root.resolve().parents]
    except OSError:
        return frozenset()
    return frozenset((state.st_dev, state.st_ino) for state in states)


def _sort_in(tree: Tree, folder: Path, entries: list["os.DirEntry[str]"]) -> list[Path]:
    """Add files and special entries to the tree; returns the folders."""
    folders = []
    for entry in entries:
        path = folder / entry.name
        kind = what_is(path)
        if kind == FOLDER:
            folders.append(path)
        elif kind in SPECIAL:
            tree.special[path] = kind
        elif kind not in (FILE, MISSING) and not entry.is_file(follow_symlinks=False):
            tree.unlisted[path] = kind  # it may be a folder
        else:
            tree.files.append(path)
    return folders


def files_below(root: Path) -> list[Path]:
    """The files of ``tree_below``; an ``LmdError`` if a folder cannot be listed."""
    tree = tree_below(root)
    if tree.unlisted:
        listed = shorten([f"{path}: {why}" for path, why in tree.unlisted.items()])
        raise LmdError(f"cannot list all folders in {root} ({listed}): make them readable")
    return tree.files


def images_of(files: list[Path], root: Path) -> list[Path]:
    """The images among files, sorted by path."""
    return sorted(filter(is_image, files), key=lambda path: path.relative_to(root).parts)


def images_below(root: Path) -> list[Path]:
    """All images in a folder and its subfolders, sorted by path; errors as in ``files_below``."""
    return images_of(files_below(root), root)


def visible(folder: Path) -> list[Path]:
    """What a folder contains, without hidden files; nothing if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []


def scan_folders(root: Path) -> Scan:
    """``root/CLASS/**/*`` or ``root/{train,validation,test}/CLASS/**/*``.

    Names are paths relative to the root, in sorted order; hidden files are skipped. A folder that
    cannot be listed is an error that names it: its images would be missing without a word.
    """
    tops = _folders(root)
    split = _means_parts(tops)
    scan = Scan(str(root), "split folders" if split else "folders", root=root, split=split)
    _check_part_folders(scan, tops)
    _add_stray(scan, root)
    above = [root, *(tops if split else [])]
    special = {path: what_is(path) for folder in above for path in visible(folder)}
    unusable = Tree(
        unlisted=_unlisted(above),
        special={path: kind for path, kind in special.items() if kind in SPECIAL},
    )
    empty = []
    for top in tops if split else [root]:
        if split:
            _add_stray(scan, top)
        for folder in _folders(top):
            before = len(scan.cases)
            tree = tree_below(folder)
            unusable.unlisted |= tree.unlisted
            unusable.special |= tree.special
            _add_class(scan, folder, part_name(top.name) if split else "", tree.files)
            if len(scan.cases) == before and not tree.unlisted:
                empty.append(printable(folder.relative_to(root).as_posix()))
    _add_unusable(scan, unusable)
    _add_findings(scan, empty)
    return scan


def _folders(root: Path) -> list[Path]:
    return [path for path in visible(root) if what_is(path) == FOLDER]


def _means_parts(tops: list[Path]) -> bool:
    """Whether the top folders are parts, even if one of them is misspelt or empty."""
    inside = {top: {folder.name for folder in _folders(top)} for top in tops}
    parts = {top: part_name(top.name) for top in tops}
    classes = {name for top in tops if parts[top] == "train" for name in inside[top]}
    several = len({*parts.values()} - {None}) > 1
    alike = len(tops) > 1 and all(classes & names for names in inside.values())
    return bool(classes) and (several or alike)


def _check_part_folders(scan: Scan, tops: list[Path]) -> None:
    unknown = [printable(top.name) for top in tops if part_name(top.name) is None]
    known = [top for top in tops if part_name(top.name) is not None]
    bare = [top.name for top in known if not _folders(top) and not _unlisted([top])]
    if not scan.split:
        if len(known) > 1:
            text = f"The class folders {shorten([top.name for top in known])} are named like parts."
            remedy = "If they are parts, put class folders into each."
            scan.findings.append(finding("part_folders", text, severity="warning", remedy=remedy))
        return
    why = [f"{shorten(unknown)} is not the name of a part"] if unknown else []
    why += [f"{shorten(bare)} has no class folders"] if bare else []
    if why:
        text = f"The top folders look like parts, but {' and '.join(why)}."
        scan.findings.append(finding("part_folders", text, names=[*unknown, *bare]))


def _unlisted(folders: list[Path]) -> dict[Path, str]:
    found = {folder: listing_problem(folder) for folder in folders}
    return {folder: why for folder, why in found.items() if why is not None}


def _add_class(scan: Scan, folder: Path, part: str | None, files: list[Path]) -> None:
    """Add the images of a class folder to ``cases`` and its other files to ``others``."""
    assert scan.root is not None
    for path in sorted(files, key=lambda path: path.relative_to(folder).parts):
        name = path.relative_to(scan.root).as_posix()
        image = is_image(path)
        fault = "" if printable(name) == name else "encoding"
        if part is None or not image:
            fault = "unknown_split" if image else "ignored_file"
        case = Case(
            printable(name), printable(folder.name), part=part or "", path=path, fault=fault
        )
        (scan.cases if image else scan.others).append(case)


def _add_stray(scan: Scan, folder: Path) -> None:
    """Add images above the class folders, which belong to no class."""
    assert scan.root is not None
    for path in visible(folder):
        if what_is(path) == FILE and is_image(path):
            name = printable(path.relative_to(scan.root).as_posix())
            scan.cases.append(Case(name, "", path=path, fault="stray_image"))


def _add_unusable(scan: Scan, tree: Tree) -> None:
    """Report folders that cannot be listed, and entries that must not be opened."""
    texts = {
        "unlisted_folder": "{n} [folder|folders] cannot be listed.",
        "special_file": "{n} [entry is|entries are] not a regular file.",
    }
    for (kind, text), found in zip(texts.items(), (tree.unlisted, tree.special), strict=True):
        names = [f"{printable(_name(scan, path))} ({why})" for path, why in found.items()]
        if names:
            scan.findings.append(finding(kind, counted(len(names), text), names=names))


def _name(scan: Scan, path: Path) -> str:
    assert scan.root is not None
    return str(path) if path == scan.root else path.relative_to(scan.root).as_posix()


def _add_findings(scan: Scan, empty: list[str]) -> None:
    scan.report("unknown_split", "{n} [image lies|images lie] in a folder that is not a part.")
    scan.report("stray_image", "{n} [image lies|images lie] outside any class folder.")
    scan.report("encoding", "{n} file [name is|names are] not UTF-8.", remedy="Rename these files.")
    if not scan.cases:
        text = f"There is no image in a class folder: expected {scan.root}/CLASS/*.jpg."
        scan.findings.append(finding("source", text, remedy=""))
    elif empty:
        text = counted(len(empty), "{n} class [folder holds|folders hold] no image.")
        scan.findings.append(finding("empty_class_folder", text, names=empty))
