"""What folders mean: found out from their names, said in a small language, or refused with what was probably meant."""

import warnings

import pytest

from bayescal.data import read_manifest
from bayescal.data.layout import Layout, UnclearLayout, class_in, classes_in_names, find_layout, read_labels
from bayescal.data.split_names import split_of
from bayescal.errors import BayescalWarning, DataError


def names(*folders: str, images: int = 2) -> list[str]:
    return [f"{folder}/{i}.jpg" for folder in folders for i in range(images)]


def product(*levels: tuple[str, ...]) -> list[str]:
    paths = [""]
    for level in levels:
        paths = [f"{path}/{name}".lstrip("/") for path in paths for name in level]
    return names(*paths)


ENVIRONMENTS, CLASSES, SPLITS = ("photo", "sketch"), ("dog", "house"), ("train", "val", "test")
YEARS, MONTHS = ("2022", "2023"), ("05", "06", "11")


@pytest.mark.parametrize(
    ("tree", "layout"),
    [
        (product(CLASSES), "class"),
        (product(ENVIRONMENTS, CLASSES), "environment/class"),
        (product(ENVIRONMENTS, CLASSES, ("monday",)), "environment/class"),
        (product(ENVIRONMENTS, CLASSES, YEARS), "environment/class"),
        ([*product(ENVIRONMENTS, CLASSES), "photo/dog/monday/late/1.jpg"], "environment/class"),
        (product(SPLITS, CLASSES), "split/class"),
        (product(("Training", "validation_set", "test2017"), CLASSES), "split/class"),
        (product(("train",), CLASSES), "split/class"),
        (product(SPLITS, ENVIRONMENTS, CLASSES), "split/environment/class"),
        (product(ENVIRONMENTS, SPLITS, CLASSES), "environment/split/class"),
        (product(ENVIRONMENTS, CLASSES, SPLITS), "environment/class/split"),
        (product(CLASSES, SPLITS), "class/split"),
        ([*names("train/train/dog"), *names("test/test/dog")], "split/*/class"),
        (product(("train",), SPLITS, CLASSES), "*/split/class"),
        (product(("airplane", "train", "truck")), "class"),  # a train is a vehicle here
        (product(ENVIRONMENTS, ("airplane", "train")), "environment/class"),
        (product(("mnist", "svhn"), tuple("0123456789")), "environment/class"),
        (product(tuple("0123456789")), "class"),
        (product(YEARS, CLASSES), "environment/class"),
        (product(ENVIRONMENTS, ("zebra",)), "environment/class"),  # one new class, to be added to a model
    ],
)
def test_usual_layouts_are_found(tree, layout):
    assert find_layout("data", tree).levels == tuple(layout.split("/"))


