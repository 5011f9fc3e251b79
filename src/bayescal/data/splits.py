"""Drawing few-shot training and validation sets that are repeatable and free of test images.

"K shots" means K images per class in total, spread over the training environments: as evenly as possible, or in the
proportions of the class's images, which keeps the correlation of class and environment (`balanced=False`).
Draws depend on (seed, class, environment, purpose) alone, so adding a class changes no other class's draw.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bayescal.data.manifest import Manifest
from bayescal.errors import DataError

VALIDATION_SHARE = 0.2  # of every class × environment cell, when all images are used


@dataclass(frozen=True, eq=False)
class Split:
    """Which images to train on and which to validate on, and what had to be done to get them."""

    train: np.ndarray  # int64 indices into the manifest, ascending
    val: np.ndarray
    seed: int
    notes: tuple[str, ...] = ()

    def hash(self) -> str:
        """Identify the split by its images alone: equal indices, equal hash, on every machine."""
        content = ";".join(",".join(map(str, np.sort(rows).tolist())) for rows in (self.train, self.val))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Hashes:
    """Content hashes as numbers, so that a million images are compared without a loop over them."""

    texts: Sequence[str | None]  # of each image; None where it has none, and then it is no copy of anything
    numbers: np.ndarray  # (N,) int64: smaller for a smaller hash, equal for equal ones
    known: np.ndarray  # (N,) bool: whether there is a hash

    @classmethod
    def of(cls, texts: "Hashes | Sequence[str | None]") -> "Hashes":
        if isinstance(texts, Hashes):
            return texts
        known = np.fromiter((text is not None for text in texts), dtype=bool, count=len(texts))
        if known.all() and (digests := _digests([text for text in texts if text is not None])) is not None:
            return cls(texts, _numbers(digests), known)
        number_of = {text: n for n, text in enumerate(sorted(set(map(str, texts))))}
        return cls(texts, np.fromiter((number_of[str(text)] for text in texts), np.int64, len(texts)), known)

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> "Hashes":
        return Hashes(self.at(rows), self.numbers[rows], self.known[rows])

    def at(self, rows: np.ndarray) -> list[str | None]:
        return [self.texts[row] for row in rows.tolist()]

    def same_as(self, rows: np.ndarray) -> np.ndarray:
        """Which images have the content of one of `rows`: (N,) bool."""
        wanted = np.zeros(int(self.numbers.max(initial=-1)) + 1, dtype=bool)
        wanted[self.numbers[rows[self.known[rows]]]] = True
        return wanted[self.numbers] & self.known


def _digests(texts: Sequence[str]) -> np.ndarray | None:
    """SHA-256 hashes as four numbers each, (N, 4) with the same order; None where some text is not such a hash."""
    together = "".join(texts)
    try:
        data = bytes.fromhex(together)
    except ValueError:
        return None
    if set(map(len, texts)) != {64} or data.hex() != together:
        return None
    return np.frombuffer(data, dtype=">u8").reshape(-1, 4).astype(np.uint64)


def _numbers(digests: np.ndarray) -> np.ndarray:
    """Which of the distinct rows each row (N, 4) is, in ascending order: (N,)."""
    for order_of in (lambda: np.argsort(digests[:, 0]), lambda: np.lexsort(digests.T[::-1])):
        # Different contents with the same first 64 bits do not happen by chance; then the other bits count too.
        order = order_of()
        ordered = digests[order]
        new = (ordered[1:] != ordered[:-1]).any(axis=1)
        if np.array_equal(new, ordered[1:, 0] != ordered[:-1, 0]):
            break
    numbers = np.zeros(len(digests), dtype=np.int64)
    numbers[order[1:]] = np.cumsum(new)
    return numbers


def few_shot_split(
    class_ids: ArrayLike,
    environment_ids: ArrayLike,
    *,
    train_environments: Sequence[int],
    shots: int | None,
    val_shots: int | None,
    seed: int,
    balanced: bool = True,
    hashes: Hashes | Sequence[str | None] | None = None,
    forbidden: Collection[str] | np.ndarray | None = None,
    pool: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    environment_names: Sequence[str] | None = None,
) -> Split:
    """Draw `shots` training and then `val_shots` validation images per class from the training environments.

    `shots=None` uses every image, 80 % to train and 20 % to validate in each class × environment cell (and
    `val_shots` plays no part); otherwise `val_shots=None` means as many as `shots`. `balanced=False` spreads a class's
    shots over environments as its images are, where the correlation of the two is what is studied. `hashes`, one per
    image, make copies of an image count once and keep out images whose hash is in `forbidden`, the test set (or a mask
    of such images). `pool`, a mask, says which images may be drawn at all. With names, messages are readable, and
    draws depend on the names and not on their numbers. Where a cell has too few images the others fill up, and
    `notes` say so.
    """
    class_ids, environment_ids = np.asarray(class_ids), np.asarray(environment_ids)
    environments = _check_arguments(class_ids, environment_ids, train_environments, shots, val_shots)
    known = None if hashes is None else Hashes.of(hashes)
    drawable = np.isin(environment_ids, environments)
    if pool is not None:
        drawable &= _as_mask(pool, len(class_ids))
    rows, notes = without_copies(np.flatnonzero(drawable), class_ids, environment_ids, known, forbidden)
    if known is not None:  # the order of the files then plays no part in the draw
        rows = rows[np.argsort(known.numbers[rows], kind="stable")]
    rows = rows[np.lexsort((environment_ids[rows], class_ids[rows]))]

    labels = [_name(environment_names, e, "environment") for e in environments]
    train: list[np.ndarray] = []
    val: list[np.ndarray] = []
    present = np.unique(class_ids)
    starts = np.searchsorted(class_ids[rows], present)
    for class_id, of_class in zip(present, np.split(rows, starts[1:]), strict=True):
        name = _name(class_names, class_id, "class")
        if of_class.size == 0:
            raise DataError(
                f"There is no image of {name!r} to train on in {', '.join(labels)}. "
                "Add some, or leave the class out of the data."
            )
        starts = np.searchsorted(environment_ids[of_class], environments)
        cells = _shuffled(np.split(of_class, starts[1:]), labels, seed, name)
        n_train, n_val = _cell_counts(list(map(len, cells)), labels, shots, val_shots, seed, name, balanced)
        for cell, k, v in zip(cells, n_train, n_val, strict=True):
            train.append(cell[:k])
            val.append(cell[k : k + v])
        notes += _shortage_note(name, labels, n_train, n_val, shots, val_shots, balanced)
    return Split(_ascending(train), _ascending(val), seed, tuple(notes))


def split_from_manifest(manifest: Manifest, hashes: Sequence[str | None] | None = None) -> Split:
    """Take the split written in the manifest; with hashes, refuse images that occur in two parts."""
    parts = {name: np.flatnonzero(manifest.splits == name) for name in ("train", "val", "test")}
    if parts["train"].size == 0:
        raise DataError('No image has the split "train". Fill the split column, or draw a few-shot split.')
    if hashes is not None:
        for first, second in (("train", "test"), ("val", "test"), ("train", "val")):
            a, b = parts[first], parts[second]
            check_leaks(
                [hashes[row] for row in a.tolist()],
                [hashes[row] for row in b.tolist()],
                [manifest.paths[row] for row in a],
                [manifest.paths[row] for row in b],
                names=(first, second),
            )
    return Split(parts["train"], parts["val"], seed=0)


def check_leaks(
    hashes_a: Sequence[str | None],
    hashes_b: Sequence[str | None],
    paths_a: Sequence[str],
    paths_b: Sequence[str],
    names: tuple[str, str] = ("train", "test"),
) -> None:
    """Refuse two sets of images that share one, whatever the files are called."""
    first_path = {digest: path for digest, path in zip(hashes_a, paths_a, strict=True) if digest is not None}
    pairs = [(first_path[digest], path) for digest, path in zip(hashes_b, paths_b, strict=True) if digest in first_path]
    if pairs:
        shown = "; ".join(f"{a} = {b}" for a, b in pairs[:3])
        raise DataError(
            f"{_count(len(pairs), 'image')} both in the {names[0]} and in the {names[1]} set (same content): "
            f"{shown}{'; …' if len(pairs) > 3 else '.'} "
            "Results would look better than they are: remove one of each pair."
        )


def _shuffled(cells: Sequence[np.ndarray], labels: Sequence[str], seed: int, name: str) -> list[np.ndarray]:
    """The images of one class in each environment, in the order in which they are taken."""
    return [shuffled(cell, seed, name, label, "images") for label, cell in zip(labels, cells, strict=True)]


def shuffled(images: np.ndarray, seed: int, *names: str) -> np.ndarray:
    """Images in an order that the seed and these names decide."""
    return _generator(seed, *names).permutation(images)


def spread_evenly(total: int, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Share `total` over cells of limited size evenly; leftovers go to the first in `order`."""
    counts = [0] * len(sizes)
    left = total
    while left and (open_cells := [cell for cell in order if counts[cell] < sizes[cell]]):
        share = left // len(open_cells)
        for cell in open_cells if share else open_cells[:left]:
            given = min(share or 1, sizes[cell] - counts[cell])
            counts[cell] += given
            left -= given
    return counts


