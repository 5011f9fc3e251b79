"""Reading images of every kind people have into plain 8-bit RGB, or saying in words why it cannot be done.

Images are decoded by several threads at once, so nothing here touches Pillow's or Python's global state: no
`LOAD_TRUNCATED_IMAGES`, no `MAX_IMAGE_PIXELS`, no `warnings.catch_warnings`.
"""

import hashlib
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from bayescal.data.image_memory import NoRoom, room
from bayescal.data.pixels import check_array, from_array, to_rgb
from bayescal.data.sources import ImageError, ImageSource, name_of_source, open_source

MAX_PIXELS = 100_000_000  # 400 MB once decoded; anything larger is a map, a scan or an attack
MAX_REDUCED = 1_000_000_000  # of a picture that is made smaller while it is decoded
REDUCED_ABOVE = 32_000_000  # pixels: smaller pictures are decoded exactly, whatever is done with them

# Formats recognised by their first bytes. Not all of Pillow's: some have no signature and would take any file
# for an image, and one (EPS) runs an outside program. HEIF comes with pillow-heif.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "HEIF", "JPEG2000", "PPM")
_HEVC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis")  # brands of files that Pillow alone cannot decode
_FOREIGN = {
    b"\xff\x0a": "a JPEG XL image",
    b"\x00\x00\x00\x0cJXL ": "a JPEG XL image",
    b"8BPS": "a Photoshop file",
    b"%PDF": "a PDF file",
    b"<svg": "an SVG drawing",
    b"FUJIFILMCCD-RAW": "a camera's raw file",
}

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
_REGISTERING = threading.Lock()


def read_image(source: ImageSource) -> Image.Image:
    """Turn a path, a URL, bytes, a Pillow image or an array into an upright 8-bit RGB image.

    Arrays are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, uint16, bool, or floats from 0 to 1.
    Transparent parts become white, 16 bits are scaled to 8, animations give their first frame, and the
    orientation that a camera wrote into the file is applied. Raises `ImageError`.
    """
    with decoded(source) as image:
        return image


