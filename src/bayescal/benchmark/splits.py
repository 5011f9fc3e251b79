"""Which images a run may use for what: the sets of a fold and a seed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bayescal.data.datasets.base import Dataset, Fold
from bayescal.data.manifest import Manifest
from bayescal.data.splits import Hashes, check_leaks, few_shot_split, shuffled
from bayescal.errors import DataError


@dataclass(frozen=True, eq=False)
class EvalSplits:
    """The images of one fold and seed, as manifest rows. No image is both in a set that chooses and one that reports.

    `eval_sets` has "val" (training environments), "test", and where the data allow it "test_val" (of the test
    distribution), "ood_val" (of neither) and "test_rest": the test images that are left when "test_val" was drawn from
    them. A rule that looked at "test_val" reports on "test_rest", the others on the whole "test". An inner fold, with a
    training environment left out, has "val" and "left_out" alone: its test images are not looked at.
    """

    train: np.ndarray
    eval_sets: Mapping[str, np.ndarray]
    digest: str  # of all splits, by content and label: equal images, equal digest, on every machine
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([self.train, *self.eval_sets.values()])


def draw_splits(
    dataset: Dataset,
    manifest: Manifest,
    hashes: Hashes | Sequence[str | None],
    fold: Fold,
    seed: int,
    shots: int,
    val_shots: int,
) -> EvalSplits:
    """The sets of a fold for one seed: few-shot draws, and no test image in any other set (by content).

    `dataset.balanced` says whether shots are spread evenly over environments, or as the images of each part are.
    """
    hashes = Hashes.of(hashes)
    test = np.flatnonzero(fold.test)
    tested = hashes.same_as(test)
    how = {"class_names": manifest.classes, "environment_names": manifest.environments, "balanced": dataset.balanced}
    ids = (manifest.class_ids, manifest.environment_ids)
    split = few_shot_split(
        *ids, train_environments=fold.train_environments, shots=shots, hashes=hashes,
        val_shots=0 if fold.val is not None else val_shots, seed=seed, forbidden=tested, pool=fold.pool, **how,
    )  # fmt: skip
    eval_sets, notes = {"val": split.val}, list(split.notes)
    taken = hashes.same_as(split.train)

    def draw(part: str, mask: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
        # An environment need not have every class, so only the images in question are shown: what is drawn depends
        # on names and contents.
        rows = np.flatnonzero(mask & ~forbidden)
        if not rows.size:
            raise DataError(f"{dataset.title}, {fold.name}: every image of {part} is also in the test or training set")
        few = few_shot_split(
            *(column[rows] for column in ids), train_environments=np.unique(manifest.environment_ids[rows]).tolist(),
            shots=val_shots, val_shots=0, seed=seed, hashes=hashes.take(rows), **how,
        )  # fmt: skip
        notes.extend(_shortages(part, manifest, rows[few.train], val_shots))
        return rows[few.train]

    if fold.val is not None:
        eval_sets["val"] = draw("val", fold.val, tested | taken)
    if not eval_sets["val"].size:
        raise DataError(f"{dataset.title}, {fold.name}: no image is left for validation. Use fewer --shots.")
    if fold.test_val is not None:
        eval_sets["test_val"] = draw("test_val", fold.test_val, tested | taken)
    else:
        kept = _kept_to_report(test, manifest, hashes, seed, val_shots)
        if (fold.test & ~taken & ~kept).any():  # otherwise no class can spare an image, and no rule looks at any
            eval_sets["test_val"] = draw("test_val", fold.test, taken | kept)
            eval_sets["test_rest"] = test[~np.isin(hashes.numbers[test], hashes.numbers[eval_sets["test_val"]])]
    if fold.ood_val is not None:
        eval_sets["ood_val"] = draw("ood_val", fold.ood_val, tested | taken)
    eval_sets["test"] = test
    for name, rows in (("train", split.train), ("val", eval_sets["val"])):
        shared = test[hashes.same_as(rows)[test]]  # none, unless a draw went wrong
        paths = ([manifest.paths[i] for i in some] for some in (rows, shared))
        check_leaks(hashes.at(rows), hashes.at(shared), *paths, names=(name, "test"))
    return EvalSplits(split.train, eval_sets, _digest(split.train, eval_sets, hashes, manifest), tuple(notes))


def leave_out(splits: EvalSplits, manifest: Manifest, environment: int) -> EvalSplits:
    """The same images without those of one training environment, which are measured on as "left_out".

    What was drawn stays drawn, so that every inner fold of a fold and seed is about the same images. Those whose class
    is nowhere else are not measured on: nobody could have learned it.
    """
    of = manifest.environment_ids
    train, val = splits.train, splits.eval_sets["val"]
    rest = train[of[train] != environment]
    left = np.concatenate([part[of[part] == environment] for part in (train, val)])
    learnable = left[np.isin(manifest.class_ids[left], manifest.class_ids[rest])]
    about = f"{splits.digest} without {manifest.environments[environment]}"
    if 0 < len(learnable) < len(left):
        left, about = learnable, f"{about}, classes of others alone"
    eval_sets = {"val": val[of[val] != environment], "left_out": left}
    return EvalSplits(rest, eval_sets, hashlib.sha256(about.encode()).hexdigest(), splits.notes)


def _kept_to_report(test: np.ndarray, manifest: Manifest, hashes: Hashes, seed: int, val_shots: int) -> np.ndarray:
    """Images that validation must not draw from the test images, (N,) bool: at least half of each class, by content.

    A class with fewer than twice `val_shots` would otherwise have few images to report on, or none.
    """
    kept = np.zeros(len(hashes), dtype=bool)
    for class_id, name in enumerate(manifest.classes):
        own = test[manifest.class_ids[test] == class_id]
        _, first = np.unique(hashes.numbers[own], return_index=True)  # of copies one; in an order that contents decide
        if len(first) < 2 * val_shots:
            few = shuffled(own[first], seed, name, "kept to report")[len(first) // 2 :]
            kept |= np.isin(hashes.numbers, hashes.numbers[few]) & (manifest.class_ids == class_id)
    return kept


def _shortages(part: str, manifest: Manifest, rows: np.ndarray, wanted: int) -> list[str]:
    """What there is too little of among the images of a part, by class."""
    counts = np.bincount(manifest.class_ids[rows], minlength=len(manifest.classes))
    return [
        f"{part}: {count} of {wanted} images of {name}."
        for name, count in zip(manifest.classes, counts, strict=True)
        if count < wanted
    ]


def _digest(train: np.ndarray, eval_sets: Mapping[str, np.ndarray], hashes: Hashes, manifest: Manifest) -> str:
    """Of the images of all sets by content, and of what each is labelled as: a corrected label is another split."""
    digest = hashlib.sha256()
    for name, rows in sorted({"train": train, **eval_sets}.items()):
        classes = [manifest.classes[c] for c in manifest.class_ids[rows]]
        environments = [manifest.environments[e] for e in manifest.environment_ids[rows]]
        images = [f"{h} {c!r} {e!r}" for h, c, e in zip(hashes.at(rows), classes, environments, strict=True)]
        digest.update(f"{name}:{','.join(sorted(images))};".encode())  # sorted: the order of the files plays no part
    return digest.hexdigest()
