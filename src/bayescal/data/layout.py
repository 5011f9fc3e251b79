"""What the folders above an image mean: its class, its environment, its split, or nothing.

A layout is written as the folders from the top, "environment/class" or "split/class/*": `*` is a folder that means
nothing, and so do all folders below those that are named. Where none is given it is found out; where the names make it
likely that the usual reading is wrong (dates as classes, say), that reading is refused together with the one that was
probably meant.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bayescal.errors import DataError
from bayescal.util.suggest import did_you_mean

ENVIRONMENT, CLASS, SPLIT, ANY = "environment", "class", "split", "*"
EXAMPLES = "environment/class, class, split/class, environment/*/class"
ONLY_ENVIRONMENT = "all"  # the environment of images that come without one

_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "validate", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout"),
}
_SPLIT_NAME = re.compile(r"(?P<word>[a-z]+?)(?:set|images?|imgs|data|split)?\d*")
# fmt: off
_MONTHS = frozenset({
    "jan", "january", "feb", "february", "mar", "march", "apr", "april", "may", "jun", "june", "jul", "july", "aug",
    "august", "sep", "sept", "september", "oct", "october", "nov", "november", "dec", "december",
})
_GENERIC = frozenset({
    "images", "image", "imgs", "img", "photos", "photo", "pictures", "pics", "frames", "files", "data", "raw", "rgb",
    "jpg", "jpeg", "png",
})
# What stands before the number in names that nobody chose.
_CAMERAS = frozenset({
    "img", "dsc", "dscn", "dscf", "pxl", "pic", "mvi", "vid", "p", "gopr", "screenshot", "scan", "frame", "photo",
    "image",
})
# fmt: on
_DATES = ("%Y-%m-%d", "%Y-%m", "%Y%m%d", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y", "%Y-%j")
_DIGITS = frozenset("0123456789")
_SHOWN = 4


def split_of(name: str) -> str | None:
    """ "training" → "train", "test2017" → "test"; None for a name that is no split's."""
    found = _SPLIT_NAME.fullmatch(re.sub(r"[\s_-]", "", name.lower()))
    word = found["word"] if found else ""
    return next((split for split, words in _SPLITS.items() if word in words), None)


@dataclass(frozen=True)
class Layout:
    """What each folder from the top means; with `class_from_name`, the class is in the file's own name."""

    levels: tuple[str, ...]
    class_from_name: bool = False

    @classmethod
    def parse(cls, text: str, class_from_name: bool = False) -> "Layout":
        levels = [part.strip() for part in text.strip("/ ").split("/") if part.strip()]
        if levels and levels[-1] in ("image", "images", "file"):
            levels.pop()
        known = (ENVIRONMENT, CLASS, SPLIT, ANY)
        for level in levels:
            if level not in known:
                raise DataError(
                    f"layout {text!r}: {level!r} is none of {', '.join(known)}.{did_you_mean(level, known)} "
                    f"Examples: {EXAMPLES}."
                )
            if level != ANY and levels.count(level) > 1:
                raise DataError(f"layout {text!r}: {level} occurs more than once.")
        if (CLASS in levels) == class_from_name:
            what = (
                "the class is in the files' names, so no folder is one" if class_from_name else "no folder is the class"
            )
            raise DataError(f"layout {text!r}: {what}. Examples: {EXAMPLES}.")
        return cls(tuple(levels), class_from_name)

    def __str__(self) -> str:
        return "/".join((*self.levels, "class_number.jpg" if self.class_from_name else "image"))

    @property
    def option(self) -> str:
        """How to ask for it."""
        text = f"--layout {'/'.join(self.levels) or 'image'}"
        return f"{text} --class-from-name" if self.class_from_name else text


@dataclass(frozen=True)
class Labels:
    """What a layout says of N images."""

    classes: list[str]
    environments: list[str]
    splits: list[str]

    def summary(self) -> str:
        """ "2 classes (cat, dog), 3 environments (a, b, c)"."""
        environments, splits = sorted(set(self.environments)), sorted(set(self.splits) - {""})
        parts = [_counted(sorted(set(self.classes)), "class")]
        parts.append("one environment" if environments == [ONLY_ENVIRONMENT] else _counted(environments, "environment"))
        return ", ".join([*parts, *([_counted(splits, "split")] if splits else [])])


class UnclearLayout(DataError):
    """Folders that can be read in two ways; the first of `readings` is the one that was probably meant."""

    def __init__(self, problem: str, readings: Sequence[tuple[Layout, str]], options: str = ""):
        super().__init__(problem + options)
        self.problem = problem
        self.readings = tuple(readings)


