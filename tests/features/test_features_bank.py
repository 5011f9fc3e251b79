"""The feature bank: cache hits, resume after a kill, damage, concurrency, bad images."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from bayescal.backbones import Backbone, Preprocess, TextTower
from bayescal.backbones.base import Frozen
from bayescal.backbones.defaults import CLIP
from bayescal.data.images import content_hash
from bayescal.data.transforms import plain_pixels
from bayescal.errors import BackboneError, BayescalWarning
from bayescal.features import FeatureBank, decode, default_folder, extract
from bayescal.features.content_index import ContentIndex
from bayescal.text.tower import LazyTower

DIM = 12


class Tower(nn.Module):
    """A small image tower that counts its rows, and can be slow or broken."""

    def __init__(self, seconds_per_call: float = 0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3 * 8 * 8, DIM, generator=generator))
        self.seconds, self.rows, self.nan_above = seconds_per_call, 0, None
        self.lock = threading.Lock()

    def forward(self, pixels: Tensor) -> Tensor:
        with self.lock:
            self.rows += len(pixels)
        time.sleep(self.seconds)
        out = pixels.reshape(len(pixels), -1) @ self.weight
        if self.nan_above is not None:
            out[pixels.mean(dim=(1, 2, 3)) > self.nan_above] = float("nan")
        return out


def small_backbone(seconds_per_call: float = 0.0) -> Backbone:
    """Needs torch alone, so that processes that use it start quickly."""
    return Backbone(
        name="small",
        architecture="small",
        visual=Frozen(Tower(seconds_per_call)),
        tower=LazyTower.of(TextTower(vocab_size=8, context_length=4, width=8, heads=1, layers=1, dim=DIM)),
        tokenizer=None,
        preprocess=Preprocess(8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic", "shortest"),
        logit_scale=10.0,
        fingerprint="5" * 20,
        defaults=CLIP,
        trained_context=4,
    )


@pytest.fixture
def backbone() -> Backbone:
    return small_backbone()


@pytest.fixture
def images(tmp_path) -> list[Path]:
    return make_images(tmp_path / "images", 21)


def make_images(folder: Path, n: int) -> list[Path]:
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{i:03}.png" for i in range(n)]
    for i, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (9 + i % 5, 14, 3), dtype=np.uint8)).save(path)
    return paths


def in_another_process(code: str, *arguments: str) -> subprocess.Popen:
    code = f"from test_features_bank import *\n{code}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)


def test_features_are_those_of_the_model(tmp_path, backbone, images):
    encoded = FeatureBank(backbone, tmp_path / "cache").encode(images)
    pixels = np.stack([plain_pixels(Image.open(path), backbone.preprocess) for path in images])
    expected = backbone.encode_images(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert encoded.features.shape == (21, DIM)
    assert encoded.features.dtype == torch.float32
    assert torch.allclose(encoded.features, expected, atol=1e-5)
    assert encoded.hashes == tuple(content_hash(path) for path in images)
    assert encoded.failures == ()
    assert encoded.computed == 21


def test_a_file_that_changes_between_a_look_and_the_decoding_is_not_kept_under_its_old_content(
    tmp_path, backbone, images
):
    bank = FeatureBank(backbone, tmp_path / "cache")
    looked_at = ContentIndex.of(images, 1)
    before = images[3].read_bytes()
    images[3].write_bytes(images[4].read_bytes())
    (failure,) = bank.rows(images, contents=looked_at).failures
    assert failure.index == 3
    assert "has changed since it was looked at" in failure.reason
    images[3].write_bytes(before)
    again = FeatureBank(backbone, tmp_path / "cache").encode(images)
    assert again.computed == 1
    assert again.failures == ()


def test_the_cache_spares_the_model(tmp_path, backbone, images):
    first = FeatureBank(backbone, tmp_path / "cache").encode(images[:10])
    assert backbone.visual.inner.rows == 10
    moved = tmp_path / "renamed.png"
    images[3].rename(moved)
    bank = FeatureBank(backbone, tmp_path / "cache")
    again = bank.encode([moved, *images[:3]])
    assert torch.equal(again.features, first.features[[3, 0, 1, 2]])
    assert (backbone.visual.inner.rows, again.computed) == (10, 0)
    more = bank.encode([*images[4:], *images[:3]])  # the same bank sees what it added itself
    assert (backbone.visual.inner.rows, more.computed) == (21, 11)
    assert bank.encode(images[4:]).computed == 0


def test_duplicates_are_encoded_once(tmp_path, backbone, images):
    picture = Image.open(images[0]).convert("RGB")
    sources = [images[0], images[1], str(images[0]), picture, np.asarray(picture), images[1]]
    encoded = FeatureBank(backbone, tmp_path / "cache").encode(sources)
    assert encoded.computed == 3  # a file is hashed by its bytes, pictures and arrays by their pixels
    assert torch.equal(encoded.features[0], encoded.features[2])
    assert torch.equal(encoded.features[1], encoded.features[5])
    assert torch.equal(encoded.features[3], encoded.features[4])
    assert torch.allclose(encoded.features[0], encoded.features[3], atol=1e-5)


def test_no_images(tmp_path, backbone):
    bank = FeatureBank(backbone, tmp_path)
    assert bank.encode([]).features.shape == (0, DIM)
    assert bank.encode_views([], 3).features.shape == (0, 3, DIM)


@pytest.mark.parametrize("workers", [1, 3])
def test_unreadable_images_are_reported_and_skipped(tmp_path, backbone, images, workers):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(images[0].read_bytes()[:60])
    copy = tmp_path / "copy of broken.jpg"
    copy.write_bytes(broken.read_bytes())
    missing = tmp_path / "missing.png"
    array = np.zeros((2, 3, 4, 5))
    sources = [images[0], broken, missing, images[1], copy, array]
    bank = FeatureBank(backbone, tmp_path / "cache", workers=workers)
    for computed in (2, 0):
        encoded = bank.encode(sources)
        assert [failure.index for failure in encoded.failures] == [1, 2, 4, 5]
        assert encoded.failures[0].name == str(broken)
        assert "damaged" in encoded.failures[0].reason
        assert str(broken) not in encoded.failures[0].reason
        assert encoded.failures[1].reason == "there is no such file."
        assert encoded.failures[3].name == "image 5 of the list"
        assert encoded.features.isnan().all(dim=1).tolist() == [False, True, True, False, True, True]
        assert encoded.hashes[2] is None
        assert encoded.computed == computed


def test_with_an_accelerator_one_thread_feeds_the_model(tmp_path, backbone, images):
    class Accelerated(Backbone):
        threads: ClassVar[set[str]] = set()

        @property
        def device(self):
            return torch.device("cuda")  # not really: its model runs here

        def encode_images(self, pixels):
            self.threads.add(threading.current_thread().name)
            return backbone.encode_images(pixels)

    parts = {field.name: getattr(backbone, field.name) for field in fields(backbone)}
    bank = FeatureBank(Accelerated(**parts), tmp_path / "one", workers=3, batch_size=4)
    encoded = bank.encode_views([*images, tmp_path / "missing.png"], 3)
    expected = FeatureBank(backbone, tmp_path / "two").encode_views(images, 3)
    assert torch.allclose(encoded.features[:-1], expected.features, atol=1e-5)
    assert [failure.index for failure in encoded.failures] == [21]
    assert Accelerated.threads == {threading.current_thread().name}


def test_views(tmp_path, backbone, images):
    bank = FeatureBank(backbone, tmp_path / "cache")
    plain = bank.encode(images[:5])
    encoded = bank.encode_views(images[:5], 4)
    assert encoded.features.shape == (5, 4, DIM)
    assert encoded.computed == 20
    rows = encoded.features.reshape(20, DIM)
    assert torch.cdist(rows, rows).fill_diagonal_(1.0).min() > 1e-3  # all different …
    assert torch.cdist(rows, plain.features).min() > 1e-3  # … and none is the test transform
    elsewhere = FeatureBank(backbone, tmp_path / "elsewhere", workers=3).encode_views(images[4::-1], 4)
    assert torch.allclose(elsewhere.features.flip(0), encoded.features, atol=1e-5)
    longer = bank.encode_views(images[:6], 6)
    assert longer.computed == 5 * 2 + 6  # views that are there already are not made again
    assert torch.equal(longer.features[:5, :4], encoded.features)
    assert bank.encode_views(images[:6], 2).computed == 0


def test_values_that_are_not_finite_are_refused_and_not_stored(tmp_path, backbone, images):
    white = tmp_path / "white.png"
    Image.new("RGB", (9, 9), "white").save(white)
    backbone.visual.inner.nan_above = 0.9
    bank = FeatureBank(backbone, tmp_path / "cache", workers=1)
    with pytest.raises(BackboneError, match=r"not finite.*white\.png"):
        bank.encode([*images[:4], white])
    backbone.visual.inner.nan_above = None
    encoded = bank.encode([*images[:4], white])
    assert encoded.features.isfinite().all()
    assert encoded.computed == 1  # the good ones were kept


def test_killed_half_way_it_resumes(tmp_path, backbone, images):
    code = """
