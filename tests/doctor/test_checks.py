"""The doctor's checks against simulation, brute force and the numbers of a real data set."""

import csv
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from patients import make_folders, make_patient
from toys import SHARED

from lmd.data.checks import expected_leak, quick_check
from lmd.data.source import Columns
from lmd.data.sources import open_table
from lmd.data.splits import part_sizes
from lmd.data.synthetic import synthetic_table
from lmd.doctor.clean import MAX_DISTANCE, MIN_CORRELATION, clusters, near_clusters
from lmd.doctor.command import exit_code
from lmd.doctor.examine import Examination, examine
from lmd.doctor.look import exif_problem, perceptual_hash, profile_problem, thumbnail
from lmd.scoring.proportions import wilson

RATIOS = (0.7, 0.1, 0.2)


def test_expected_leak_agrees_with_simulated_splits() -> None:
    held = [{"a": 3}, {"a": 2, "b": 1}, {"b": 4}, {"a": 1}] + [{"a": 1}] * 14 + [{"b": 1}] * 7
    leaked_groups, leaked_images, tests = expected_leak(held, RATIOS)
    images = [(g, c) for g, group in enumerate(held) for c, m in group.items() for _ in range(m)]
    groups = np.array([g for g, _ in images])
    rng = np.random.default_rng(0)
    torn, tested = [], []
    for _ in range(4000):
        parts = np.empty(len(images), int)
        for c in "ab":
            rows = rng.permutation([i for i, (_, name) in enumerate(images) if name == c])
            sizes = part_sizes(len(rows), RATIOS)
            parts[rows] = np.repeat([0, 1, 2], sizes)
        torn.append(sum(len(set(parts[groups == g])) > 1 for g in range(len(held))))
        trained = set(groups[parts == 0])
        tested.append(sum(g in trained for g in groups[parts == 2]))
    assert leaked_groups == pytest.approx(np.mean(torn), abs=0.06)
    assert leaked_images == pytest.approx(np.mean(tested), abs=0.06)
    assert tests == sum(part_sizes(n, RATIOS)[2] for n in (20, 12))


def test_expected_leak_of_one_pair_by_hand() -> None:
    # Ten images, 7:1:2: both of a pair together with (7·6 + 0 + 2·1) / (10·9).
    groups, images, _ = expected_leak([{"a": 2}] + [{"a": 1}] * 8, RATIOS)
    assert groups == pytest.approx(1 - 44 / 90)
    # One of the two is in test and the other in training: 2 · (2/10) · (7/9).
    assert images == pytest.approx(2 * 2 / 10 * 7 / 9)


def test_near_clusters_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    images = []
    for _ in range(60):
        coarse = rng.integers(0, 255, (5, 5, 3)).astype(np.uint8)
        image = cv2.resize(coarse, (64, 64), interpolation=cv2.INTER_CUBIC)
        for noise in (0, 2, 6, 12, 25):
            shaken = image + rng.normal(0, noise, image.shape)
            images.append(thumbnail(np.clip(shaken, 0, 255).astype(np.uint8)))
    hashes = np.array([perceptual_hash(grey) for grey in images], dtype=np.uint64)
    flat = np.stack(images).reshape(len(images), -1).astype(float)
    correlation = np.corrcoef(flat)
    expected = {
        (i, j)
        for i in range(len(images))
        for j in range(i + 1, len(images))
        if bin(int(hashes[i]) ^ int(hashes[j])).count("1") <= MAX_DISTANCE
        and correlation[i, j] >= MIN_CORRELATION
    }
    assert len(expected) > 100
    found = near_clusters(hashes, np.stack(images))
    assert found == clusters(expected)
    # Images of one group are not held against each other.
    groups = np.arange(len(images)) % 5 // 2
    apart = {(i, j) for i, j in expected if groups[i] != groups[j]}
    assert near_clusters(hashes, np.stack(images), groups) == clusters(apart)


def test_a_film_of_equal_frames_is_one_set() -> None:
    frame = thumbnail(synthetic_table().read(0))
    hashes = np.full(3000, perceptual_hash(frame), dtype=np.uint64)
    assert near_clusters(hashes, np.stack([frame] * 3000)) == [tuple(range(3000))]


def test_hash_ignores_brightness_and_encoding_but_not_content() -> None:
    table = synthetic_table()
    first, second = thumbnail(table.read(0)), thumbnail(table.read(len(table) - 1))
    brighter = np.clip(first.astype(int) + 20, 0, 255).astype(np.uint8)
    bits = [perceptual_hash(each) for each in (first, brighter, second)]
    assert bin(bits[0] ^ bits[1]).count("1") <= MAX_DISTANCE
    assert bin(bits[0] ^ bits[2]).count("1") > MAX_DISTANCE


