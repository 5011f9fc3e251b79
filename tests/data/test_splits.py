"""Few-shot sets are balanced, disjoint, repeatable, free of test images, and say where they fell short."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescal.data.manifest import Manifest
from bayescal.data.splits import (
    Hashes,
    Split,
    check_leaks,
    few_shot_split,
    split_from_manifest,
    spread_evenly,
    spread_in_proportion,
)
from bayescal.errors import DataError


def grid(cells):
    """Ids of images for a table cells[class][environment] of counts."""
    pairs = [(c, e) for c, row in enumerate(cells) for e, n in enumerate(row) for _ in range(n)]
    classes, environments = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return classes, environments


def draw(classes, environments, **options):
    defaults = {
        "train_environments": sorted(set(environments.tolist())),
        "shots": 16,
        "val_shots": 16,
        "seed": 1,
    }
    return few_shot_split(classes, environments, **(defaults | options))


def table(rows, classes, environments):
    counts = np.zeros((classes.max() + 1, environments.max() + 1), dtype=int)
    np.add.at(counts, (classes[rows], environments[rows]), 1)
    return counts


CELLS = st.integers(1, 4).flatmap(
    lambda environments: st.lists(
        st.lists(st.integers(0, 14), min_size=environments, max_size=environments).filter(any),
        min_size=1,
        max_size=4,
    )
)
SEEDS = st.integers(0, 2**40)


# ---------------------------------------------------------------- what holds for any data


@settings(max_examples=150, deadline=None)
@given(CELLS, st.integers(1, 12), st.integers(0, 12), SEEDS)
def test_quotas_are_met_and_shared_evenly(cells, shots, val_shots, seed):
    classes, environments = grid(cells)
    split = draw(
        classes,
        environments,
        shots=shots,
        val_shots=val_shots,
        seed=seed,
    )
    assert not set(split.train) & set(split.val)
    assert len(set(split.train)) == len(split.train)
    assert len(set(split.val)) == len(split.val)
    present = sorted(set(environments.tolist()))
    sizes = table(np.arange(len(classes)), classes, environments)[:, present]
    left = sizes
    for rows, wanted in ((split.train, shots), (split.val, val_shots)):
        taken = table(rows, classes, environments)[:, present]
        assert (taken <= left).all()
        assert np.array_equal(taken.sum(1), np.minimum(wanted, left.sum(1))), "quota missed"
        for class_taken, class_left in zip(taken, left, strict=True):
            # a cell may lag behind another by more than one only if it was emptied
            lagging = class_taken < class_taken.max() - 1
            assert np.array_equal(class_taken[lagging], class_left[lagging])
        left = left - taken
    short = (table(split.train, classes, environments).sum(1) < shots).any()
    assert bool(split.notes) or not short


@settings(max_examples=150, deadline=None)
@given(CELLS, st.integers(1, 6), SEEDS, st.randoms(use_true_random=False))
def test_the_draw_depends_on_neither_row_order_nor_numbering(cells, shots, seed, random):
    classes, environments = grid(cells)
    hashes = [f"{c}-{random.randrange(12)}" for c in classes]  # with copies, also across environments
    present = sorted(set(environments.tolist()))
    names = [f"class {'dacb'[c]}" for c in range(4)]
    options = {"shots": shots, "val_shots": 2, "seed": seed, "environment_names": ["w", "x", "y", "z"]}
    split = draw(classes, environments, hashes=hashes, class_names=names, train_environments=present, **options)

    order = list(range(len(classes)))
    random.shuffle(order)
    renumbered = np.array([3, 1, 0, 2])  # a permutation of the class ids, with the names moved along
    moved_names = [names[np.flatnonzero(renumbered == c)[0]] for c in range(4)]
    other = draw(
        renumbered[classes[order]],
        environments[order],
        hashes=[hashes[row] for row in order],
        class_names=moved_names,
        train_environments=present[::-1],
        **options,
    )
    assert {hashes[row] for row in split.train} == {hashes[order[row]] for row in other.train}
    assert {hashes[row] for row in split.val} == {hashes[order[row]] for row in other.val}


@settings(max_examples=60, deadline=None)
@given(CELLS, st.integers(1, 6), SEEDS)
def test_adding_a_class_changes_no_other(cells, shots, seed):
    names = ["ant", "bee", "cow", "dog", "elk"]
    classes, environments = grid(cells)
    present = sorted(set(environments.tolist()))
    options = {"shots": shots, "val_shots": 3, "seed": seed, "train_environments": present}
    before = draw(classes, environments, class_names=names[1:], **options)
    # the new class sorts first, so that every id moves by one
    extra_classes, extra_environments = np.zeros(9, np.int64), np.resize(present, 9)
    after = draw(
        np.concatenate([extra_classes, classes + 1]),
        np.concatenate([extra_environments, environments]),
        class_names=names,
        **options,
    )
    assert np.array_equal(before.train, after.train[after.train >= 9] - 9)
    assert np.array_equal(before.val, after.val[after.val >= 9] - 9)


@settings(max_examples=100, deadline=None)
@given(CELLS, st.data(), SEEDS)
def test_no_content_is_used_twice_or_from_the_test_set(cells, data, seed):
    classes, environments = grid(cells)
    hashes = data.draw(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=len(classes), max_size=len(classes)))
    forbidden = set(data.draw(st.lists(st.sampled_from("abcdefgh"), max_size=4)))
    shots = data.draw(st.sampled_from([None, 2, 5]))
    options = {"hashes": hashes, "forbidden": forbidden, "shots": shots, "val_shots": 3, "seed": seed}
    labels = {digest: {c for c, h in zip(classes, hashes, strict=True) if h == digest} for digest in hashes}
    usable = {digest for digest in labels if digest not in forbidden and len(labels[digest]) == 1}
    if not all(any(c in labels[digest] for digest in usable) for c in classes):
        with pytest.raises(DataError, match="no image of"):
            draw(classes, environments, **options)
        return
    split = draw(classes, environments, **options)
    used = [hashes[row] for row in (*split.train, *split.val)]
    assert len(set(used)) == len(used)
    assert set(used) <= usable
    assert shots is not None or set(used) == usable
    excluded = sum(digest in forbidden for digest in hashes)
    assert any(f"{excluded} image" in note and "test set" in note for note in split.notes) == (excluded > 0)


@settings(max_examples=100, deadline=None)
@given(CELLS, SEEDS)
def test_all_images_are_split_four_to_one_in_every_cell(cells, seed):
    classes, environments = grid(cells)
    split = draw(classes, environments, shots=None, val_shots=None, seed=seed)
    assert sorted([*split.train, *split.val]) == list(range(len(classes)))
    sizes = table(np.arange(len(classes)), classes, environments)
    val = table(split.val, classes, environments)
    assert (val[sizes >= 2] >= 1).all()
    assert (val[sizes < 2] == 0).all()
    assert (np.abs(val - 0.2 * sizes)[sizes >= 3] <= 0.5).all()


@given(st.integers(0, 30), st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_spreading(total, sizes):
    counts = spread_evenly(total, sizes, list(range(len(sizes))))
    assert sum(counts) == min(total, sum(sizes))
    assert all(count <= size for count, size in zip(counts, sizes, strict=True))


# ---------------------------------------------------------------- what the protocol says


def test_sixteen_over_three_is_six_five_five_and_no_environment_is_favoured():
    classes, environments = grid([[40, 40, 40]] * 30)
    extra = np.zeros(3, dtype=int)
    for seed in range(10):
        split = draw(classes, environments, seed=seed)
        for rows in (split.train, split.val):
            counts = table(rows, classes, environments)
            assert np.array_equal(np.sort(counts, axis=1), [[5, 5, 6]] * 30)
            extra += (counts == 6).sum(axis=0)
        assert split.notes == ()
    assert extra.sum() == 600
    assert extra.min() > 140  # 200 expected, standard deviation 11.5


def test_seeds_differ_and_repeat():
    classes, environments = grid([[40, 40]] * 3)
    first, again, other = (draw(classes, environments, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.train, again.train)
    assert first.hash() == again.hash()
    assert first.hash() != other.hash()
    # the share of images that two seeds have in common is what chance gives: 16 of 80, squared
    common = len(set(first.train) & set(other.train))
    assert common < 24


def test_classes_and_environments_are_drawn_independently():
    classes, environments = grid([[50, 50]] * 2)
    split = draw(classes, environments, shots=20)
    positions = {tuple(row % 50 for row in split.train if row // 50 == cell) for cell in range(4)}
    assert len(positions) == 4, "the same positions were drawn in two cells"


def test_validation_does_not_change_the_training_images():
    classes, environments = grid([[20, 20, 20]] * 2)
    with_val, without = (draw(classes, environments, val_shots=n) for n in (16, 0))
    assert np.array_equal(with_val.train, without.train)
    assert without.val.size == 0
    assert np.array_equal(draw(classes, environments, val_shots=None).val, with_val.val)


def test_images_of_other_environments_are_never_drawn():
    classes, environments = grid([[30, 30, 30]] * 2)
    split = draw(classes, environments, train_environments=[0, 2])
    assert set(environments[split.train]) | set(environments[split.val]) == {0, 2}
    pool = np.arange(len(classes)) % 2 == 0
    inside = draw(classes, environments, pool=pool, shots=8, val_shots=8)
    assert pool[inside.train].all()
    assert pool[inside.val].all()


def test_short_cells_are_filled_from_the_others_and_noted_once_per_class():
    classes, environments = grid([[40, 40, 2], [40, 40, 40], [3, 4, 0]])
    split = draw(classes, environments, class_names=["ant", "bee", "cow"], environment_names=["art", "photo", "sketch"])
    train = table(split.train, classes, environments)
    assert train.tolist()[0] == [7, 7, 2]
    assert train.tolist()[2] == [3, 4, 0]
    assert len(split.notes) == 2
    assert split.notes[0] == (
        "ant: too few images in sketch. Taken: training 16 of 16 (art 7, photo 7, sketch 2); "
        "validation 16 of 16 (art 8, photo 8, sketch 0)."
    )
    assert split.notes[1].startswith("cow: too few images in art, photo, sketch. Taken: training 7 of 16")


def test_a_class_without_training_images_is_refused_by_name():
    classes, environments = grid([[5, 5], [0, 5]])
    with pytest.raises(DataError, match="no image of 'bee' to train on in art"):
        draw(
            classes,
            environments,
            train_environments=[0],
            class_names=["ant", "bee"],
            environment_names=["art", "photo"],
        )


def test_copies_and_contradictions_are_noted():
    classes, environments = grid([[6], [6]])
    hashes = list("aabcde" + "fghije")  # a twice in class 0; e in both classes
    split = draw(classes, environments, hashes=hashes, shots=None)
    assert split.notes == (
        "2 images are labelled as more than one class: left out.",
        "1 image is a copy of another one: used once.",
    )
    assert len(split.train) + len(split.val) == 9


def test_images_without_a_hash_are_not_taken_for_copies():
    classes, environments = grid([[6]])
    split = draw(classes, environments, hashes=[None] * 6, shots=None)
    assert len(split.train) + len(split.val) == 6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shots": 0}, "shots must be at least 1"),
        ({"val_shots": -1}, "val_shots must not be negative"),
        ({"train_environments": []}, "at least one training environment"),
        ({"train_environments": [0, 7]}, "environment 7 has no images"),
        ({"forbidden": {"a"}}, "without their hashes"),
        ({"hashes": ["a"]}, "1 hashes for 10 images"),
        ({"pool": [0, 1]}, "pool must be a mask"),
    ],
)
def test_bad_arguments_are_refused(options, reason):
    classes, environments = grid([[5, 5]])
    with pytest.raises(DataError, match=reason):
        draw(classes, environments, **options)


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.999])
@pytest.mark.parametrize(
    ("total", "sizes"), [(8, [40, 39, 1, 2]), (16, [0, 10, 3, 50]), (7, [7, 0]), (100, [3, 4]), (0, [5, 5])]
)
def test_shares_are_proportional_up_to_one_image(total, sizes, offset):
    counts = spread_in_proportion(total, sizes, offset)
    assert sum(counts) == min(total, sum(sizes))
    for count, size in zip(counts, sizes, strict=True):
        assert 0 <= count <= size
        assert abs(count - sum(counts) * size / sum(sizes)) < 1


def test_a_rare_cell_gets_its_share_on_average():
    offsets = (np.arange(1000) + 0.5) / 1000
    means = np.mean([spread_in_proportion(8, [39, 39, 1, 3], u) for u in offsets], axis=0)
    assert np.allclose(means, 8 * np.array([39, 39, 1, 3]) / 82, atol=2e-3)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shots_can_keep_the_proportions_of_the_environments(seed):
    """Class 0 is nearly always in environment 0 and class 1 in environment 1; each has its K images all the same."""
    classes = np.repeat([0, 0, 1, 1], [90, 10, 10, 90])
    environments = np.repeat([0, 1, 0, 1], [90, 10, 10, 90])
    options = {"train_environments": [0, 1], "shots": 20, "val_shots": 10, "seed": seed}
    split = draw(classes, environments, balanced=False, **options)
    for rows, k in ((split.train, 20), (split.val, 10)):
        cells = np.histogram2d(classes[rows], environments[rows], bins=2)[0]
        assert np.array_equal(cells, k / 10 * np.array([[9, 1], [1, 9]]))
    assert split.notes == ()  # nothing is missing: there is no equal share to fall short of
    assert not set(split.train) & set(split.val)
    even = draw(classes, environments, **options)
    assert np.array_equal(np.histogram2d(classes[even.train], environments[even.train], bins=2)[0], np.full((2, 2), 10))


def test_too_few_images_are_said_without_balance_too():
    split = draw(np.zeros(10, int), np.arange(10) % 2, train_environments=[0, 1], shots=8, val_shots=4, seed=1,
                 balanced=False)  # fmt: skip
    assert (len(split.train), len(split.val)) == (8, 2)
    assert "validation 2 of 4" in split.notes[0]


# ---------------------------------------------------------------- draws that must never change


def fixed_example():
    """600 images: uneven cells, copies within and across classes and environments, some without a hash, a test set."""
    n = np.arange(600)
    classes, environments = (n * 7 + n // 11) % 5, (n * 3 + n // 17) % 4
    hashes = [None if i % 97 == 0 else f"{(i * 2654435761) % 2**32 % 450:064x}" for i in n.tolist()]
    return classes, environments, hashes, {f"{i:064x}" for i in range(0, 450, 13)}


@pytest.mark.parametrize(
    ("options", "digests"),
    [
        ({"shots": 8, "val_shots": 4, "seed": 1}, ("3e8033fdf7d7feca", "8559a5518a55d589", "98f4982c5c088849")),
        ({"shots": None, "seed": 2}, ("7e0cce0c068e7b19", "73c3585ebfc61e3a", "86e43a6cb6336ddc")),
        (
            {"shots": 16, "val_shots": None, "seed": 3, "pool": np.arange(600) % 5 != 2},
            ("7526d0a9bcca80ca", "b5fed109431d4b8f", "4f030d7130e1c749"),
        ),
    ],
)
def test_draws_are_those_of_earlier_versions(options, digests):
    """Published results name their splits by seed alone. The digests come from a plain loop over the images."""
    classes, environments, hashes, forbidden = fixed_example()
    cases = ({"hashes": hashes, "forbidden": forbidden}, {"hashes": hashes}, {})
    splits = [draw(classes, environments, train_environments=[0, 1, 3], **options, **case) for case in cases]
    assert tuple(split.hash()[:16] for split in splits) == digests
    banned = np.array([digest in forbidden for digest in hashes])
    numbered = {"hashes": Hashes.of(hashes), "forbidden": banned}
    again = draw(classes, environments, train_environments=[0, 1, 3], **options, **numbered)
    assert again.hash()[:16] == digests[0]
    assert again.notes == splits[0].notes


@pytest.mark.parametrize("kind", ["SHA-256", "equal beginnings", "any text", "upper case", "some missing"])
def test_hashes_as_numbers_keep_equality_and_order(kind):
    rng = np.random.default_rng(0)
    texts = [rng.bytes(32).hex() for _ in range(30)]
    if kind == "equal beginnings":  # in the 64 bits that are looked at first
        texts = ["ab" * 8 + text[16:] for text in texts]
    elif kind == "any text":
        texts = [f"{i % 7}{'x' * (i % 3)}" for i in range(30)]
    elif kind == "upper case":
        texts = [text.upper() if i % 2 else text for i, text in enumerate(texts)] + [texts[1]]
    texts = [texts[i] for i in rng.integers(0, len(texts), 200)]
    if kind == "some missing":
        texts = [None if i % 9 == 0 else text for i, text in enumerate(texts)]
    hashes = Hashes.of(texts)
    ranks = {text: n for n, text in enumerate(sorted(set(map(str, texts))))}
    assert hashes.numbers.tolist() == [ranks[str(text)] for text in texts]
    assert hashes.known.tolist() == [text is not None for text in texts]
    some = np.array([3, 50, 18])
    wanted = {texts[i] for i in some} - {None}
    assert hashes.same_as(some).tolist() == [text in wanted for text in texts]
    assert Hashes.of(hashes) is hashes
    assert hashes.take(some).texts == [texts[i] for i in some]


# ---------------------------------------------------------------- splits that the user made


def test_the_hash_tells_train_from_val():
    a, b = np.array([1, 2]), np.array([3])
    assert Split(a, b, 0).hash() != Split(b, a, 0).hash()
    assert Split(a, b, 0).hash() == Split(a[::-1], b, 5, ("a note",)).hash()
    assert Split(np.array([1, 23]), b, 0).hash() != Split(np.array([12, 3]), b, 0).hash()


def test_leaks_are_counted_and_the_first_three_pairs_named():
    check_leaks(["a", None], ["b", None], ["1", "2"], ["3", "4"])
    with pytest.raises(DataError, match=r"4 images are both.*t1 = v1; t2 = v2; t3 = v3; …") as caught:
        check_leaks(list("abcd"), list("abcd"), ["t1", "t2", "t3", "t4"], ["v1", "v2", "v3", "v4"])
    assert "t4" not in str(caught.value)


def test_a_split_column_is_used_as_it_is():
    manifest = Manifest.from_columns(["1", "2", "3", "4"], ["a"] * 4, ["e"] * 4, splits=["train", "test", "val", ""])
    split = split_from_manifest(manifest, hashes=list("wxyz"))
    assert (split.train.tolist(), split.val.tolist()) == ([0], [2])
    with pytest.raises(DataError, match=r"1 image is both in the train and in the test set.*1 = 2"):
        split_from_manifest(manifest, hashes=list("wwyz"))
    with pytest.raises(DataError, match='No image has the split "train"'):
        split_from_manifest(manifest.select([1, 2]))
