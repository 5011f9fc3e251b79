"""Reading images of every kind people have into plain 8-bit RGB, or saying in words why it cannot be done.

Images are decoded by several threads at once, so nothing here touches Pillow's or Python's global state: no
`LOAD_TRUNCATED_IMAGES`, no `MAX_IMAGE_PIXELS`, no `warnings.catch_warnings`.
"""

import hashlib
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from bayescal.errors import DataError

ImageSource = str | os.PathLike[str] | Image.Image | np.ndarray

MAX_PIXELS = 100_000_000  # 300 MB once decoded; anything larger is a map, a scan or an attack

# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".avif",
    ".jp2", ".ppm", ".pgm", ".pbm", ".pnm",
})
# Pictures that Pillow alone cannot read, listed so that a folder of phone photos is not silently empty.
FOREIGN_SUFFIXES = frozenset({
    ".heic", ".heif", ".jxl", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".dcm", ".pdf",
})
# fmt: on

# Formats recognised by their first bytes. Not all of Pillow's: some have no signature and would take any file
# for an image, and one (EPS) runs an outside program.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")
_IGNORED_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "__pycache__"})

_WHITE = (255, 255, 255, 255)
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(DataError):
    """An image that cannot be used; the message names it and says why."""


def read_image(source: ImageSource) -> Image.Image:
    """Turn a path, a Pillow image or an array into an upright 8-bit RGB image.

    Arrays are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, uint16, bool, or floats from 0 to 1.
    Transparent parts become white, 16 bits are scaled to 8, animations give their first frame, and the
    orientation that a camera wrote into the file is applied. Raises `ImageError`.
    """
    if isinstance(source, np.ndarray):
        return _to_rgb(_from_array(source), "the array")
    if isinstance(source, Image.Image):
        name = f"the image {getattr(source, 'filename', '') or 'object'}"
        _check_size(source.size, name)
        return _decode(source, name)
    path = _as_path(source)
    try:
        with open(path, "rb") as stream:
            image = _open_header(stream, path)
            _check_size(image.size, path)
            return _decode(image, path)
    except OSError as error:
        raise ImageError(f"{path}: cannot be opened ({error.strerror or error}).") from error


