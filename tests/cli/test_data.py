"""`bayescal data`: lists, reading downloads, making data sets, and checking images."""

import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from bayescal.benchmark.search_ranges import search_ranges
from bayescal.data import read_manifest
from bayescal.data.datasets import dataset_names, get_dataset, open_dataset
from bayescal.data.synthetic import mnist as mnist_module
from command_line import make_shapes, refused, run, shape, write_csv

pytestmark = pytest.mark.xdist_group("command-line")

COMMANDS = ("list", "info", "prepare", "make-ccd", "make-coloredmnist", "check")
ENVIRONMENTS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


@pytest.fixture
def pacs(tmp_path):
    """PACS as its archive leaves it, with two images per class and environment."""
    make_shapes(tmp_path / "PACS" / "kfold", n=2, classes=CLASSES, environments=ENVIRONMENTS)
    return tmp_path / "PACS"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(command):
    result = run("data", command, "--help")
    assert result.code == 0
    assert f"bayescal data {command}" in result.out.partition("Examples")[2]


def test_help_lists_the_commands():
    assert " data " in run("--help").out
    result = run("data", "--help")
    assert all(f" {command} " in result.out for command in COMMANDS)


def test_all_data_sets_are_listed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run("data", "list")
    assert result.code == 0
    for name in dataset_names():
        assert f" {name} " in result.out
    assert "9,991" in result.out


@pytest.mark.parametrize("name", dataset_names())
def test_each_is_described_with_source_layout_and_search(monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "3000")
    result = run("data", "info", name)
    assert result.code == 0
    dataset = get_dataset(name)
    for text in (dataset.title, dataset.citation, dataset.source, dataset.selection, *dataset.layout.splitlines()):
        assert text in result.out
    if search_ranges(name):
        assert "lambda_irm: 10^U(" in result.out


def test_an_unknown_name_is_answered_with_the_nearest():
    refused(run("data", "info", "pasc"), "no data set 'pasc'", "'pacs'")


