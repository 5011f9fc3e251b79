"""From an image to the pixels an image tower expects. Pillow and numpy only; every function is pure.

    picture ─► cropped and resized, (size, size, 3) of 8 bits ─► normalised, float32

Colours stay last because that is how Pillow stores them and what image towers like best ("channels last"). Bytes travel
four times as fast as floats, so a GPU is given bytes and normalises them itself.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from bayescal.data.preprocess import Preprocess

SCALE = (0.08, 1.0)  # share of the image's area that a random crop covers
RATIO = (3 / 4, 4 / 3)  # width / height of a random crop
_TRIES = 10
_LONGEST = 32  # times the width: longer images are cropped before they are resized

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class Transform:
    """What is made of a picture before the image tower sees it: the test transform, or numbered augmented views."""

    how: Preprocess
    augmented: bool = False

    @property
    def enough(self) -> int:
        """Pixels of an image's shorter side beyond which a very large one may be made smaller before it comes here.

        A crop may keep as little as a quarter of that side.
        """
        return (8 if self.augmented else 4) * self.how.size

    def __call__(self, image: Image.Image, content: str, view: int) -> np.ndarray:
        """(size, size, 3) uint8. `content` is the picture's hash, from which the randomness of a view comes."""
        return np.asarray(augmented(image, self.how, content, view) if self.augmented else cropped(image, self.how))


def plain_pixels(image: Image.Image, how: Preprocess) -> np.ndarray:
    """The deterministic transform, equal to open_clip's own preprocessing bit for bit: (size, size, 3)."""
    return normalised(np.asarray(cropped(image, how)), how)


def cropped(image: Image.Image, how: Preprocess) -> Image.Image:
    """Resized, and the middle of it.

    One exception: of images longer than 32 times their width, only the part that the crop keeps is resized.
    open_clip would first grow a strip of 10 × 1,000,000 pixels to gigabytes.
    """
    resample, side = FILTERS[how.interpolation], how.size
    if how.resize_mode == "squash":
        return image.resize((side, side), resample)
    width, height = image.size
    long = int(side * max(width, height) / min(width, height))
    new_width, new_height = (side, long) if width <= height else (long, side)
    # round() as torchvision's centre crop does: to the even neighbour when the margin is odd
    left, top = round((new_width - side) / 2), round((new_height - side) / 2)
    if long > _LONGEST * side:
        kept = (
            left * width / new_width,
            top * height / new_height,
            (left + side) * width / new_width,
            (top + side) * height / new_height,
        )
        return image.resize((side, side), resample, box=kept)
    resized = image.resize((new_width, new_height), resample)
    return resized.crop((left, top, left + side, top + side))


def augmented(image: Image.Image, how: Preprocess, content: str, view: int) -> Image.Image:
    """View number `view` of an image: random crop, resized, perhaps mirrored.

    The randomness is a function of the image's content hash and the number of the view alone, so a view is
    the same in every run, on every machine and in any order.
    """
    uniform = _uniforms(content, view)
    crop = image.crop(random_box(image.size, uniform)).resize((how.size, how.size), Image.Resampling.BICUBIC)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if next(uniform) < 0.5 else crop


def random_box(size: tuple[int, int], uniform: Iterator[float], scale: tuple[float, float] = SCALE) -> Box:
    """Draw the box of a random-resized crop as torchvision does: area first, then the log of the ratio."""
    width, height = size
    for _ in range(_TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * next(uniform))
        low, high = math.log(RATIO[0]), math.log(RATIO[1])
        ratio = math.exp(low + (high - low) * next(uniform))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(next(uniform) * (height - h + 1))
            left = int(next(uniform) * (width - w + 1))
            return left, top, left + w, top + h
    return _largest_box(width, height)


def _largest_box(width: int, height: int) -> Box:
    """The largest central box of an allowed shape, for images so long that random boxes do not fit."""
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def normalised(pixels: np.ndarray, how: Preprocess) -> np.ndarray:
    """Divided by 255, minus the mean, divided by the deviation: (…, W, 3) uint8 → float32.

    Row by row, because numpy is slow with 3 numbers at a time.
    """
    width = pixels.shape[-2]
    rows = pixels.reshape(-1, 3 * width).astype(np.float32)
    rows /= np.float32(255)
    rows -= np.tile(np.asarray(how.mean, dtype=np.float32), width)
    rows /= np.tile(np.asarray(how.std, dtype=np.float32), width)
    return rows.reshape(pixels.shape)


def _uniforms(content: str, view: int) -> Iterator[float]:
    """Endless numbers in [0, 1), four from each SHA-256 of (content, view, counter)."""
    counter = 0
    while True:
        block = hashlib.sha256(f"{content} view {view} block {counter}".encode()).digest()
        yield from ((bits >> 11) * 2.0**-53 for bits in struct.unpack(">4Q", block))
        counter += 1
