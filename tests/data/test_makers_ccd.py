"""ColoredCatsDogs: flat colours behind animals, flips at their rates, every photo once."""

import csv

import numpy as np
import pytest
from PIL import Image

from bayescal.data import content_hash, read_image
from bayescal.data.datasets import open_dataset
from bayescal.data.synthetic import colored_cats_dogs as maker
from bayescal.data.synthetic.colored_cats_dogs import make_colored_cats_dogs, paint_background
from bayescal.data.synthetic.pets import find_photos, read_animal
from bayescal.errors import BayescalWarning, DataError
from bounds import within_binomial_bounds

RED, GREEN = (239, 19, 19), (0, 120, 13)
FLIPS = {"train_1": 0.2, "train_2": 0.1, "test": 0.9}
PER_CLASS = 200


def write_pets(folder, n=12, size=(9, 7)):
    """Photos of noise, no two alike, and masks of their left half; saved without loss, whatever their name says."""
    generator = np.random.default_rng(3)
    for animal in ("cat", "dog"):
        for kind in ("images", "masks"):
            (folder / kind / animal).mkdir(parents=True)
        for number in range(n):
            pixels = generator.integers(60, 196, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / animal / f"{animal}_{number:03d}.png")
            mask = np.zeros((size[1], size[0]), dtype=np.uint8)
            mask[:, : size[0] // 2] = 255
            Image.fromarray(mask).convert("1").save(folder / "masks" / animal / f"{animal}_{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    return write_pets(tmp_path_factory.mktemp("pets"), PER_CLASS)


@pytest.fixture(scope="module")
def folder(pets, tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "ccd"
    make_colored_cats_dogs(pets, path, sigma=0)
    return path


def read_records(folder):
    with open(folder / "manifest.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def records(folder):
    return read_records(folder)


def part(records, environment, split):
    return [r for r in records if (r["environment"], r["split"]) == (environment, split)]


def test_every_part_has_as_many_cats_as_dogs(records):
    for environment, split, n in (
        ("train_1", "train", 40),
        ("train_2", "train", 40),
        ("test", "val", 20),
        ("test", "test", 100),
    ):
        rows = part(records, environment, split)
        assert sum(r["animal"] == "cat" for r in rows) == sum(r["animal"] == "dog" for r in rows) == n


def test_colours_go_with_the_label_except_for_the_flips(records):
    for environment, flip in FLIPS.items():
        rows = [r for r in records if r["environment"] == environment]
        against = np.array([(r["colour"] == "green") != (r["class"] == "dog") for r in rows])
        assert within_binomial_bounds(against, flip)
        assert [int(r["colour_flipped"]) for r in rows] == against.astype(int).tolist()
        assert {r["label_flipped"] for r in rows} == {"0"}
        assert [r["class"] for r in rows] == [r["animal"] for r in rows]


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_rates_are_exact_in_every_part_and_class(pets, tmp_path, noise):
    make_colored_cats_dogs(pets, tmp_path / "made", label_noise=noise, sigma=0)
    records = read_records(tmp_path / "made")
    for environment, split in (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test")):
        rows = part(records, environment, split)
        for animal in ("cat", "dog"):
            labelled = [r for r in rows if r["class"] == animal]
            photos = [r for r in rows if r["animal"] == animal]
            assert sum(int(r["colour_flipped"]) for r in labelled) == round(FLIPS[environment] * len(labelled))
            assert sum(int(r["label_flipped"]) for r in photos) == round(noise * len(photos))


def test_label_noise_is_drawn_when_asked_for_and_colour_goes_with_the_noisy_label(pets, tmp_path):
    make_colored_cats_dogs(pets, tmp_path / "noisy", label_noise=0.25, sigma=0)
    rows = read_records(tmp_path / "noisy")
    wrong = np.array([r["class"] != r["animal"] for r in rows])
    assert within_binomial_bounds(wrong, 0.25)
    assert [int(r["label_flipped"]) for r in rows] == wrong.astype(int).tolist()
    trained = [r for r in rows if r["environment"] == "train_1"]
    assert within_binomial_bounds([(r["colour"] == "green") != (r["class"] == "dog") for r in trained], 0.2)


def test_the_background_is_flat_and_the_animal_is_the_photo(folder, records, pets):
    for record in records[::7]:
        made = np.asarray(read_image(folder / record["path"]))
        photo = np.asarray(read_image(pets / "images" / record["animal"] / record["photo"]))
        assert made.shape == photo.shape
        assert np.array_equal(made[:, :4], photo[:, :4])
        colour = {"red": RED, "green": GREEN}[record["colour"]]
        assert (made[:, 4:] == colour).all()


def test_no_photo_is_in_two_parts(folder, records):
    """By the pixels of the animal, whatever is behind it."""
    contents = {}
    for record in records:
        animal = np.asarray(read_image(folder / record["path"]))[:, :4].tobytes()
        contents.setdefault((record["environment"], record["split"]), set()).add(animal)
    assert len(contents) == 4
    assert sum(map(len, contents.values())) == len(set.union(*contents.values())) == 2 * PER_CLASS
    assert len({r["photo"] for r in records}) == 2 * PER_CLASS


def test_noise_is_on_the_animal_alone_and_has_its_standard_deviation():
    pixels = np.full((200, 100, 3), 128, dtype=np.uint8)
    mask = np.zeros((200, 100), dtype=bool)
    mask[:100] = True
    painted = paint_background(pixels, mask, 1, 20.0, np.random.default_rng(0))
    assert (painted[100:] == GREEN).all()
    noise = painted[:100].astype(float) - 128
    n = noise.size
    assert abs(noise.mean()) < 5 * 20 / np.sqrt(n)
    assert abs(noise.std() / 20 - 1) < 5 / np.sqrt(2 * n)
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 5 / np.sqrt(n / 3)


def test_noise_is_cut_off_and_not_wrapped_around():
    white = np.full((50, 50, 3), 255, dtype=np.uint8)
    painted = paint_background(white, np.ones((50, 50), dtype=bool), 0, 30.0, np.random.default_rng(0))
    assert painted.min() > 255 - 6 * 30
    assert (painted == 255).mean() > 0.4


def hashes(manifest, folder):
    return {path.removeprefix(str(folder)): content_hash(path) for path in manifest.paths}


def test_a_seed_repeats_and_another_differs(tmp_path):
    pets = write_pets(tmp_path / "pets")
    made = [
        hashes(make_colored_cats_dogs(pets, tmp_path / name, seed=seed), tmp_path / name)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert made[0] == made[1]
    assert made[0] != made[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "pets"], "something was left behind"


def test_what_is_there_is_read_and_never_overwritten(tmp_path):
    pets = write_pets(tmp_path / "pets")
    first = make_colored_cats_dogs(pets, tmp_path / "a")
    assert make_colored_cats_dogs(pets, tmp_path / "a") == first
    with pytest.raises(DataError, match=r"sigma 50\.0.*wanted .*sigma 10"):
        make_colored_cats_dogs(pets, tmp_path / "a", sigma=10)


def test_it_is_the_data_set_ccd(folder):
    dataset, manifest = open_dataset("ccd", folder)
    (fold,) = dataset.folds(manifest)
    assert (fold.pool.sum(), fold.test_val.sum(), fold.test.sum()) == (160, 40, 200)
    for words in manifest.environment_words:
        assert not {"cat", "dog", "red", "green"} & set(words.split())


def test_copies_of_a_photo_are_used_once(tmp_path):
    pets = write_pets(tmp_path / "pets")
    for kind in ("images", "masks"):
        (pets / kind / "cat" / "copy.png").write_bytes((pets / kind / "cat" / "cat_003.png").read_bytes())
    with pytest.warns(BayescalWarning, match="1 photos are copies of another one"):
        manifest = make_colored_cats_dogs(pets, tmp_path / "a", sigma=0)
    assert len(manifest) == 24


def test_photos_without_a_mask_are_left_out_and_counted(tmp_path):
    pets = write_pets(tmp_path / "pets")
    (pets / "masks" / "dog" / "dog_001.png").unlink()
    with pytest.warns(BayescalWarning, match=r"1 photos have no mask.*dog_001"):
        assert len(find_photos(pets)) == 23


def test_oxford_pets_are_read_as_downloaded(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations" / "trimaps").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(12):
        for breed in ("Abyssinian", "great_pyrenees"):
            pixels = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"{breed}_{number}.jpg")
            trimap = np.full((6, 8), 2, dtype=np.uint8)
            trimap[2:4, 2:6], trimap[2:4, 6] = 1, 3
            Image.fromarray(trimap).save(tmp_path / "annotations" / "trimaps" / f"{breed}_{number}.png")
    photos = find_photos(tmp_path)
    assert {photo.image.name.split("_")[0]: photo.animal for photo in photos} == {"Abyssinian": "cat", "great": "dog"}
    _, mask = read_animal(photos[0])
    assert mask.sum() == 10
    assert mask[2:4, 2:7].all()
    assert len(make_colored_cats_dogs(tmp_path, tmp_path / "made")) == 24


def test_folders_that_hold_no_pets_are_answered_with_the_layout_and_the_page(tmp_path):
    for prepare in (
        lambda: None,
        lambda: (tmp_path / "images").mkdir(),
        lambda: (tmp_path / "masks").mkdir(),
        lambda: [(tmp_path / "images" / animal).mkdir() for animal in ("cat", "dog")],
    ):
        prepare()
        with pytest.raises(DataError, match=r"(?s)pets/\n.*masks/.*https://www\.robots\.ox\.ac\.uk"):
            make_colored_cats_dogs(tmp_path, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_masks_of_another_size_and_too_few_photos_are_refused(tmp_path):
    few = write_pets(tmp_path / "few", n=9)
    with pytest.raises(DataError, match="9 photos of a cat: expected at least 10"):
        make_colored_cats_dogs(few, tmp_path / "a")
    pets = write_pets(tmp_path / "pets")
    Image.new("L", (3, 3), 255).save(pets / "masks" / "cat" / "cat_000.png")
    with pytest.raises(DataError, match=r"cat_000\.png: is 3 × 3 pixels, but its photo .* is 9 × 7"):
        make_colored_cats_dogs(pets, tmp_path / "a")
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="sigma is the standard deviation"):
            make_colored_cats_dogs(pets, tmp_path / "a", sigma=wrong)
    assert not (tmp_path / "a").exists()


@pytest.mark.data
def test_real_pets_have_photos_masks_and_copies(shared_data, tmp_path, monkeypatch):
    with pytest.warns(BayescalWarning, match="9 photos are copies"):
        photos = find_photos(shared_data / "pets")
    assert len(photos) == 1991
    monkeypatch.setattr(maker, "find_photos", lambda _: photos[:15] + photos[-15:])
    manifest = make_colored_cats_dogs(shared_data / "pets", tmp_path / "made")
    corners = [np.asarray(read_image(path))[0, 0].tolist() for path in manifest.paths]
    assert sum(tuple(corner) in (RED, GREEN) for corner in corners) > 15