@pytest.mark.parametrize(
    ("tree", "meant", "said"),
    [
        (product(CLASSES, YEARS, MONTHS), "class", "2022, 2023, which look like dates"),
        (product(CLASSES, ("2023-05-01", "2023-05-02")), "class", "look like dates"),
        (product(CLASSES, ("20230501", "20230502")), "class", "look like dates"),
        (product(CLASSES, ("2023", "2024")) + names("dog/misc"), "class", "2023, 2024, misc, which look like dates"),
        (product(CLASSES, ("May", "June 2023")), "class", "look like dates"),
        (product(CLASSES, ("001", "002", "117")), "class", "look like numbers"),
        (product(SPLITS, CLASSES, YEARS), "split/class", "look like dates"),
        (product(YEARS, MONTHS, CLASSES), "*/*/class", "05, 06, 11, which look like"),
        (product(YEARS, MONTHS, ("01", "30"), CLASSES), "*/*/*/class", "which look like"),
        (product(CLASSES, ("images",)), "class", "there would be one class, images"),
        (product(("pacs",), ENVIRONMENTS, CLASSES), "*/environment/class", "repeat"),
        (product(("camera1", "camera2"), ("monday", "friday"), CLASSES), "environment/*/class", "repeat"),
        ([*product(CLASSES), *names("dog/puppies")], "class", "two layouts are mixed"),
        (product(ENVIRONMENTS, YEARS, CLASSES), "environment/*/class", "2022, 2023, which look like dates"),
        (product(("data",), ("pets",), CLASSES), "*/*/class", "there would be one class, pets"),
        (product(("data",), ("pets",), SPLITS, CLASSES), "*/*/split/class", "there would be one class, pets"),
        (product(("data",), ("pets",), ENVIRONMENTS, CLASSES), "*/*/environment/class", "one class, pets"),
        (product(("data",), ENVIRONMENTS, CLASSES, SPLITS), "*/environment/class/split", "repeat"),
        (product(("a",), ("b",), ENVIRONMENTS, SPLITS, CLASSES), "*/*/environment/split/class", "one class, b"),
        (product(("a",), ("b",), ("c",), SPLITS, CLASSES), "*/*/*/split/class", "one class, b"),
    ],
)
def test_a_reading_that_is_probably_wrong_is_refused_with_the_one_meant(tree, meant, said):
    with pytest.raises(UnclearLayout, match=said) as caught:
        find_layout("data", tree)
    assert f"--layout {meant}" in str(caught.value)
    layout = caught.value.readings[0][0]
    assert layout.levels == tuple(meant.split("/"))
    labels = read_labels("data", tree, layout)
    assert set(labels.classes) == set(CLASSES)
    assert not set(labels.environments) & set(MONTHS)


def test_splits_beside_something_else_are_refused():
    with pytest.raises(UnclearLayout, match="test, train look like splits, and extra does not"):
        find_layout("data", product(("train", "test", "extra"), CLASSES))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            [*product(("photo",), ("train", "test"), CLASSES), *product(("sketch",), CLASSES)],
            "photo/test, photo/train look like splits, and sketch/dog, sketch/house do not",
        ),
        ([*product(CLASSES, ("train", "test")), *names("dog/rejected")], "and dog/rejected does not"),
        ([*product(("photo",), ("test",), CLASSES), *product(("sketch",), CLASSES)], "photo/test looks like a split"),
        ([*names("photo/dog/train", "photo/dog/test", "sketch/dog")], "and the images in sketch/dog do not"),
        ([*names("photo/dog", "photo/dog/test", "photo/house")], "photo/dog/test looks like a split"),
        ([*names("dog", "dog/test", "house")], "dog/test looks like a split"),
        (product(("photo",), ("my_train", "my_test"), CLASSES) + names("sketch/dog"), "my_test, photo/my_train look"),
        (product(SPLITS, ("photo",), SPLITS, CLASSES), "two levels of folders look like splits"),
        (product(("train",), ENVIRONMENTS, ("a_train", "a_test"), CLASSES), "look like splits"),
    ],
)
def test_splits_in_some_places_only_are_refused_on_every_level(tree, said):
    with pytest.raises(UnclearLayout, match=said) as caught:
        find_layout("data", tree)
    assert all("split" in layout.levels for layout, _ in caught.value.readings)


def images_in(folder, tree):
    for name in tree:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_a_layout_that_takes_splits_for_environments_is_warned_about(tmp_path):
    folder = images_in(tmp_path, product(("train", "test"), CLASSES))
    with pytest.warns(BayescalWarning, match="test, train look like splits, and are environments in the layout"):
        read_manifest(folder, layout="environment/class")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_manifest(folder)
        read_manifest(
            images_in(tmp_path / "lone", product(("train", "tram", "bus"), CLASSES)), layout="environment/class"
        )