@pytest.mark.filterwarnings("ignore:.*Is the copy complete:bayescal.errors.BayescalWarning")
def test_a_download_is_counted_and_listed(pacs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("data", "prepare", "PACS", "--from", pacs)
    assert result.code == 0, result.err
    assert "56 images, 7 classes, 4 environments" in result.out
    assert "pacs.csv" in result.out
    assert "PACS has 9,991" in result.err
    dataset, manifest = open_dataset("pacs", tmp_path / "pacs.csv")
    assert manifest == dataset.read(pacs)


def test_an_archive_is_unpacked_once(pacs, tmp_path):
    archive = tmp_path / "download" / "PACS.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as content:
        for path in pacs.rglob("*.png"):
            content.write(path, path.relative_to(pacs))
    out = tmp_path / "list.csv"
    assert run("data", "prepare", "pacs", "--from", archive, "-o", out).code == 0
    assert (tmp_path / "download" / "PACS" / "kfold" / "photo" / "dog").is_dir()
    assert len(read_manifest(out)) == 56
    again = run("data", "prepare", "pacs", "--from", archive, "-o", out)
    assert again.code == 0
    assert "Already unpacked" in again.err
    assert run("data", "prepare", "pacs", "--from", archive, "-o", out, "--to", tmp_path / "here").code == 0
    assert (tmp_path / "here" / "PACS" / "kfold").is_dir()


def test_what_is_missing_is_said_with_page_and_layout_and_nothing_is_written(pacs, tmp_path):
    shutil.rmtree(pacs / "kfold" / "sketch")
    out = tmp_path / "list.csv"
    result = run("data", "prepare", "pacs", "--from", pacs, "-o", out)
    refused(result, "no folder for the environment sketch", "art_painting/", "http://www.eecs.qmul.ac.uk")
    assert not out.exists()
    refused(run("data", "prepare", "vlcs", "--from", tmp_path / "nowhere", "-o", out), "no such folder", "DomainBed")
    refused(run("data", "prepare", "pacs", "--from", pacs, "-o", tmp_path / "list.txt"), "expected the name of a .csv")
    refused(run("data", "prepare", "pacs", "--from", pacs, "-o", tmp_path / "no" / "list.csv"), "there is no folder")


def test_downloads_are_attempted_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was used"))
    refused(run("data", "prepare", "domainnet", "--from", tmp_path / "x"), "http://ai.bu.edu/M3SDA/")
    refused(run("data", "prepare", "pacs", "--from", tmp_path / "x", "--download"), "no address", "PACS.zip")
    refused(
        run("data", "make-coloredmnist", "--from", tmp_path / "mnist.npz", "-o", tmp_path / "m"), "MNIST is not here"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def mnist(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (120, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=generator.integers(0, 10, 120))
    return tmp_path / "mnist.npz"


def test_colored_mnist_is_made_with_its_rates_printed(mnist, tmp_path):
    result = run("data", "make-coloredmnist", "--from", mnist, "-o", tmp_path / "made", "--seed", 2)
    assert result.code == 0, result.err
    assert "colour against label" in result.out
    assert "120 images and manifest.csv in" in result.out
    assert len(open_dataset("colored-mnist", tmp_path / "made")[1]) == 120
    small = run("data", "make-coloredmnist", "--from", mnist, "-o", tmp_path / "small", "--per-environment", 10)
    assert "30 images" in small.out
    refused(run("data", "make-coloredmnist", "--from", mnist, "-o", tmp_path / "made", "--seed", 3), "holds other")


def test_mnist_is_downloaded_when_asked(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(mnist_module, "ADDRESS", mnist.as_uri())
    target = tmp_path / "new" / "mnist.npz"
    result = run("data", "make-coloredmnist", "--from", target, "-o", tmp_path / "made", "--download")
    assert result.code == 0, result.err
    assert target.read_bytes() == mnist.read_bytes()


def test_ccd_is_made(tmp_path):
    for kind in ("images", "masks"):
        for number, animal in enumerate(("cat", "dog")):
            (tmp_path / "pets" / kind / animal).mkdir(parents=True)
            for index in range(10):
                value = 255 if kind == "masks" else 20 * index + number
                Image.new("RGB", (4, 4), (value, value, value)).save(tmp_path / "pets" / kind / animal / f"{index}.png")
    result = run("data", "make-ccd", "--from", tmp_path / "pets", "-o", tmp_path / "ccd", "--sigma", 5)
    assert result.code == 0, result.err
    assert "20 images" in result.out
    assert run("data", "check", tmp_path / "ccd" / "manifest.csv", "--dataset", "ccd", "--shots", 2).code == 0
    refused(run("data", "make-ccd", "--from", tmp_path, "-o", tmp_path / "x"), "robots.ox.ac.uk")


def test_good_images_pass_and_short_cells_are_noted(tmp_path):
    data = make_shapes(tmp_path / "data", n=4)
    result = run("data", "check", data)
    assert result.code == 0, result.out
    assert "16 images, 2 classes, 2 environments" in result.out
    assert "Note: dog: too few images in sketch. Taken: training 4 of 16 (sketch 4)" in result.out
    assert "(test: photo)" in result.out
    assert "Nothing here would make results wrong." in result.out
    quiet = run("data", "check", data, "--shots", 2, "--val-shots", 2)
    assert "Note" not in quiet.out


def test_names_the_backbone_does_not_know_are_noted(tmp_path):
    for where in ("photo", "sketch"):
        for number, name in enumerate(("dog", "melanoma", "lymphoma")):
            (tmp_path / "data" / where / name).mkdir(parents=True)
            shape("dog", where, number).save(tmp_path / "data" / where / name / "0.png")
    result = run("data", "check", tmp_path / "data", "--shots", 1, "--val-shots", 0)
    assert result.code == 1, result.out  # `fit` would refuse it
    assert "Note: backbone 'mini 2' has never seen the words of these 2 names: 'lymphoma', 'melanoma'. " in result.out
    assert '--class-words FILE.json, or class_words= in Python, with {"NAME": "plain words"}' in result.out
    assert "Problem: backbone 'mini 2' cannot tell the names 'lymphoma' and 'melanoma' apart" in result.out
    other = run("data", "check", tmp_path / "data", "--shots", 1, "--val-shots", 0, "--backbone", "RN50:openai")
    assert "melanoma'" not in other.out


def test_unreadable_images_are_a_problem(tmp_path):
    data = make_shapes(tmp_path / "data", n=4)
    (data / "photo" / "dog" / "0.png").write_bytes(b"\x89PNG cut off")
    result = run("data", "check", data)
    assert result.code == 1
    assert "1 image cannot be read" in result.out
    assert "photo/dog/0.png" in result.out
    assert "results would be wrong" in result.out


@pytest.mark.parametrize(
    ("source", "target", "code", "said"),
    [
        ("photo/dog/0.png", "photo/house/9.png", 1, "labelled as two different classes"),
        ("photo/dog/0.png", "sketch/dog/9.png", 0, "in two environments"),
        ("photo/dog/0.png", "photo/dog/9.png", 0, "more than once: used once"),
    ],
)
def test_copies_are_rated_by_what_they_spoil(tmp_path, source, target, code, said):
    data = make_shapes(tmp_path / "data", n=4)
    (data / target).write_bytes((data / source).read_bytes())
    result = run("data", "check", data)
    assert result.code == code
    assert said in result.out
    assert f"{source} = " in result.out or f" = {source}" in result.out


def test_many_copies_of_one_image_are_not_all_named(tmp_path):
    data = make_shapes(tmp_path / "data", n=4)
    for number in range(100, 110):
        shutil.copy(data / "photo" / "dog" / "0.png", data / "photo" / "dog" / f"{number}.png")
    line = next(line for line in run("data", "check", data).out.splitlines() if "photo/dog/0.png" in line)
    assert line.count("photo/dog/") == 5
    assert line.endswith(" = 6 more")


def test_an_image_in_two_splits_is_a_problem(tmp_path):
    rows = []
    for number, (kind, split) in enumerate([("dog", "train"), ("house", "train"), ("dog", "test"), ("house", "test")]):
        shape(kind, "photo", number).save(tmp_path / f"{number}.png")
        rows.append((f"{number}.png", kind, "photo", split))
    table = write_csv(tmp_path / "list.csv", rows)
    assert run("data", "check", table).code == 0
    (tmp_path / "2.png").write_bytes((tmp_path / "0.png").read_bytes())
    result = run("data", "check", table)
    assert result.code == 1
    assert "in two different splits" in result.out
    assert "0.png (train) = " in result.out


def test_data_that_fit_takes_are_no_problem_though_experiments_cannot_divide_them(tmp_path):
    data = make_shapes(tmp_path / "data", n=2, environments=("photo",))
    result = run("data", "check", data)
    assert result.code == 0
    assert "Note: enough for `bayescal fit`, but not for `bayescal bench`. There is one environment only" in result.out
    (tmp_path / "split" / "valid").mkdir(parents=True)
    shutil.move(data / "photo", tmp_path / "split" / "train")
    for name in ("dog", "house"):
        shutil.copytree(tmp_path / "split" / "train" / name, tmp_path / "split" / "valid" / name)
        (tmp_path / "split" / "valid" / name / "0.png").unlink()
        (tmp_path / "split" / "train" / name / "1.png").unlink()
    result = run("data", "check", tmp_path / "split")
    assert result.code == 0, result.err
    assert 'Note: enough for `bayescal fit`, but not for `bayescal bench`. No image has the split "test"' in result.out
    refused(run("bench", "main", "--data", f"mine={tmp_path / 'split'}", "-o", tmp_path / "out"), 'the split "test"')


def test_what_cannot_be_read_at_all_is_refused(tmp_path):
    data = make_shapes(tmp_path / "data", n=1, environments=("photo",))
    refused(run("data", "check", tmp_path / "nowhere"), "nowhere: there is no such folder or file")
    refused(run("data", "check", data, "--dataset", "pacs"), "no folder for the environment", "http")


def test_many_classes_are_summed_up(tmp_path):
    classes = [f"kind {number}" for number in range(71)]
    make_shapes(tmp_path / "data", n=1, classes=classes)
    result = run("data", "check", tmp_path / "data", "--shots", 1, "--val-shots", 0)
    assert result.code == 1  # the same pictures under many names
    assert "fewest of a class" in result.out


@pytest.mark.data
def test_real_pacs_passes(shared_data, tmp_path):
    sample = [
        (path, path.parts[-2], path.parts[-3], "")
        for folder in sorted((shared_data / "pacs").glob("*/*"))
        for path in sorted(folder.iterdir())[:12]
    ]
    table = write_csv(tmp_path / "pacs.csv", sample)
    result = run("data", "check", table, "--dataset", "pacs", "--shots", 16, "--val-shots", 16)
    assert result.code == 0, result.out
    assert "336 images, 7 classes, 4 environments" in result.out
    assert "Note: d" not in result.out
