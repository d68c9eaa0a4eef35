"""Sources: folders, manifests, arrays; what they accept and how they refuse."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toys import SHARED

from lmd.base.errors import LmdError
from lmd.data.sources import open_table
from lmd.data.splits import split

HAM = SHARED / "data" / "ham10000" / "HAM10000_metadata.csv"


def image(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (value, 0, 0)).save(path)
    return path


def manifest(folder: Path, text: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def pictures(tmp_path):
    for i, name in enumerate(["a", "b", "c", "d"]):
        image(tmp_path / f"{name}.png", i)
    return tmp_path


# Folders


def test_folder_of_class_folders(tmp_path):
    image(tmp_path / "nv" / "2.png", 2)
    image(tmp_path / "nv" / "deeper" / "1.JPG", 1)
    image(tmp_path / "mel" / "3.webp", 3)
    image(tmp_path / "mel" / "0.tiff", 7)
    for junk in ("nv/.hidden.png", "nv/._2.png", "__MACOSX/nv/2.png", ".cache/x.png"):
        image(tmp_path / junk)
    (tmp_path / "nv" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "mel" / "notes.txt").write_text("x")
    (tmp_path / "README.md").write_text("x")
    table = open_table(tmp_path)
    assert table.ids.tolist() == ["mel/0.tiff", "mel/3.webp", "nv/2.png", "nv/deeper/1.JPG"]
    assert table.classes == ("mel", "nv")
    assert table.labels.tolist() == [0, 0, 1, 1]
    assert table.kind == "folders"
    assert table.source == str(tmp_path)
    assert table.parts is None
    assert table.groups is None
    assert table.skipped == ()
    assert not table.synthetic
    np.testing.assert_array_equal(table.read(2), np.full((2, 3, 3), (2, 0, 0)))
    np.testing.assert_array_equal(table.take(np.array([2, 0])).read(1), table.read(0))
    assert table.read(2, at_least=1).shape == (2, 3, 3)


def test_folder_of_parts(tmp_path):
    for part in ("train", "val", "test"):
        for name in ("a", "b"):
            image(tmp_path / part / name / "0.png")
    table = open_table(str(tmp_path))
    assert table.kind == "split folders"
    assert table.classes == ("a", "b")
    assert dict(zip(table.ids.tolist(), table.parts.tolist(), strict=True)) == {
        "test/a/0.png": "test",
        "test/b/0.png": "test",
        "train/a/0.png": "train",
        "train/b/0.png": "train",
        "val/a/0.png": "validation",
        "val/b/0.png": "validation",
    }
    assert split(table) is table


def test_classes_may_be_called_like_parts(tmp_path):
    for name in ("train", "test", "bus"):
        image(tmp_path / name / "0.png")
    assert open_table(tmp_path).classes == ("bus", "test", "train")
    for name in ("train", "test"):
        image(tmp_path / "two" / name / "0.png")
    assert open_table(tmp_path / "two").parts is None


def test_class_folders_may_be_links(tmp_path):
    image(tmp_path / "store" / "0.png")
    image(tmp_path / "data" / "a" / "0.png")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "store", target_is_directory=True)
    assert open_table(tmp_path / "data").ids.tolist() == ["a/0.png", "b/0.png"]


def test_number_classes_go_by_value(tmp_path):
    for name in ("10", "9", "0"):
        image(tmp_path / name / "0.png")
    assert open_table(tmp_path).classes == ("0", "9", "10")


def test_folder_errors(tmp_path):
    with pytest.raises(LmdError, match=r"nowhere does not exist; accepted are a folder of class"):
        open_table(tmp_path / "nowhere")
    with pytest.raises(LmdError, match=r"holds no image in a class folder: expected .*CLASS/\*"):
        open_table(tmp_path)
    image(tmp_path / "a" / "0.png")
    with pytest.raises(LmdError, match=r"holds one class only \('a'\): .*at least two classes"):
        open_table(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(LmdError, match=r"class folder .*b holds no image: fill or remove it"):
        open_table(tmp_path)
    image(tmp_path / "c" / "0.png")
    for i in range(5):
        image(tmp_path / f"{i}.png")
    with pytest.raises(
        LmdError,
        match=r"holds 5 images outside of any class folder \(0.png, 1.png, 2.png and 2 more\)",
    ):
        open_table(tmp_path)
    table = open_table(tmp_path, skip_bad=True)
    assert table.ids.tolist() == ["a/0.png", "c/0.png"]
    assert table.classes == ("a", "c")
    assert len(table.skipped) == 6
    assert table.skipped[-1] == f"{tmp_path / 'b'}: a class folder without images"
    assert table.take(np.array([0])).skipped == table.skipped


def test_neither_kind(tmp_path):
    path = image(tmp_path / "one.png")
    with pytest.raises(LmdError, match=r"one.png is of no kind that is known; accepted are .*npz"):
        open_table(path)


def test_signature_of_files(tmp_path):
    image(tmp_path / "a" / "0.png")
    path = image(tmp_path / "b" / "0.png")
    first = open_table(tmp_path).signature
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert open_table(tmp_path).signature == first
    os.utime(path, (1, 1))
    assert open_table(tmp_path).signature != first


# Manifests


def test_manifest(pictures):
    text = "image,label,group,split\na.png,x,p1,train\nb.png,y,p2,Val\nc.png,y,,test\n\n"
    table = open_table(manifest(pictures, text))
    assert table.kind == "manifest"
    assert table.ids.tolist() == ["a.png", "b.png", "c.png"]
    assert table.labels.tolist() == [0, 1, 1]
    assert table.classes == ("x", "y")
    assert table.groups.tolist() == ["p1", "p2", "image c.png"]
    assert table.parts.tolist() == ["train", "validation", "test"]
    assert table.read(1)[0, 0, 0] == 1
    assert pickle.loads(pickle.dumps(table)).read(1)[0, 0, 0] == 1


def test_manifest_without_optional_columns_and_with_them_turned_off(pictures):
    table = open_table(manifest(pictures, "image,label\na.png,x\nb.png,y\n"))
    assert table.groups is None
    assert table.parts is None
    path = manifest(pictures, "image,label,group,split\na.png,x,p,train\nb.png,y,p,test\n")
    table = open_table(path, group_column="", split_column="")
    assert table.groups is None
    assert table.parts is None


def test_manifest_of_a_spreadsheet(pictures):
    path = pictures / "data.csv"
    path.write_bytes("\ufeffimage;label;note\r\na.png; x ;1,5\r\nb.png;y;2,5\r\n".encode())
    assert open_table(path).classes == ("x", "y")
    path = manifest(pictures, "image\tlabel\na.png\tx\nb.png\ty\n", "data.tsv")
    assert open_table(path).classes == ("x", "y")
    path = manifest(pictures, 'image,label\n"a.png","x, or so"\nb.png,y\n')
    assert open_table(path).classes == ("x, or so", "y")


def test_manifest_finds_images(tmp_path):
    text = "image,label\none,x\nsub/two,y\nthree.jpg,y\nfour.v2,x\n"
    folder = tmp_path / "csv"
    image(folder / "one.png", 1)
    image(folder / "images" / "sub" / "two.JPG", 2)
    image(folder / "images" / "three.jpg", 3)
    image(folder / "part_2" / "four.v2.png", 4)
    table = open_table(manifest(folder, text))
    assert table.ids.tolist() == ["one", "sub/two", "three.jpg", "four.v2"]
    assert [int(path.is_file()) for path in table.images.paths] == [1, 1, 1, 1]
    assert table.read(3)[0, 0, 0] == 4


def test_manifest_root_comes_first(tmp_path):
    image(tmp_path / "csv" / "a.png", 1)
    image(tmp_path / "csv" / "b.png", 1)
    image(tmp_path / "root" / "a.png", 2)
    image(tmp_path / "root" / "deep" / "down" / "c.png", 3)
    path = manifest(tmp_path / "csv", "image,label\na.png,x\nb.png,y\nc,y\n")
    table = open_table(path, root=tmp_path / "root")
    assert [table.read(i)[0, 0, 0] for i in range(3)] == [2, 1, 3]


def test_manifest_with_an_ambiguous_name(pictures):
    image(pictures / "a.bmp")
    path = manifest(pictures, "image,label\na,x\nb,y\n")
    with pytest.raises(LmdError, match=r"line 2: image 'a' may mean .*a.bmp, .*a.png: write its"):
        open_table(path)
    image(pictures / "p" / "e.png")
    image(pictures / "q" / "e.png")
    path = manifest(pictures, "image,label\ne.png,x\nb,y\n")
    with pytest.raises(LmdError, match=r"'e.png' may mean .*p/e.png, .*q/e.png"):
        open_table(path)


@pytest.mark.parametrize("cell", ["../out.png", "x/../../out.png", "..\\out.png", "C:\\out.png"])
def test_manifest_does_not_leave_the_root(tmp_path, cell):
    image(tmp_path / "out.png")
    image(tmp_path / "in" / "a.png")
    path = manifest(tmp_path / "in", f"image,label\na.png,x\n{cell},y\n")
    with pytest.raises(
        LmdError, match=rf"line 3: image '{re.escape(repr(cell)[1:-1])}' leaves the root.*allow_out"
    ):
        open_table(path)


def test_manifest_may_leave_the_root_if_allowed(tmp_path):
    out = image(tmp_path / "out.png", 9)
    image(tmp_path / "in" / "x" / "a.png", 1)
    image(tmp_path / "in" / "b.png", 2)
    path = manifest(tmp_path / "in", f"image,label\nx/a.png,x\n{out},y\n")
    with pytest.raises(LmdError, match="leaves the root"):
        open_table(path)
    assert open_table(path, allow_outside=True).read(1)[0, 0, 0] == 9
    path = manifest(tmp_path / "in", "image,label\nx/a.png,x\n../out.png,y\n")
    assert open_table(path, allow_outside=True).read(1)[0, 0, 0] == 9
    path = manifest(tmp_path / "in", "image,label\nx/a.png,x\nx/../b.png,y\n")
    assert open_table(path).read(1)[0, 0, 0] == 2  # stays inside


def test_manifest_column_errors(pictures):
    path = manifest(pictures, "file,diagnosis\na.png,x\nb.png,y\n")
    with pytest.raises(
        LmdError,
        match=r"no column 'image'; its columns are file, diagnosis: name .* with image_column",
    ):
        open_table(path)
    with pytest.raises(LmdError, match=r"no column 'label'; its columns are .* with label_column"):
        open_table(path, image_column="file")
    columns = {"image_column": "file", "label_column": "diagnosis"}
    with pytest.raises(LmdError, match=r"no column 'patient'; .* with group_column"):
        open_table(path, **columns, group_column="patient")
    with pytest.raises(LmdError, match=r"no column 'split'; .* with split_column"):
        open_table(path, **columns, split_column="split")
    assert len(open_table(path, **columns)) == 2


def test_manifest_cell_errors(pictures):
    path = manifest(pictures, "image,label\na.png,x\nb.png,\nc.png,y\nd.png\n")
    with pytest.raises(
        LmdError, match=r"2 label cells are empty \(line 3: 'b.png', line 5: 'd.png'\): fill them"
    ):
        open_table(path)
    table = open_table(path, skip_bad=True)
    assert table.ids.tolist() == ["a.png", "c.png"]
    assert table.skipped[0] == "line 3: 'b.png': its label is empty"
    path = manifest(pictures, "image,label,split\na.png,x,train\nb.png,y,dev\n")
    with pytest.raises(LmdError, match=r"line 3: column 'split' is 'dev'; expected train, valid"):
        open_table(path)


def test_manifest_images_missing_on_disk(pictures):
    lines = "".join(f"gone{i}.png,x\n" for i in range(5))
    path = manifest(pictures, f"image,label\na.png,x\nb.png,y\n{lines},y\n")
    with pytest.raises(
        LmdError,
        match=r"6 images are not on disk \(line 4: 'gone0.png', line 5: 'gone1.png', "
        r"line 6: 'gone2.png' and 3 more\), looked for in .* or .*images: say where .* with root",
    ):
        open_table(path)
    table = open_table(path, skip_bad=True)
    assert len(table) == 2
    assert len(table.skipped) == 6
    assert table.skipped[0] == "line 4: 'gone0.png': not on disk"
    path = manifest(pictures, "image,label\ngone.png,x\n")
    with pytest.raises(LmdError, match="names no image that is there"):
        open_table(path, skip_bad=True)


def test_manifest_repeats(pictures):
    path = manifest(pictures, "image,label\na.png,x\nb.png,y\n./a.png,x\n")
    table = open_table(path)
    assert table.ids.tolist() == ["a.png", "b.png"]
    assert table.skipped == ("line 4: 'a.png': repeats line 2",)
    path = manifest(pictures, "image,label\na.png,x\nb.png,y\na,y\n")
    with pytest.raises(
        LmdError, match=r"image 'a' has the label 'x' in line 2 and 'y' in line 4: keep one"
    ):
        open_table(path)
    path = manifest(pictures, "image,label,split\na.png,x,train\nb.png,y,test\na.png,x,test\n")
    with pytest.raises(LmdError, match=r"'a.png' has the part 'train' in line 2 and 'test' in"):
        open_table(path)
    path = manifest(pictures, "image,label,group\na.png,x,p\nb.png,y,q\na.png,x,q\n")
    with pytest.raises(LmdError, match=r"'a.png' has the group 'p' in line 2 and 'q' in"):
        open_table(path)


def test_manifest_file_errors(pictures):
    with pytest.raises(LmdError, match=r"holds one class only \('x'\)"):
        open_table(manifest(pictures, "image,label\na.png,x\nb.png,x\n"))
    with pytest.raises(LmdError, match="has no lines below its header"):
        open_table(manifest(pictures, "image,label\n"))
    with pytest.raises(LmdError, match="has no lines below its header"):
        open_table(manifest(pictures, ""))
    path = pictures / "latin.csv"
    path.write_bytes("image,label\na.png,Nävus\n".encode("latin-1"))
    with pytest.raises(LmdError, match=r"latin.csv is not UTF-8 text .*save it as CSV in UTF-8"):
        open_table(path)


@pytest.mark.skipif(not HAM.exists(), reason="HAM10000 is not here")
def test_ham10000():
    table = open_table(HAM, image_column="image_id", label_column="dx", group_column="lesion_id")
    assert len(table) == 10015
    assert table.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert table.counts().tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
    assert len(set(table.groups.tolist())) == 7470
    assert table.ids[0] == "ISIC_0027419"
    assert table.read(0).shape == (150, 200, 3)
    assert table.read(0).std() > 5
    assert table.skipped == ()


# Arrays


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


GREY = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


def test_arrays(tmp_path):
    rgb = np.stack([GREY, GREY + 1, GREY + 2], -1)
    path = save(
        tmp_path / "a.npz",
        images=rgb,
        labels=[0, 2, 1, 2],
        classes=["x", "y", "z", "unseen"],
        groups=[1, 1, 2, 3],
        splits=["train", "train", "val", "test"],
    )
    table = open_table(path)
    assert table.kind == "arrays"
    assert table.ids.tolist() == ["0", "1", "2", "3"]
    assert table.classes == ("x", "y", "z", "unseen")
    assert table.labels.tolist() == [0, 2, 1, 2]
    assert table.groups.tolist() == ["1", "1", "2", "3"]
    assert table.parts.tolist() == ["train", "train", "validation", "test"]
    np.testing.assert_array_equal(table.read(2), rgb[2])
    table.read(2)[:] = 0  # a copy: the table stays as it is
    np.testing.assert_array_equal(table.read(2), rgb[2])
    assert table.read(2, at_least=1).shape == (2, 3, 3)


def test_grey_arrays_become_rgb(tmp_path):
    for name, images in {"flat": GREY, "one": GREY[..., None]}.items():
        table = open_table(save(tmp_path / f"{name}.npz", images=images, labels=[0, 1, 0, 1]))
        np.testing.assert_array_equal(table.read(3), np.stack([GREY[3]] * 3, -1))


def test_wide_arrays_are_scaled(tmp_path):
    labels = [0, 1, 0, 1]
    wide = GREY.astype(np.uint16) * 257
    table = open_table(save(tmp_path / "wide.npz", images=wide, labels=labels))
    np.testing.assert_array_equal(table.read(3)[..., 0], GREY[3])
    unit = GREY.astype(np.float32) / 255
    table = open_table(save(tmp_path / "unit.npz", images=unit, labels=labels))
    np.testing.assert_array_equal(table.read(3)[..., 0], GREY[3])


def test_medmnist(tmp_path):
    arrays = {}
    for word, n in {"train": 3, "val": 2, "test": 1}.items():
        arrays[f"{word}_images"] = np.full((n, 2, 2), n, np.uint8)
        arrays[f"{word}_labels"] = np.arange(n, dtype=np.uint8)[:, None] * 5
    table = open_table(save(tmp_path / "m.npz", **arrays))
    assert table.classes == ("0", "5", "10")
    assert table.labels.tolist() == [0, 1, 2, 0, 1, 0]
    assert table.parts.tolist() == ["train"] * 3 + ["validation"] * 2 + ["test"]
    assert table.ids.tolist()[2:5] == ["train/2", "validation/0", "validation/1"]
    assert [int(table.read(i)[0, 0, 0]) for i in range(6)] == [3, 3, 3, 2, 2, 1]
    with pytest.raises(IndexError):
        table.images.read(6)


def test_array_labels_may_be_names(tmp_path):
    table = open_table(save(tmp_path / "a.npz", images=GREY, labels=["nv", "mel", "nv", "nv"]))
    assert table.classes == ("mel", "nv")
    assert table.labels.tolist() == [1, 0, 1, 1]
    path = save(tmp_path / "b.npz", images=GREY, labels=["b", "a", "b", "b"], classes=["b", "a"])
    assert open_table(path).labels.tolist() == [0, 1, 0, 0]


def test_signature_of_arrays_follows_the_pixels(tmp_path):
    labels = [0, 1, 0, 1]
    first = open_table(save(tmp_path / "a.npz", images=GREY, labels=labels)).signature
    assert open_table(save(tmp_path / "b.npz", images=GREY, labels=labels)).signature == first
    assert open_table(save(tmp_path / "c.npz", images=GREY + 1, labels=labels)).signature != first
    turned = GREY.reshape(4, 3, 2)
    assert open_table(save(tmp_path / "d.npz", images=turned, labels=labels)).signature != first


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY}, r"has the arrays x; expected images and labels .*train_images"),
        ({"images": GREY}, r"has the arrays images, but not labels"),
        ({"images": GREY[0], "labels": [0, 1]}, r"images has the shape \(2, 3\); expected \(N, H"),
        ({"images": np.zeros((2, 3, 8, 8), np.uint8), "labels": [0, 1]}, "channels last"),
        ({"images": GREY, "labels": [0, 1]}, r"labels has the shape \(2,\); expected one .* 4 im"),
        ({"images": GREY, "labels": np.eye(4, dtype=int)}, "several labels per image are not"),
        ({"images": GREY, "labels": [0.5, 1, 1, 1]}, "labels is of type float64; expected integ"),
        ({"images": GREY.astype(int), "labels": [0, 1, 0, 1]}, "images is of type int64; expec"),
        ({"images": GREY * 1.5, "labels": [0, 1, 0, 1]}, "images is of type float64; expected"),
        ({"images": GREY * np.nan, "labels": [0, 1, 0, 1]}, r"all values in \[0, 1\]"),
        ({"images": GREY[:0], "labels": np.zeros(0, int)}, "holds no images"),
        ({"images": GREY, "labels": [3, 3, 3, 3]}, r"holds one class only \('3'\)"),
        (
            {"images": GREY, "labels": [0, 1, 2, 1], "classes": ["a", "b"]},
            r"label 2 is not among the 2 classes \(a, b\); integer labels count from 0",
        ),
        (
            {"images": GREY, "labels": ["a", "b", "c", "a"], "classes": ["a", "b"]},
            r"label 'c' is not among the 2 classes",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "classes": ["a", "a"]},
            "classes names a class twice: a, a",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "groups": ["a"]},
            "groups has 1 entries for 4 images; expected 4",
        ),
        (
            {"images": GREY, "labels": [0, 1, 0, 1], "splits": ["train", "x", "val", "test"]},
            r"splits\[1\] is 'x'; expected train, validation or test",
        ),
    ],
)
def test_array_errors(tmp_path, arrays, message):
    with pytest.raises(LmdError, match=message):
        open_table(save(tmp_path / "a.npz", **arrays))


def test_pickled_and_broken_archives_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    objects = np.array([Evil()], dtype=object)
    path = tmp_path / "evil.npz"
    np.savez(path, images=GREY, labels=objects)
    with pytest.raises(LmdError, match=r"evil.npz cannot be read as .npz .*objects are refused"):
        open_table(path)
    assert not (tmp_path / "ran").exists()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LmdError, match=r"evil.npz cannot be read as .npz"):
        open_table(path)
    path.write_bytes(b"text")
    with pytest.raises(LmdError, match=r"evil.npz cannot be read as .npz"):
        open_table(path)
    with path.open("wb") as file:
        np.save(file, GREY)
    with pytest.raises(LmdError, match=r"is no .npz archive but a single array"):
        open_table(path)


# Synthetic


def test_the_word_synthetic():
    table = open_table("synthetic")
    assert table.synthetic
    assert table.kind == "synthetic"
    assert table.read(0).shape[2] == 3
    assert table.read(0, at_least=8).shape == table.read(0).shape


def test_a_dangling_link_is_named_not_a_traceback(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    (tmp_path / "a" / "1.png").symlink_to(tmp_path / "gone.png")
    table = open_table(tmp_path)
    (place,) = [i for i, name in enumerate(table.ids) if name == "a/1.png"]
    with pytest.raises(LmdError, match=r"1\.png does not exist"):
        table.read(place)


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    source = (tmp_path / "a" / "0.png").read_bytes()
    try:
        (tmp_path / "a" / os.fsdecode(b"\xff.png")).write_bytes(source)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(LmdError, match="not UTF-8"):
        open_table(tmp_path)
