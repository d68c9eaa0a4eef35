"""Forty ways to damage a small real data set."""

import io
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from patients import Patient
from PIL import Image

# Each of these breaks image i and returns the name of the image that should be found (or "").


def empty(p: Patient, i: int) -> str:
    p.path(i).write_bytes(b"")
    return p.rows[i]["image"]


def cut_in_half(p: Patient, i: int) -> str:
    data = p.path(i).read_bytes()
    p.path(i).write_bytes(data[: len(data) // 2])
    return p.rows[i]["image"]


def cut_png(p: Patient, i: int) -> str:
    name = p.store(i, p.pixels(i), ".png")
    data = p.path(i).read_bytes()
    p.path(i).write_bytes(data[: len(data) // 2])
    return name


def rubbish(p: Patient, i: int) -> str:
    p.path(i).write_bytes(np.random.default_rng(0).bytes(3000))
    return p.rows[i]["image"]


def web_page(p: Patient, i: int) -> str:
    p.path(i).write_text("<html><body>404 Not Found</body></html>")
    return p.rows[i]["image"]


def bomb(p: Patient, i: int) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    name = p.store(i, p.pixels(i), ".png")
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9999))) + chunk(b"IEND", b"")
    p.path(i).write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    return name


def tiny(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i).resize((10, 8)))


def one_colour(p: Patient, i: int) -> str:
    return p.store(i, Image.new("RGB", (200, 150), (0, 0, 0)))


def grey(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i).convert("L"))


def cmyk(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i).convert("CMYK"))


def palette(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i).convert("P", palette=Image.Palette.ADAPTIVE), ".png")


def transparent(p: Patient, i: int) -> str:
    image = p.pixels(i).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return p.store(i, image, ".png")


def sixteen_bits(p: Patient, i: int) -> str:
    wide = np.asarray(p.pixels(i).convert("L")).astype(np.uint16) * 257
    return p.store(i, Image.fromarray(wide), ".png")


def turned(p: Patient, i: int) -> str:
    exif = Image.Exif()
    exif[0x0112] = 6
    return p.store(i, p.pixels(i), exif=exif)


def lying_suffix(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i), format="PNG")


def animated(p: Patient, i: int) -> str:
    first = p.pixels(i)
    return p.store(i, first, ".gif", save_all=True, append_images=[first.rotate(90)])


def broken_exif(p: Patient, i: int) -> str:
    block = b"Exif\0\0II*\0\x08\0\0\0\x40\0" + bytes(20)
    return p.store(i, p.pixels(i), exif=block)


def broken_profile(p: Patient, i: int) -> str:
    return p.store(i, p.pixels(i), icc_profile=b"not a profile")


def same_file(p: Patient, i: int) -> str:
    name = p.add(i, f"copy{i}.jpg")
    shutil.copy(p.path(i), p.root / name)
    return name


def same_pixels(p: Patient, i: int) -> str:
    name = p.add(i, f"pixels{i}.png")
    p.pixels(i).save(p.root / name)
    return name


def same_in_test(p: Patient, i: int) -> str:
    name = p.add(i, f"tested{i}.jpg", split="test")
    shutil.copy(p.path(i), p.root / name)
    return name


def same_other_label(p: Patient, i: int) -> str:
    other = next(row["label"] for row in p.rows if row["label"] != p.rows[i]["label"])
    name = p.add(i, f"other{i}.jpg", label=other)
    shutil.copy(p.path(i), p.root / name)
    return name


def _compressed_again(p: Patient, i: int, name: str) -> str:
    p.pixels(i).resize((150, 113)).save(p.root / name, quality=60)
    return name


def nearly_same(p: Patient, i: int) -> str:
    return _compressed_again(p, i, p.add(i, f"near{i}.jpg"))


def nearly_same_in_test(p: Patient, i: int) -> str:
    return _compressed_again(p, i, p.add(i, f"neartest{i}.jpg", split="test"))


def nearly_same_other_label(p: Patient, i: int) -> str:
    other = next(row["label"] for row in p.rows if row["label"] != p.rows[i]["label"])
    return _compressed_again(p, i, p.add(i, f"nearlabel{i}.jpg", label=other))


def torn_group(p: Patient, i: int) -> str:
    j = next(
        k for k, r in enumerate(p.rows) if r["split"] == "test" and r["label"] == p.rows[i]["label"]
    )
    p.rows[j]["group"] = p.rows[i]["group"]
    return p.rows[i]["image"]


def mixed_group(p: Patient, i: int) -> str:
    # The last one, which is whole when others have been broken too.
    other = [r for r in p.rows if r["split"] == "train" and r["label"] != p.rows[i]["label"]]
    original = [r for r in other if r["group"].startswith("lesion")]
    original[-1]["group"] = p.rows[i]["group"]
    return p.rows[i]["image"]


