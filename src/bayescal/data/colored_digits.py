"""ColoredDigits: a small ColoredMNIST made from the handwritten digits inside scikit-learn; no download.

The 1,797 digits are dealt out once; no digit is in two parts. Environments differ in how often the colour
disagrees with the label (flip):

| environment     | flip | split | images | what it is for                                                |
|-----------------|------|-------|--------|---------------------------------------------------------------|
| often_matching  | 0.2  | train | 350    | pool: few-shot training and validation images are drawn here  |
| mostly_matching | 0.1  | train | 350    | pool                                                          |
| often_matching  | 0.2  | test  | 150    | seen test: new digits, coloured as in training                |
| mostly_matching | 0.1  | test  | 150    | seen test                                                     |
| reversed        | 0.9  | val   | 300    | unseen validation: to choose a model by the test distribution |
| reversed        | 0.9  | test  | 497    | unseen test: the number that counts                           |

`colored_digits_parts` gives the rows of each.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bayescal.data.coloring import CLASS_NAMES, COLOUR_NAMES, color_images
from bayescal.data.makers.folder import Recipe, make_once, write_table
from bayescal.data.manifest import Manifest

SIZE = 64
FLIPS = {"often_matching": 0.2, "mostly_matching": 0.1, "reversed": 0.9}
TRAIN_ENVIRONMENTS = ("often_matching", "mostly_matching")
UNSEEN_ENVIRONMENT = "reversed"
_PARTS = (  # environment, split, images; the last takes what is left
    ("often_matching", "train", 350),
    ("mostly_matching", "train", 350),
    ("often_matching", "test", 150),
    ("mostly_matching", "test", 150),
    ("reversed", "val", 300),
    ("reversed", "test", None),
)
_VERSION = 1  # goes up when the images change, so that old folders are not taken for new ones
_MARK = "colored-digits.json"
_COLUMNS = ("path", "class", "environment", "split", "digit", "colour", "label_flipped", "colour_flipped")


@dataclass(frozen=True, eq=False)
class ColoredDigitsParts:
    """Rows of a ColoredDigits manifest by what they are for, as int64 indices."""

    pool: np.ndarray
    seen_test: np.ndarray
    unseen_val: np.ndarray
    unseen_test: np.ndarray


def make_colored_digits(folder: str | os.PathLike[str], seed: int = 0) -> Manifest:
    """Write ColoredDigits as `environment/class/image` with a `manifest.csv`, and read it back.

    A folder that already holds it is read and left as it is. Nothing half-written is ever left in place.
    """
    recipe = Recipe("ColoredDigits", _MARK, _made(seed))
    return make_once(folder, recipe, lambda made: _write(made, seed))


def colored_digits_parts(manifest: Manifest) -> ColoredDigitsParts:
    """Find the rows to draw shots from, to report on as seen, to choose on, and to report on as unseen."""
    unseen = manifest.environment_ids == manifest.environments.index(UNSEEN_ENVIRONMENT)

    def rows(mask: np.ndarray, split: str) -> np.ndarray:
        return np.flatnonzero(mask & (manifest.splits == split))

    return ColoredDigitsParts(
        pool=rows(~unseen, "train"),
        seen_test=rows(~unseen, "test"),
        unseen_val=rows(unseen, "val"),
        unseen_test=rows(unseen, "test"),
    )


def grey_digits() -> tuple[np.ndarray, np.ndarray]:
    """Load scikit-learn's 8 × 8 digits, enlarged smoothly to (1797, 64, 64) uint8, and their values."""
    from sklearn.datasets import load_digits  # takes a second to import, and only this maker needs it

    data = load_digits()
    small = np.rint(data.images * (255 / 16)).astype(np.uint8)
    small = np.pad(small, ((0, 0), (1, 1), (1, 1)))  # the strokes reach the edge and would look cut off
    large = [np.asarray(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for image in small]
    return np.stack(large), data.target


def _write(folder: Path, seed: int) -> None:
    images, digits = grey_digits()
    generator = np.random.default_rng(seed)  # the only one: see `draw_colours`
    order = generator.permutation(len(digits))
    table = []
    start = 0
    for environment, split, size in _PARTS:
        rows = np.sort(order[start:] if size is None else order[start : start + size])
        start += len(rows)
        colored = color_images(images[rows], digits[rows], flip=FLIPS[environment], generator=generator)
        for position, row in enumerate(rows):
            class_name = CLASS_NAMES[colored.labels[position]]
            path = Path(environment) / class_name.replace(" ", "_") / f"{row:04d}.png"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(colored.images[position]).save(folder / path, compress_level=1)
            table.append(
                (
                    path.as_posix(),
                    path.parts[1],
                    environment,
                    split,
                    int(digits[row]),
                    COLOUR_NAMES[colored.colours[position]],
                    int(colored.label_flipped[position]),
                    int(colored.colour_flipped[position]),
                )
            )
    write_table(folder, _COLUMNS, table)
    (folder / _MARK).write_text(json.dumps(_made(seed)) + "\n", encoding="utf-8")


def _made(seed: int) -> dict[str, int]:
    return {"version": _VERSION, "seed": seed}
