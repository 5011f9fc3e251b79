"""Images as they are given in Python: several, and never a single one that is taken apart."""

import io
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from bayescal.data import read_manifest
from bayescal.errors import DataError
from bayescal.estimator.labelled_images import LabelledImages, as_list
from layouts import tiny_png


class Named:
    def __fspath__(self) -> str:
        return "1.png"


def test_a_folder_is_refused_with_what_to_pass(tmp_path):
    with pytest.raises(DataError, match=r"found the folder '.*': pass read_manifest\('.*'\), or a list of the images"):
        as_list(tmp_path)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("1.png", r"the single path '1\.png': pass \['1\.png'\]"),
        (Path("1.png"), r"the single path '1\.png'"),
        (PurePosixPath("1.png"), r"the single path '1\.png'"),
        (Named(), r"the single path '1\.png'"),
        (tiny_png(1), "the bytes of a single one"),
        (bytearray(tiny_png(1)), "the bytes of a single one"),
        (memoryview(tiny_png(1)), "the bytes of a single one"),
        (io.BytesIO(tiny_png(1)), "a single file object"),
        (Image.new("RGB", (4, 4)), "a single Pillow image"),
        (np.zeros((8, 8, 3), dtype=np.uint8), r"an array of shape \(8, 8, 3\), which is a single one"),
        (np.zeros((8, 8, 4), dtype=np.uint8), ".*which is a single one"),
        (np.zeros((8, 8), dtype=np.uint8), ".*which is a single one"),
        (None, "NoneType"),
        (7, "int"),
    ],
)
def test_a_single_image_is_refused_with_what_to_pass(images, said):
    with pytest.raises(DataError, match=f"expected a list of images, found {said}"):
        as_list(images)
    with pytest.raises(DataError, match="expected a list of images"):
        LabelledImages.from_lists(images, ["dog"] * 8)


def test_several_images_stay_what_they_are():
    grey, colour = np.zeros((5, 8, 8), dtype=np.uint8), np.zeros((5, 8, 8, 3), dtype=np.uint8)
    assert [image.shape for image in as_list(grey)] == [(8, 8)] * 5
    assert [image.shape for image in as_list(colour)] == [(8, 8, 3)] * 5
    assert as_list(np.array(["1.png", "2.png"])) == ["1.png", "2.png"]
    assert as_list([]) == []


def test_the_images_of_a_manifest_are_its_paths(tmp_path):
    for name in ("dog", "cat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(tiny_png(1))
    manifest = read_manifest(tmp_path)
    assert as_list(manifest) == list(manifest.paths)
