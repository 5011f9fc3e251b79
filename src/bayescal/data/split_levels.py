"""Which of the folders above images are train, val or test: a whole level, or a few beside others, which is refused.

Folders are tuples of names from the top, one for each folder that has images of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import dataclass

from bayescal.data.split_names import are_splits, may_be_splits, split_in, split_of

Folder = tuple[str, ...]
_IMAGES_IN = "the images in "


@dataclass(frozen=True)
class SplitLevels:
    """The level that is the split, and all levels that look like one: the others repeat it, or say nothing."""

    at: int | None
    marked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Beside:
    """Folders that look like splits, and what stands beside them and does not, by their names from the top."""

    level: int
    splits: list[str]
    others: list[str]

    def __str__(self) -> str:
        looks = "looks like a split" if len(self.splits) == 1 else "look like splits"
        does = "does" if len(self.others) == 1 and not self.others[0].startswith(_IMAGES_IN) else "do"
        return f"{first(self.splits)} {looks}, and {first(self.others)} {does} not"


def find_split_levels(folders: Set[Folder]) -> SplitLevels | str:
    """The levels, from the top, on which every image lies in a split; or why it cannot be said which is meant."""
    depth = min(map(len, folders))
    levels = tuple(level for level in range(depth) if are_splits({own[level] for own in folders}))
    # A folder "train" around everything says nothing beside another level that does.
    telling = [level for level in levels if {split_in(own[level]) for own in folders} != {"train"}] or levels[:1]
    for level in telling[1:]:
        if any(split_in(own[level]) != split_in(own[telling[0]]) for own in folders):
            one, other = (first(sorted({own[i] for own in folders})) for i in (telling[0], level))
            return f"two levels of folders look like splits ({one}, and below them {other})"
    return SplitLevels(telling[0] if telling else None, levels)


def likely_split_level(folders: Set[Folder]) -> int | None:
    """The first level on which every name has the word for a split in it."""
    depth = min(map(len, folders))
    return next((level for level in range(depth) if may_be_splits({own[level] for own in folders})), None)


def splits_beside_others(folders: Set[Folder], known: Set[int] = frozenset()) -> Beside | None:
    """Splits in some places and none in others: at the first level, without those that are `known`, that has them.

    Several splits in one folder are splits. A lone "train" among others is a class or an environment, except beside a
    single other folder at the top, or where it has the folders in it that elsewhere stand beside it.
    """
    for level in range(max(map(len, folders))):
        if level in known:
            continue
        inside = _inside(folders, level)
        marked = {(*parent, name) for parent, names in inside.items() for name in _several(names)}
        marked |= _repeating(folders, inside, level) | _above_images(folders, inside, level)
        marked |= _beside_one(folders, inside) if level == 0 else set()
        if marked:
            others = {own[: level + 1] for own in folders if len(own) > level} - marked
            shallow = {f"{_IMAGES_IN}{'/'.join(own) or 'the folder itself'}" for own in folders if len(own) <= level}
            return Beside(level, _names(marked), _names(others) + sorted(shallow))
    return None


def unread_splits(folders: Set[Folder], unread: Callable[[int], bool], at: int | None) -> list[str]:
    """Names of splits on levels that a layout gives no meaning to, and that differ from the split it reads (`at`)."""
    for level in filter(unread, range(max(map(len, folders)))):
        names = {own[level] for own in folders if len(own) > level}
        whole = are_splits(names) or may_be_splits(names)
        if whole and len({split_in(name) for name in names}) == 1 and all(len(own) > level for own in folders):
            continue  # a folder around everything, as in "photos/test" where only these were given
        found = names if whole else {n for inside in _inside(folders, level).values() for n in _several(inside)}
        agrees = at is not None and all(
            len(own) <= level or split_in(own[level]) in (None, split_in(own[at])) for own in folders
        )
        if found and not agrees:
            return sorted(found)
    return []


def _inside(folders: Set[Folder], level: int) -> dict[Folder, set[str]]:
    """The names on a level, by the folder that they are in."""
    found: dict[Folder, set[str]] = defaultdict(set)
    for own in folders:
        if len(own) > level:
            found[own[:level]].add(own[level])
    return found


def _several(names: set[str]) -> set[str]:
    """Those of the folders in one folder that are splits, where at least two different ones are."""
    marked = {name for name in names if split_of(name)}
    if len({split_of(name) for name in marked}) > 1:
        return marked
    return names if may_be_splits(names) else set()


def _repeating(folders: Set[Folder], inside: dict[Folder, set[str]], level: int) -> set[Folder]:
    """photo/test/dog where photo/dog or sketch/dog are there: the folders in "test" are of the kind beside it."""
    beside = {name for names in inside.values() for name in names if not split_of(name)}
    return {
        own[: level + 1]
        for own in folders
        if len(own) > level + 1 and split_of(own[level]) and own[level + 1] in beside
    }


def _above_images(folders: Set[Folder], inside: dict[Folder, set[str]], level: int) -> set[Folder]:
    """dog/test where images lie in dog itself: they are no test images, and those are."""
    return {
        (*parent, name)
        for parent, names in inside.items()
        if level and parent in folders
        for name in names
        if split_of(name) in ("val", "test")
    }


def _beside_one(folders: Set[Folder], inside: dict[Folder, set[str]]) -> set[Folder]:
    """At the top, "train" or "test" and one other folder, with folders in both."""
    names = inside[()]
    marked = {name for name in names if split_of(name)}
    lone = len(names - marked) == 1 and {split_of(name) for name in marked} & {"train", "test"}
    return {(name,) for name in marked} if lone and min(map(len, folders)) > 1 else set()


def _names(folders: Set[Folder]) -> list[str]:
    return sorted("/".join(own) for own in folders)


def first(names: list[str], shown: int = 4) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")
