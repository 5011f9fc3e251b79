"""Which images are learned from: drawn first, by content, so that nothing else has to be decoded and encoded.

Whether an image can be read is known only when it is decoded. Where one that was drawn cannot, all images of its class
are decoded, and the class is drawn as if the damaged ones were not there. What another class is given never changes
with it: a draw depends on the images of its own class alone (`data/splits.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayescal.data import ImageSource, Split
from bayescal.errors import DataError
from bayescal.estimator.labelled_images import LabelledImages
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.features.feature_rows import Failure, describe_failures

Draw = Callable[[LabelledImages, ContentIndex], Split]  # which images to learn from


@dataclass(frozen=True)
class DrawnImages:
    """The images to learn from and to validate on. Their features are in the bank."""

    readable: np.ndarray  # (n,) which of the images given were drawn from
    split: Split  # numbers into `readable`
    unreadable: tuple[Failure, ...]  # of all images given, as far as they were looked at

    @property
    def used(self) -> np.ndarray:
        """The images that were drawn, (m,) ascending numbers into `readable`."""
        return np.sort(np.concatenate([self.split.train, self.split.val]))

    def among_used(self) -> Split:
        """The split as numbers into `used`."""
        used, split = self.used, self.split
        train, val = np.searchsorted(used, split.train), np.searchsorted(used, split.val)
        return Split(train, val, split.seed, split.notes)


def draw_readable(
    bank: FeatureBank, images: LabelledImages, contents: ContentIndex, draw: Draw, progress: bool = False
) -> DrawnImages:
    """Draw images that can be read, and encode these."""
    problems = dict(contents.problems)
    while True:
        readable = np.setdiff1d(np.arange(len(images)), list(problems))
        failures = tuple(Failure.of(images.sources[i], i, problems[i]) for i in sorted(problems))
        if gone := images.missing_classes(readable):
            raise DataError(f"no readable image of class {gone[0]!r}: {describe_failures(failures, len(images))}")
        split = draw(images.take(readable), contents.take(readable))
        used = readable[np.sort(np.concatenate([split.train, split.val]))]
        found = _undecodable(bank, images, contents, used, progress)
        if not found:
            return DrawnImages(readable, split, failures)
        problems |= found
        classes = np.unique(images.class_ids[list(found)])
        others = np.setdiff1d(readable[np.isin(images.class_ids[readable], classes)], used)
        problems |= _copies(contents, bank.undecodable(*_part(images, contents, others)), others)


def _undecodable(
    bank: FeatureBank, images: LabelledImages, contents: ContentIndex, used: np.ndarray, progress: bool
) -> dict[int, str]:
    """Encode the images `used`; those that cannot be read, with their copies among all images, and why."""
    sources, own = _part(images, contents, used)
    failures = bank.rows(sources, contents=own, progress=progress).failures
    return _copies(contents, {failure.index: failure.reason for failure in failures}, used)


def _part(
    images: LabelledImages, contents: ContentIndex, numbers: np.ndarray
) -> tuple[tuple[ImageSource, ...], ContentIndex]:
    return tuple(images.sources[i] for i in numbers), contents.take(numbers)


def _copies(contents: ContentIndex, problems: dict[int, str], numbers: np.ndarray) -> dict[int, str]:
    """Problems of images, by position in `numbers`, as problems of all images with the same content."""
    reasons = {int(contents.first[numbers[position]]): why for position, why in problems.items()}
    same = np.flatnonzero(np.isin(contents.first, list(reasons)))
    return {i: reasons[int(contents.first[i])] for i in same.tolist()}
