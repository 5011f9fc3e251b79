"""Processes that read images for a GPU: the same pixels as threads make, the same complaints, and an end to each."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayescal.data.images import content_hash, read_image
from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import Transform, plain_pixels
from bayescal.errors import BayescalError
from bayescal.features import decode as module
from bayescal.features.decode import ImageRequest, Reader, read, readers

HOW = Preprocess(24, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bicubic", "shortest")
needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="processes share memory by memfd: Linux")


@pytest.fixture
def images(tmp_path) -> list[ImageRequest]:
    generator = np.random.default_rng(0)
    wanted = []
    for i in range(7):
        path = tmp_path / f"{i}.png"
        Image.fromarray(generator.integers(0, 255, (30 + i, 40, 3), dtype=np.uint8)).save(path)
        if i == 3:
            path.write_bytes(b"not an image")
        wanted.append(ImageRequest(10 + i, str(path), content_hash(path), (0,)))
    return wanted


@pytest.fixture
def many(monkeypatch) -> None:
    """Processes pay from the first image on."""
    monkeypatch.setattr(module, "WORTH_PROCESSES", 1)
    monkeypatch.setattr(module, "MOST_THREADS", 0)


def test_pixels_are_those_of_the_transform(images):
    rows = read(images, Transform(HOW))
    assert rows.values.dtype == np.uint8
    assert [image.index for image in rows.images] == [10, 11, 12, 14, 15, 16]
    assert rows.problems == {13: "is not an image of a known kind (JPEG, PNG, GIF, BMP, TIFF, WEBP, …)."}
    shades = (rows.values / np.float32(255) - np.float32(HOW.mean)) / np.float32(HOW.std)
    for image, found in zip(rows.images, shades, strict=True):
        assert np.allclose(found, plain_pixels(read_image(image.source), HOW), atol=1e-6)


@needs_memfd
@pytest.mark.parametrize("augmented", [False, True])
def test_a_process_reads_what_a_thread_reads(images, augmented, many):
    transform = Transform(HOW, augmented)
    images = [ImageRequest(i.index, i.source, i.content, (0, 1, 2) if augmented else (0,)) for i in images]
    with readers(transform, 21, 100, 8) as through:
        for group in (images, images[4:], images[:1], images[3:4]):
            found, expected = through(group), read(group, transform)
            assert np.array_equal(found.values, expected.values)
            assert (found.images, found.views, found.problems) == (expected.images, expected.views, expected.problems)


@needs_memfd
def test_processes_are_for_many_files_and_many_cores(images, monkeypatch):
    started = []
    monkeypatch.setattr(module, "Reader", lambda *arguments: started.append(arguments) or pytest.fail("a process"))
    transform = Transform(HOW)
    for capacity, total, workers in ((9, 1023, 16), (9, 5000, 4), (5, 5000, 16)):
        with readers(transform, capacity, total, workers) as through:
            assert len(through(images).values) == 6
    pictures = [ImageRequest(0, read_image(images[0].source), "0" * 64, (0,))]
    with readers(transform, 9, 5000, 16) as through:
        assert len(through(pictures).values) == 1


@needs_memfd
def test_processes_end_with_the_block_and_after_errors(images, many, monkeypatch):
    begun = []
    start = subprocess.Popen
    monkeypatch.setattr(module.subprocess, "Popen", lambda *a, **k: begun.append(start(*a, **k)) or begun[-1])
    with contextlib.suppress(ZeroDivisionError), readers(Transform(HOW), 9, 100, 8) as through:
        through(images)
        raise ZeroDivisionError
    assert [process.returncode for process in begun] == [0]


@needs_memfd
def test_a_process_that_dies_is_an_error_that_names_its_images(images):
    reader = Reader(Transform(HOW), 9, 2**28)
    try:
        reader(images)
        reader.process.kill()
        with pytest.raises(BayescalError, match=r"ended \(exit code -9\) while it had .*0\.png … .*6\.png"):
            reader(images)
    finally:
        reader.close()


@needs_memfd
def test_an_error_of_the_work_itself_arrives(images):
    reader = Reader(Transform(HOW), 3, 2**28)  # too small for the group: never asked for by `readers`
    try:
        with pytest.raises(IndexError):
            reader(images)
        assert len(reader(images[:2]).values) == 2  # and the process lives on
    finally:
        reader.close()


@needs_memfd
def test_hashes_are_the_same_through_processes(images, tmp_path, monkeypatch):
    from bayescal.features.extract import digest_all

    files = [*(image.source for image in images), str(tmp_path / "missing.png")] * 20
    expected, reasons = digest_all(files, 8)
    asked = []
    ask = Reader.ask
    monkeypatch.setattr(Reader, "ask", lambda self, kind, items: asked.append(kind) or ask(self, kind, items))
    monkeypatch.setattr(module, "WORTH_PROCESSES", 1)
    found, problems = digest_all(files, 8)
    assert np.array_equal(found, expected)
    assert problems == reasons == dict.fromkeys(range(7, 160, 8), "there is no such file.")
    assert set(asked) == {"digests"}
    assert expected[:7].any(axis=1).all()
    assert not expected[7].any()


def test_the_process_starts_without_torch():
    """Else sixteen of them would take longer to start than to read."""
    code = "import sys, bayescal.features.decode_process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@needs_memfd
def test_features_are_the_same_through_processes(tmp_path, images, many):
    """A whole extraction, with a model that says what it was given."""
    import torch

    from bayescal.features.extract import compute

    class Model:
        preprocess, dim = HOW, 24 * 24 * 3

        def __init__(self, device: str):
            self.device = torch.device(device)

        def encode_images(self, pixels):
            return pixels.flatten(1).clone()

    found = {}
    for device in ("cpu", "mps"):  # an accelerator that is not CUDA: threads read, this one encodes
        rows = list(compute(Model(device), images, len(images), Transform(HOW), 6, 2))
        found[device] = {i.index: v for part in rows for i, v in zip(part.images, part.values, strict=True)}
        assert {k for part in rows for k in part.problems} == {13}
    assert found["cpu"].keys() == found["mps"].keys() == {10, 11, 12, 14, 15, 16}
    assert all(np.array_equal(found["cpu"][k], found["mps"][k]) for k in found["cpu"])
    expected = plain_pixels(Image.open(Path(images[0].source)), HOW).transpose(2, 0, 1).ravel()
    assert np.array_equal(found["mps"][10], expected)
