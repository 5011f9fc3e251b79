"""Folds say what is learned from and what is tested on; names find data sets; selection is that of the protocol."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from bayescal.data import Manifest
from bayescal.data.datasets import DATASETS, dataset_names, get_dataset, open_dataset
from bayescal.data.datasets.base import Dataset, Fold, custom_dataset, leave_one_out_folds, part_folds
from bayescal.errors import BayescalWarning, DataError
from layouts import make_tree


def manifest_of(*rows: tuple[str, str] | tuple[str, str, str]) -> Manifest:
    """Images by class and environment, and split where given."""
    return Manifest.from_columns(
        [f"{number}.png" for number in range(len(rows))],
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] if len(row) > 2 else "" for row in rows],
    )


def where(mask: np.ndarray | None) -> list[int] | None:
    return None if mask is None else np.flatnonzero(mask).tolist()


def test_every_environment_is_held_out_once():
    manifest = manifest_of(
        ("dog", "photo"), ("cat", "photo"), ("dog", "art"), ("cat", "art"), ("dog", "toy"), ("cat", "toy")
    )
    folds = leave_one_out_folds(manifest)
    assert [fold.name for fold in folds] == ["art", "photo", "toy"]
    for number, fold in enumerate(folds):
        assert fold.train_environments == tuple(e for e in range(3) if e != number)
        assert np.array_equal(fold.test, manifest.environment_ids == number)
        assert np.array_equal(fold.pool, ~fold.test)
        assert fold.val is fold.test_val is fold.ood_val is None


def test_an_environment_that_alone_has_a_class_is_not_held_out_and_a_note_says_so():
    manifest = manifest_of(("dog", "photo"), ("cat", "photo"), ("dog", "art"), ("dog", "toy"))
    with pytest.warns(BayescalWarning, match=r"photo \(the only environment with cat\)"):
        folds = leave_one_out_folds(manifest)
    assert [fold.name for fold in folds] == ["art", "toy"]


def test_nothing_to_hold_out_is_an_error():
    with pytest.raises(DataError, match="one environment only"):
        leave_one_out_folds(manifest_of(("dog", "photo"), ("cat", "photo")))
    with pytest.raises(DataError, match=r"No environment can be held out.*art \(the only environment with dog\)"):
        leave_one_out_folds(manifest_of(("dog", "art"), ("cat", "photo")))


def test_lists_of_training_and_test_images_are_respected_when_environments_are_held_out():
    manifest = manifest_of(
        ("dog", "art", "train"), ("dog", "art", "test"), ("dog", "toy", "train"), ("dog", "toy", "test")
    )
    art, toy = leave_one_out_folds(manifest, by_split=True)
    assert (where(art.pool), where(art.test)) == ([2], [1])
    assert (where(toy.pool), where(toy.test)) == ([0], [3])


@pytest.mark.parametrize(("environment", "part"), [("seen", "val"), ("unseen", "test_val"), ("elsewhere", "ood_val")])
def test_validation_images_go_by_their_environment(environment, part):
    manifest = manifest_of(("dog", "seen", "train"), ("dog", "unseen", "test"), ("dog", environment, "val"))
    (fold,) = part_folds(manifest)
    assert (fold.name, where(fold.pool), where(fold.test)) == ("test", [0], [1])
    found = {name: where(getattr(fold, name)) for name in ("val", "test_val", "ood_val")}
    assert found == dict.fromkeys(found) | {part: [2]}
    assert [manifest.environments[e] for e in fold.train_environments] == ["seen"]


def test_an_environment_that_is_trained_and_tested_on_counts_as_trained_on():
    manifest = manifest_of(("dog", "a", "train"), ("dog", "a", "val"), ("dog", "a", "test"), ("dog", "b", "val"))
    (fold,) = part_folds(manifest)
    assert (where(fold.val), where(fold.test_val), where(fold.ood_val)) == ([1], None, [3])


@pytest.mark.parametrize(
    ("kind", "part"), [("training-domain", "val"), ("test-domain", "test_val"), ("ood", "ood_val")]
)
def test_what_validation_images_are_can_be_said(kind, part):
    manifest = manifest_of(("dog", "a", "train"), ("dog", "a", "val"), ("dog", "a", "test"))
    (fold,) = part_folds(manifest, kind)
    assert where(getattr(fold, part)) == [1]
    assert sum(getattr(fold, name) is not None for name in ("val", "test_val", "ood_val")) == 1


def test_parts_that_are_missing_or_unmarked_are_said():
    with pytest.raises(DataError, match='No image has the split "test"'):
        part_folds(manifest_of(("dog", "a", "train"), ("dog", "a", "val")))
    with pytest.warns(BayescalWarning, match="1 images have no split"):
        (fold,) = part_folds(manifest_of(("dog", "a", "train"), ("dog", "a", "test"), ("dog", "a", "")))
    assert where(fold.pool | fold.test) == [0, 1]
    with pytest.raises(DataError, match="validation 'oracle'"):
        part_folds(manifest_of(("dog", "a", "train"), ("dog", "a", "test")), "oracle")


def test_a_fold_whose_parts_share_an_image_is_refused():
    first, both = np.array([True, False]), np.array([True, True])
    with pytest.raises(DataError, match="1 images are in more than one part"):
        Fold("x", (0,), pool=first, test=both)
    with pytest.raises(DataError, match="images to test on"):
        Fold("x", (0,), pool=first, test=np.array([False, False]))
    with pytest.raises(DataError, match="test must be a mask"):
        Fold("x", (0,), pool=first, test=np.array([1]))


def test_any_folder_is_a_data_set(tmp_path):
    make_tree(tmp_path / "mine", ["photo", "art"], ["dog", "cat"])
    dataset, manifest = open_dataset(str(tmp_path / "mine"))
    assert (dataset.name, dataset.selection, dataset.shots, dataset.val_shots) == ("mine", "training-domain", 16, 16)
    assert dict(dataset.class_words) == {"cat": "cat", "dog": "dog"}
    assert [fold.name for fold in dataset.folds(manifest)] == ["art", "photo"]
    assert dataset.read(tmp_path / "mine") == manifest


@pytest.mark.parametrize(
    ("environment", "selection"), [("photo", "training-domain"), ("art", "test-domain"), ("toy", "ood")]
)
def test_a_split_column_decides_folds_and_selection(tmp_path, environment, selection):
    make_tree(tmp_path, ["photo", "art", "toy"], ["dog"])
    rows = ["photo/dog/0.png,dog,photo,train", "art/dog/0.png,dog,art,test"]
    (tmp_path / "more.png").write_bytes(b"x")
    rows.append(f"more.png,dog,{environment},val")
    (tmp_path / "manifest.csv").write_text("path,class,environment,split\n" + "\n".join(rows) + "\n")
    for path in (tmp_path, tmp_path / "manifest.csv"):  # a made folder is read by its table
        dataset = custom_dataset(path)
        assert dataset.selection == selection
        (fold,) = dataset.folds(dataset.read(path))
        assert fold.name == "test"
    assert custom_dataset(tmp_path).name == tmp_path.name


def test_names_are_found_however_they_are_spelled():
    assert dataset_names() == list(DATASETS)
    for spelled, name in (
        ("PACS", "pacs"),
        ("OfficeHome", "office-home"),
        ("office_home", "office-home"),
        ("NICO_SUB", "nico-sub"),
        ("ColoredMNIST", "colored-mnist"),
        ("ColoredCatsDogs", "ccd"),
        ("Office-Caltech10", "office-caltech10"),
    ):
        assert get_dataset(spelled).name == name
    with pytest.raises(DataError, match=r"no data set 'offce-home'\. Did you mean 'office-home'"):
        get_dataset("offce-home")
    with pytest.raises(DataError, match=r"no data set 'xyz'\. Known: pacs"):
        get_dataset("xyz")


def test_a_name_without_a_place_is_answered_with_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"PACS: say where it lies.*PACS\.zip"):
        open_dataset("pacs")
    with pytest.raises(DataError, match="neither a file, a folder nor a data set"):
        open_dataset("nothing")
    with pytest.raises(DataError, match="no data set 'nothing'"):
        open_dataset("nothing", tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_is_described_in_full(name):
    dataset = get_dataset(name)
    assert dataset.name == name
    assert "http" in dataset.source
    assert dataset.layout.startswith("\n    ")
    assert dataset.citation
    assert len(set(dataset.class_words.values())) == len(dataset.class_words)
    assert len(set(dataset.environment_words.values())) == len(dataset.environment_words)
    for words in (*dataset.class_words.values(), *dataset.environment_words.values()):
        assert words == words.strip().lower()
        assert "_" not in words
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayescalWarning)  # words that the text tower may not understand
        Manifest.from_columns(
            ["x"] * len(dataset.class_words),
            list(dataset.class_words),
            [next(iter(dataset.environment_words))] * len(dataset.class_words),
            class_words=dataset.class_words,
        )


@pytest.mark.parametrize(
    ("name", "selection", "shots", "val_shots"),
    [
        ("pacs", "training-domain", 16, 16),
        ("vlcs", "training-domain", 16, 16),
        ("office-home", "training-domain", 16, 16),
        ("nico", "ood", 8, 64),
        ("ccd", "test-domain", 16, 16),
        ("colored-mnist", "test-domain", 16, 16),
    ],
)
def test_selection_and_shots_are_those_of_the_protocol(name, selection, shots, val_shots):
    dataset = get_dataset(name)
    assert (dataset.selection, dataset.shots, dataset.val_shots) == (selection, shots, val_shots)


def test_base_and_new_classes_divide_the_classes():
    for name, n_base, n_new in (("pacs", 5, 2), ("nico-sub", 13, 6)):
        dataset = get_dataset(name)
        assert (len(dataset.base_classes), len(dataset.new_classes)) == (n_base, n_new)
        assert sorted(dataset.base_classes + dataset.new_classes) == sorted(dataset.class_words)


def test_a_description_that_contradicts_itself_is_refused():
    fields = {
        "name": "x", "title": "X", "shift": "", "class_words": {"dog": "dog"}, "environment_words": {}, "images": None,
        "layout": "", "source": "", "citation": "", "read": None, "folds": None,
    }  # fmt: skip
    with pytest.raises(DataError, match="unknown selection 'best'"):
        Dataset(**fields, selection="best")
    with pytest.raises(DataError, match="'cat' is not one of its classes"):
        Dataset(**fields, new_classes=("cat",))


def test_listing_names_imports_nothing_heavy():
    code = "import sys, bayescal.data.datasets; print({'torch', 'sklearn', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
