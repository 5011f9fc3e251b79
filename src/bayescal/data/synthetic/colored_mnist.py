"""ColoredMNIST: is the digit less than five or greater than four, where the colour says so too, until the test.

Follows Arjovsky et al. 2019: a quarter of the labels are wrong, then the digit is painted red (less than five) or
green (greater than four) by its noisy label, against it with the environment's flip rate (`shift.py` has the table).
The 60,000 training digits of MNIST are dealt out once, 20,000 to each environment; the test environment's are halved
into validation and test digits. No digit is in two parts, and one generator draws everything. The rates are exact up to
whole images in every part and class (`exact`); Arjovsky et al. draw each image by itself.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from bayescal.data.manifest import Manifest
from bayescal.data.synthetic.coloring import CLASS_NAMES, LABEL_NOISE, DrawnColours, draw_colours, paint
from bayescal.data.synthetic.coloring import binary_labels as is_greater_than_four
from bayescal.data.synthetic.folder import Recipe, make_once, write_table
from bayescal.data.synthetic.mnist import read_mnist
from bayescal.data.synthetic.shift import ENVIRONMENT_WORDS, FLIP_COLUMNS, FLIPS, PARTS, deal, flip_cells
from bayescal.errors import DataError
from bayescal.util.progress import Advance, progress_bar

MARK = "colored-mnist.json"
COLUMNS = ("path", "class", "environment", "split", "digit", *FLIP_COLUMNS)
CLASS_FOLDERS = tuple(name.replace(" ", "_") for name in CLASS_NAMES)
FEWEST = 8  # images per environment: less is a typing mistake
_VERSION = 2  # goes up when the images change, so that old folders are not taken for new ones
_CHUNK = 1000  # images between two reports of progress


def make_colored_mnist(
    mnist: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    per_environment: int | None = None,
    label_noise: float = LABEL_NOISE,
    exact: bool = True,
    progress: bool = False,
) -> Manifest:
    """Write ColoredMNIST as `environment/class/image` with a `manifest.csv`, and read it back.

    `mnist` is mnist.npz or a folder with MNIST's own files. `per_environment` None: a third of the digits each.
    `exact`: every rate is a share of the images, not a probability (see `draw_colours`).
    A folder that already holds the same is read and left as it is.
    """
    images, digits = read_mnist(Path(mnist))
    size = len(digits) // 3 if per_environment is None else per_environment
    if not FEWEST <= size <= len(digits) // 3:
        raise DataError(
            f"{size} images per environment: expected {FEWEST} to {len(digits) // 3:,}, "
            f"because three environments share {len(digits):,} digits and no digit is used twice."
        )
    made = {"version": _VERSION, "seed": seed, "per_environment": size, "label_noise": label_noise, "exact": exact}
    recipe = Recipe("ColoredMNIST", MARK, made)
    draw = partial(draw_colours, label_noise=label_noise, exact=exact)

    def write(target: Path) -> None:
        for environment in ENVIRONMENT_WORDS:
            for name in CLASS_FOLDERS:
                (target / environment / name).mkdir(parents=True)
        with progress_bar(recipe.title if progress else None, 3 * size) as bar:
            write_table(target, COLUMNS, _paint_all(target, images, digits, size, draw, seed, bar.advance))

    return make_once(folder, recipe, write).with_words(environments=ENVIRONMENT_WORDS)


def _paint_all(
    target: Path,
    images: np.ndarray,
    digits: np.ndarray,
    size: int,
    draw: Callable[..., DrawnColours],
    seed: int,
    advance: Advance,
) -> Iterator[tuple]:
    """Paint and save digit by digit; yields their rows of the table."""
    generator = np.random.default_rng(seed)  # the only one: see `draw_colours`
    half = size // 2
    dealt = deal(np.arange(len(digits)), (size, size, half, size - half), generator)
    for (environment, split), rows in zip(PARTS, dealt, strict=True):
        truth = is_greater_than_four(digits[rows])
        drawn = draw(truth, flip=FLIPS[environment], generator=generator)
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            painted = paint(images[chunk], drawn.colours[start : start + _CHUNK])
            for offset, row in enumerate(chunk):
                position = start + offset
                class_name = CLASS_FOLDERS[drawn.labels[position]]
                path = f"{environment}/{class_name}/{row:05d}.png"
                Image.fromarray(painted[offset]).save(target / path, compress_level=1)
                yield path, class_name, environment, split, int(digits[row]), *flip_cells(drawn, position)
            advance(len(chunk))
