"""Pixels of every kind as plain 8-bit RGB. In strips: a conversion needs no second copy of a large picture."""

from collections.abc import Iterator

import numpy as np
from PIL import Image

from bayescal.data.sources import ImageError

_WHITE = (255, 255, 255, 255)
_STRIP = 1 << 22  # pixels that are converted at a time


def to_rgb(image: Image.Image, name: str, ours: bool = False) -> Image.Image:
    """A new image; or, if it is `ours` and RGB already, the same one."""
    if image.mode.startswith("I") or image.mode == "F":
        image, ours = _from_deep(image, name), True
    try:
        if image.has_transparency_data:
            rgb = _on_white(image)
        else:
            rgb = image if ours and image.mode == "RGB" else image.convert("RGB")
    except (ValueError, OSError, KeyError) as error:
        raise ImageError(f"{name}: colours of kind {image.mode} cannot be turned into RGB; save it as RGB.") from error
    rgb.info.clear()  # the orientation has been applied: nobody may apply it again
    return rgb


def _on_white(image: Image.Image) -> Image.Image:
    rgb = Image.new("RGB", image.size)
    for top, bottom in _strips(*image.size):
        strip = image.crop((0, top, image.width, bottom)).convert("RGBA")
        rgb.paste(Image.alpha_composite(Image.new("RGBA", strip.size, _WHITE), strip).convert("RGB"), (0, top))
    return rgb


def _strips(width: int, height: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _STRIP // width)
    return ((top, min(top + rows, height)) for top in range(0, height, rows))


def _from_deep(image: Image.Image, name: str) -> Image.Image:
    """A Pillow image with more than 8 bits: uint16, or floats from 0 to 1."""
    if image.mode != "I":
        pixels = np.asarray(image)
        return from_array(pixels.astype(np.uint16) if image.mode.startswith("I;") else pixels, name)
    # Pillow's 32-bit integers hold what was a 16-bit file; a wider range has no agreed black and white
    low, high = map(int, image.getextrema())  # pyright: ignore[reportArgumentType]
    if low < 0 or high > 65535:
        raise ImageError(
            f"{name}: 32-bit values from {low} to {high}; expected 0 to 65535. Save it with 8 or 16 bits per pixel."
        )
    return from_array(np.asarray(image).astype(np.uint16), name)


def check_array(array: np.ndarray, name: str) -> np.ndarray:
    """(height, width) or (height, width, 3 or 4); a single channel loses its axis."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in (3, 4)):
        colours_first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = " Colours must come last: use array.transpose(1, 2, 0)." if colours_first else ""
        raise ImageError(f"{name}: expected (height, width) or (height, width, 1, 3 or 4); found {array.shape}.{hint}")
    return array


def from_array(array: np.ndarray, name: str) -> Image.Image:
    """uint8, uint16, bool, or floats from 0 to 1."""
    if array.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(array))
    _check_range(array, name)
    bytes_ = np.empty(array.shape, dtype=np.uint8)
    for top, bottom in _strips(array.shape[1], array.shape[0]):
        bytes_[top:bottom] = _to_uint8(array[top:bottom])
    return Image.fromarray(bytes_)


def _check_range(array: np.ndarray, name: str) -> None:
    kind = array.dtype
    if kind.kind == "f":
        low, high = float(array.min()), float(array.max())  # NaN comes out as NaN and fails the comparison
        if not (low >= 0 and high <= 1):
            raise ImageError(
                f"{name}: floating-point pixels must lie between 0 and 1, without NaN; "
                f"found {low:g} to {high:g}. Divide by the largest possible value, or use uint8."
            )
    elif kind not in (np.bool_, np.uint16):
        raise ImageError(f"{name}: pixels of type {kind}; use uint8, uint16, bool, or floats from 0 to 1.")


def _to_uint8(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "f":
        return np.rint(array * 255.0).astype(np.uint8)
    # 65535 / 255 = 257; rounded, so that black stays black and white becomes white
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
