"""From an image to the pixels an image tower expects. Pillow and numpy only; every function is pure.

Pixels are (H, W, 3) float32, normalised. Colours stay last because that is how Pillow stores them and what
image towers like best ("channels last").
"""

import hashlib
import math
import struct
from collections.abc import Iterator

import numpy as np
from PIL import Image

from bayescal.backbones.base import Preprocess

SCALE = (0.08, 1.0)  # share of the image's area that a random crop covers
RATIO = (3 / 4, 4 / 3)  # width / height of a random crop
_TRIES = 10
_LONGEST = 32  # times the width: longer images are cropped before they are resized

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

Box = tuple[int, int, int, int]  # left, top, right, bottom


def plain_pixels(image: Image.Image, how: Preprocess) -> np.ndarray:
    """The deterministic transform, equal to open_clip's own preprocessing bit for bit: (size, size, 3).

    One exception: of images longer than 32 times their width, only the part that the crop keeps is resized.
    open_clip would first grow a strip of 10 × 1,000,000 pixels to gigabytes.
    """
    resample, side = FILTERS[how.interpolation], how.size
    if how.resize_mode == "squash":
        return _normalised(image.resize((side, side), resample), how)
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
        return _normalised(image.resize((side, side), resample, box=kept), how)
    resized = image.resize((new_width, new_height), resample)
    return _normalised(resized.crop((left, top, left + side, top + side)), how)


def view_pixels(image: Image.Image, how: Preprocess, content: str, view: int) -> np.ndarray:
    """Augmented view number `view` of an image: random crop, resized, perhaps mirrored: (size, size, 3).

    The randomness is a function of the image's content hash and the number of the view alone, so a view is
    the same in every run, on every machine and in any order.
    """
    uniform = _uniforms(content, view)
    crop = image.crop(random_box(image.size, uniform)).resize((how.size, how.size), Image.Resampling.BICUBIC)
    if next(uniform) < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _normalised(crop, how)


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


def _normalised(image: Image.Image, how: Preprocess) -> np.ndarray:
    """Divided by 255, minus the mean, divided by the deviation; row by row, because numpy is slow with 3 at a time."""
    pixels = np.asarray(image).reshape(image.height, -1).astype(np.float32)
    pixels /= np.float32(255)
    pixels -= np.tile(np.asarray(how.mean, dtype=np.float32), image.width)
    pixels /= np.tile(np.asarray(how.std, dtype=np.float32), image.width)
    return pixels.reshape(image.height, image.width, 3)


def _uniforms(content: str, view: int) -> Iterator[float]:
    """Endless numbers in [0, 1), four from each SHA-256 of (content, view, counter)."""
    counter = 0
    while True:
        block = hashlib.sha256(f"{content} view {view} block {counter}".encode()).digest()
        yield from ((bits >> 11) * 2.0**-53 for bits in struct.unpack(">4Q", block))
        counter += 1
