"""The correlation shift that ColoredMNIST and ColoredCatsDogs share.

Colour goes with the label in two training environments and against it in the third:

| environment | flip | split | what it is for                                                            |
|-------------|------|-------|---------------------------------------------------------------------------|
| train_1     | 0.2  | train | pool: few-shot training and training-domain validation images             |
| train_2     | 0.1  | train | pool                                                                      |
| test        | 0.9  | val   | test-domain validation: to choose a model by the test distribution        |
| test        | 0.9  | test  | the number that counts; other originals than those of the validation part |

Environments say which set an image belongs to, never what is in it or which colour it has.
"""

from collections.abc import Sequence

import numpy as np

from bayescal.data.synthetic.coloring import COLOUR_NAMES, DrawnColours

FLIPS = {"train_1": 0.2, "train_2": 0.1, "test": 0.9}  # how often the colour disagrees with the label
# "train 1" would be read as a railway train
ENVIRONMENT_WORDS = {"train_1": "first environment", "train_2": "second environment", "test": "test environment"}
PARTS = (("train_1", "train"), ("train_2", "train"), ("test", "val"), ("test", "test"))  # environment, split
FLIP_COLUMNS = ("colour", "label_flipped", "colour_flipped")


def deal(originals: np.ndarray, sizes: Sequence[int], generator: np.random.Generator) -> list[np.ndarray]:
    """Give each part of PARTS `sizes` originals of its own, by chance; what is left over is not used."""
    order = generator.permutation(originals)
    ends = np.cumsum(sizes)
    return [np.sort(order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def flip_cells(drawn: DrawnColours, position: int) -> tuple[str, int, int]:
    """What was done to one image, for the columns FLIP_COLUMNS."""
    return (
        COLOUR_NAMES[drawn.colours[position]],
        int(drawn.label_flipped[position]),
        int(drawn.colour_flipped[position]),
    )