bank = FeatureBank(small_backbone(seconds_per_call=0.25), sys.argv[1], workers=2, batch_size=2)
bank.encode(sorted(Path(sys.argv[2]).iterdir()))
"""
    cache = tmp_path / "cache"
    process = in_another_process(code, str(cache), str(images[0].parent))
    try:
        deadline = time.monotonic() + 60
        while sum(path.stat().st_size for path in cache.rglob("*.keys")) < 3 * 40:
            assert time.monotonic() < deadline
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = sum(path.stat().st_size // 40 for path in cache.rglob("*.keys"))
    encoded = FeatureBank(backbone, cache).encode(images)
    assert 3 <= finished < len(images)
    assert backbone.visual.inner.rows == encoded.computed == len(images) - finished
    fresh = FeatureBank(backbone, tmp_path / "fresh").encode(images)
    assert torch.allclose(encoded.features, fresh.features, atol=1e-5)


def test_two_processes_share_a_cache(tmp_path, backbone, images):
    code = """
start = Path(sys.argv[3])
bank = FeatureBank(small_backbone(seconds_per_call=0.02), sys.argv[1], workers=2, batch_size=2)
paths = sorted(Path(sys.argv[2]).iterdir(), reverse=sys.argv[4] == "backwards")
start.touch()
while len(list(start.parent.iterdir())) < 2:
    time.sleep(0.005)
