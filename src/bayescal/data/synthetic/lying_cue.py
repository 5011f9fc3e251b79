"""A cue that lies: fish and keys on walls, whose paint goes with the class in training and against it at test.

| environment | paint against the rule | split | images of each class | what it is for                                |
|-------------|------------------------|-------|----------------------|-----------------------------------------------|
| first_wall  | 0 of 16                | train | 16                   | pool: few-shot training and validation images |
| second_wall | 2 of 16                | train | 16                   | pool                                          |
| second_wall | 2 of 20                | test  | 20                   | new drawings, painted as in training          |
| third_wall  | 36 of 40               | test  | 40                   | painted the other way round                   |

No label is wrong: the shape always tells the class. A backbone may have views of its own on the colour of fish and
keys, so there are two of these sets, one `swapped`: what is measured on both does not depend on them.
"""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from bayescal.data.manifest import Manifest
from bayescal.data.synthetic.folder import Recipe, make_once, write_table
from bayescal.data.synthetic.strokes import THINGS, draw_strokes
from bayescal.data.synthetic.styles import render

PAINTS = {"yellow": (0.95, 0.80, 0.12), "blue": (0.10, 0.25, 0.75)}
LEARNED, REVERSED = ("first_wall", "second_wall"), "third_wall"
MARK = "lying-cue.json"
PARTS = (  # environment, split, images of each class, how many of them are painted against the rule
    ("first_wall", "train", 16, 0),
    ("second_wall", "train", 16, 2),
    ("second_wall", "test", 20, 2),
    ("third_wall", "test", 40, 36),
)
_VERSION = 1  # goes up when the images change, so that old folders are not taken for new ones


def make_lying_cue(folder: str | os.PathLike[str], swapped: bool = False, seed: int = 0) -> Manifest:
    """Write the walls as `environment/class/image` with a `manifest.csv`, and read it back.

    The rule: fish yellow and keys blue; `swapped`: the other way round. A folder that already holds this is read and
    left as it is.
    """
    recipe = Recipe("A cue that lies", MARK, {"version": _VERSION, "seed": seed, "swapped": swapped})
    return make_once(folder, recipe, lambda target: _write(target, swapped, seed))


def _write(folder: Path, swapped: bool, seed: int) -> None:
    random, table = np.random.default_rng([seed, swapped]), []
    paints = list(PAINTS)[:: -1 if swapped else 1]
    for environment, split, count, against in PARTS:
        for number, name in enumerate(THINGS):
            (folder / environment / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                paint = paints[number ^ int(i < against)]
                path = Path(environment) / name / f"{split}-{i:02d}.png"
                picture = render(draw_strokes(name, random), "stencil_on_brick", random, PAINTS[paint])
                Image.fromarray(picture).save(folder / path, compress_level=1)
                table.append((path.as_posix(), name, environment, split, paint))
    write_table(folder, ("path", "class", "environment", "split", "paint"), table)
