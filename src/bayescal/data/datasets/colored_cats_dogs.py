"""ColoredCatsDogs, CCD (Zhu et al. 2023): the colour behind an animal goes with its name, until the test.

Made here from photos and masks, by `bayescal data make-ccd` (data/synthetic/colored_cats_dogs.py). The images that
Zhu et al. share beside their code (https://github.com/LinLLLL/BayesCAL) are read too: folders train_1, train_2, val
and test, and ColoredCatsDogs.json with the lists train, val and test of [path, number, class].
"""

import os
from functools import partial
from pathlib import Path

from bayescal.data.datasets.base import Dataset, part_folds
from bayescal.data.datasets.made import check_parts, read_made
from bayescal.data.datasets.trees import Expected, as_words, first
from bayescal.data.manifest import Manifest
from bayescal.data.synthetic.pets import ANIMALS, SOURCE
from bayescal.data.synthetic.shift import ENVIRONMENT_WORDS
from bayescal.util.jsonable import loads

RELEASED = "ColoredCatsDogs.json"
_SHARED = {
    "title": "ColoredCatsDogs",
    "class_words": as_words(ANIMALS),
    "environment_words": ENVIRONMENT_WORDS,
    "images": None,  # as many as there are photos
    "layout": f"""
    ccd/
        train_1/
            cat/
                00000.png
            dog/
        train_2/
        test/
        manifest.csv            path, class, environment, split (train, val, test), animal, photo, colour, flips
    or, as Zhu et al. share it:
    ColoredCatsDogs/
        train_1/ train_2/ val/ test/
        {RELEASED}""",
    "source": f"made from photos and masks: bayescal data make-ccd --from pets -o ccd. {SOURCE}",
}
_EXPECTED = Expected(**_SHARED)


def read_ccd(expected: Expected, path: Path) -> Manifest:
    """A folder that was made here, or one that Zhu et al. share."""
    path = Path(path).expanduser()
    if path.is_dir() and (path / RELEASED).is_file():
        return check_parts(expected, expected.checked(_read_released(expected, path), path), path)
    return read_made(expected, path)


def _read_released(expected: Expected, path: Path) -> Manifest:
    try:
        lists = loads((path / RELEASED).read_bytes())
        entries = [(split, name, animal) for split in ("train", "val", "test") for name, _, animal in lists[split]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise expected.refusal(path, f"{RELEASED} cannot be read ({error}).") from error
    rows, lost = [], []
    for split, name, animal in entries:
        relative = str(name).replace("\\", "/")
        found = [path / below / relative for below in ("", "images") if (path / below / relative).is_file()]
        if not found:
            lost.append(relative)
            continue
        environment = next((e for e in ("train_1", "train_2") if e in relative.split("/")), "test")
        # "Cat" and "cats" are the same class
        rows.append((os.path.abspath(found[0]), str(animal).lower().removesuffix("s"), environment, split))
    if lost or not rows:
        raise expected.refusal(path, f"{len(lost)} of {len(entries)} images are missing: {first(lost)}.")
    return Manifest.from_columns(*zip(*rows, strict=True))


CCD = Dataset(
    name="ccd",
    shift="correlation",
    citation="Zhu et al., Bayesian Cross-Modal Alignment Learning for Few-Shot Out-of-Distribution Generalization, "
    "AAAI 2023; photos: Parkhi et al., Cats and Dogs, CVPR 2012",
    read=partial(read_ccd, _EXPECTED),
    folds=partial(part_folds, validation="test-domain"),
    selection="test-domain",
    **_SHARED,
)
