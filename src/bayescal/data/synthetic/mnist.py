"""Reading MNIST's training digits: `mnist.npz`, or the four idx files, packed or not."""

import gzip
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from bayescal.errors import DataError

ADDRESS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
SOURCE = (
    f"Download mnist.npz from {ADDRESS} (`bayescal data make-coloredmnist --download` does), "
    "or train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz from http://yann.lecun.com/exdb/mnist/."
)
LAYOUT = """
    mnist.npz                           with x_train (60000, 28, 28) and y_train (60000,)
    or
    mnist/
        train-images-idx3-ubyte(.gz)
        train-labels-idx1-ubyte(.gz)"""
_IDX = {"images": "train-images-idx3-ubyte", "labels": "train-labels-idx1-ubyte"}
_IMAGE_MAGIC, _LABEL_MAGIC = 2051, 2049


def read_mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The training images (N, H, W) uint8 and their digits (N,) int64, from a file or from the folder it is in."""
    path = Path(path).expanduser()
    if path.is_file() and path.suffix == ".npz":
        images, digits = _read_npz(path)
    elif path.is_dir() and (path / "mnist.npz").is_file():
        images, digits = _read_npz(path / "mnist.npz")
    else:
        images, digits = (_read_idx(_find_idx(path, kind)) for kind in ("images", "labels"))
    if images.ndim != 3 or images.dtype != np.uint8 or digits.shape != images.shape[:1]:
        raise DataError(f"{path}: expected (N, 28, 28) bytes and N digits; found {images.shape} and {digits.shape}.")
    if digits.size == 0 or not 0 <= digits.min() <= digits.max() <= 9:
        raise DataError(f"{path}: expected digits from 0 to 9.")
    return images, digits.astype(np.int64)


def _read_npz(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return arrays["x_train"], arrays["y_train"]
    except KeyError as error:
        raise DataError(f"{file}: has no {error.args[0]}. Expected:\n{LAYOUT}\n{SOURCE}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file}: is damaged or not an .npz file ({error}). {SOURCE}") from error


def _find_idx(path: Path, kind: str) -> Path:
    """The idx file below a folder; torchvision puts it into MNIST/raw, others write a dot in its name."""
    stem = _IDX[kind]
    spellings = {stem, stem.replace("-idx", ".idx")}
    folders = (path, path / "raw", path / "MNIST" / "raw")
    names = [name + ending for name in sorted(spellings) for ending in ("", ".gz")]
    for candidate in (folder / name for folder in folders for name in names):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: MNIST is not here ({stem} and mnist.npz are missing). Expected:\n{LAYOUT}\n{SOURCE}")


def _read_idx(file: Path) -> np.ndarray:
    try:
        raw = file.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        magic, *shape = struct.unpack_from(">4i" if "images" in file.name else ">2i", content)
        body = np.frombuffer(content, np.uint8, offset=4 * (1 + len(shape)))
        if magic not in (_IMAGE_MAGIC, _LABEL_MAGIC) or body.size != np.prod(shape):
            raise ValueError(f"{body.size} bytes for {shape}")
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{file}: is damaged or not an idx file ({error}). {SOURCE}") from error
    return body.reshape(shape)
