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

from bayescal.data.name_kinds import kind_of
from bayescal.data.split_levels import (
    SplitLevels,
    find_split_levels,
    likely_split_level,
    splits_beside_others,
    unread_splits,
)
from bayescal.data.split_names import split_in
from bayescal.errors import DataError
from bayescal.util.suggest import did_you_mean

ENVIRONMENT, CLASS, SPLIT, ANY = "environment", "class", "split", "*"
EXAMPLES = "environment/class, class, split/class, environment/*/class"
ONLY_ENVIRONMENT = "all"  # the environment of images that come without one

# fmt: off
GENERIC = frozenset({
    "images", "image", "imgs", "img", "photos", "photo", "pictures", "pics", "frames", "files", "data", "raw", "rgb",
    "jpg", "jpeg", "png",
})
# What stands before the number in names that nobody chose.
_CAMERAS = frozenset({
    "img", "dsc", "dscn", "dscf", "pxl", "pic", "mvi", "vid", "p", "gopr", "screenshot", "scan", "frame", "photo",
    "image",
})
# fmt: on
_ANNOTATIONS = frozenset(
    {
        "mask",
        "masks",
        "annotation",
        "annotations",
        "segmentation",
        "segmentations",
        "trimap",
        "trimaps",
        "groundtruth",
    }
)
_DIGITS = frozenset("0123456789")
_SHOWN = 4


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


