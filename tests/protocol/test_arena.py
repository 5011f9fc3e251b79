"""Which images a run may use for what: balanced, never the test's, the same everywhere; and only those are encoded."""

import random
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.data.datasets import open_dataset
from bayescal.data.datasets.base import part_folds
from bayescal.errors import DataError
from bayescal.features import FeatureBank
from bayescal.protocol.arena import Arena, Facts, draw_sets, open_arena, portable_name
from bayescal.protocol.entries import get_entry
from bayescal.protocol.runner import plan
from bayescal.protocol.study import Drawn
from benches import CLASSES, ENVIRONMENTS, IMAGES, SEEDS, SHOTS, grid, listed, open_folder, planned_runs, short_mini
from command_line import make_shapes, write_csv

pytestmark = pytest.mark.xdist_group("bench")


def sets_of(rows, fold=0, seed=1, shots=8, val_shots=4, folds=None):
    dataset, manifest, hashes = listed(rows, folds)
    return draw_sets(dataset, manifest, hashes, dataset.folds(manifest)[fold], seed, shots, val_shots), manifest


def contents(rows, images) -> set[str]:
    return {rows[i][4] for i in images}


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shots_are_spread_evenly_over_classes_and_training_environments(seed):
    sets, manifest = sets_of(grid(40), seed=seed, shots=16, val_shots=16)
    for rows in (sets.train, sets.judged["val"]):
        cells = Counter(zip(manifest.class_ids[rows], manifest.environment_ids[rows], strict=True))
        assert len(cells) == 6  # 3 classes × 2 training environments
        assert set(cells.values()) == {8}
        assert 0 not in manifest.environment_ids[rows]  # cartoon is held out
    assert set(manifest.environment_ids[sets.judged["test"]]) == {0}
    assert Counter(manifest.class_ids[sets.judged["test_val"]]) == {0: 16, 1: 16, 2: 16}


def test_sixteen_shots_over_three_places_are_five_or_six_each():
    sets, manifest = sets_of(grid(20, environments=("a", "b", "c", "d")), shots=16)
    cells = Counter(zip(manifest.class_ids[sets.train], manifest.environment_ids[sets.train], strict=True))
    assert set(cells.values()) == {5, 6}
    assert Counter(manifest.class_ids[sets.train]) == {0: 16, 1: 16, 2: 16}


def test_a_seed_changes_the_images_and_nothing_else_does():
    draws = [sets_of(grid(20), seed=seed)[0] for seed in (1, 1, 2)]
    assert draws[0].digest == draws[1].digest != draws[2].digest
    assert draws[0].train.tolist() != draws[2].train.tolist()


def test_no_image_of_the_test_set_is_in_any_other_set_whatever_it_is_called():
    """Half of the pool is a copy of test images, and the test set has copies of its own."""
    rows = grid(12)
    test = [row for row in rows if row[2] == "cartoon"]
    spoiled = [
        (path, c, e, split, f" cartoon {c} {path[-5]}" if e != "cartoon" and int(path[-5]) % 2 else content)
        for path, c, e, split, content in rows
    ]
    spoiled += [(f"copy/{path}", *rest) for path, *rest in test[:5]]
    sets, _ = sets_of(spoiled, shots=4, val_shots=2)
    tested = contents(spoiled, sets.judged["test"])
    assert len(sets.judged["test"]) == len(test) + 5
    assert not tested & contents(spoiled, sets.train)
    assert not tested & contents(spoiled, sets.judged["val"])
    assert not contents(spoiled, sets.train) & contents(spoiled, sets.judged["val"])
    seen, rest = contents(spoiled, sets.judged["test_val"]), contents(spoiled, sets.judged["test_rest"])
    assert seen | rest == tested
    assert not seen & rest
    assert len(contents(spoiled, sets.judged["test_val"])) == len(sets.judged["test_val"]) == 6


