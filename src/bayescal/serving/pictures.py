"""Pictures as a browser shows them, of any image that can be read (a browser knows no TIFF and no HEIC)."""

import io
import threading

from PIL import Image

from bayescal.data.images import read_image
from bayescal.data.sources import ImageSource

SIZES = (160, 320, 1280)  # the longest side; nothing is enlarged
_QUALITY = 82
_decoding = threading.Semaphore(2)  # a photo of 40 megapixels takes 120 MB while it is decoded


def picture(source: ImageSource, size: int) -> bytes:
    """A JPEG file of at most `size` × `size` pixels."""
    with _decoding:
        image = read_image(source)
        image.thumbnail((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()
