"""The ColoredMNIST rule: a digit's colour goes with its label in training, and against it in the test.

The label is whether the digit is at least five. A quarter of the labels are wrong, so the shape predicts the
label 75 % of the time. The colour does better than that in training (80–90 %) and far worse in the test
(10 %): what learns the colour fails, what learns the shape holds.
"""

from dataclasses import dataclass

import numpy as np

from bayescal.errors import DataError

CLASS_NAMES = ("less than five", "greater than four")  # by label: 0, 1
COLOUR_NAMES = ("red", "green")  # by colour: 0, 1
LABEL_NOISE = 0.25


@dataclass(frozen=True, eq=False)
class ColoredImages:
    """N coloured images with what was done to each; `labels` is what a benchmark scores."""

    images: np.ndarray  # (N, H, W, 3) uint8
    labels: np.ndarray  # (N,) int64, after label noise
    true_labels: np.ndarray  # (N,) int64, from the digit
    colours: np.ndarray  # (N,) int64, an index into COLOUR_NAMES
    label_flipped: np.ndarray  # (N,) bool
    colour_flipped: np.ndarray  # (N,) bool


@dataclass(frozen=True, eq=False)
class DrawnColours:
    """What was drawn for N images: which label each carries and which colour it gets."""

    labels: np.ndarray  # (N,) int64, after label noise
    colours: np.ndarray  # (N,) int64: 0 goes with label 0, 1 with label 1
    label_flipped: np.ndarray  # (N,) bool
    colour_flipped: np.ndarray  # (N,) bool


def draw_colours(
    true_labels: np.ndarray,
    *,
    flip: float,
    label_noise: float,
    generator: np.random.Generator,
    exact: bool = True,
) -> DrawnColours:
    """Draw labels of which the share `label_noise` is wrong, and colours of which the share `flip` disagrees with them.

    `exact`: the shares are those of the images that come out, rounded to whole images: of each true class for the
    labels, of each label for the colours (and among these, of wrong and of right labels alike). Otherwise every image
    is drawn by itself, and of 400 images the shares are off by two percentage points or so.
    The generator is the caller's and runs on: seeding one per image would give every image the same draw, and
    so no noise at all or nothing but noise.
    """
    for name, rate in (("flip", flip), ("label_noise", label_noise)):
        if not 0 <= rate <= 1:
            raise DataError(f"{name} is a probability, from 0 to 1; found {rate}.")
    truth = np.asarray(true_labels)
    choose = choose_share if exact else _choose_each
    label_flipped = choose(label_noise, truth, np.zeros_like(truth), generator)
    labels = truth ^ label_flipped
    colour_flipped = choose(flip, labels, label_flipped, generator)
    return DrawnColours(labels, labels ^ colour_flipped, label_flipped, colour_flipped)


def choose_share(share: float, groups: np.ndarray, strata: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Choose round(share · size) images of each group, all equally likely, spread evenly over its strata: (N,) bool."""
    chosen = np.zeros(len(groups), dtype=bool)
    keys = generator.random(len(groups))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        rows = rows[np.lexsort((keys[rows], strata[rows]))]
        size, wanted = len(rows), round(share * len(rows))
        # Every (size / wanted)-th of the list, from a random start: as many of a stratum as it has a share of the list.
        ends = np.arange(size + 1) * wanted + generator.integers(size)
        chosen[rows] = np.diff(ends // size) > 0
    return chosen


def _choose_each(share: float, groups: np.ndarray, strata: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Choose each image with this probability, whatever its group: (N,) bool."""
    return generator.random(len(groups)) < share


def binary_labels(digits: np.ndarray) -> np.ndarray:
    """Say for each digit whether it is greater than four (1) or less than five (0)."""
    return (np.asarray(digits) >= 5).astype(np.int64)


def paint(images: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Put grey images (N, H, W) into the red or the green channel of black ones (N, H, W, 3)."""
    painted = np.zeros((*images.shape, 3), dtype=images.dtype)
    painted[np.arange(len(images)), ..., colours] = images
    return painted


def color_images(
    images: np.ndarray,
    digits: np.ndarray,
    *,
    flip: float,
    generator: np.random.Generator,
    label_noise: float = LABEL_NOISE,
    exact: bool = True,
) -> ColoredImages:
    """Colour grey digits (N, H, W) by their noisy label, against it in the share `flip` of them; see `draw_colours`."""
    if images.ndim != 3 or images.shape[:1] != np.shape(digits):
        raise DataError(f"Expected (N, H, W) images and (N,) digits; found {images.shape}, {np.shape(digits)}.")
    true_labels = binary_labels(digits)
    drawn = draw_colours(true_labels, flip=flip, label_noise=label_noise, generator=generator, exact=exact)
    return ColoredImages(
        images=paint(images, drawn.colours),
        labels=drawn.labels,
        true_labels=true_labels,
        colours=drawn.colours,
        label_flipped=drawn.label_flipped,
        colour_flipped=drawn.colour_flipped,
    )
