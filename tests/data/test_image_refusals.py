"""Files that cannot be read, or must not be, are refused by name and reason, and leave no trace."""

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile

from bayescal.data.images import MAX_PIXELS, content_hash, read_image
from bayescal.data.sources import ImageError
from bayescal.errors import DataError


@pytest.fixture
def picture():
    """A 12 × 8 image that is different at every pixel, under every rotation and in every channel."""
    y, x = np.mgrid[:8, :12]
    return np.stack([x * 20, y * 30, (x + y) * 12], axis=-1).astype(np.uint8)


def pixels(source):
    image = read_image(source)
    assert image.mode == "RGB"
    return np.asarray(image)


def png_header(width, height, data=b""):
    """A PNG that claims any size; `data` are its compressed rows, 1 bit a pixel."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# ---------------------------------------------------------------- unreadable files


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".webp", ".gif"])
def test_truncated_files_are_refused_by_name(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / f"cut{suffix}"
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    for share in (0.9, 0.5, 0.1, 0.01):
        path.write_bytes(whole[: max(1, int(len(whole) * share))])
        with pytest.raises(ImageError, match=f"cut{suffix}"):
            read_image(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\x00", "not an image"),
        (b"<html>Not found</html>", "not an image"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "not an image",
        ),  # would start an outside program
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (b"\xff\xd8\xff\xe0", "damaged"),
        (b"GIF89a", "damaged"),
    ],
)
def test_what_is_no_image_is_refused_by_name_and_reason(tmp_path, content, reason):
    path = tmp_path / "odd.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=rf"odd\.jpg.*{reason}"):
        read_image(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "none.png", tmp_path, tmp_path / "none" / "none.png"):
        for function in (read_image, content_hash):
            with pytest.raises(ImageError, match=path.name):
                function(path)


def test_an_image_error_is_a_data_error():
    assert issubclass(ImageError, DataError)
    assert issubclass(ImageError, ValueError)


# ---------------------------------------------------------------- decompression bombs


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    side = 20_000
    compressor = zlib.compressobj(1)
    row = bytes(1 + side // 8)
    data = b"".join(compressor.compress(row) for _ in range(side)) + compressor.flush()
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side, data))
    assert path.stat().st_size < 500_000
    with pytest.raises(ImageError, match=r"bomb\.png.*too large.*100 million.*20,000 × 20,000"):
        read_image(path)


@pytest.mark.parametrize(
    ("width", "height", "reason"),
    [
        (10_000, 9_500, "damaged"),  # Pillow would warn, we allow it: it fails only for want of pixels
        (10_001, 10_000, "too large"),  # above our limit, where Pillow would warn
        (20_000, 9_000, "too large"),  # where Pillow would raise its own error
        (2**31 - 1, 2**31 - 1, "too large"),
    ],
)
def test_the_limit_is_ours_and_pillow_stays_silent(tmp_path, width, height, reason):
    path = tmp_path / "large.png"
    path.write_bytes(png_header(width, height, zlib.compress(b"")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match=reason):
            read_image(path)


def test_a_large_array_is_refused_too():
    huge = np.broadcast_to(np.uint8(0), (MAX_PIXELS // 1000 + 1, 1000))
    with pytest.raises(ImageError, match="too large"):
        read_image(huge)


def test_threads_share_no_state(tmp_path, picture):
    good, bomb, cut = tmp_path / "good.png", tmp_path / "bomb.png", tmp_path / "cut.png"
    Image.fromarray(picture).save(good)
    bomb.write_bytes(png_header(12_000, 12_000))
    cut.write_bytes(good.read_bytes()[:-30])
    state = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))

    def attempt(path):
        try:
            return pixels(path)
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(attempt, [good, bomb, cut] * 60))
    assert all(np.array_equal(image, picture) for image in found[::3])
    assert all("too large" in message for message in found[1::3])
    assert all("damaged" in message for message in found[2::3])
    assert state == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


def test_reading_leaves_no_file_open(tmp_path, picture):
    path = tmp_path / "image.png"
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        read_image(path)
        path.write_bytes(buffer.getvalue()[:60])
        with pytest.raises(ImageError):
            read_image(path)
