"""Images of any bytes: pixels or a reason, never another exception."""

import io

import numpy as np
from campaign import spoil

from bayescal.data.images import ImageError, read_image
from command_line import shape

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def test_spoiled_images(tmp_path, r, rounds):
    read = 0
    for number in range(10 * rounds):
        for form in FORMATS:
            stream = io.BytesIO()
            shape("dog", "photo", number).save(stream, form)
            (tmp_path / "image").write_bytes(spoil(stream.getvalue(), r))
            try:
                picture = np.asarray(read_image(str(tmp_path / "image")))
            except ImageError as error:
                assert str(tmp_path / "image") in str(error)  # noqa: PT017
                continue
            read += 1
            assert picture.ndim == 3
            assert picture.dtype == np.uint8
    assert read  # most flips are in the pixels
