"""The graph's preprocessing is Pillow's."""

import numpy as np
import pytest
from exporting import drawn
from onnxruntime import InferenceSession
from PIL import Image

from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import plain_pixels
from bayescal.export.preprocessing import preprocessing

SIZES = [(37, 53), (53, 37), (32, 32), (33, 16), (8, 9), (64, 100), (300, 5), (2, 1)]  # width, height


@pytest.fixture(scope="module", params=[("bicubic", "shortest"), ("bilinear", "shortest"), ("bicubic", "squash")])
def how(request) -> Preprocess:
    return Preprocess(32, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28), *request.param)


@pytest.fixture(scope="module")
def session(how) -> InferenceSession:
    return InferenceSession(preprocessing(how).SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("size", SIZES)
def test_any_size(how, session, size):
    width, height = size
    if how.resize_mode == "squash" and height > width:
        pytest.skip("Pillow may begin with the columns there")
    pixels = drawn(2, height, width)
    (found,) = session.run(None, {"images": pixels})
    true = np.stack([plain_pixels(Image.fromarray(one), how) for one in pixels]).transpose(0, 3, 1, 2)
    assert found.shape == (2, 3, 32, 32)
    assert np.abs(found - true).max() < 1e-5


def test_images_that_have_the_size_stay_as_they_are(session, how):
    pixels = drawn(3, 32, 32)
    (found,) = session.run(None, {"images": pixels})
    back = found.transpose(0, 2, 3, 1) * np.float32(how.std) + np.float32(how.mean)
    assert (np.rint(255 * back) == pixels).all()


def test_what_is_twice_as_high_as_wide_differs_by_little():
    """There Pillow 13 begins with the columns."""
    how = Preprocess(32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bicubic", "shortest")
    session = InferenceSession(preprocessing(how).SerializeToString(), providers=["CPUExecutionProvider"])
    smooth = Image.fromarray(drawn(1, 12, 6)[0]).resize((61, 140), Image.Resampling.BICUBIC)
    (found,) = session.run(None, {"images": np.asarray(smooth)[None]})
    assert np.abs(found[0].transpose(1, 2, 0) - plain_pixels(smooth, how)).max() < 3.5 / 255
