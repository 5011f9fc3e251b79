"""The transforms against open_clip and torchvision."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from bayescal.data import transforms
from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import RATIO, SCALE, Transform, _uniforms, plain_pixels, random_box

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIZES = [(128, 128), (160, 160), (127, 129), (641, 37), (37, 641), (131, 400), (1, 1), (3, 90), (2, 1), (500, 333)]


def picture(size: tuple[int, int], seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("side", "resize_mode", "interpolation", "mean", "std"),
    [
        (128, "shortest", "bicubic", MEAN, STD),
        (95, "shortest", "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        (64, "squash", "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        (33, "squash", "bilinear", MEAN, STD),
    ],
)
def test_plain_pixels_equal_open_clip(size, side, resize_mode, interpolation, mean, std):
    from open_clip.transform import PreprocessCfg, image_transform_v2

    cfg = PreprocessCfg(size=side, mean=mean, std=std, interpolation=interpolation, resize_mode=resize_mode)
    expected = image_transform_v2(cfg, is_train=False)(picture(size))
    found = plain_pixels(picture(size), Preprocess(side, mean, std, interpolation, resize_mode))
    assert found.dtype == np.float32
    assert torch.equal(torch.from_numpy(found).permute(2, 0, 1), expected)


def test_very_long_images_take_no_memory_and_keep_their_middle():
    how = Preprocess(64, (0.0,) * 3, (1.0,) * 3, "bicubic", "shortest")
    strip = np.zeros((200_000, 2, 3), dtype=np.uint8)
    strip[99_998:100_002] = 255
    found = plain_pixels(Image.fromarray(strip), how)
    assert found.shape == (64, 64, 3)
    assert found[28:36].mean() > 0.9


def test_the_way_for_long_images_agrees_with_the_usual_one(monkeypatch):
    how = Preprocess(64, (0.0,) * 3, (1.0,) * 3, "bicubic", "shortest")
    wave = 128 + 100 * np.sin(np.arange(3 * 96).reshape(96, 3) / 20)
    image = Image.fromarray(np.repeat(wave[..., None], 3, axis=2).astype(np.uint8))
    usual = plain_pixels(image, how)
    monkeypatch.setattr(transforms, "_LONGEST", 1)
    assert np.abs(plain_pixels(image, how) - usual).max() <= 2 / 255  # passes in another order, each rounded


def test_views_are_a_function_of_content_and_number():
    how = Preprocess(32, MEAN, STD, "bicubic", "shortest")
    image = picture((80, 60))
    views = [Transform(how, augmented=True)(image, "ab" * 32, v) for v in range(6)]
    again = [Transform(how, augmented=True)(image, "ab" * 32, v) for v in reversed(range(6))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(views, again, strict=True))
    assert len({view.tobytes() for view in views}) == 6
    assert not np.array_equal(views[0], Transform(how, augmented=True)(image, "cd" * 32, 0))


def test_views_never_change():
    """Cached features of other machines rely on these numbers."""
    assert round(next(_uniforms("ab" * 32, 7)), 6) == 0.969676
    assert random_box((160, 120), _uniforms("ab" * 32, 7)) == (19, 2, 93, 68)


def test_boxes_follow_torchvision(monkeypatch):
    """Fed with the same uniform numbers, torchvision draws the same boxes (it rounds them in float32)."""
    from torchvision.transforms import RandomResizedCrop

    feed = iter(())
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self, a=0.0, b=1.0: self.fill_(a + (b - a) * next(feed)))
    monkeypatch.setattr(torch, "randint", lambda low, high, size: torch.tensor([low + int(next(feed) * (high - low))]))
    sizes = [(160, 160), (97, 61), (40, 300), (1000, 20), (20, 1000), (1, 1), (5, 3)]
    for size in sizes:
        image = picture(size)
        for seed in range(60):
            feed = _uniforms(f"seed {seed}", 0)
            top, left, height, width = RandomResizedCrop.get_params(image, list(SCALE), list(RATIO))
            box = random_box(size, _uniforms(f"seed {seed}", 0))
            expected = (left, top, left + width, top + height)
            assert max(abs(a - b) for a, b in zip(box, expected, strict=True)) <= 1


def test_boxes_have_the_right_distribution():
    size = (400, 300)
    boxes = np.array([random_box(size, _uniforms(f"{i}", 0)) for i in range(4000)], dtype=float)
    left, top, right, bottom = boxes.T
    assert (boxes >= 0).all()
    assert (right <= 400).all()
    assert (bottom <= 300).all()
    ratio = np.log((right - left) / (bottom - top))
    assert ratio.min() > math.log(RATIO[0]) - 0.05
    assert ratio.max() < math.log(RATIO[1]) + 0.05
    area = (right - left) * (bottom - top) / (400 * 300)
    assert 0.075 < area.min() < 0.1
    # large boxes of the wrong shape do not fit and are drawn again, so the mean is a little below (0.08 + 1) / 2
    assert 0.42 < area.mean() < 0.54
    centred = left / np.maximum(400 - (right - left), 1)
    assert abs(centred.mean() - 0.5) < 0.03


def test_half_of_the_views_are_mirrored():
    how = Preprocess(16, (0.0,) * 3, (1.0,) * 3, "bicubic", "shortest")
    ramp = Image.fromarray(np.tile(np.arange(0, 250, 5, dtype=np.uint8)[None, :, None], (50, 1, 3)))
    mirrored = sum(
        float(v[:, 0].mean()) > float(v[:, -1].mean())
        for v in (Transform(how, augmented=True)(ramp, "00" * 32, i) for i in range(400))
    )
    assert 160 < mirrored < 240
