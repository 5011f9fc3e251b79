"""Pictures as a browser shows them, of any image that can be read (a browser knows no TIFF and no HEIC)."""

import io
import os
import threading
from pathlib import Path

from PIL import Image

from bayescal.data.images import read_image
from bayescal.data.sources import ImageSource
from bayescal.util.atomic import folder_beside

SIZES = (160, 320, 1280)  # the longest side; nothing is enlarged
PICTURES = ".pictures"  # the folder of those that were made before, beside the images
_QUALITY = 82
_decoding = threading.Semaphore(2)  # a photo of 40 megapixels takes 120 MB while it is decoded


def kept_picture(folder: Path, name: str, source: ImageSource, size: int) -> bytes:
    """The same out of a folder of pictures that were made before; a large photo is decoded once for all sizes."""
    path = folder / f"{name}-{size}.jpg"
    if not path.is_file():
        folder.mkdir(exist_ok=True)
        with _decoding:
            image = read_image(source)
        with folder_beside(folder) as drafts:
            for side in sorted(SIZES, reverse=True):
                image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
                draft = drafts / f"{name}-{side}.jpg"
                draft.write_bytes(_jpeg(image))
                os.replace(draft, folder / draft.name)
    return path.read_bytes()


def picture(source: ImageSource, size: int) -> bytes:
    """A JPEG file of at most `size` × `size` pixels."""
    with _decoding:
        image = read_image(source)
        image.thumbnail((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return _jpeg(image)


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()