@contextmanager
def decoded(
    source: ImageSource,
    at_least: int | None = None,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
    content: str = "",
) -> Iterator[Image.Image]:
    """As `read_image`, with room in memory for the image until the block ends (`image_memory`).

    `content`: the hash that a file had when it was looked at, if it was; one that has changed since is refused.

    `at_least`: pixels of the shorter side that suffice. A JPEG or JPEG 2000 above 32 million pixels is then halved as
    often as that allows while it is decoded, so that it never takes the memory of all its pixels.
    """
    name = name or name_of_source(source)
    with ExitStack() as stack:
        if isinstance(source, np.ndarray):
            array = check_array(source, name)
            _check_size((array.shape[1], array.shape[0]), name)
            image = to_rgb(from_array(array, name), name, ours=True)
        elif isinstance(source, Image.Image):
            _check_size(source.size, name)
            image = _decode(source, name)
        else:
            try:
                stream = stack.enter_context(open_source(source))
                if content:
                    _check_content(stream, content, name)
                opened = _open_header(stream, name)
                width, height = opened.size
                scale = _reduce(opened, at_least)
                size = -(-width // scale), -(-height // scale)
                _check_size(size, name, max_pixels)
                stack.enter_context(_room(opened, size, scale, name))
                image = _decode(opened, name, ours=True)
            except OSError as error:
                raise ImageError(f"{name}: cannot be opened ({error.strerror or error}).") from error
        yield image


def _check_content(stream: IO[bytes], content: str, name: str) -> None:
    """What is open now is decoded, whatever is put in its place later."""
    if hashlib.file_digest(stream, "sha256").hexdigest() != content:  # pyright: ignore[reportArgumentType]
        raise ImageError(f"{name}: has changed since it was looked at a moment ago.")
    stream.seek(0)


def read_bytes(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The same for the content of a file; `name` is what messages call it."""
    with decoded(data, name=name, max_pixels=max_pixels) as image:
        return image


def content_hash(source: ImageSource) -> str:
    """Give the SHA-256 that tells whether two images are the same, as hexadecimal digits.

    A file is hashed by its bytes, without decoding it, wherever they come from. Pillow images and arrays are hashed by
    the RGB pixels that `read_image` makes of them, so an array and the equal Pillow image have the same hash.
    """
    if isinstance(source, Image.Image | np.ndarray):
        image = read_image(source)
        digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height}\n".encode())
        digest.update(image.tobytes())
        return digest.hexdigest()
    name = name_of_source(source)
    try:
        with open_source(source) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise ImageError(f"{name}: cannot be opened ({error.strerror or error}).") from error


def _open_header(stream: IO[bytes], name: str) -> Image.Image:
    """Recognise a file by its first bytes and read its header, without decoding pixels.

    `Image.open` does the same, but also warns about every image above 89 million pixels; that warning can be
    silenced only for the whole process, so the registered readers are asked directly.
    """
    Image.init()
    prefix = stream.read(64)
    if _is_heic(prefix):
        _register_heif(name)
    for kind in _FORMATS:
        if kind not in Image.OPEN or (kind == "AVIF" and _is_heic(prefix)):  # this Pillow was built without it
            continue
        make, accepts = Image.OPEN[kind]
        verdict = accepts(prefix[:16]) if accepts else False
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
    if foreign := next((words for magic, words in _FOREIGN.items() if prefix.startswith(magic)), None):
        raise ImageError(f"{name}: is {foreign}, which is not read here. Convert it to JPEG or PNG.")
    raise ImageError(f"{name}: is not an image of a known kind ({', '.join(_FORMATS[:6])}, …).")


def _is_heic(prefix: bytes) -> bool:
    """Whether a file of the HEIF family says of itself that it needs the decoder that Pillow does not have."""
    return prefix[4:8] == b"ftyp" and any(prefix[at : at + 4] in _HEVC for at in range(8, len(prefix) - 3, 4))


def _register_heif(name: str) -> None:
    with _REGISTERING:
        if "HEIF" in Image.OPEN:
            return
        try:
            import pillow_heif
        except ImportError as error:
            raise ImageError(
                f"{name}: is a HEIC photo, and reading those needs a package: pip install 'bayescal[heic]'. "
                "Or convert it to JPEG."
            ) from error
        pillow_heif.register_heif_opener()


def _reduce(image: Image.Image, at_least: int | None) -> int:
    """Have a large picture made smaller while it is decoded, as far as its shorter side allows; by how much."""
    width, height = image.size
    if at_least is None or not REDUCED_ABOVE < width * height <= MAX_REDUCED:
        return 1
    halvings = max(0, (min(width, height) // at_least).bit_length() - 1)
    if image.format == "JPEG":
        image.draft(None, (at_least, at_least))
        return getattr(image, "decoderconfig", (1,))[0]
    if image.format == "JPEG2000":
        halvings = min(halvings, _jpeg2000_levels(image))
        image.reduce = halvings  # pyright: ignore[reportAttributeAccessIssue]
        return 1 << halvings
    return 1


def _jpeg2000_levels(image: Image.Image) -> int:
    """How often a JPEG 2000 image can be halved: its decomposition levels, which it names behind its size."""
    stream: IO[bytes] = image.fp  # pyright: ignore[reportAttributeAccessIssue]
    at = stream.tell()
    stream.seek(0)
    head = stream.read(1 << 16)
    stream.seek(at)
    style = head.find(b"\xff\x52", head.find(b"\xff\x4f\xff\x51") + 4)
    return head[style + 9] if 0 < style < len(head) - 9 else 0


@contextmanager
def _room(image: Image.Image, size: tuple[int, int], scale: int, name: str) -> Iterator[None]:
    """Room in memory for decoding an image, or the reason why it is too large here."""
    need = _decoding_bytes(image, size[0] * size[1], scale)
    limit = room.limit()
    if need > limit:
        raise NoRoom(
            f"{name}: decoding it takes {need / 1e6:,.0f} MB of memory, and {limit / 1e6:,.0f} MB are there for "
            "images. Make it smaller first, or free memory."
        )
    with room.hold(need):
        yield


def _decoding_bytes(image: Image.Image, pixels: int, scale: int) -> int:
    """What an image takes at most while it is decoded to so many pixels and converted."""
    need = 4 * pixels  # Pillow keeps RGB in four bytes
    if image.mode.startswith("I") or image.mode == "F" or image.format == "JPEG2000":
        need += 12 * pixels
    elif image.mode != "RGB" or _orientation(image) in _TURNS:
        need += 4 * pixels
    if image.format == "JPEG" and image.info.get("progressive"):  # all its coefficients are kept, whatever the scale
        need += 6 * pixels * scale**2
    return need


def _check_size(size: tuple[int, int], name: str, max_pixels: int = MAX_PIXELS) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ImageError(f"{_too_large(name, max_pixels)} It has {width:,} × {height:,}.")
    if width * height == 0:
        raise ImageError(f"{name}: has no pixels ({width} × {height}).")


def _too_large(name: str, max_pixels: int = MAX_PIXELS) -> str:
    return f"{name}: is too large; at most {max_pixels // 10**6} million pixels are read. Make it smaller first."


def _decode(image: Image.Image, name: str, ours: bool = False) -> Image.Image:
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(_too_large(name)) from error
    except MemoryError:
        raise
    except Exception as error:  # as above: what a damaged file makes a reader raise cannot be listed
        raise ImageError(f"{name}: the image data is damaged or cut short ({_brief(error)}). Copy it again.") from error
    turn = _TURNS.get(_orientation(image))
    rgb = to_rgb(image, name, ours)
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged camera notes on an image that is otherwise fine: keep the image as it is stored
        return 1


def _brief(error: BaseException) -> str:
    """Say in a few words what Pillow complained about, without repeating the file's name."""
    if isinstance(error, UnidentifiedImageError | struct.error):
        return "the file ends too early or is garbled"
    return str(error).split("\n")[0][:120] or type(error).__name__
