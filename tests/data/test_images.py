"""Every kind of image that people have must come out as the right RGB pixels, or be refused in words."""

import os

import numpy as np
import pytest
from PIL import Image

from bayescal.data.file_tree import find_images
from bayescal.data.images import content_hash, read_image
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


# ---------------------------------------------------------------- kinds of file


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm", ".webp"])
def test_lossless_files_keep_every_pixel(tmp_path, picture, suffix):
    path = tmp_path / f"image{suffix}"
    Image.fromarray(picture).save(path, lossless=True)
    assert np.array_equal(pixels(path), picture)
    assert np.array_equal(pixels(str(path)), picture)


def test_the_content_decides_and_not_the_name(tmp_path, picture):
    path = tmp_path / "really_a_png.jpg"
    Image.fromarray(picture).save(path, format="PNG")
    assert np.array_equal(pixels(path), picture)
    nameless = tmp_path / "nameless"
    Image.fromarray(picture).save(nameless, format="BMP")
    assert np.array_equal(pixels(nameless), picture)


def test_cmyk_becomes_rgb(tmp_path):
    path = tmp_path / "print.jpg"
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path, quality=95)  # no cyan: red
    assert np.allclose(pixels(path)[8, 8], [254, 0, 0], atol=3)
    tiff = tmp_path / "print.tif"
    Image.new("CMYK", (4, 4), (255, 0, 0, 0)).save(tiff)
    assert pixels(tiff)[0, 0].tolist() == [0, 255, 255]


def test_palette_with_transparency_is_put_on_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 20, 0, 0, 0])
    image.putpixel((1, 0), 1)
    path = tmp_path / "palette.png"
    image.save(path)
    assert pixels(path).tolist() == [[[200, 10, 20], [0, 0, 0]]]
    image.save(path, transparency=1)
    assert pixels(path).tolist() == [[[200, 10, 20], [255, 255, 255]]]
    image.save(path, transparency=bytes([255, 128]))  # one value of transparency for each colour
    assert pixels(path)[0, 1] == pytest.approx([127, 127, 127], abs=1)


def test_alpha_is_put_on_white(tmp_path):
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]], dtype=np.uint8)
    path = tmp_path / "rgba.png"
    Image.fromarray(rgba).save(path)
    expected = [[[10, 20, 30], [255, 255, 255], [204, 204, 204]]]
    assert pixels(path).tolist() == expected
    assert pixels(rgba).tolist() == expected
    grey = Image.merge("LA", [Image.new("L", (1, 1), 90), Image.new("L", (1, 1), 0)])
    grey.save(path)
    assert pixels(path).tolist() == [[[255, 255, 255]]]


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    deep = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    for name in ("deep.png", "deep.tif"):
        path = tmp_path / name
        Image.fromarray(deep).convert("I;16").save(path)
        found = pixels(path)
        assert found.min() == 0
        assert found.max() == 255
        assert found.mean() == pytest.approx(deep.mean() / 257, abs=0.3)  # clipping would give 254
        assert np.abs(found[..., 0] - deep / 257).max() <= 0.5
    assert np.array_equal(pixels(deep), found)
    assert np.array_equal(pixels(Image.fromarray(deep.astype(np.int32))), found)  # Pillow's mode "I"


