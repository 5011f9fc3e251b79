"""Data sets in folders are read in exactly the layouts they are downloaded in, and nothing that is missing passes."""

import shutil

import pytest

from bayescal.data.datasets import get_dataset, open_dataset
from bayescal.data.datasets.domainnet import CLASSES as DOMAINNET_CLASSES
from bayescal.data.datasets.domainnet import LISTS
from bayescal.data.datasets.office_home import CLASSES as OFFICE_HOME_CLASSES
from bayescal.errors import BayescalWarning, DataError
from layouts import PNG, make_tree

pytestmark = pytest.mark.filterwarnings("ignore:.*Is the copy complete:bayescal.errors.BayescalWarning")

PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
VLCS = ("bird", "car", "chair", "dog", "person")
OFFICE = (
    "back_pack", "bike", "calculator", "headphones", "keyboard",
    "laptop_computer", "monitor", "mouse", "mug", "projector",
)  # fmt: skip
# name → root in the archive, environment folders, class folders, words of the environments in the manifest's order
LAYOUTS = {
    "pacs": ("PACS/kfold", ("art_painting", "cartoon", "photo", "sketch"), PACS, "art painting|cartoon|photo|sketch"),
    "vlcs": ("VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007"), VLCS, "caltech|labelme|sun|pascal"),
    "office-home": (
        "OfficeHomeDataset_10072016",
        ("Art", "Clipart", "Product", "Real World"),
        OFFICE_HOME_CLASSES.split(),
        "art|clipart|product|real world",
    ),
    "office-caltech10": (
        "Office_Caltech_DA_Dataset-main",
        ("Caltech", "amazon", "dslr", "webcam"),
        OFFICE,
        "amazon product picture|caltech|digital camera|webcam",
    ),
    "domainnet": (
        "domain_net",
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        DOMAINNET_CLASSES.split(),
        "clipart|infograph|painting|quickdraw|real|sketch",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_download_is_read_from_its_own_folder_and_from_the_one_around_it(tmp_path, name):
    inside, environments, classes, words = LAYOUTS[name]
    make_tree(tmp_path / inside, environments, classes)
    dataset, manifest = open_dataset(name, tmp_path)
    assert len(manifest) == len(environments) * len(classes)
    assert set(manifest.classes) == set(dataset.class_words)
    assert set(manifest.environments) == set(dataset.environment_words)
    assert "|".join(manifest.environment_words) == words
    assert manifest.summary() == {c: dict.fromkeys(manifest.environments, 1) for c in manifest.classes}
    assert [fold.name for fold in dataset.folds(manifest)] == list(manifest.environments)
    assert dataset.read(tmp_path / inside) == manifest


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_list_that_prepare_writes_is_read_back(tmp_path, name):
    inside, environments, classes, _ = LAYOUTS[name]
    make_tree(tmp_path / inside, environments, classes)
    _, manifest = open_dataset(name, tmp_path)
    manifest.to_csv(tmp_path / "list.csv")
    assert open_dataset(name, tmp_path / "list.csv")[1] == manifest


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_environment_is_answered_with_the_page_and_the_layout(tmp_path, name):
    inside, environments, classes, _ = LAYOUTS[name]
    make_tree(tmp_path / inside, environments[1:], classes[:2])
    dataset = get_dataset(name)
    with pytest.raises(DataError) as refused:
        dataset.read(tmp_path)
    message = str(refused.value)
    assert f"no folder for the environment {environments[0]}".lower() in message.lower()
    assert environments[1] in message
    assert dataset.layout in message
    assert dataset.source in message
    assert "http" in message


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_class_is_named(tmp_path, name):
    inside, environments, classes, _ = LAYOUTS[name]
    make_tree(tmp_path / inside, environments, classes[:-1])
    with pytest.raises(DataError, match=f"no images of the class {classes[-1]}"):
        get_dataset(name).read(tmp_path)


def test_words_are_readable():
    assert get_dataset("office-home").class_words["Alarm_Clock"] == "alarm clock"
    assert get_dataset("office-home").class_words["ToothBrush"] == "toothbrush"
    assert len(get_dataset("office-home").class_words) == 65
    words = get_dataset("domainnet").class_words
    assert len(words) == 345
    assert (words["The_Eiffel_Tower"], words["t-shirt"], words["teddy-bear"]) == (
        "the eiffel tower",
        "t-shirt",
        "teddy bear",
    )


@pytest.mark.parametrize(
    ("name", "environments", "classes"),
    [
        ("office-home", ("Art", "Clipart", "Product", "Real_World"), OFFICE_HOME_CLASSES.split()),
        ("office-home", ("art", "clipart", "product", "RealWorld"), OFFICE_HOME_CLASSES.split()),
        ("vlcs", ("CALTECH", "LABELME", "SUN", "PASCAL"), VLCS),
        (
            "office-caltech10",
            ("amazon", "caltech10", "dslr", "webcam"),
            ("backpack", "laptop", *OFFICE[1:5], *OFFICE[6:]),
        ),
    ],
)
def test_other_spellings_are_the_same_data_set(tmp_path, name, environments, classes):
    manifest = get_dataset(name).read(make_tree(tmp_path, environments, classes))
    assert set(manifest.environments) == set(get_dataset(name).environment_words)
    assert set(manifest.classes) == set(get_dataset(name).class_words)


def test_office_data_sets_may_have_a_level_of_images(tmp_path):
    for environment in ("amazon", "caltech", "dslr", "webcam"):
        make_tree(tmp_path / environment, ["images"], OFFICE)
    assert len(get_dataset("office-caltech10").read(tmp_path)) == 40


def test_files_and_folders_beside_the_environments_are_ignored(tmp_path):
    make_tree(tmp_path, LAYOUTS["pacs"][1], PACS)
    (tmp_path / "splits").mkdir()
    (tmp_path / "imagelist.txt").write_text("art_painting/dog/0.png 0")
    (tmp_path / "photo" / "dog" / "Thumbs.db").touch()
    assert len(get_dataset("pacs").read(tmp_path)) == 28


def test_a_folder_that_is_no_class_is_left_out_and_named(tmp_path):
    make_tree(tmp_path, LAYOUTS["pacs"][1], PACS)
    make_tree(tmp_path, ["photo"], ["zebra"])
    with pytest.warns(BayescalWarning, match=r"1 folders that are no class of PACS: photo/zebra"):
        manifest = get_dataset("pacs").read(tmp_path)
    assert "zebra" not in manifest.classes


def test_two_folders_for_one_class_are_refused(tmp_path):
    make_tree(tmp_path, LAYOUTS["office-home"][1], OFFICE_HOME_CLASSES.split())
    make_tree(tmp_path, ["Art"], ["Alarm-Clock"])
    with pytest.raises(DataError, match="Alarm-Clock and Alarm_Clock both stand for Alarm_Clock"):
        get_dataset("office-home").read(tmp_path)


@pytest.mark.filterwarnings("default:.*Is the copy complete:bayescal.errors.BayescalWarning")
def test_a_copy_with_too_few_images_is_noticed(tmp_path):
    make_tree(tmp_path, LAYOUTS["pacs"][1], PACS)
    shutil.rmtree(tmp_path / "photo" / "dog")
    with pytest.warns(BayescalWarning) as said:
        get_dataset("pacs").read(tmp_path)
    messages = [str(warning.message) for warning in said]
    assert any("found 27 images, but PACS has 9,991" in message for message in messages)
    assert any("no image of dog in photo" in message for message in messages)


def test_places_that_hold_no_data_set_are_refused(tmp_path):
    dataset = get_dataset("pacs")
    with pytest.raises(DataError, match="there is no such folder or file"):
        dataset.read(tmp_path / "nowhere")
    (tmp_path / "PACS.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="is an archive"):
        dataset.read(tmp_path / "PACS.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found no folders"):
        dataset.read(tmp_path / "empty")
    make_tree(tmp_path / "other", LAYOUTS["pacs"][1], ["zebra"])
    with (
        pytest.warns(BayescalWarning, match="no class of PACS"),
        pytest.raises(DataError, match="no images of known classes"),
    ):
        dataset.read(tmp_path / "other")
    (tmp_path / "x.png").write_bytes(PNG)
    (tmp_path / "list.csv").write_text("path,class,environment\nx.png,dog,photo\n")
    with pytest.raises(DataError, match="no images of the class elephant"):
        dataset.read(tmp_path / "list.csv")


def test_a_list_with_names_of_another_data_set_is_refused(tmp_path):
    make_tree(tmp_path, LAYOUTS["pacs"][1], [*PACS, "zebra"])
    rows = [f"{e}/{c}/0.png,{c},{e}" for e in LAYOUTS["pacs"][1] for c in (*PACS, "zebra")]
    (tmp_path / "list.csv").write_text("\n".join(["path,class,environment", *rows]))
    with pytest.raises(DataError, match="PACS has no class zebra"):
        get_dataset("pacs").read(tmp_path / "list.csv")


@pytest.mark.parametrize("path", ["", "txt"])
def test_domainnet_takes_its_parts_from_the_lists_of_the_project_page(tmp_path, path):
    _, environments, classes, _ = LAYOUTS["domainnet"]
    make_tree(tmp_path, environments, classes, images=2)
    (tmp_path / "real" / "zebra" / "no list names this.png").write_bytes(PNG)
    (tmp_path / path).mkdir(exist_ok=True)
    for name in LISTS:
        environment, part = name.removesuffix(".txt").rsplit("_", 1)
        image = "0.png" if part == "train" else "1.png"
        lines = [f"{environment}/{class_name}/{image} {number}\n" for number, class_name in enumerate(classes)]
        (tmp_path / path / name).write_text("".join(lines))
    dataset = get_dataset("domainnet")
    manifest = dataset.read(tmp_path)
    assert len(manifest) == 2 * 6 * 345
    folds = dataset.folds(manifest)
    assert [fold.name for fold in folds] == list(environments)
    for fold in folds:
        assert (fold.pool.sum(), fold.test.sum()) == (5 * 345, 345)
        assert set(manifest.splits[fold.pool]) == {"train"}
        assert set(manifest.splits[fold.test]) == {"test"}
    manifest.to_csv(tmp_path / "list.csv")
    assert dataset.read(tmp_path / "list.csv") == manifest


def test_a_domainnet_list_that_is_not_utf_8_is_named_with_the_line(tmp_path):
    _, environments, classes, _ = LAYOUTS["domainnet"]
    make_tree(tmp_path, environments, classes)
    for name in LISTS:
        (tmp_path / name).write_bytes(b"real/zebra/0.png 1\n" + b"real/caf\xe9/0.png 2\n" * (name == "real_test.txt"))
    with pytest.raises(DataError, match=r"real_test\.txt: is not UTF-8 text \(line 2\)\. Download it again"):
        get_dataset("domainnet").read(tmp_path)


def test_domainnet_lists_of_other_images_are_refused(tmp_path):
    _, environments, classes, _ = LAYOUTS["domainnet"]
    make_tree(tmp_path, environments, classes)
    for name in LISTS:
        (tmp_path / name).write_text("elsewhere/dog/7.png 0\n")
    with pytest.raises(DataError, match="the lists name none of the images"):
        get_dataset("domainnet").read(tmp_path)


@pytest.mark.data
def test_the_real_pacs_is_read(shared_data):
    dataset, manifest = open_dataset("pacs", shared_data / "pacs")
    assert len(manifest) == dataset.images == 9991
    assert [int(fold.test.sum()) for fold in dataset.folds(manifest)] == [2048, 2344, 1670, 3929]