def read_labels(where: str, names: Sequence[str], layout: Layout) -> Labels:
    """The labels of images by their names relative to the top; those that do not lie deep enough are refused."""
    folders = [name.split("/")[:-1] for name in names]
    if shallow := [name for name, own in zip(names, folders, strict=True) if len(own) < len(layout.levels)]:
        raise DataError(
            f"{where}: with the layout {layout}, {len(shallow)} of {len(names)} images do not lie deep enough: "
            f"{_first(shallow)}. Name another with --layout, such as {EXAMPLES}."
        )
    at = {level: i for i, level in enumerate(layout.levels) if level != ANY}
    classes = [class_in(name) or "" for name in names] if layout.class_from_name else None
    if classes and (nameless := [name for name, found in zip(names, classes, strict=True) if not found]):
        raise DataError(
            f"{where}: {len(nameless)} of {len(names)} files have no class in their name: {_first(nameless)}. Expected "
            "the class and then a number, such as airport_01.jpg."
        )

    def column(level: str, otherwise: str) -> list[str]:
        return [own[at[level]].strip() for own in folders] if level in at else [otherwise] * len(names)

    splits = column(SPLIT, "")
    if strange := sorted({name for name in splits if name and split_of(name) is None}):
        raise DataError(
            f"{where}: {_first(strange)} is no split. With {layout}, that folder must be train, val or test."
        )
    return Labels(
        classes or column(CLASS, ""),
        column(ENVIRONMENT, ONLY_ENVIRONMENT),
        [split_of(name) or "" for name in splits],
    )


def class_in(name: str) -> str | None:
    """ "airport_01.jpg" → "airport", "dog.123 (2).png" → "dog": what stands before the first number; or None."""
    stem = re.sub(r"\.[^.]*$", "", name.rsplit("/", 1)[-1])
    found = re.match(r"(.*?[^\W\d_].*?)[\s._-]+[(\[]?\d", stem) or re.fullmatch(r"(.*[^\W\d_])\d+", stem)
    return found[1].strip(" ._-") if found else None


def classes_in_names(names: Sequence[str]) -> list[str]:
    """What the files' names say in every folder alike, where that may be the classes: several words, no camera's."""
    said: dict[str, set[str]] = defaultdict(set)
    for name in names:
        found = class_in(name)
        if found is None or found.lower().strip("_- ") in _CAMERAS | _GENERIC:
            return []
        said[name.rpartition("/")[0]].add(found)
    first = next(iter(said.values()), set())
    return sorted(first) if len(first) > 1 and all(own == first for own in said.values()) else []


def find_layout(where: str, names: Sequence[str], class_from_name: bool = False) -> Layout:
    """The layout of images, by their names relative to the top, or `UnclearLayout`."""
    folders = [tuple(part.strip() for part in name.split("/")[:-1]) for name in names]
    at = _split_level(where, names, folders)
    rest = folders if at is None else [own[:at] + own[at + 1 :] for own in folders]

    def layout(*levels: str) -> Layout:
        own = list(levels)
        if at is not None:
            own[len(own) : at] = [ANY] * (at - len(own))
            own.insert(at, SPLIT)
        return Layout(tuple(own), class_from_name)

    depths = sorted({len(own) for own in rest})
    if class_from_name:
        return layout(*((ENVIRONMENT,) if depths[0] > 0 else ()))
    if depths[0] == 0:
        _refuse_flat(where, names, rest)
    if depths[0] == 1 and depths[-1] > 1:
        first = next(name for name, own in zip(names, rest, strict=True) if len(own) == 1)
        second = next(name for name, own in zip(names, rest, strict=True) if len(own) > 1)
        raise UnclearLayout(
            f"{where}: two layouts are mixed: {first} looks like class/image, {second} like "
            "environment/class/image. Use one of them throughout, or say that the first folder is the class: "
            f"{layout(CLASS).option}",
            _described(where, names, [layout(CLASS)]),
        )
    understood = layout(CLASS) if depths[0] == 1 else layout(ENVIRONMENT, CLASS)
    if doubt := _doubt(rest, depths[0]):
        why, meant = doubt
        readings = [layout(*levels) for levels in meant if len(levels) <= depths[0]]
        _refuse_unclear(where, names, understood, why, [own for own in readings if own != understood])
    return understood


def _split_level(where: str, names: Sequence[str], folders: Sequence[tuple[str, ...]]) -> int | None:
    """Which of the first three folders is train, val or test throughout."""
    for level in range(min(3, min(map(len, folders)))):
        found = {own[level] for own in folders}
        splits = {name: split_of(name) for name in found}
        if all(splits.values()):
            return level
        if level == 0 and len(set(splits.values()) - {None}) > 1:
            others = sorted(name for name, split in splits.items() if split is None)
            marked = sorted(name for name, split in splits.items() if split)
            raise UnclearLayout(
                f"{where}: the folders {_first(marked)} look like splits, and {_first(others)} does not. Nothing is "
                "learned from test images: move what does not belong there elsewhere, or say what the first folder is "
                "(--layout environment/class if it is an environment)",
                _described(where, names, [Layout((ENVIRONMENT, CLASS))]) if min(map(len, folders)) > 1 else (),
            )
    return None