def test_values_beyond_sixteen_bits_are_refused():
    with pytest.raises(ImageError, match="expected 0 to 65535"):
        read_image(Image.fromarray(np.array([[0, 70000]], dtype=np.int32)))


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "lime")]
    for name in ("moving.gif", "moving.png", "moving.webp", "moving.tif"):
        path = tmp_path / name
        frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
        assert pixels(path)[4, 4].tolist() == [255, 0, 0], name


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_the_camera_is_applied(tmp_path, picture, orientation):
    undo = {  # how a camera stores the upright picture for each orientation
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    stored = Image.fromarray(np.ascontiguousarray(undo(picture)))
    stored.save(path, exif=exif)
    assert np.array_equal(pixels(path), picture)
    with Image.open(path) as opened:
        assert np.array_equal(pixels(opened), picture)
        assert np.array_equal(np.asarray(opened), undo(picture)), "the caller's image was changed"
    assert np.array_equal(pixels(read_image(path)), picture), "turned twice"


def test_a_damaged_orientation_does_not_cost_the_image(tmp_path, picture):
    path = tmp_path / "photo.png"
    Image.fromarray(picture).save(path, exif=b"Exif\x00\x00garbage that is no TIFF header")
    assert np.array_equal(pixels(path), picture)


# ---------------------------------------------------------------- arrays and Pillow images


def test_arrays_of_every_shape_and_type(picture):
    grey = picture[..., 0]
    as_rgb = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(pixels(grey), as_rgb)
    assert np.array_equal(pixels(grey[..., None]), as_rgb)
    assert np.array_equal(pixels(picture), picture)
    assert np.array_equal(pixels(picture[::-1, ::-1]), picture[::-1, ::-1])  # not contiguous
    for kind in (np.float16, np.float32, np.float64):
        assert np.array_equal(pixels((picture / 255).astype(kind)), picture)
    assert np.array_equal(pixels(picture.astype(np.uint16) * 257), picture)
    assert pixels(np.array([[True, False]])).tolist() == [[[255] * 3, [0] * 3]]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.full((4, 4), np.nan), "NaN"),
        (np.full((4, 4), 1.01), "between 0 and 1"),
        (np.full((4, 4, 3), -0.1), "between 0 and 1"),
        (np.full((4, 4), np.inf), "between 0 and 1"),
        (np.zeros((3, 8, 9), np.uint8), "transpose"),
        (np.zeros((8, 9, 2), np.uint8), "found \\(8, 9, 2\\)"),
        (np.zeros((5,), np.uint8), "found \\(5,\\)"),
        (np.zeros((0, 5), np.uint8), "no pixels"),
        (np.zeros((4, 4), np.int64), "int64"),
        (np.zeros((4, 4), object), "object"),
    ],
)
def test_arrays_that_are_no_image_are_refused(array, reason):
    with pytest.raises(ImageError, match=reason):
        read_image(array)


def test_other_things_are_refused():
    for thing in (None, 3, [[0, 1]]):
        with pytest.raises(ImageError, match="a path, a URL, bytes, a file object, a Pillow image or a numpy array"):
            read_image(thing)


# ---------------------------------------------------------------- hashes


def test_equal_pixels_have_equal_hashes(picture):
    image = Image.fromarray(picture)
    assert content_hash(picture) == content_hash(image) == content_hash((picture / 255).astype(np.float32))
    assert content_hash(picture[..., 0]) == content_hash(image.getchannel("R"))
    changed = picture.copy()
    changed[3, 3, 1] ^= 1
    assert content_hash(changed) != content_hash(picture)
    assert content_hash(picture.reshape(12, 8, 3)) != content_hash(picture), "the shape is part of the image"


def test_files_are_hashed_by_their_bytes(tmp_path):
    import hashlib

    first, second = tmp_path / "a.jpg", tmp_path / "b.jpg"
    first.write_bytes(b"x" * 3_000_000)
    second.write_bytes(b"x" * 3_000_000)
    assert content_hash(first) == content_hash(str(second)) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


# ---------------------------------------------------------------- finding


def test_images_are_found_sorted_and_without_system_files(tmp_path):
    wanted = ["a/2.JPG", "a/b/1.png", "c.webp", "d/e/f/g.tiff"]
    others = [
        ".hidden.png",
        ".git/x.png",
        "__MACOSX/a.jpg",
        "a/._2.jpg",
        "a/.DS_Store",
        "Thumbs.db",
        "notes.txt",
    ]
    for name in wanted + others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)] == wanted


def test_links_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.png").touch()
    os.symlink(tmp_path / "real", tmp_path / "same")
    os.symlink(tmp_path, tmp_path / "real" / "circle")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["real/1.png", "same/1.png"]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        find_images(tmp_path / "nowhere")
