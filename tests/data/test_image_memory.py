"""Decoding never takes more memory than there is room for, all threads together; large pictures are made smaller."""

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from bayescal.data import images as module
from bayescal.data.image_memory import ALWAYS, NoRoom, Room
from bayescal.data.images import decoded, read_image
from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import Transform


def test_whoever_would_exceed_the_total_waits():
    room, most, held, lock = Room(), 0, 0, threading.Lock()
    room.limit_to(100)

    def work(need: int) -> None:
        nonlocal most, held
        with room.hold(need):
            with lock:
                held += need
                most = max(most, held)
            time.sleep(0.001)
            with lock:
                held -= need

    threads = [threading.Thread(target=work, args=(need,)) for need in (60, 30, 70, 20, 100, 40) * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 60 <= most <= 100


def test_one_image_always_gets_in_and_errors_give_the_room_back():
    room = Room()
    room.limit_to(10)
    with pytest.raises(ZeroDivisionError), room.hold(1000):
        raise ZeroDivisionError
    with room.hold(1000):
        pass


def test_the_limit_scales_with_free_memory(monkeypatch):
    room = Room()
    for free, limit in ((2**40, 4 * 2**30), (2**30, 2**29), (0, ALWAYS)):
        monkeypatch.setattr("bayescal.data.image_memory.free_bytes", lambda free=free: free)
        assert room.limit() == limit


@pytest.fixture
def small_memory(monkeypatch):
    room = Room()
    room.limit_to(3_000_000)
    monkeypatch.setattr(module, "room", room)


def encoded(picture: Image.Image, **options) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, **options)
    return stream.getvalue()


PICTURE = Image.effect_noise((800, 800), 60).convert("RGB")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encoded(PICTURE, format="PNG"), None),  # 4 bytes a pixel: 2.6 MB
        (encoded(PICTURE.convert("RGBA"), format="PNG"), "5 MB"),  # decoded and converted
        (encoded(PICTURE, format="JPEG"), None),
        (encoded(PICTURE, format="JPEG", progressive=True), "6 MB"),  # with the coefficients of the whole picture
    ],
)
def test_what_does_not_fit_is_refused_with_its_size(small_memory, content, said):
    if said is None:
        assert read_image(content).size == (800, 800)
        return
    with pytest.raises(NoRoom, match=rf"takes {said} of memory, and 3 MB are there"):
        read_image(content)


@pytest.mark.parametrize("form", ["JPEG", "JPEG2000"])
def test_large_pictures_are_made_smaller_while_they_are_decoded(monkeypatch, form):
    smooth = Image.radial_gradient("L").resize((900, 700), Image.Resampling.BICUBIC).convert("RGB")
    content = encoded(smooth, format=form)
    assert read_image(content).size == (900, 700)
    monkeypatch.setattr(module, "REDUCED_ABOVE", 100_000)
    transform = Transform(Preprocess(32, (0.0,) * 3, (1.0,) * 3, "bicubic", "shortest"))
    with decoded(content, transform.enough) as image:
        assert image.size == (225, 175)  # a quarter: the shorter side keeps 128 or more
        small = transform(image, "", 0).astype(int)
    assert np.abs(small - transform(read_image(content), "", 0)).max() <= 6
    with decoded(content, 701) as image:
        assert image.size == (900, 700)
    with decoded(encoded(smooth, format="PNG"), transform.enough) as image:
        assert image.size == (900, 700)  # no reduced decoding in this format


def test_small_pictures_are_decoded_exactly():
    content = encoded(PICTURE, format="JPEG")
    with decoded(content, 32) as image:
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(content))))


def test_strips_change_nothing(monkeypatch):
    random = np.random.default_rng(0)
    rgba = random.integers(0, 256, (50, 40, 4), dtype=np.uint8)
    deep = random.integers(0, 65536, (50, 40), dtype=np.uint16)
    floats = random.random((50, 40, 3))
    whole = [np.asarray(read_image(source)) for source in (rgba, deep, floats)]
    monkeypatch.setattr("bayescal.data.pixels._STRIP", 7 * 40)
    for source, expected in zip((rgba, deep, floats), whole, strict=True):
        assert np.array_equal(np.asarray(read_image(source)), expected)