def read_bytes(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The same for the content of a file; `name` is what messages call it."""
    if not data:
        raise ImageError(f"{name}: is empty (0 bytes).")
    image = _open_header(io.BytesIO(data), name)
    _check_size(image.size, name, max_pixels)
    return _decode(image, name)


def content_hash(source: ImageSource) -> str:
    """Give the SHA-256 that tells whether two images are the same, as hexadecimal digits.

    A file is hashed by its bytes, without decoding it. Pillow images and arrays are hashed by the RGB pixels
    that `read_image` makes of them, so an array and the equal Pillow image have the same hash.
    """
    if isinstance(source, Image.Image | np.ndarray):
        image = read_image(source)
        digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height}\n".encode())
        digest.update(image.tobytes())
        return digest.hexdigest()
    path = _as_path(source)
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ImageError(f"{path}: cannot be opened ({error.strerror or error}).") from error


def find_images(folder: str | os.PathLike[str]) -> list[Path]:
    """List the images in a folder and all folders below it, sorted, without hidden and system files."""
    return [path for path in walk_files(Path(folder)) if path.suffix.lower() in IMAGE_SUFFIXES]


def walk_files(folder: Path, _above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Go through all visible files below a folder in sorted order, following links but never in a circle."""
    try:
        status = folder.stat()
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: cannot be opened ({error.strerror or error}).") from error
    identity = (status.st_dev, status.st_ino)
    if identity in _above:  # a link that leads back to a folder we are inside of
        return
    for entry in entries:
        if not is_visible(entry.name):
            continue
        if entry.is_dir():
            yield from walk_files(folder / entry.name, _above | {identity})
        else:
            yield folder / entry.name


def is_visible(name: str) -> bool:
    """Tell whether a file or folder is the user's own: not hidden, not made by an operating system."""
    return not name.startswith(".") and name not in _IGNORED_FOLDERS


def _as_path(source: str | os.PathLike[str]) -> str:
    if not isinstance(source, str | os.PathLike):
        raise ImageError(f"An image must be a path, a Pillow image or a numpy array; found {type(source).__name__}.")
    path = os.fspath(source)
    if not os.path.exists(path):
        raise ImageError(f"{path}: there is no such file.")
    if not os.path.isfile(path):  # a named pipe would block for ever
        raise ImageError(f"{path}: is not a file.")
    if os.path.getsize(path) == 0:
        raise ImageError(f"{path}: the file is empty (0 bytes). Copy it again from where it came from.")
    return path


def _open_header(stream: IO[bytes], name: str) -> Image.Image:
    """Recognise a file by its first bytes and read its header, without decoding pixels.

    `Image.open` does the same, but also warns about every image above 89 million pixels; that warning can be
    silenced only for the whole process, so the registered readers are asked directly.
    """
    Image.init()
    prefix = stream.read(16)
    for kind in _FORMATS:
        if kind not in Image.OPEN:  # this Pillow was built without it
            continue
        make, accepts = Image.OPEN[kind]
        verdict = accepts(prefix) if accepts else False
        if not verdict or isinstance(verdict, str):  # text: the reason why this Pillow cannot read it
            continue
        stream.seek(0)
        try:
            return make(stream, name)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageError(_too_large(name)) from error
        except MemoryError:  # says nothing about the image
            raise
        except Exception as error:  # damaged headers make the readers fail in every way there is
            raise ImageError(
                f"{name}: begins like a {kind} image but its header is damaged ({_brief(error)})."
            ) from error
    raise ImageError(f"{name}: is not an image of a known kind ({', '.join(_FORMATS[:6])}, …).")


def _check_size(size: tuple[int, int], name: str, max_pixels: int = MAX_PIXELS) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ImageError(f"{_too_large(name, max_pixels)} It has {width:,} × {height:,}.")
    if width * height == 0:
        raise ImageError(f"{name}: has no pixels ({width} × {height}).")


def _too_large(name: str, max_pixels: int = MAX_PIXELS) -> str:
    return f"{name}: is too large; at most {max_pixels // 10**6} million pixels are read. Make it smaller first."


def _decode(image: Image.Image, name: str) -> Image.Image:
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(_too_large(name)) from error
    except MemoryError:
        raise
    except Exception as error:  # as above: what a damaged file makes a reader raise cannot be listed
        raise ImageError(f"{name}: the image data is damaged or cut short ({_brief(error)}). Copy it again.") from error
    turn = _TURNS.get(_orientation(image))
    rgb = _to_rgb(image, name)
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged camera notes on an image that is otherwise fine: keep the image as it is stored
        return 1


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _from_array(_deep_pixels(image, name), name)
    try:
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
        rgb = image.convert("RGB")  # always a new image: a Pillow image given to us belongs to the caller
    except (ValueError, OSError, KeyError) as error:
        raise ImageError(f"{name}: colours of kind {image.mode} cannot be turned into RGB; save it as RGB.") from error
    rgb.info.clear()  # the orientation has been applied: nobody may apply it again
    return rgb


def _deep_pixels(image: Image.Image, name: str) -> np.ndarray:
    """Take the pixels of a Pillow image with more than 8 bits as uint16, or as floats from 0 to 1."""
    pixels = np.asarray(image)
    if image.mode != "I":
        return pixels.astype(np.uint16) if image.mode.startswith("I;") else pixels
    # Pillow's 32-bit integers hold what was a 16-bit file; a wider range has no agreed black and white
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ImageError(
            f"{name}: 32-bit values from {pixels.min()} to {pixels.max()}; expected 0 to 65535. "
            "Save it with 8 or 16 bits per pixel."
        )
    return pixels.astype(np.uint16)


def _from_array(array: np.ndarray, name: str = "the array") -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in (3, 4)):
        colours_first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = " Colours must come last: use array.transpose(1, 2, 0)." if colours_first else ""
        raise ImageError(f"{name}: expected (height, width) or (height, width, 1, 3 or 4); found {array.shape}.{hint}")
    _check_size((array.shape[1], array.shape[0]), name)
    return Image.fromarray(np.ascontiguousarray(_to_uint8(array, name)))


def _to_uint8(array: np.ndarray, name: str) -> np.ndarray:
    kind = array.dtype
    if kind == np.uint8:
        return array
    if kind == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if kind == np.uint16:  # 65535 / 255 = 257; rounded, so that black stays black and white becomes white
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if kind.kind == "f":
        low, high = float(array.min()), float(array.max())  # NaN comes out as NaN and fails the comparison
        if not (low >= 0 and high <= 1):
            raise ImageError(
                f"{name}: floating-point pixels must lie between 0 and 1, without NaN; "
                f"found {low:g} to {high:g}. Divide by the largest possible value, or use uint8."
            )
        return np.rint(array * 255.0).astype(np.uint8)
    raise ImageError(f"{name}: pixels of type {kind}; use uint8, uint16, bool, or floats from 0 to 1.")


def _brief(error: BaseException) -> str:
    """Say in a few words what Pillow complained about, without repeating the file's name."""
    if isinstance(error, UnidentifiedImageError | struct.error):
        return "the file ends too early or is garbled"
    return str(error).split("\n")[0][:120] or type(error).__name__