encoded = bank.encode(paths)
assert encoded.features.isfinite().all() and not encoded.failures
"""
    cache, ready = tmp_path / "cache", tmp_path / "ready"
    ready.mkdir()
    folder = str(images[0].parent)
    processes = [
        in_another_process(code, str(cache), folder, str(ready / str(i)), order)
        for i, order in enumerate(("forwards", "backwards"))
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert len(list(cache.rglob("*.rows"))) == 2
    encoded = FeatureBank(backbone, cache).encode(images)
    assert encoded.computed == 0
    fresh = FeatureBank(backbone, tmp_path / "fresh").encode(images)
    assert torch.allclose(encoded.features, fresh.features, atol=1e-5)


@pytest.mark.parametrize("damage", ["flip", "cut rows", "cut keys"])
def test_a_damaged_cache_is_noticed_and_rebuilt(tmp_path, backbone, images, damage, recwarn):
    cache = tmp_path / "cache"
    before = FeatureBank(backbone, cache).encode(images)
    path = next(cache.rglob("*.keys" if damage == "cut keys" else "*.rows"))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        os.truncate(path, len(data) - 3)
    after = FeatureBank(backbone, cache).encode(images)
    assert after.computed == 1
    assert torch.allclose(after.features, before.features, atol=1e-5)
    warned = [str(w.message) for w in recwarn if w.category is BayescalWarning]
    if damage == "flip":
        assert warned == [w for w in warned if "1 damaged rows in the feature cache" in w]
        assert len(warned) == 1
    else:
        assert warned == []  # an unfinished row is what a kill leaves, nothing to worry about
    recwarn.clear()
    assert FeatureBank(backbone, cache).encode(images).computed == 0
    assert not [w for w in recwarn if w.category is BayescalWarning]


def test_other_backbones_have_other_rows(tmp_path, backbone, images):
    FeatureBank(backbone, tmp_path / "cache").encode(images[:2])
    other = replace(backbone, fingerprint="6" * 20)
    assert FeatureBank(other, tmp_path / "cache").encode(images[:2]).computed == 2


def test_threads_end_after_an_error(tmp_path, backbone, images, monkeypatch):
    def explode(source, at_least, content):
        raise KeyboardInterrupt if source == images[7] else ZeroDivisionError

    before = torch.get_num_threads()
    monkeypatch.setattr("bayescal.features.decode_process.decoded", explode)
    with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
        FeatureBank(backbone, tmp_path / "cache", workers=3).encode(images)
    assert not [t for t in threading.enumerate() if t.name.startswith("bayescal-images")]
    assert torch.get_num_threads() == before


def test_few_images_are_in_memory_at_once(tmp_path, backbone, images, monkeypatch):
    alive, most = 0, 0
    lock = threading.Lock()
    read, encode = decode.read, extract._encode

    def counted_decode(group, transform):
        nonlocal alive, most
        rows = read(group, transform)
        with lock:
            alive += len(rows.views)
            most = max(most, alive)
        return rows

    def counted_encode(*arguments):
        nonlocal alive
        rows = encode(*arguments)
        with lock:
            alive -= len(rows.views)
        return rows

    monkeypatch.setattr(decode, "read", counted_decode)
    monkeypatch.setattr(extract, "_encode", counted_encode)
    FeatureBank(backbone, tmp_path / "cache", workers=2, batch_size=3).encode_views(images, 3)
    assert most <= 2 * 3


def test_progress_bar_is_shown_only_on_request(tmp_path, backbone, images, capsys):
    bank = FeatureBank(backbone, tmp_path / "cache")
    bank.encode(images[:5])
    assert capsys.readouterr() == ("", "")
    bank.encode(images, progress=True)
    out, shown = capsys.readouterr()
    assert out == ""  # stdout is for results
    assert "21/21" in shown
    assert "5 from the cache" in shown
    assert "images/s" in shown
    bank.encode(images, progress=True)
    assert capsys.readouterr() == ("", "")  # nothing to wait for


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("BAYESCAL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/bayescal")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path("~/.cache/bayescal").expanduser()
    monkeypatch.setenv("BAYESCAL_CACHE", "/elsewhere")
    assert default_folder() == Path("/elsewhere")
    assert FeatureBank(small_backbone()).folder == Path("/elsewhere")


@pytest.mark.data
def test_mini_on_real_images(tmp_path, mini, shared_data):
    """Bank, transforms and tower together: real photos of two classes are told apart."""
    paths = [p for name in ("dog", "house") for p in sorted((shared_data / "pacs/photo" / name).iterdir())[:12]]
    encoded = FeatureBank(mini, tmp_path).encode(paths)
    images = nn.functional.normalize(encoded.features, dim=-1)
    texts = nn.functional.normalize(mini.encode_texts(["a photo of a dog.", "a photo of a house."]), dim=-1)
    assert ((images @ texts.T).argmax(dim=1) == torch.arange(2).repeat_interleave(12)).float().mean() > 0.85
