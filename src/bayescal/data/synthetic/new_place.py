"""A new place: made-up symbols in four styles, three to learn from and one that nobody has seen.

| environment         | split | images of each class | what it is for                                   |
|---------------------|-------|----------------------|--------------------------------------------------|
| three of the styles | train | 16 each              | pool: few-shot training and validation images    |
| the fourth          | test  | 30                   | the number that counts                           |
"""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from bayescal.data.manifest import Manifest
from bayescal.data.synthetic.folder import Recipe, make_once, write_table
from bayescal.data.synthetic.strokes import FAMILIES, draw_strokes
from bayescal.data.synthetic.styles import STYLES, render
from bayescal.errors import DataError

LEARNED, HELD_OUT = ("ink_on_paper", "chalk_on_blackboard", "neon"), "stencil_on_brick"
POOL, TEST = 16, 30  # images of each class in a style
MARK = "new-place.json"
_VERSION = 1  # goes up when the images change, so that old folders are not taken for new ones


def make_new_place(
    folder: str | os.PathLike[str],
    held_out: str = HELD_OUT,
    seed: int = 0,
    pool: int | None = None,
    test: int | None = None,
) -> Manifest:
    """Write the symbols as `environment/class/image` with a `manifest.csv`, and read it back.

    `held_out`: the style of the test; `pool`, `test`: other numbers of images than those above. A folder that already
    holds this is read and left as it is.
    """
    if held_out not in STYLES or held_out in LEARNED:
        raise DataError(f"held_out is {held_out!r}; expected {' or '.join(s for s in STYLES if s not in LEARNED)}")
    pool, test = pool or POOL, test or TEST
    made = {"version": _VERSION, "seed": seed, "held_out": held_out, "pool": pool, "test": test}
    recipe = Recipe("A new place", MARK, made)
    return make_once(folder, recipe, lambda target: _write(target, held_out, seed, pool, test))


def _write(folder: Path, held_out: str, seed: int, pool: int, test: int) -> None:
    random, table = np.random.default_rng(seed), []
    for style, split, count in (*((style, "train", pool) for style in LEARNED), (held_out, "test", test)):
        for name in FAMILIES:
            (folder / style / name).mkdir(parents=True)
            for i in range(count):
                path = Path(style) / name / f"{i:02d}.png"
                picture = render(draw_strokes(name, random), style, random)
                Image.fromarray(picture).save(folder / path, compress_level=1)
                table.append((path.as_posix(), name, style, split))
    write_table(folder, ("path", "class", "environment", "split"), table)