def _doubt(folders: Sequence[tuple[str, ...]], depth: int) -> tuple[str, list[tuple[str, ...]]] | None:
    """Why the usual reading is probably wrong, and what may be meant instead, the likeliest first; None: it is not.

    `folders` of each image, all of them at least `depth` deep; the usual reading is class, or environment/class.
    """
    levels = [{own[i] for own in folders} for i in range(min(depth, 4))]
    kinds = [_kind(names) for names in levels]
    if depth == 1:
        if kinds[0] == "dates":
            return f"the classes would be {_first(sorted(levels[0]))}, which look like dates", [(CLASS,)]
        return None
    first, second = levels[0], levels[1]
    classes = f"the classes would be {_first(sorted(second))}"
    if kinds[1] and not (kinds[1] == "numbers" and second <= _DIGITS and len(second) > 1):
        deeper = next((i for i in range(2, len(levels)) if not kinds[i]), None)
        told = f"{classes}, which look like {kinds[1]}"
        if kinds[0] and deeper is not None:
            return told, [(ANY,) * deeper + (CLASS,), (ENVIRONMENT, *(ANY,) * (deeper - 1), CLASS)]
        if not kinds[0]:
            meant: list[tuple[str, ...]] = [(CLASS,)]
            if deeper is not None:  # the same names below several first folders are classes, and those environments
                at = 0 if _repeated(folders, deeper, 1) else 1
                meant.insert(at, (ENVIRONMENT, *(ANY,) * (deeper - 1), CLASS))
            return told, meant
        return told, [(ENVIRONMENT, CLASS)]
    if len(second) == 1 and len(first) > 1 and next(iter(second)).lower() in _GENERIC:
        return f"there would be one class, {next(iter(second))}", [
            (CLASS,),
            (ENVIRONMENT, ANY, CLASS),
        ]
    if depth > 2 and len(first) == len(second) == 1 and len(levels[2]) > 1:
        return f"there would be one class, {next(iter(second))}", [
            *([(ANY, ANY, ENVIRONMENT, CLASS)] if depth > 3 else []),
            (ANY, ANY, CLASS),
        ]
    if depth > 2 and not kinds[2] and len(levels[2]) > 1 and _repeated(folders, 2, 2):
        told = f"{classes}, and the folders below them repeat ({_first(sorted(levels[2]))})"
        inner, outer = (ANY, ENVIRONMENT, CLASS), (ENVIRONMENT, ANY, CLASS)
        return told, [inner, outer] if len(first) == 1 else [outer, inner]
    return None


def _repeated(folders: Sequence[tuple[str, ...]], level: int, above: int) -> bool:
    """Whether most names of a level occur below several of the folders `above` levels deep, as classes would."""
    below = defaultdict(set)
    for own in folders:
        below[own[level]].add(own[:above])
    return 2 * sum(len(parents) > 1 for parents in below.values()) >= len(below)


def _kind(names: set[str]) -> str | None:
    """ "dates", "numbers", or None for names that are neither throughout."""
    if all(map(_is_date, names)):
        return "dates"
    return "numbers" if all(re.fullmatch(r"\d+", name) for name in names) else None


def _is_date(name: str) -> bool:
    plain = re.sub(r"[\s._-]+", "-", name.strip().lower())
    words = plain.split("-")
    if any(word in _MONTHS for word in words) and all(word in _MONTHS or word.isdigit() for word in words):
        return True
    return re.fullmatch(r"(19|20)\d\d(-?(w\d\d?|q[1-4]))?|0[1-9]", plain) is not None or any(
        _parses(plain, form) for form in _DATES
    )


def _parses(text: str, form: str) -> bool:
    try:
        return 1900 <= datetime.strptime(text, form).year < 2100
    except ValueError:
        return False


def _refuse_flat(where: str, names: Sequence[str], rest: Sequence[tuple[str, ...]]) -> None:
    flat = [name for name, own in zip(names, rest, strict=True) if not own]
    hint = ""
    if len(flat) == len(names) and len({class_in(name) for name in flat} - {None}) > 1:
        hint = f" If the class is in the file's name ({flat[0]} → {class_in(flat[0])}), say --class-from-name."
    raise DataError(
        f"{where}: an image lies in a folder named after its class, but {flat[0]} does not.{hint}{EXPECTED}"
    )


def _refuse_unclear(where: str, names: Sequence[str], understood: Layout, why: str, meant: Sequence[Layout]) -> None:
    readings = _described(where, names, [*meant, understood])
    width = max(len(layout.option) for layout, _ in readings)
    lines = [f"    {layout.option:{width}}  {said}" for layout, said in readings]
    probably = "\nProbably meant, first; as it stands, last:" if meant else "\nIf that is right, say so:"
    options = f"{probably}\n" + "\n".join(lines)
    raise UnclearLayout(f"{where}: read as {understood}, {why}.", readings, options)


def _described(where: str, names: Sequence[str], layouts: Sequence[Layout]) -> list[tuple[Layout, str]]:
    return [(layout, read_labels(where, names, layout).summary()) for layout in layouts]


def _counted(names: Sequence[str], noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{len(names):,} {noun if len(names) == 1 else plural} ({_first(names)})"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


EXPECTED = """ Expected:

    my_images/
        photo/              an environment: where or how the images were made
            dog/            a class
                1.jpg
            horse/
                2.jpg
        sketch/
            dog/
                3.jpg
    or, when there is one environment only:
    my_images/
        dog/
            1.jpg
        horse/
            2.jpg
    or with train, val and test above or below the environments (docs/data-layout.md)"""