def unread_splits_in(names: Sequence[str], layout: Layout) -> list[str]:
    """Folders that look like splits where a layout says that folders mean nothing."""
    at = layout.levels.index(SPLIT) if SPLIT in layout.levels else None
    folders = {tuple(part.strip() for part in name.split("/")[:-1]) for name in names}
    return unread_splits(folders, lambda level: (*layout.levels[level:], ANY)[0] == ANY, at)


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
    if strange := sorted({name for name in splits if name and split_in(name) is None}):
        raise DataError(
            f"{where}: {_first(strange)} is no split. With {layout}, that folder must be train, val or test."
        )
    return Labels(
        classes or column(CLASS, ""),
        column(ENVIRONMENT, ONLY_ENVIRONMENT),
        [split_in(name) or "" for name in splits],
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
        if found is None or found.lower().strip("_- ") in _CAMERAS | GENERIC:
            return []
        said[name.rpartition("/")[0]].add(found)
    first = next(iter(said.values()), set())
    return sorted(first) if len(first) > 1 and all(own == first for own in said.values()) else []


def find_layout(where: str, names: Sequence[str], class_from_name: bool = False) -> Layout:
    """The layout of images, by their names relative to the top, or `UnclearLayout`."""
    folders = [tuple(part.strip() for part in name.split("/")[:-1]) for name in names]
    found = _split_levels(where, names, set(folders), class_from_name)
    at, marked = found.at, found.marked
    rest = [tuple(part for i, part in enumerate(own) if i not in marked) for own in folders] if marked else folders

    def layout(*levels: str) -> Layout:
        own = list(levels)
        for level in marked:
            own[len(own) : level] = [ANY] * (level - len(own))
            own.insert(level, SPLIT if level == at else ANY)
        while own and own[-1] == ANY:
            own.pop()
        return Layout(tuple(own), class_from_name)

    depths = sorted({len(own) for own in rest})
    if class_from_name:
        return layout(*((ENVIRONMENT,) if depths[0] > 0 else ()))
    _refuse_unlabelled(where, names, rest, at)
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


def _split_levels(
    where: str, names: Sequence[str], folders: set[tuple[str, ...]], class_from_name: bool
) -> SplitLevels:
    """Which folders are train, val or test throughout; those that are in some places only are refused."""
    depth = min(map(len, folders))
    found, likely = find_split_levels(folders), likely_split_level(folders)
    if isinstance(found, str):
        raise UnclearLayout(
            f"{where}: {found}. Nothing is learned from test images: name one of the upper folders alone, or say which "
            "level it is, with * for the other (--layout split/*/class)",
            [],
        )
    known = {*found.marked, *(() if likely is None or found.at is not None else (likely,))}
    if beside := splits_beside_others(folders, known):
        top = beside.level == 0
        # Read as environments, those at the top can be left out by name; deeper ones would be classes.
        readings = [Layout((ENVIRONMENT, CLASS))] if top and depth > 1 and not class_from_name else []
        hint = (
            "say what the first folder is (--layout environment/class if it is an environment)"
            if top
            else "give the other folders the same splits"
        )
        raise UnclearLayout(
            f"{where}: {beside}. Nothing is learned from test images: move what does not belong there elsewhere, or "
            f"{hint}",
            _described(where, names, readings),
        )
    if found.at is None and likely is not None:
        _refuse_likely_splits(where, names, likely, {own[likely] for own in folders}, depth, class_from_name)
    return found


def _refuse_likely_splits(
    where: str, names: Sequence[str], level: int, found: set[str], depth: int, class_from_name: bool
) -> None:
    usual = ((ENVIRONMENT,), ()) if class_from_name else ((ENVIRONMENT, CLASS), (CLASS,))

    def with_split(levels: tuple[str, ...]) -> Layout:
        above = (*levels[:level], *(ANY,) * (level - len(levels)))
        return Layout((*above, SPLIT, *levels[level:]), class_from_name)

    meant = [with_split(levels) for levels in usual if len(levels) < depth]
    understood = Layout(next(levels for levels in usual if len(levels) <= depth), class_from_name)
    hint = "" if meant else ". Nothing is learned from test images: put them into folders split/class, or use a list"
    why = f"but the folders {_first(sorted(found))} look like splits{hint}"
    _refuse_unclear(where, names, understood, why, meant)


def _doubt(folders: Sequence[tuple[str, ...]], depth: int) -> tuple[str, list[tuple[str, ...]]] | None:
    """Why the usual reading is probably wrong, and what may be meant instead, the likeliest first; None: it is not.

    `folders` of each image, all of them at least `depth` deep; the usual reading is class, or environment/class.
    """
    levels = [{own[i] for own in folders} for i in range(depth)]
    kinds = [kind_of(names) for names in levels]
    if depth == 1:
        if kinds[0] == "dates":
            return f"the classes would be {_first(sorted(levels[0]))}, which look like dates", [(CLASS,)]
        return None
    first, second = levels[0], levels[1]
    if masks := sorted(name for name in first if re.sub(r"[\s_-]", "", name.lower()) in _ANNOTATIONS):
        told = f"{_first(masks)} would be an environment, and looks like what was drawn over the images"
        return f"{told}. Name the folder of the images alone", []
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
    if len(second) == 1 and len(first) > 1 and next(iter(second)).lower() in GENERIC:
        below = depth > 2 and _repeated(folders, 2, 1)  # the same names in several places are classes
        meant = [(CLASS,), (ENVIRONMENT, ANY, CLASS)]
        return f"there would be one class, {next(iter(second))}", meant[::-1] if below else meant
    several = next((i for i, found in enumerate(levels) if len(found) > 1), 0)
    if several > 1 and len(first) == len(second) == 1:  # folders around everything
        around = (ANY,) * several
        return f"there would be one class, {next(iter(second))}", [
            *([(*around, ENVIRONMENT, CLASS)] if depth > several + 1 else []),
            (*around, CLASS),
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


def _refuse_unlabelled(where: str, names: Sequence[str], rest: Sequence[tuple[str, ...]], at: int | None) -> None:
    """Test images in no folder of a class, beside labelled ones: a competition's."""
    bare = [not own or (len(own) == 1 and own[0].lower() in GENERIC) for own in rest]
    if at != 0 or all(bare) or not any(bare):
        return
    first = next(name for name, is_bare in zip(names, bare, strict=True) if is_bare)
    without, labelled = (
        {name.split("/")[0] for name, is_bare in zip(names, bare, strict=True) if is_bare is said}
        for said in (True, False)
    )
    whole = sorted(labelled - without)
    alone = f", or name {where}/{whole[0]} alone" if len(whole) == 1 else ""
    count = "1 image" if sum(bare) == 1 else f"{sum(bare):,} images"
    raise DataError(
        f"{where}: {count} in {_first(sorted(without))} (such as {first}): in no folder of a class, so nothing can be "
        f"learned from them or measured on them. Move them elsewhere{alone}; `bayescal predict` answers for them."
    )


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