@pytest.mark.parametrize(
    ("block", "word"),
    [
        (b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0", ""),
        (b"Exif\0\0XX*\0\x08\0\0\0", "header"),
        (b"Exif\0\0MM\0*\0\0\xff\xff", "outside"),
        (b"Exif\0\0II*\0\x08\0\0\0\x09\0", "cut off"),
        (b"Exif\0\0II*\0\x08\0\0\0\x01\0" + bytes(12), "type"),
        (b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\xff\0\0\0\x10\0\0\0", "outside"),
    ],
)
def test_broken_exif_blocks(block: bytes, word: str) -> None:
    problem = exif_problem(block)
    assert word in problem
    assert bool(word) == bool(problem)


def test_broken_profiles() -> None:
    whole = (128).to_bytes(4, "big") + bytes(32) + b"acsp" + bytes(88)
    assert profile_problem(whole) == ""
    assert "cut off" in profile_problem((999).to_bytes(4, "big") + whole[4:])
    assert "header" in profile_problem(b"no profile")


def test_the_tolerant_scan_sees_what_the_reader_sees(tmp_path: Path) -> None:
    patient = make_patient(tmp_path / "a")
    sources = [patient.manifest, make_folders(tmp_path / "b"), make_folders(tmp_path / "c", True)]
    for source in sources:
        table, scan = open_table(source), examine(source).scan
        seen = [scan.cases[i] for i in scan.usable()]
        assert [case.name for case in seen] == table.ids.tolist()
        assert [case.label for case in seen] == [table.classes[k] for k in table.labels]
        groups = [""] * len(table) if table.groups is None else table.groups.tolist()
        parts = [""] * len(table) if table.parts is None else table.parts.tolist()
        assert [case.group for case in seen] == groups
        assert [case.part for case in seen] == parts


def test_quick_check_of_a_table_reads_no_pixel(tmp_path: Path) -> None:
    patient = make_patient(tmp_path / "data")
    patient.rows[3]["label"] = "Nevus"
    patient.rows[4]["group"] = patient.rows[5]["group"]
    table = open_table(patient.save())
    for i in range(len(patient.rows)):
        patient.path(i).unlink()
    notes = quick_check(table)
    text = "\n".join(notes)
    assert "'Nevus' (1) and 'nevus' (13) differ only in case or blanks." in notes
    assert "69 groups for 70 images; 1 has more than one image." in text
    assert "70 usable images of 6 classes" in text
    assert "The test part has no image of 'Nevus'" in text
    # Two test images for each of five classes: one of them is a tenth of balanced accuracy.
    low, high = wilson(2, 2)
    expected = "'nevus' with 2 (10.0 points; with 2 of 2 correct, the interval of its recall is"
    assert f"{expected} {100 * low:.0f} to {100 * high:.0f} %)" in text


@pytest.fixture(scope="module")
def ham() -> Examination:
    root = SHARED / "data" / "ham10000"
    if not root.exists():
        pytest.skip(f"no real data: {root} is absent")
    columns = Columns(image_column="image_id", label_column="dx", group_column="lesion_id")
    return examine(root / "HAM10000_metadata.csv", columns=columns)


@pytest.mark.slow
def test_ham10000_has_two_duplicates_and_leaks_if_split_by_image(ham: Examination) -> None:
    found = {each.kind: each for each in ham.findings}
    assert exit_code(ham) == 3
    assert len(ham.looks) == len(ham.scan.usable()) == 10015
    pairs = {tuple(sorted(ham.scan.cases[i].name for i in same)) for same in ham.exact}
    assert pairs == {("ISIC_0024366", "ISIC_0029861"), ("ISIC_0024777", "ISIC_0029938")}
    assert len(found["duplicate"].sets) == 2
    with Path(ham.scan.source).open() as file:
        lesions = Counter(row["lesion_id"] for row in csv.DictReader(file))
    several = sum(n > 1 for n in lesions.values())
    text = found["groups"].text
    assert several == 1956
    assert f"7470 groups for 10015 images; {several} have more than one image." in text
    assert "split by image would leak: on average 1006 groups" in text
    assert "703 of 2003 test images" in text
    assert "58.3" in found["imbalance"].text


@pytest.mark.slow
def test_ham10000_does_not_drown_in_near_duplicates(ham: Examination) -> None:
    names = [{ham.scan.cases[i].name for i in same} for same in ham.near]
    assert names == [{"ISIC_0030074", "ISIC_0025226"}]
    assert not {"unreadable", "truncated", "metadata", "greyscale"} & {f.kind for f in ham.findings}


@pytest.mark.slow
def test_ham10000_is_cleaned_by_two_images_and_one_joined_group(ham: Examination) -> None:
    cleaned = ham.clean()
    assert len(cleaned.cases) == 10013
    assert {change.why for change in cleaned.removed} == {
        "the same image as ISIC_0029861",
        "the same image as ISIC_0029938",
    }
    groups = {case.name: case.group for case in cleaned.cases.values()}
    assert groups["ISIC_0030074"] == groups["ISIC_0025226"]
    assert len(set(groups.values())) == 7469