def test_parts_that_the_data_set_designs_are_used():
    """Validation images of the training environments, of the test environment, and of a place that is neither."""
    rows = [
        *grid(10, environments=("photo", "sketch"), split="train"),
        *grid(10, environments=("photo", "cartoon", "night"), split="val"),
        *grid(10, environments=("cartoon",), split="test"),
    ]
    sets, manifest = sets_of(rows, shots=6, val_shots=4)
    split = lambda name: set(manifest.splits[sets.judged[name]])  # noqa: E731
    place = lambda name: {manifest.environments[e] for e in manifest.environment_ids[sets.judged[name]]}  # noqa: E731
    assert set(manifest.splits[sets.train]) == {"train"}
    assert len(sets.train) == 18
    assert (split("val"), place("val")) == ({"val"}, {"photo"})
    assert (split("test_val"), place("test_val")) == ({"val"}, {"cartoon"})
    assert (split("ood_val"), place("ood_val")) == ({"val"}, {"night"})
    assert {name: len(found) for name, found in sets.judged.items()} == {
        "val": 12, "test_val": 12, "ood_val": 12, "test": 30,
    }  # fmt: skip
    assert "test_rest" not in sets.judged  # nobody looked at a test image


def test_ood_images_may_come_from_the_same_places_as_in_nico():
    rows = [*grid(9, split="train"), *grid(9, split="val"), *grid(9, split="test")]
    sets, manifest = sets_of(rows, shots=6, val_shots=3, folds=partial(part_folds, validation="ood"))
    assert set(manifest.splits[sets.judged["ood_val"]]) == {"val"}
    assert len(sets.judged["ood_val"]) == 9
    assert set(manifest.splits[sets.judged["val"]]) == {"train"}  # not designed: drawn beside the training images
    assert set(manifest.splits[sets.judged["test_val"]]) == {"test"}
    assert len(sets.judged["test_rest"]) == 81 - 9


def test_a_designed_part_gives_up_images_that_are_trained_or_tested_on():
    rows = [*grid(6, environments=("photo",), split="train"), *grid(6, environments=("cartoon",), split="test")]
    own = grid(4, environments=("photo",), split="val")
    copies = [(f"copy/{path}", c, "photo", "val", content) for path, c, _, _, content in rows]
    sets, _ = sets_of([*rows, *own, *copies], shots=6, val_shots=20)
    assert contents([*rows, *own, *copies], sets.judged["val"]) == {row[4] for row in own}
    with pytest.raises(DataError, match="every image of val is also in the test or training set"):
        sets_of([*rows, *copies], shots=6, val_shots=20)


def test_too_few_images_are_taken_as_they_are_and_said():
    rows = [row for row in grid(12) if (row[1], row[2]) != ("dog", "photo") or row[0].endswith("/0.png")]
    sets, manifest = sets_of(rows, shots=8, val_shots=4)
    dogs = sets.train[manifest.class_ids[sets.train] == 0]
    assert Counter(manifest.environment_ids[dogs]) == {1: 1, 2: 7}  # the sketches fill up
    assert any(note.startswith("dog: too few images in photo") for note in sets.notes)


def test_shots_that_leave_nothing_for_validation_are_refused():
    """Without validation images no epoch is chosen, and the untrained start would be reported."""
    with pytest.raises(DataError, match=r"cartoon: no image is left for validation\. Use fewer --shots"):
        sets_of(grid(4), shots=8)


def test_a_test_environment_without_some_class_is_tested_on_what_it_has():
    rows = [row for row in grid(12) if (row[1], row[2]) != ("dog", "cartoon")]
    sets, manifest = sets_of(rows)
    assert set(manifest.class_ids[sets.judged["test"]]) == {1, 2}
    assert Counter(manifest.class_ids[sets.judged["test_val"]]) == {1: 4, 2: 4}
    assert "test_val: 0 of 4 images of dog." in sets.notes


def test_sets_are_those_of_earlier_versions():
    """Computed with a plain loop over the images, before a million of them had to be drawn from in seconds."""
    rows = [(*row[:4], f"{i * 7 % 190:064x}") for i, row in enumerate(grid(25))]  # with copies across places
    digests = [[sets_of(rows, fold, seed)[0].digest[:16] for seed in (1, 2)] for fold in range(3)]
    assert digests == [
        ["5676e612e5ef2f45", "a1406c9d59288a08"],
        ["6d13e003384f5a76", "0ae062019c699fbf"],
        ["6491ec508b310ae9", "a631e5c102bf2ccd"],
    ]


