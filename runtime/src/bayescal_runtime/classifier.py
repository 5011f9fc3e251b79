"""The classifier as its users meet it: images in, the answers of `bayescal` out."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bayescal_runtime._bayescal.data.sources import ImageSource
from bayescal_runtime._bayescal.data.transforms import Transform
from bayescal_runtime._bayescal.errors import DataError
from bayescal_runtime._bayescal.estimator.answers import Answer, answers_of
from bayescal_runtime._bayescal.estimator.prediction import Prediction
from bayescal_runtime._bayescal.export.reading import ExportedModel, usable_cores
from bayescal_runtime._bayescal.features.decode_process import fill

BATCH = 16  # images of one forward pass; more are no faster on a CPU


def load(path: str | os.PathLike[str], threads: int | None = None) -> "Classifier":
    """A folder that `bayescal export` wrote, checked: `threads` cores for a forward pass, by default all."""
    return Classifier(ExportedModel(Path(path), threads))


class Classifier:
    """A classifier in use. Images are paths, PIL images or arrays (H, W, 3); several threads may ask at once."""

    def __init__(self, model: ExportedModel):
        self.model = model

    @property
    def classes(self) -> list[Any]:
        return self.model.classes

    @property
    def environments(self) -> list[Any]:
        return self.model.environments

    def predict(self, images: Sequence[ImageSource]) -> np.ndarray:
        """The most probable class of each image."""
        return self.details(images).labels

    def predict_proba(self, images: Sequence[ImageSource]) -> np.ndarray:
        """Posterior predictive probabilities (N, C), columns in the order of `classes`."""
        return self.details(images).probabilities

    def predict_selective(self, images: Sequence[ImageSource]) -> np.ndarray:
        """The most probable class of each image, "unsure" or "unfamiliar"."""
        return self.details(images).selective()

    def details(self, images: Sequence[ImageSource]) -> Prediction:
        """Everything that can be said about each image; one that cannot be read is an error."""
        images, parts = _as_list(images), []
        for _, pixels, problems in self._read(images):
            if problems:
                raise DataError("; ".join(f"{_name(images[i], i)}: {reason}" for i, reason in problems.items()))
            parts.append(self.model.predict_pixels(pixels))
        return _joined(parts) if parts else self.model.predict_pixels(self._pixels(0))

    def answers(self, images: Sequence[ImageSource], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """What `bayescal predict --json` says of each image; one that cannot be read has the reason in its answer.

        `names`: what the images are called in the answers, by default their paths.
        """
        images = _as_list(images)
        called = [_name(image, i) for i, image in enumerate(images)] if names is None else list(names)
        classes = [str(name) for name in self.classes]
        found: list[dict[str, Any]] = []
        for at, pixels, problems in self._read(images):
            size = min(BATCH, len(images) - at)
            rows = [i for i in range(at, at + size) if i not in problems]
            made = answers_of([called[i] for i in rows], self.model.predict_pixels(pixels)) if rows else []
            good = dict(zip(rows, made, strict=True))
            each = [good.get(i) or Answer(called[i], reason=problems[i]) for i in range(at, at + size)]
            found += [answer.entry(classes) for answer in each]
        return found

    def _read(self, images: list[ImageSource]) -> Iterator[tuple[int, np.ndarray, dict[int, str]]]:
        """Batches: number of the first image, pixels of those that can be read, what is wrong with the others.

        The next batches are decoded while one is being answered.
        """
        starts = range(0, len(images), BATCH)
        if len(starts) < 2:
            yield from (self._batch(images, at) for at in starts)
            return
        ahead = usable_cores() + 1
        with ThreadPoolExecutor(usable_cores()) as pool:
            waiting = [pool.submit(self._batch, images, at) for at in starts[:ahead]]
            for following in [*starts[ahead:], *[None] * min(ahead, len(starts))]:
                if not waiting:
                    return
                batch = waiting.pop(0)
                if following is not None:
                    waiting.append(pool.submit(self._batch, images, following))
                yield batch.result()

    def _batch(self, images: list[ImageSource], at: int) -> tuple[int, np.ndarray, dict[int, str]]:
        part = images[at : at + BATCH]
        pixels = self._pixels(len(part))
        found = fill(pixels, [(image, "", (0,)) for image in part], Transform(self.model.preprocess))
        return at, pixels[: len(part) - len(found)], {at + i: reason for i, reason in found.items()}

    def _pixels(self, n: int) -> np.ndarray:
        side = self.model.preprocess.size
        return np.empty((n, side, side, 3), dtype=np.uint8)


def _as_list(images: Sequence[ImageSource]) -> list[ImageSource]:
    if isinstance(images, (str, os.PathLike)):
        raise DataError(f"expected a list of images, found one: [{str(images)!r}]")
    return list(images)


def _name(image: ImageSource, number: int) -> str:
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else f"image {number} of the list"


def _joined(parts: list[Prediction]) -> Prediction:
    names = [field.name for field in fields(Prediction)]
    return Prediction(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
