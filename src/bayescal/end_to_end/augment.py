"""DomainBed's augmentation, with Pillow: crop, mirror, jitter the colours, now and then drop them.

Every function takes its random numbers as an argument, so what becomes of an image is a function of those alone.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance

from bayescal.data.transforms import FILTERS, random_box

CROP = (0.7, 1.0)  # share of the image's area that is kept
JITTER = 0.3  # brightness, contrast and saturation by up to ± 30 %, hue by up to ± 30 % of the circle
GREY = 0.1  # probability that the colours go

Change = Callable[[Image.Image, float], Image.Image]


def augmented(image: Image.Image, size: int, interpolation: str, random: np.random.Generator) -> Image.Image:
    """A random variant of an RGB image, size × size."""
    uniform = iter(random.random, None)
    box = random_box(image.size, uniform, CROP)
    image = image.resize((size, size), FILTERS[interpolation], box=box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for change in random.permutation(len(_CHANGES)):  # the order matters, and torchvision draws it too
        image = _CHANGES[change](image, random.uniform(-JITTER, JITTER))
    if random.random() < GREY:
        image = image.convert("L").convert("RGB")
    return image


def plain(image: Image.Image, size: int, interpolation: str) -> Image.Image:
    """What prediction sees of an image: all of it, squeezed into a square."""
    return image.resize((size, size), FILTERS[interpolation])


def turn_hue(image: Image.Image, by: float) -> Image.Image:
    """Turn the colours around the circle by this share of it."""
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(round(by * 255) % 256)  # wraps around, as hues do
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


_CHANGES: tuple[Change, ...] = (
    lambda image, by: ImageEnhance.Brightness(image).enhance(1 + by),
    lambda image, by: ImageEnhance.Contrast(image).enhance(1 + by),
    lambda image, by: ImageEnhance.Color(image).enhance(1 + by),
    turn_hue,
)