def upper_case(p: Patient, i: int) -> str:
    p.rows[i]["label"] = p.rows[i]["label"].upper()
    return ""


def misspelt(p: Patient, i: int) -> str:
    p.rows[i]["label"] = p.rows[i]["label"][:-1]
    return ""


def gone(p: Patient, i: int) -> str:
    p.path(i).unlink()
    return p.rows[i]["image"]


def outside(p: Patient, i: int) -> str:
    target = p.root.parent / f"outside{i}.jpg"
    shutil.move(p.path(i), target)
    p.rows[i]["image"] = f"../{target.name}"
    return p.rows[i]["image"]


def twice(p: Patient, i: int) -> str:
    p.rows.append(dict(p.rows[i]))
    return p.rows[i]["image"]


def contradicted(p: Patient, i: int) -> str:
    other = next(row["label"] for row in p.rows if row["label"] != p.rows[i]["label"])
    p.rows.append(p.rows[i] | {"label": other})
    return p.rows[i]["image"]


def unknown_part(p: Patient, i: int) -> str:
    p.rows[i]["split"] = "trian"
    return p.rows[i]["image"]


def unlisted(p: Patient, i: int) -> str:
    p.pixels(i).rotate(180).crop((0, 0, 160, 150)).save(p.root / "images" / f"extra{i}.jpg")
    return ""


def unlabelled(p: Patient, i: int) -> str:
    p.rows[i]["label"] = ""
    return p.rows[i]["image"]


def ambiguous(p: Patient, i: int) -> str:
    p.pixels(i).save(p.path(i).with_suffix(".bmp"))
    p.rows[i]["image"] = p.rows[i]["image"].removesuffix(".jpg")
    return p.rows[i]["image"]


def too_many_cells(p: Patient, i: int) -> str:
    p.rows[i]["more"] = "a remark, unquoted"
    return ""


def not_in_training(p: Patient, i: int) -> str:
    p.rows[:] = [r for r in p.rows if r["label"] != p.rows[i]["label"] or r["split"] != "train"]
    return ""


def not_utf8(p: Patient, i: int) -> str:
    p.encoding = "cp1252"
    p.rows[i]["group"] = "Müller"
    return ""


def other_columns(p: Patient, _i: int) -> str:
    p.columns[:2] = ["Filename", "diagnosis"]
    return ""


def group_not_used(p: Patient, i: int) -> str:
    p.columns[2] = "patient_id"
    p.rows[i + 1]["group"] = p.rows[i]["group"]
    return ""


Damage = Callable[[Patient, int], str]
# Every kind of finding that a manifest can have, by what was done.
DAMAGES: Sequence[tuple[Damage, str]] = (
    (empty, "empty_file"),
    (cut_in_half, "truncated"),
    (cut_png, "truncated"),
    (rubbish, "unreadable"),
    (web_page, "unreadable"),
    (bomb, "huge"),
    (tiny, "tiny"),
    (one_colour, "one_colour"),
    (grey, "greyscale"),
    (cmyk, "cmyk"),
    (palette, "palette"),
    (transparent, "alpha"),
    (sixteen_bits, "deep"),
    (turned, "exif_rotated"),
    (lying_suffix, "wrong_suffix"),
    (animated, "frames"),
    (broken_exif, "metadata"),
    (broken_profile, "metadata"),
    (same_file, "duplicate"),
    (same_pixels, "duplicate"),
    (same_in_test, "duplicate_in_parts"),
    (same_other_label, "conflicting_duplicates"),
    (nearly_same, "near_duplicate"),
    (nearly_same_in_test, "near_duplicate_in_parts"),
    (nearly_same_other_label, "near_duplicate_labels"),
    (torn_group, "group_in_parts"),
    (mixed_group, "group_labels"),
    (upper_case, "class_name"),
    (misspelt, "class_spelling"),
    (gone, "missing_file"),
    (outside, "outside_root"),
    (twice, "repeated_row"),
    (contradicted, "conflicting_rows"),
    (unknown_part, "unknown_split"),
    (unlisted, "unlisted_file"),
    (unlabelled, "unlabelled"),
    (ambiguous, "ambiguous_file"),
    (too_many_cells, "ragged_row"),
    (not_utf8, "encoding"),
    (other_columns, "columns"),
)
# These change the whole set, so that others cannot be seen any more.
WHOLE: Sequence[tuple[Damage, str]] = (
    (not_in_training, "absent_in_part"),
    (group_not_used, "group_hint"),
)


def npz_bytes(damaged: bool) -> bytes:
    """A small archive of arrays, whole or cut off."""
    file = io.BytesIO()
    rng = np.random.default_rng(0)
    np.savez(file, images=rng.integers(0, 255, (24, 20, 20, 3), np.uint8), labels=np.arange(24) % 3)
    data = file.getvalue()
    return data[: len(data) // 2] if damaged else data
