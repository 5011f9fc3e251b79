"""ColoredMNIST follows its rule, no digit is in two parts, and a seed repeats."""

import csv
import gzip
import shutil
import struct

import numpy as np
import pytest

from bayescal.data import content_hash, few_shot_split, read_image, read_manifest
from bayescal.data.datasets import open_dataset
from bayescal.data.synthetic.colored_mnist import make_colored_mnist
from bayescal.data.synthetic.mnist import read_mnist
from bayescal.errors import DataError
from bounds import within_binomial_bounds

N, SIDE = 3003, 8
FLIPS = {"train_1": 0.2, "train_2": 0.1, "test": 0.9}


@pytest.fixture(scope="module")
def digits():
    """Small random pictures, no two alike, in place of MNIST."""
    generator = np.random.default_rng(7)
    return generator.integers(0, 256, (N, SIDE, SIDE), dtype=np.uint8), generator.integers(0, 10, N).astype(np.uint8)


@pytest.fixture(scope="module")
def mnist(digits, tmp_path_factory):
    file = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    np.savez(file, x_train=digits[0], y_train=digits[1], x_test=digits[0][:2], y_test=digits[1][:2])
    return file


@pytest.fixture(scope="module")
def folder(mnist, tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "colored-mnist"
    make_colored_mnist(mnist, path, seed=0)
    return path


@pytest.fixture(scope="module")
def records(folder):
    with open(folder / "manifest.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def part(records, environment, split):
    return [r for r in records if (r["environment"], r["split"]) == (environment, split)]


def test_the_parts_have_the_sizes_that_are_documented(records):
    parts = (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test"))
    assert [len(part(records, *which)) for which in parts] == [1001, 1001, 500, 501]
    assert len(records) == N


def test_labels_colours_and_noise_follow_the_rule(records):
    for environment, split in (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test")):
        rows = part(records, environment, split)
        label = np.array([r["class"] == "greater_than_four" for r in rows])
        truth = np.array([int(r["digit"]) >= 5 for r in rows])
        green = np.array([r["colour"] == "green" for r in rows])
        assert within_binomial_bounds(label != truth, 0.25)
        assert within_binomial_bounds(green != label, FLIPS[environment])
        assert [int(r["label_flipped"]) for r in rows] == (label != truth).astype(int).tolist()
        assert [int(r["colour_flipped"]) for r in rows] == (green != label).astype(int).tolist()
        # the two kinds of flips are drawn apart
        assert within_binomial_bounds((green != label)[label != truth], FLIPS[environment])


def test_rates_are_exact_in_every_part_and_class(records):
    for environment, split in (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test")):
        rows = part(records, environment, split)
        for name in ("less_than_five", "greater_than_four"):
            labelled = [r for r in rows if r["class"] == name]
            of_class = [r for r in rows if (int(r["digit"]) >= 5) == (name == "greater_than_four")]
            assert sum(int(r["colour_flipped"]) for r in labelled) == round(FLIPS[environment] * len(labelled))
            assert sum(int(r["label_flipped"]) for r in of_class) == round(0.25 * len(of_class))


def test_by_chance_is_an_option_that_the_folder_remembers(mnist, tmp_path):
    exact = make_colored_mnist(mnist, tmp_path / "exact", per_environment=40)
    chance = make_colored_mnist(mnist, tmp_path / "chance", per_environment=40, exact=False)
    assert hashes(exact, tmp_path / "exact") != hashes(chance, tmp_path / "chance")
    with pytest.raises(DataError, match=r"exact False.*wanted .*exact True"):
        make_colored_mnist(mnist, tmp_path / "chance", per_environment=40)


def test_flips_depend_on_no_digit(records):
    """Seeding inside the loop would flip all digits of an environment, or none."""
    for environment, flip in FLIPS.items():
        for digit in "0123456789":
            rows = [int(r["colour_flipped"]) for r in records if (r["environment"], r["digit"]) == (environment, digit)]
            assert within_binomial_bounds(rows, flip)
            assert 0 < np.mean(rows) < 1


def test_no_digit_is_in_two_parts(folder, records, digits):
    """By the grey content of the file, so that a digit painted in two colours would be found."""
    contents = {}
    for record in records:
        content = np.asarray(read_image(folder / record["path"])).max(axis=2).tobytes()
        contents.setdefault((record["environment"], record["split"]), set()).add(content)
    assert len(contents) == 4
    assert sum(map(len, contents.values())) == len(set.union(*contents.values())) == N
    assert set.union(*contents.values()) == {image.tobytes() for image in digits[0]}


def test_the_pixels_have_the_colour_and_shape_that_the_table_says(folder, records, digits):
    grey, values = digits
    for record in records[::97]:
        image = np.asarray(read_image(folder / record["path"]))
        number = int(record["path"].rsplit("/", 1)[1].removesuffix(".png"))
        channel = ("red", "green").index(record["colour"])
        assert int(record["digit"]) == values[number]
        assert np.array_equal(image[..., channel], grey[number])
        assert np.delete(image, channel, axis=2).sum() == 0


def test_it_is_the_data_set_colored_mnist(folder):
    dataset, manifest = open_dataset("colored-mnist", folder)
    assert set(manifest.class_words) == {"less than five", "greater than four"}
    assert set(manifest.environment_words) == {"first environment", "second environment", "test environment"}
    (fold,) = dataset.folds(manifest)
    split = few_shot_split(
        manifest.class_ids,
        manifest.environment_ids,
        train_environments=fold.train_environments,
        shots=16,
        val_shots=16,
        seed=1,
        pool=fold.pool,
    )
    assert split.notes == ()
    assert fold.pool[split.train].all()


def hashes(manifest, folder):
    return {path.removeprefix(str(folder)): content_hash(path) for path in manifest.paths}


def test_a_seed_repeats_and_another_differs(mnist, tmp_path):
    made = [
        hashes(make_colored_mnist(mnist, tmp_path / name, seed=seed, per_environment=20), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert len(made[0]) == 60
    dealt = [{path.split("/")[-1] for path in contents if path.startswith("/train_1/")} for contents in made]
    assert dealt[0] != dealt[2], "the seed also decides which digits go where"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"], "something was left behind"


def test_what_is_there_is_read_and_never_overwritten(mnist, tmp_path, monkeypatch):
    first = make_colored_mnist(mnist, tmp_path / "a", per_environment=20)
    monkeypatch.setattr("PIL.Image.Image.save", lambda *_, **__: pytest.fail("written again"))
    assert make_colored_mnist(mnist, tmp_path / "a", per_environment=20) == first
    with pytest.raises(DataError, match=r"seed 0, per environment 20.*wanted .*seed 3"):
        make_colored_mnist(mnist, tmp_path / "a", seed=3, per_environment=20)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="does not hold ColoredMNIST"):
        make_colored_mnist(mnist, tmp_path / "mine")
    shutil.rmtree(tmp_path / "a" / "test")
    with pytest.raises(DataError, match="is damaged"):
        make_colored_mnist(mnist, tmp_path / "a", per_environment=20)


def test_a_full_disk_leaves_nothing_behind(mnist, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", full)
    with pytest.raises(DataError, match="No space left"):
        make_colored_mnist(mnist, tmp_path / "a", per_environment=20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 7, 1002])
def test_sizes_that_cannot_be_are_refused(mnist, tmp_path, size):
    with pytest.raises(DataError, match="expected 8 to 1,001"):
        make_colored_mnist(mnist, tmp_path / "a", per_environment=size)


def idx(array):
    magic = {3: 2051, 1: 2049}[array.ndim]
    return struct.pack(f">{1 + array.ndim}i", magic, *array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("path", ["", "MNIST/raw"])
def test_the_classic_files_are_read(digits, tmp_path, packed, path):
    (tmp_path / path).mkdir(parents=True, exist_ok=True)
    for name, array in zip(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), digits, strict=True):
        content = gzip.compress(idx(array), 1) if packed else idx(array)
        (tmp_path / path / (name + ".gz" * packed)).write_bytes(content)
    images, values = read_mnist(tmp_path)
    assert np.array_equal(images, digits[0])
    assert np.array_equal(values, digits[1])


def test_mnist_that_is_missing_or_damaged_is_answered_with_where_to_get_it(tmp_path, digits):
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "nowhere.npz"):
        with pytest.raises(DataError, match=r"(?s)MNIST is not here.*x_train.*https://"):
            read_mnist(path)
    (tmp_path / "bad.npz").write_text("not an archive")
    with pytest.raises(DataError, match=r"bad\.npz: is damaged"):
        read_mnist(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", images=digits[0])
    with pytest.raises(DataError, match=r"(?s)other\.npz: has no x_train.*https://"):
        read_mnist(tmp_path / "other.npz")
    np.savez(tmp_path / "odd.npz", x_train=digits[0], y_train=digits[1][:5])
    with pytest.raises(DataError, match=r"expected \(N, 28, 28\) bytes and N digits"):
        read_mnist(tmp_path / "odd.npz")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(digits[0])[:-1])
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(digits[1]))
    with pytest.raises(DataError, match="idx3-ubyte: is damaged"):
        read_mnist(tmp_path)


@pytest.mark.data
def test_real_digits_are_painted(shared_data, tmp_path):
    manifest = make_colored_mnist(shared_data / "mnist.npz", tmp_path / "made", per_environment=100)
    images, values = read_mnist(shared_data / "mnist.npz")
    assert (images.shape, len(manifest)) == ((60000, 28, 28), 300)
    with open(tmp_path / "made" / "manifest.csv", encoding="utf-8", newline="") as stream:
        record = next(csv.DictReader(stream))
    number = int(record["path"].rsplit("/", 1)[1].removesuffix(".png"))
    painted = np.asarray(read_image(tmp_path / "made" / record["path"]))
    assert np.array_equal(painted.max(axis=2), images[number])
    assert int(record["digit"]) == values[number]
    assert read_manifest(tmp_path / "made").environments == manifest.environments