# --- digest ----------------------------------------------------------------------------------------------------------


def test_the_digest_depends_on_contents_and_not_on_order_or_names():
    rows = grid(12)
    digest = sets_of(rows)[0].digest
    moved = [(f"/elsewhere/{i}.jpg", *rest) for i, (_, *rest) in enumerate(rows)]
    random.Random(0).shuffle(moved)
    assert sets_of(moved)[0].digest == digest
    for place in ("cartoon", "photo"):  # an image of the test set, and one of the pool
        at = next(i for i, row in enumerate(rows) if row[2] == place)
        changed = [(*row[:4], "other") if i == at else row for i, row in enumerate(rows)]
        others = [sets_of(changed, fold)[0].digest != sets_of(rows, fold)[0].digest for fold in range(3)]
        assert others[ENVIRONMENTS.index(place)]  # where it is tested on


def test_a_corrected_label_is_another_split():
    """A record must not answer for images that are labelled differently now."""
    rows = grid(12)
    at = next(i for i, row in enumerate(rows) if row[1:3] == ("dog", "cartoon"))
    other = next(row[1] for row in rows if row[1] != "dog")
    relabelled = [(row[0], other, *row[2:]) if i == at else row for i, row in enumerate(rows)]
    fold = ENVIRONMENTS.index("cartoon")
    assert sets_of(relabelled, fold)[0].digest != sets_of(rows, fold)[0].digest


def test_files_may_be_renamed_and_moved_but_not_edited(pictures, arena, tmp_path):
    folder = tmp_path / "somewhere else"
    for number, path in enumerate(sorted(pictures.glob("*/*/*.png"), reverse=True)):
        place = folder / path.parent.relative_to(pictures)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place / f"renamed {number}.png")
    moved = open_folder(folder)
    digests = lambda a: [a.sets(fold, seed).digest for fold in a.folds for seed in SEEDS]  # noqa: E731
    assert digests(moved) == digests(arena)
    keys = lambda a: {run.key for run in planned_runs(a, "coop")}  # noqa: E731
    assert keys(moved) == keys(arena)
    Image.new("RGB", (32, 32), (1, 2, 3)).save(next(folder.glob("photo/dog/*.png")))
    edited = open_folder(folder)
    assert set(digests(edited)[2:4]).isdisjoint(digests(arena))  # photo held out: tested on the edited image
    assert len(keys(edited) & keys(arena)) < len(keys(arena))


# --- features --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """Images with a split column: 9 of each class to learn from, of which 3 + 2 are drawn, and 3 to test on."""
    make_shapes(tmp_path / "images", 9, CLASSES, ("photo", "sketch"))
    rows = [
        (path.relative_to(tmp_path), path.parent.name, place, "train" if place == "photo" else "test")
        for place in ("photo", "sketch")
        for path in sorted((tmp_path / "images" / place).glob("*/*.png"))
        if place == "photo" or path.stem in "012"
    ]
    return write_csv(tmp_path / "parts.csv", rows)


def test_only_images_of_some_set_are_encoded(parts, monkeypatch):
    asked = []
    encode = FeatureBank.encode
    monkeypatch.setattr(FeatureBank, "encode", lambda self, paths, **o: asked.extend(paths) or encode(self, paths, **o))
    arena = open_folder(parts, seeds=(1,))
    sets = arena.sets(arena.folds[0], 1)
    wanted = np.unique(sets.rows)
    assert sorted(asked) == sorted(arena.manifest.paths[i] for i in wanted)
    assert len(wanted) == 3 * (SHOTS + 2) + 9 < len(arena.manifest)
    assert (np.flatnonzero(arena.rows >= 0) == wanted).all()
    assert arena.problem.labels.tolist() == arena.manifest.class_ids[wanted].tolist()
    left = np.flatnonzero(arena.rows < 0)
    with pytest.raises(DataError, match=f"{len(left)} images of this split have no features here"):
        arena.feature_rows(left)


