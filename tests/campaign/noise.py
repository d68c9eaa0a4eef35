"""Random damage to bytes, JSON values, TOML and trees of folders."""

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 30000, 10**9, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\0",
    "a" * 5000, [], {}, [[]], [None], {"x": {}}, [1] * 1000,
)  # fmt: skip
TOML = (
    "1", "-1", "0", "nan", "inf", "1e400", "10000000000000000000000", "true", '""', '"x"', '"ce"',
    '"../x"', '"a\\u0000b"', "[]", "[[]]", "[0, 0]", "{}", "{x = 1}", "1979-05-27", '"""', "'",
)  # fmt: skip


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut short, repeated, zeroed, or with some of them changed."""
    changed = bytearray(data)
    how = rng.randrange(5)
    if how == 0:
        return bytes(changed[: rng.randrange(len(changed) + 1)])
    if how == 1:
        at = rng.randrange(len(changed) + 1)
        return bytes(changed[:at] + changed)
    if how == 2:
        return bytes(len(changed)) if rng.random() < 0.5 else b""
    for _ in range(rng.choice([1, 3, 100])):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def json_changed(value: Any, rng: random.Random) -> Any:
    """The value with a few places removed or replaced."""
    for _ in range(rng.choice([1, 1, 3])):
        place, key = value, None
        while isinstance(place, dict | list) and place and (key is None or rng.random() < 0.7):
            above = place
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            place = place[key]
        if key is None:
            return value
        if rng.random() < 0.3:
            del above[key]
        else:
            above[key] = rng.choice(VALUES)
    return value


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file: JSON in its values, safetensors in their header, any file in its bytes."""
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(json_changed(json.loads(data), rng)))
    elif path.suffix == ".json" and rng.random() < 0.2:
        path.write_bytes(b"[" * 10**5)
    elif path.suffix == ".safetensors" and rng.random() < 0.5:
        size = int.from_bytes(data[:8], "little")
        header = json.dumps(json_changed(json.loads(data[8 : 8 + size]), rng)).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    else:
        path.write_bytes(bytes_changed(data, rng))


def toml_changed(text: str, rng: random.Random) -> str:
    """TOML with lines whose values are replaced, or that are removed, doubled or moved."""
    lines = text.strip().splitlines()
    for _ in range(rng.choice([1, 1, 3])):
        i = rng.randrange(len(lines))
        how = rng.randrange(6)
        if how < 3 and "=" in lines[i]:
            lines[i] = f"{lines[i].split('=')[0]}= {rng.choice(TOML)}"
        elif how == 3 and len(lines) > 1:
            del lines[i]
        elif how == 4:
            lines.insert(rng.randrange(len(lines)), lines[i])
        else:
            lines.insert(i, f"{rng.choice(['x', 'lr', 'seeds', '[sweep]', 'a.b'])} = 1")
    return "\n".join(lines)


def add_to_tree(folder: Path, rng: random.Random) -> str:
    """Put something unusual into a folder of class folders; returns what."""
    at = rng.choice([folder, *sorted(path for path in folder.iterdir() if path.is_dir())])
    kind = rng.choice(sorted(_STRANGE))
    _STRANGE[kind](at)
    return kind


def _socket(at: Path) -> None:
    before = Path.cwd()
    os.chdir(at)  # a socket's path may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("s.png")
    finally:
        os.chdir(before)


def _deep(at: Path) -> None:
    before = Path.cwd()
    try:
        for _ in range(60):
            (at / ("d" * 60)).mkdir()
            os.chdir(at / ("d" * 60))
            at = Path()
    finally:
        os.chdir(before)


_STRANGE = {
    "pipe": lambda at: os.mkfifo(at / "p.png"),
    "socket": _socket,
    "link to a device": lambda at: (at / "zero.png").symlink_to("/dev/zero"),
    "loop of links": lambda at: (at / "again").symlink_to(at),
    "link to itself": lambda at: (at / "self.png").symlink_to("self.png"),
    "broken link": lambda at: (at / "gone.png").symlink_to("nowhere.png"),
    "empty file": lambda at: (at / "none.png").write_bytes(b""),
    "text": lambda at: (at / "notes.txt").write_text("notes"),
    "text as image": lambda at: (at / "notes.png").write_text("notes"),
    "empty folder": lambda at: (at / "nothing").mkdir(),
    "folder with the name of an image": lambda at: (at / "folder.png").mkdir(),
    "name that is not UTF-8": lambda at: Path(os.fsdecode(bytes(at) + b"/\xff\xfe.png")).touch(),
    "long name": lambda at: (at / ("n" * 251 + ".png")).write_bytes(b"x"),
    "name with a line break": lambda at: (at / "a\nb.png").write_bytes(b"x"),
    "deep folders": _deep,
    "hidden file": lambda at: (at / ".hidden.png").write_bytes(b"x"),
}  # fmt: skip
