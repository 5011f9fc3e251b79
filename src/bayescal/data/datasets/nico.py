r"""NICO (He et al. 2021) as OoD-Bench uses it: animal or vehicle, where the context says so too, until the test.

The split is OoD-Bench's "mixed split corrected" (https://github.com/ynysjtu/ood_bench, folder
datasets/NICO/mixed_split_corrected; later m-Just/OoD-Bench). Its csv files have no header, and paths with backslashes:

    bear\on_snow\26.jpg,bear,on_snow,animal        file below the superclass, class, context, superclass

| file           | images | split | context and class                                                        |
|----------------|--------|-------|--------------------------------------------------------------------------|
| env_train1.csv | 1,640  | train | go together: vehicles on snow, animals in forest, …                      |
| env_train2.csv | 1,640  | train | go together                                                              |
| env_val.csv    | 400    | val   | independent: neither the training nor the test distribution              |
| env_test.csv   | 400    | test  | the other way round: 90 of 100 images on snow are animals                |

The environment of an image is its context (snow, forest, beach, grass), as in the code of Zhu et al. Images lie in
animal/images/bear/on_snow/ (OoD-Bench) or animal/bear/on_snow/ (Zhu et al.), and NICO's own archives write "on snow".
All of these are read. The first version of the split, `mixed_split`, has training images in its test part: not read.

The shift is the correlation of class and context: Cramér's V is 0.93 in the training files. Shots keep it, with
`balanced=False`; spread evenly over class × context, nothing of it would be left.
"""

import csv
import io
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bayescal.data.datasets.base import Dataset, part_folds, text_of
from bayescal.data.datasets.trees import Expected, as_words, first, name_key
from bayescal.data.manifest import Manifest
from bayescal.errors import DataError

SPLIT_FOLDER = "mixed_split_corrected"
SPLIT_FILES = {
    "env_train1.csv": "train",
    "env_train2.csv": "train",
    "env_val.csv": "val",
    "env_test.csv": "test",
}
CONTEXTS = {"on_snow": "snow", "in_forest": "forest", "on_beach": "beach", "on_grass": "grass"}
LAYOUT = """
    NICO/
        animal/
            images/                     (this level may be left out)
                bear/
                    on_snow/            (or "on snow")
                        0.jpg
        vehicle/
            images/
                bicycle/
                    in_forest/
        mixed_split_corrected/
            env_train1.csv
            env_train2.csv
            env_val.csv
            env_test.csv"""
SOURCE = (
    "the images (Animal and Vehicle of NICO, not of NICO++) from https://nico.thumedialab.com; the four csv files "
    "from https://github.com/ynysjtu/ood_bench, folder datasets/NICO/mixed_split_corrected (not mixed_split)."
)
CITATION = (
    "He et al., Towards Non-I.I.D. Image Classification: A Dataset and Baselines, Pattern Recognition 2021; split: "
    "Ye et al., OoD-Bench, CVPR 2022"
)


class Listed(NamedTuple):
    """One line of a split file."""

    path: str  # below the superclass, with the separators of this machine
    subclass: str
    context: str
    superclass: str
    split: str


def read_nico(expected: Expected, column: str, path: Path) -> Manifest:
    """Read the csv files and find their images; `column` of them is the class: "superclass" or "subclass"."""
    path = Path(path).expanduser()
    if expected.is_list(path):
        return expected.read_list(path)
    found = ((folder, _split_folder(folder)) for folder in (path, path / "NICO"))
    root, lists = next(((folder, lists) for folder, lists in found if lists), (None, None))
    if root is None or lists is None:
        wrong = " (mixed_split has training images in its test part)" if (path / "mixed_split").is_dir() else ""
        raise expected.refusal(path, f"no folder {SPLIT_FOLDER} with the csv files{wrong}.")
    finder = Finder()
    columns: dict[str, tuple[str, str, str]] = {}  # path → class, environment, split
    lost, twice = [], []
    listed = [row for name, split in SPLIT_FILES.items() for row in _read_split(lists / name, split)]
    for row in listed:
        image = finder.find(root, row.superclass, "images", row.path) or finder.find(root, row.superclass, row.path)
        if image is None:
            lost.append(f"{row.superclass}/{row.path}")
            continue
        value = (getattr(row, column), CONTEXTS[row.context], row.split)
        if columns.setdefault(image, value) != value:
            twice.append(row.path)
    if lost:
        raise expected.refusal(root, f"{len(lost):,} of {len(listed):,} images are missing: {first(lost)}.")
    if twice:
        raise expected.refusal(root, f"{len(twice)} images are in two parts of the split: {first(twice)}.")
    return expected.checked(Manifest.from_columns(list(columns), *zip(*columns.values(), strict=True)), root)


class Finder:
    """Finds files whose folders may be spelled otherwise ("on snow", "Animal"), reading each folder once."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, str]] = {}

    def find(self, root: Path, *parts: str) -> str | None:
        """The file below `root`, or None."""
        path = os.path.abspath(root)
        *folders, name = [piece for part in parts for piece in part.split("/")]
        for folder in folders:
            spelled = self._below(path).get(name_key(folder))
            if spelled is None:
                return None
            path = os.path.join(path, spelled)
        image = os.path.join(path, name)
        return image if os.path.isfile(image) else None

    def _below(self, folder: str) -> dict[str, str]:
        if folder not in self._folders:
            try:
                with os.scandir(folder) as entries:
                    self._folders[folder] = {name_key(entry.name): entry.name for entry in entries if entry.is_dir()}
            except OSError:
                self._folders[folder] = {}
        return self._folders[folder]


def _split_folder(root: Path) -> Path | None:
    """Where the csv files are: in their own folder, or, as Zhu et al. keep them, beside the images."""
    folders = (root / SPLIT_FOLDER, root)
    return next((folder for folder in folders if all((folder / name).is_file() for name in SPLIT_FILES)), None)


def _read_split(file: Path, split: str) -> Iterator[Listed]:
    with io.StringIO(text_of(file), newline="") as stream:
        for number, cells in enumerate(csv.reader(stream), start=1):
            if not any(cells):
                continue
            if len(cells) != 4 or cells[2].strip() not in CONTEXTS:
                raise DataError(
                    f"{file}, line {number}: expected path,class,context,superclass such as "
                    f"bear\\on_snow\\26.jpg,bear,on_snow,animal; found {','.join(cells)}."
                )
            path, subclass, context, superclass = (cell.strip() for cell in cells)
            yield Listed(path.replace("\\", "/"), subclass, context, superclass, split)


def nico_dataset(column: str, **fields) -> Dataset:
    """NICO with superclasses or subclasses as classes: the same images, contexts and split."""
    shared = {
        "images": 4080,
        "environment_words": as_words(list(CONTEXTS.values())),
        "layout": LAYOUT,
        "source": SOURCE,
    }
    complete = column == "superclass"  # cats do not occur in forests here
    expected = Expected(title=fields["title"], class_words=fields["class_words"], complete=complete, **shared)
    return Dataset(
        shift="correlation",
        citation=CITATION,
        read=partial(read_nico, expected, column),
        folds=partial(part_folds, validation="ood"),  # the csv files say so; contexts alone do not tell the parts apart
        selection="ood",
        balanced=False,
        **shared,
        **fields,
    )


NICO = nico_dataset(
    "superclass",
    name="nico",
    title="NICO",
    class_words=as_words("animal vehicle"),
    shots=8,
    val_shots=64,
)