def test_all_images_of_new_classes_are_encoded_whichever_seeds_are_asked_for(parts):
    dataset, manifest = open_dataset(str(parts))
    dataset = replace(dataset, base_classes=("dog", "guitar"), new_classes=("house",))
    arena = open_arena(dataset, manifest, short_mini(), (1,), shots=3, val_shots=2)
    assert (arena.rows[manifest.class_ids == 2] >= 0).all()
    assert (arena.rows[manifest.class_ids == 0] < 0).any()


def test_features_are_those_of_the_images(arena, mini):
    some = [0, 20, 50]
    encoded = FeatureBank(mini).encode([arena.manifest.paths[i] for i in some])
    assert arena.problem.features[arena.feature_rows(np.array(some))].equal(encoded.features)
    assert arena.problem.views is None


def test_an_unreadable_image_is_named(tmp_path):
    folder = make_shapes(tmp_path / "shapes", 4)
    (folder / "photo" / "dog" / "2.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"1 images cannot be read.*photo/dog/2\.png") as refused:
        open_folder(folder)
    assert "bayescal data check" in str(refused.value)


def test_views_belong_to_training_images_and_their_absence_is_noticed(pictures):
    """Under leave-one-out every image has a feature, so only the views can tell that a seed was not prepared."""
    arena = open_folder(pictures, seeds=(1,), views=2)
    assert arena.facts.views == 2
    trained = np.unique(np.concatenate([arena.sets(fold, 1).train for fold in arena.folds]))
    has_views = arena.problem.view_rows[arena.feature_rows(np.arange(len(arena.manifest)))] >= 0
    assert (np.flatnonzero(has_views.numpy()) == trained).all()
    assert arena.problem.views.shape == (len(trained), 2, arena.problem.features.shape[1])
    planned_runs(arena, "coop", seeds=(1,))[0].run()
    unprepared = [run.run for run in planned_runs(arena, "coop", seeds=(9,))]
    with pytest.raises(DataError, match="no augmented views here"):
        [run() for run in unprepared]
    other = planned_runs(open_folder(pictures, seeds=(1,)), "coop", seeds=(1,))[0]
    assert planned_runs(arena, "coop", seeds=(1,))[0].key != other.key


# --- fewer classes ---------------------------------------------------------------------------------------------------


def test_with_classes_keeps_what_belongs_to_them_and_nothing_else(arena):
    part = arena.with_classes(("house", "dog"))
    assert part.manifest.classes == ("dog", "house")
    assert part.problem.class_words == part.manifest.class_words == ("dog", "house")
    assert part.problem.environment_words == arena.problem.environment_words
    assert len(part.problem.features) == len(part.manifest) == 3 * 2 * IMAGES
    for i, row in enumerate(part.manifest.rows()):
        j = arena.manifest.paths.index(row.path)
        old, new = (int(a.rows[at]) for a, at in ((arena, j), (part, i)))
        assert part.problem.features[new].equal(arena.problem.features[old])
        assert part.problem.class_words[part.problem.labels[new]] == row.class_name
        assert part.problem.environment_words[part.problem.environments[new]] == row.environment
        assert part.hashes[i] == arena.hashes[j]
    words = [*part.problem.class_words, *part.problem.environment_words, *part.manifest.classes]
    assert "guitar" not in " ".join(words)


def test_fewer_classes_have_the_same_draws_as_before(arena):
    part = arena.with_classes(("dog", "house"))
    for whole, fold in zip(arena.folds, part.folds, strict=True):
        before, now = arena.sets(whole, 1), part.sets(fold, 1)
        guitars = {arena.manifest.paths[i] for i in np.flatnonzero(arena.manifest.class_ids == 1)}
        paths = lambda a, rows: {a.manifest.paths[i] for i in rows}  # noqa: E731
        assert paths(part, now.train) == paths(arena, before.train) - guitars
        assert paths(part, now.judged["val"]) == paths(arena, before.judged["val"]) - guitars
        assert now.digest != before.digest


def test_an_environment_without_the_classes_disappears_with_its_number(tmp_path):
    make_shapes(tmp_path / "shapes", 4, ("dog", "house"), ("photo", "sketch"))
    make_shapes(tmp_path / "more", 4, ("guitar",), ("art", "photo", "sketch"))
    shutil.copytree(tmp_path / "more", tmp_path / "shapes", dirs_exist_ok=True)
    arena = open_folder(tmp_path / "shapes", seeds=(1,), shots=2, val_shots=1)
    part = arena.with_classes(("dog", "house"))
    assert part.manifest.environments == part.problem.environment_words == ("photo", "sketch")
    for i, row in enumerate(part.manifest.rows()):
        assert part.problem.environment_words[part.problem.environments[part.rows[i]]] == row.environment


def test_an_unknown_class_is_refused(arena):
    with pytest.raises(DataError, match="no class 'zebra'"):
        arena.with_classes(("dog", "zebra"))


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("mini", "mini"),
        ("RN50:openai", "RN50:openai"),
        ("RN50:/home/me/RN50.pt", "RN50:RN50.pt"),
        ("ViT-B/32:laion400m_e32:~/x/vit.safetensors", "ViT-B-32:laion400m_e32:vit.safetensors"),
    ],
)
def test_a_backbones_name_travels_without_folders(name, portable):
    assert portable_name(name) == portable_name(portable) == portable