def test_a_layout_that_leaves_splits_unread_is_warned_about(tmp_path):
    folder = images_in(tmp_path, product(("data",), ENVIRONMENTS, CLASSES, ("train", "test")))
    with pytest.warns(BayescalWarning, match="test, train look like splits, and mean nothing in the layout"):
        read_manifest(folder, layout="*/environment/class")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(read_manifest(folder, layout="*/environment/class/split").splits) == {"train", "test"}
        read_manifest(folder / "data" / "photo" / "dog", layout="class")  # the classes are the splits: as it was said


def test_splits_are_never_mistaken_for_training_images():
    tree = product(("train", "holdout"), ENVIRONMENTS, CLASSES)
    labels = read_labels("data", tree, find_layout("data", tree))
    assert {s for s, name in zip(labels.splits, tree, strict=True) if name.startswith("holdout")} == {"test"}


@pytest.mark.parametrize("word", ["environment", "night", "Trained", "tests_of_time", "training_day", "2017", ""])
def test_other_words_are_no_splits(word):
    assert split_of(word) is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("airport_01.jpg", "airport"),
        ("a/airport01.png", "airport"),
        ("tennis_court_003_crop1.jpg", "tennis_court"),
        ("dog.1234.jpg", "dog"),
        ("n02084071_1234.JPEG", "n02084071"),
        ("great pyrenees (2).jpg", "great pyrenees"),
        ("0123.jpg", None),
        ("portrait.jpg", None),
    ],
)
def test_the_class_in_a_name(file, name):
    assert class_in(file) == name


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (["rome/dog_1.jpg", "rome/house_2.jpg", "oslo/dog_1.jpg", "oslo/house_1.jpg"], ["dog", "house"]),
        (["all/dog_1.jpg", "all/house_2.jpg"], ["dog", "house"]),
        (["dog/husky_1.jpg", "dog/poodle_2.jpg", "cat/siamese_1.jpg"], []),  # not the same in every folder
        (["dog/dog_1.jpg", "cat/cat_1.jpg"], []),
        (["dog/IMG_1.jpg", "dog/DSC_2.jpg", "cat/IMG_3.jpg", "cat/DSC_9.jpg"], []),
        (["dog/left_1.jpg", "dog/right.jpg", "cat/left_3.jpg", "cat/right.jpg"], []),
    ],
)
def test_names_that_may_say_the_class_in_every_folder(tree, said):
    assert classes_in_names(tree) == said


def test_classes_are_taken_from_names_when_asked():
    tree = ["airport_01.jpg", "airport_02.jpg", "beach_01.jpg"]
    with pytest.raises(DataError, match="say --class-from-name"):
        find_layout("data", tree)
    labels = read_labels("data", tree, find_layout("data", tree, class_from_name=True))
    assert labels.classes == ["airport", "airport", "beach"]
    deeper = [f"{split}/{place}/{name}" for split in ("train", "test") for place in ("rome", "oslo") for name in tree]
    layout = find_layout("data", deeper, class_from_name=True)
    assert layout.levels == ("split", "environment")
    assert set(read_labels("data", deeper, layout).environments) == {"rome", "oslo"}
    with pytest.raises(DataError, match=r"1 of 4 files have no class in their name: portrait\.jpg"):
        read_labels("data", [*tree, "portrait.jpg"], Layout((), class_from_name=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("environment/klass", "'klass' is none of.*Did you mean 'class'"),
        ("environment", "no folder is the class"),
        ("class/class", "class occurs more than once"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(text, said):
    with pytest.raises(DataError, match=said):
        Layout.parse(text)


def test_images_must_lie_as_deep_as_the_layout_says():
    assert Layout.parse("/split/*/class/image/") == Layout(("split", "*", "class"))
    with pytest.raises(DataError, match=r"2 of 6 images do not lie deep enough: dog/0\.jpg"):
        read_labels("data", [*names("dog"), *product(ENVIRONMENTS, CLASSES)[:4]], Layout.parse("environment/class"))
    with pytest.raises(DataError, match="photo, sketch is no split"):
        read_labels("data", product(ENVIRONMENTS, CLASSES), Layout.parse("split/class"))
