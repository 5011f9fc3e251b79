"""Pictures of noise: always the same, plain and loud, fine and coarse."""

import numpy as np

from bayescal.data.synthetic.noise import noise_pictures


def test_they_are_always_the_same_and_the_first_do_not_depend_on_how_many():
    few, many = noise_pictures(3, 32), noise_pictures(6, 32)
    assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))
    assert {(picture.shape, picture.dtype.name) for picture in many} == {((32, 32, 3), "uint8")}
    assert not np.array_equal(few[0], noise_pictures(1, 32, seed=1)[0])


def test_they_range_from_plain_to_loud_and_from_coarse_to_fine():
    pictures = [picture.astype(float) for picture in noise_pictures(24, 64)]
    loud = [picture.std((0, 1)).max() for picture in pictures]
    steps = [np.diff(picture, axis=0).std() / np.sqrt(2) / (picture.std((0, 1)).mean() + 1e-9) for picture in pictures]
    assert min(loud) < 8
    assert max(loud) > 60
    assert min(steps) < 0.2  # clouds: neighbours agree
    assert max(steps) > 0.8  # a screen without signal: they do not


def test_a_picture_of_one_pixel_is_a_colour():
    assert noise_pictures(1, 1)[0].shape == (1, 1, 3)
