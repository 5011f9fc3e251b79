"""Batches of pixels: balanced, repeatable, and robust against images that cannot be read."""

import colorsys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from whole_models import CPU, HOW, SIZE

from bayescal.data.transforms import plain_pixels
from bayescal.end_to_end import data as data_module
from bayescal.end_to_end.augment import augmented, plain, turn_hue
from bayescal.end_to_end.data import PlainImages, TrainImages, load, to_inputs
from bayescal.errors import DataError
from pictures import make_pictures, save_pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def paths(folder):
    return tuple(map(str, save_pictures(make_pictures(3).images, folder)))  # 18


def train_images(paths, environments=None, **options) -> TrainImages:
    environments = np.array([0] * 12 + [1] * 4 + [2] * 2) if environments is None else environments
    return TrainImages(paths, environments, HOW, **{"batch_size": 6, "seed": 1, **options})


def items(dataset, steps, workers=0):
    return list(load(dataset, steps, workers, CPU))


def test_every_environment_gives_its_share_and_shows_all_images_before_one_comes_again(paths):
    data = train_images(paths)
    assert (data.share, data.steps_per_epoch) == (2, 3)
    seen = Counter()
    for loaded in items(data, range(6)):
        assert loaded.pixels.shape == (6, SIZE, SIZE, 3)
        assert loaded.pixels.dtype == torch.uint8
        assert torch.from_numpy(data.environments)[loaded.rows].bincount().tolist() == [2, 2, 2]
        seen.update(loaded.rows.tolist())
    # six steps are 12 images of each environment: once, three times and six times through
    assert [seen[row] for row in range(18)] == [1] * 12 + [3] * 4 + [6] * 2


def test_a_batch_is_a_function_of_seed_and_step_whoever_makes_it(paths):
    data = train_images(paths)
    alone, helped = items(data, range(4)), items(data, range(4), workers=2)
    later = items(data, range(2, 4))
    for a, b in [*zip(alone, helped, strict=True), *zip(alone[2:], later, strict=True)]:
        assert torch.equal(a.pixels, b.pixels)
        assert torch.equal(a.rows, b.rows)
    other = items(train_images(paths, seed=2), range(1))[0]
    assert not torch.equal(alone[0].pixels, other.pixels)


def test_a_container_with_little_shared_memory_gets_fewer_workers(monkeypatch):
    monkeypatch.setattr(data_module.shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    monkeypatch.setattr(data_module.os.path, "isdir", lambda path: True)
    assert data_module._room(96 * 96 * 96 * 3) == 4  # 2.7 MB each, three ahead, half of 64 MB
    assert data_module._room(96 * 448 * 448 * 3) == 0
    assert data_module._room(0) == data_module.MOST_WORKERS


def test_the_same_image_looks_different_every_time_unless_told_otherwise(paths):
    one = paths[:1], np.array([0])
    first, second = items(train_images(*one, batch_size=1), range(2))
    assert not torch.equal(first.pixels, second.pixels)
    first, second = items(train_images(*one, batch_size=1, augment=False), range(2))
    assert torch.equal(first.pixels, second.pixels)
    assert torch.equal(first.pixels, items(PlainImages(paths[:1], HOW), range(1))[0].pixels)


def test_unreadable_images_are_replaced_within_their_environment_and_named(paths, folder):
    bad = folder / "bad.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    environments = np.array([0, 0, 1, 1])
    data = train_images((paths[0], str(bad), *paths[2:4]), environments, batch_size=4)
    for loaded in items(data, range(3), workers=1):
        assert loaded.rows[:2].tolist() == [0, 0]
        assert {path for path, _ in loaded.problems} == {str(bad)}
        assert sorted(loaded.rows[2:].tolist()) == [2, 3]
    with pytest.raises(DataError, match=r"no image of the environment can be read.*bad\.jpg"):
        train_images((paths[0], str(bad)), np.array([0, 1]))[0]
    chunks = items(PlainImages((paths[0], str(bad), paths[1]), HOW, batch_size=2), range(2))
    assert [loaded.rows.tolist() for loaded in chunks] == [[0], [2]]
    nothing = items(PlainImages((str(bad),), HOW), range(1))[0]
    assert nothing.pixels.shape == (0, SIZE, SIZE, 3)


def test_inputs_equal_the_transform_that_prediction_caches_features_of(paths):
    image = Image.open(paths[0]).resize((50, 40))
    pixels = torch.from_numpy(np.asarray(plain(image, SIZE, "bilinear")).copy())[None]
    expected = torch.from_numpy(plain_pixels(image, HOW)).permute(2, 0, 1)
    assert torch.allclose(to_inputs(pixels, HOW, CPU)[0], expected, atol=1e-6)


def test_augmentation_crops_mirrors_and_colours_as_domainbed_does():
    ramp = np.zeros((60, 90, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 90)[None].astype(np.uint8)  # red grows to the right
    image = Image.fromarray(ramp)
    variants = [np.asarray(augmented(image, 32, "bicubic", np.random.default_rng(i)), int) for i in range(300)]
    brightest = [v.sum(-1) for v in variants]
    mirrored = np.mean([b[:, :8].mean() > b[:, -8:].mean() for b in brightest])
    assert 0.4 < mirrored < 0.6
    grey = np.mean([bool((v.max(-1) == v.min(-1)).all()) for v in variants])
    assert 0.05 < grey < 0.2
    assert all(v.shape == (32, 32, 3) for v in variants)
    assert len({v.tobytes() for v in variants}) == 300


@pytest.mark.parametrize("by", [-0.3, 0.1, 0.3])
def test_hue_turns_by_the_share_of_the_circle(by):
    image = Image.new("RGB", (2, 2), (200, 40, 40))
    red, green, blue = np.asarray(turn_hue(image, by))[0, 0] / 255
    hue = colorsys.rgb_to_hsv(red, green, blue)[0]
    assert (hue - by) % 1 == pytest.approx(0, abs=0.02) or (hue - by) % 1 == pytest.approx(1, abs=0.02)