# --- what must never change ------------------------------------------------------------------------------------------


def test_every_file_is_hashed_once(pictures, tmp_path, monkeypatch):
    """A million of them would be read twice before the first is encoded."""
    from bayescal.data import pixels

    hashed = []
    real = pixels.content_hash
    monkeypatch.setattr(pixels, "content_hash", lambda source: hashed.append(str(source)) or real(source))
    arena = open_folder(pictures, views=2, cache=tmp_path)
    assert sorted(hashed) == sorted(arena.manifest.paths)


def test_digests_and_keys_are_what_they_were():
    """Records are found by them: another digest or key, and days of training would begin again.

    Where a change of them is meant, `runner.FORMAT` goes up, and the values here are those of the new format.
    """
    parts = [
        *grid(10, environments=("photo", "sketch"), split="train"),
        *grid(10, environments=("photo", "cartoon", "night"), split="val"),
        *grid(10, environments=("cartoon",), split="test"),
    ]
    nico = [*grid(9, split="train"), *grid(9, split="val"), *grid(9, split="test")]
    found = {
        "one held out": sets_of(grid(12))[0],
        "parts": sets_of(parts, shots=6, val_shots=4)[0],
        "ood": sets_of(nico, shots=6, val_shots=3, folds=partial(part_folds, validation="ood"))[0],
    }
    assert {name: sets.digest for name, sets in found.items()} == {
        "one held out": "d981c6a10f75011b6a4c751df864e40f8e511ecbc8448a23d897d0f5004d097f",
        "parts": "8f92d072d3473598b9379ddbbaef217276b0f016a4df93ccda22283c3fdfc66c",
        "ood": "c5911813f8a923e94cadffd378ef3d59a6ce20490e4780ee16e1ab150ed11438",
    }
    dataset, manifest, hashes = listed(grid(12))
    facts = Facts("mini", "f" * 16, TrainingDefaults(), views=2)
    arena = Arena(dataset, manifest, tuple(hashes), facts, None, np.zeros(len(manifest), dtype=np.int64), 8, 4)
    config = {"epochs": 3, "lambda_irm": 0.1, "word_vectors": "/x/words.npz", "class_specific": False}
    keys = [plan(arena, get_entry(name), [Drawn(3, config)], (1,), "p")[0].key for name in ("coop", "bayes-cal-w2v")]
    assert keys == ["616055675ba780b32720a1a5d77d5c7de0274b4b", "ca1db4ed14afb7581e7841f82aa2b489f02ea658"]