def spread_in_proportion(total: int, sizes: Sequence[int], offset: float) -> list[int]:
    """Share `total` over cells in proportion to their sizes: each gets its share rounded up or down.

    `offset` in [0, 1) decides which, so that with a random one a cell gets its exact share on average.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    share = min(1.0, total / max(1, ends[-1]))
    return np.diff(np.floor(ends * share + offset)).astype(int).tolist()


def _cell_counts(
    sizes: Sequence[int],
    labels: Sequence[str],
    shots: int | None,
    val_shots: int | None,
    seed: int,
    name: str,
    balanced: bool,
) -> tuple[list[int], list[int]]:
    """Decide how many images of each environment go to training and to validation."""
    if shots is None:
        n_val = [0 if n < 2 else max(1, round(VALIDATION_SHARE * n)) for n in sizes]
        return [n - v for n, v in zip(sizes, n_val, strict=True)], n_val
    # 16 shots over 3 environments leave one over: which environment gets it is drawn for each class
    counts, rest = [], list(sizes)
    for purpose, wanted in (("train", shots), ("val", shots if val_shots is None else val_shots)):
        if balanced:
            draws = [_generator(seed, name, label, f"order of {purpose}").random() for label in labels]
            taken = spread_evenly(wanted, rest, np.argsort(draws).tolist())
        else:
            taken = spread_in_proportion(wanted, rest, _generator(seed, name, f"shares of {purpose}").random())
        rest = [n - t for n, t in zip(rest, taken, strict=True)]
        counts.append(taken)
    return counts[0], counts[1]


def without_copies(
    rows: np.ndarray,
    class_ids: np.ndarray,
    environment_ids: np.ndarray,
    hashes: Hashes | None,
    forbidden: Collection[str] | np.ndarray | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Leave out test images, second copies, and images that are labelled as two classes."""
    if hashes is None:
        if forbidden is not None and len(forbidden):
            raise DataError("Images cannot be compared with the forbidden ones without their hashes.")
        return rows, []
    if len(hashes) != len(class_ids):
        raise DataError(f"There are {len(hashes)} hashes for {len(class_ids)} images.")
    notes = []
    if isinstance(forbidden, np.ndarray):
        allowed = rows[~forbidden[rows]]
    else:
        texts = hashes.at(rows) if forbidden else []
        allowed = rows[np.array([text not in forbidden for text in texts], dtype=bool)] if forbidden else rows
    if len(allowed) < len(rows):
        notes.append(f"{_count(len(rows) - len(allowed), 'image')} also in the test set: left out.")
    unlike = allowed[~hashes.known[allowed]]
    allowed = allowed[hashes.known[allowed]]
    # Groups of equal images, in each the one that is kept first: that must not depend on the order of the files.
    order = np.lexsort((environment_ids[allowed], hashes.numbers[allowed]))
    allowed = allowed[order]
    starts = np.flatnonzero(np.diff(hashes.numbers[allowed], prepend=-1))
    sizes = np.diff(starts, append=len(allowed))
    classes = class_ids[allowed]
    agreed = np.ones(len(starts), dtype=bool)
    if len(starts):
        agreed = np.minimum.reduceat(classes, starts) == np.maximum.reduceat(classes, starts)
    if disagreeing := int(sizes[~agreed].sum()):
        notes.append(f"{_count(disagreeing, 'image')} labelled as more than one class: left out.")
    if repeated := int((sizes[agreed] - 1).sum()):
        notes.append(f"{_count(repeated, 'image')} a copy of another one: used once.")
    return _ascending([unlike, allowed[starts[agreed]]]), notes


