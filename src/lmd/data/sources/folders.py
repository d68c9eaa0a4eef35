"""A folder of class folders, with or without folders for the parts above them."""

from pathlib import Path

from lmd.base.paths import FILE, FOLDER, SPECIAL, listing_problem, what_is
from lmd.base.text import counted, printable, shorten
from lmd.data.findings import finding
from lmd.data.reading import is_image
from lmd.data.sources.labelling import part_name
from lmd.data.sources.scan import Case, Scan
from lmd.data.sources.walk import Tree, tree_below, visible


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