def _shortage_note(
    name: str,
    labels: Sequence[str],
    n_train: Sequence[int],
    n_val: Sequence[int],
    shots: int | None,
    val_shots: int | None,
    balanced: bool,
) -> list[str]:
    """Say for one class which cells had too few images and what was taken instead; nothing if none had."""
    if shots is None:
        wanted = {"training": (n_train, None), "validation": (n_val, None)}
        short = [label for label, k, v in zip(labels, n_train, n_val, strict=True) if k == 0 or v == 0]
    else:
        wanted = {
            "training": (n_train, shots),
            "validation": (n_val, shots if val_shots is None else val_shots),
        }
        is_short = {
            label
            for counts, total in wanted.values()
            for label, count in zip(labels, counts, strict=True)
            if (balanced and count < total // len(labels)) or sum(counts) < total
        }
        short = [label for label in labels if label in is_short]
    if not short:
        return []
    taken = "; ".join(
        f"{purpose} {sum(counts)}{'' if total is None else f' of {total}'} "
        f"({', '.join(f'{label} {count}' for label, count in zip(labels, counts, strict=True))})"
        for purpose, (counts, total) in wanted.items()
    )
    return [f"{name}: too few images in {', '.join(short)}. Taken: {taken}."]


def _check_arguments(
    class_ids: np.ndarray,
    environment_ids: np.ndarray,
    train_environments: Sequence[int],
    shots: int | None,
    val_shots: int | None,
) -> list[int]:
    if class_ids.ndim != 1 or class_ids.shape != environment_ids.shape:
        raise DataError(
            f"One class and one environment per image; found {class_ids.shape} and {environment_ids.shape}."
        )
    if shots is not None and shots < 1:
        raise DataError(f"shots must be at least 1, or None for all images; found {shots}.")
    if val_shots is not None and val_shots < 0:
        raise DataError(f"val_shots must not be negative; found {val_shots}.")
    environments = sorted({int(environment) for environment in train_environments})
    if not environments:
        raise DataError("There must be at least one training environment.")
    if unknown := set(environments) - set(np.unique(environment_ids).tolist()):
        raise DataError(f"The training environment {min(unknown)} has no images at all.")
    return environments


def _as_mask(pool: ArrayLike, length: int) -> np.ndarray:
    mask = np.asarray(pool)
    if mask.dtype != np.bool_ or mask.shape != (length,):
        raise DataError(f"pool must be a mask over {length} images; found {mask.dtype} {mask.shape}.")
    return mask


def _generator(seed: int, *names: str) -> np.random.Generator:
    # repr quotes the names, so that no two lists of names give the same text
    digest = hashlib.sha256(repr((int(seed), *names)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _name(names: Sequence[str] | None, number: int, kind: str) -> str:
    return f"{kind} {int(number)}" if names is None else names[int(number)]


def _ascending(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def _count(number: int, noun: str) -> str:
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"
