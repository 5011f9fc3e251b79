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
from bayescal.benchmark.prepared import BackboneInfo, PreparedDataset, portable_name, prepare_dataset
from bayescal.benchmark.runner import plan
from bayescal.benchmark.splits import draw_splits
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import get_variant
from bayescal.data.datasets import open_dataset
from bayescal.data.datasets.base import part_folds
from bayescal.errors import DataError
from bayescal.features import FeatureBank
from benches import CLASSES, ENVIRONMENTS, IMAGES, SEEDS, SHOTS, grid, listed, open_folder, planned_runs, short_mini
from command_line import make_shapes, write_csv

pytestmark = pytest.mark.xdist_group("bench")


def sets_of(rows, fold=0, seed=1, shots=8, val_shots=4, folds=None):
    dataset, manifest, hashes = listed(rows, folds)
    return draw_splits(dataset, manifest, hashes, dataset.folds(manifest)[fold], seed, shots, val_shots), manifest


def contents(rows, images) -> set[str]:
    return {rows[i][4] for i in images}


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shots_are_spread_evenly_over_classes_and_training_environments(seed):
    splits, manifest = sets_of(grid(40), seed=seed, shots=16, val_shots=16)
    for rows in (splits.train, splits.eval_sets["val"]):
        cells = Counter(zip(manifest.class_ids[rows], manifest.environment_ids[rows], strict=True))
        assert len(cells) == 6  # 3 classes × 2 training environments
        assert set(cells.values()) == {8}
        assert 0 not in manifest.environment_ids[rows]  # cartoon is held out
    assert set(manifest.environment_ids[splits.eval_sets["test"]]) == {0}
    assert Counter(manifest.class_ids[splits.eval_sets["test_val"]]) == {0: 16, 1: 16, 2: 16}


def test_sixteen_shots_over_three_places_are_five_or_six_each():
    splits, manifest = sets_of(grid(20, environments=("a", "b", "c", "d")), shots=16)
    cells = Counter(zip(manifest.class_ids[splits.train], manifest.environment_ids[splits.train], strict=True))
    assert set(cells.values()) == {5, 6}
    assert Counter(manifest.class_ids[splits.train]) == {0: 16, 1: 16, 2: 16}


@pytest.mark.parametrize(("n", "drawn"), [(2, 1), (5, 2), (7, 3), (8, 4), (20, 4)])
def test_validation_on_the_test_distribution_leaves_half_of_every_class_to_report_on(n, drawn):
    few = {f"/cartoon/dog/{i}.png" for i in range(n, 20)}
    rows = [row for row in grid(20) if row[0] not in few]
    rows += [(f"copy/{row[0]}", *row[1:]) for row in rows if row[1:3] == ("dog", "cartoon")]  # copies count once
    splits, manifest = sets_of(rows)
    dog = manifest.classes.index("dog")
    counts = {name: Counter(manifest.class_ids[found])[dog] for name, found in splits.eval_sets.items()}
    assert counts["test_val"] == drawn
    assert counts["test_rest"] == 2 * (n - drawn)
    assert counts["test"] == 2 * n
    assert not contents(rows, splits.eval_sets["test_val"]) & contents(rows, splits.eval_sets["test_rest"])
    again, _ = sets_of(rows[::-1])  # in whatever order the files come
    assert again.digest == splits.digest


def test_classes_of_one_test_image_each_have_none_to_choose_by():
    rows = [row for row in grid(20) if row[2] != "cartoon" or row[0].endswith("/0.png")]
    splits, _ = sets_of(rows)
    assert sorted(splits.eval_sets) == ["test", "val"]
    assert len(splits.eval_sets["test"]) == 3


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
    splits, _ = sets_of(spoiled, shots=4, val_shots=2)
    tested = contents(spoiled, splits.eval_sets["test"])
    assert len(splits.eval_sets["test"]) == len(test) + 5
    assert not tested & contents(spoiled, splits.train)
    assert not tested & contents(spoiled, splits.eval_sets["val"])
    assert not contents(spoiled, splits.train) & contents(spoiled, splits.eval_sets["val"])
    seen, rest = contents(spoiled, splits.eval_sets["test_val"]), contents(spoiled, splits.eval_sets["test_rest"])
    assert seen | rest == tested
    assert not seen & rest
    assert len(contents(spoiled, splits.eval_sets["test_val"])) == len(splits.eval_sets["test_val"]) == 6


def test_parts_that_the_data_set_designs_are_used():
    """Validation images of the training environments, of the test environment, and of one that is neither."""
    rows = [
        *grid(10, environments=("photo", "sketch"), split="train"),
        *grid(10, environments=("photo", "cartoon", "night"), split="val"),
        *grid(10, environments=("cartoon",), split="test"),
    ]
    splits, manifest = sets_of(rows, shots=6, val_shots=4)
    split = lambda name: set(manifest.splits[splits.eval_sets[name]])  # noqa: E731
    where = lambda name: {manifest.environments[e] for e in manifest.environment_ids[splits.eval_sets[name]]}  # noqa: E731
    assert set(manifest.splits[splits.train]) == {"train"}
    assert len(splits.train) == 18
    assert (split("val"), where("val")) == ({"val"}, {"photo"})
    assert (split("test_val"), where("test_val")) == ({"val"}, {"cartoon"})
    assert (split("ood_val"), where("ood_val")) == ({"val"}, {"night"})
    assert {name: len(found) for name, found in splits.eval_sets.items()} == {
        "val": 12, "test_val": 12, "ood_val": 12, "test": 30,
    }  # fmt: skip
    assert "test_rest" not in splits.eval_sets  # nobody looked at a test image


def test_ood_images_may_come_from_the_same_places_as_in_nico():
    rows = [*grid(9, split="train"), *grid(9, split="val"), *grid(9, split="test")]
    splits, manifest = sets_of(rows, shots=6, val_shots=3, folds=partial(part_folds, validation="ood"))
    assert set(manifest.splits[splits.eval_sets["ood_val"]]) == {"val"}
    assert len(splits.eval_sets["ood_val"]) == 9
    assert set(manifest.splits[splits.eval_sets["val"]]) == {"train"}  # not designed: drawn beside the training images
    assert set(manifest.splits[splits.eval_sets["test_val"]]) == {"test"}
    assert len(splits.eval_sets["test_rest"]) == 81 - 9


def test_a_designed_part_gives_up_images_that_are_trained_or_tested_on():
    rows = [*grid(6, environments=("photo",), split="train"), *grid(6, environments=("cartoon",), split="test")]
    own = grid(4, environments=("photo",), split="val")
    copies = [(f"copy/{path}", c, "photo", "val", content) for path, c, _, _, content in rows]
    splits, _ = sets_of([*rows, *own, *copies], shots=6, val_shots=20)
    assert contents([*rows, *own, *copies], splits.eval_sets["val"]) == {row[4] for row in own}
    with pytest.raises(DataError, match="every image of val is also in the test or training set"):
        sets_of([*rows, *copies], shots=6, val_shots=20)


def test_too_few_images_are_taken_as_they_are_and_said():
    rows = [row for row in grid(12) if (row[1], row[2]) != ("dog", "photo") or row[0].endswith("/0.png")]
    splits, manifest = sets_of(rows, shots=8, val_shots=4)
    dogs = splits.train[manifest.class_ids[splits.train] == 0]
    assert Counter(manifest.environment_ids[dogs]) == {1: 1, 2: 7}  # the sketches fill up
    assert any(note.startswith("dog: too few images in photo") for note in splits.notes)


def test_shots_that_leave_nothing_for_validation_are_refused():
    """Without validation images no epoch is chosen, and the untrained start would be reported."""
    with pytest.raises(DataError, match=r"cartoon: no image is left for validation\. Use fewer --shots"):
        sets_of(grid(4), shots=8)


def test_a_test_environment_without_some_class_is_tested_on_what_it_has():
    rows = [row for row in grid(12) if (row[1], row[2]) != ("dog", "cartoon")]
    splits, manifest = sets_of(rows)
    assert set(manifest.class_ids[splits.eval_sets["test"]]) == {1, 2}
    assert Counter(manifest.class_ids[splits.eval_sets["test_val"]]) == {1: 4, 2: 4}
    assert "test_val: 0 of 4 images of dog." in splits.notes


def test_sets_are_those_of_earlier_versions():
    """Computed with a plain loop over the images, before a million of them had to be drawn from in seconds."""
    rows = [(*row[:4], f"{i * 7 % 190:064x}") for i, row in enumerate(grid(25))]  # with copies across environments
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
    for environment in ("cartoon", "photo"):  # an image of the test set, and one of the pool
        at = next(i for i, row in enumerate(rows) if row[2] == environment)
        changed = [(*row[:4], "other") if i == at else row for i, row in enumerate(rows)]
        others = [sets_of(changed, fold)[0].digest != sets_of(rows, fold)[0].digest for fold in range(3)]
        assert others[ENVIRONMENTS.index(environment)]  # where it is tested on


def test_a_corrected_label_is_another_split():
    """A record must not answer for images that are labelled differently now."""
    rows = grid(12)
    at = next(i for i, row in enumerate(rows) if row[1:3] == ("dog", "cartoon"))
    other = next(row[1] for row in rows if row[1] != "dog")
    relabelled = [(row[0], other, *row[2:]) if i == at else row for i, row in enumerate(rows)]
    fold = ENVIRONMENTS.index("cartoon")
    assert sets_of(relabelled, fold)[0].digest != sets_of(rows, fold)[0].digest


def test_files_may_be_renamed_and_moved_but_not_edited(pictures, prepared, tmp_path):
    folder = tmp_path / "somewhere else"
    for number, path in enumerate(sorted(pictures.glob("*/*/*.png"), reverse=True)):
        target = folder / path.parent.relative_to(pictures)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / f"renamed {number}.png")
    moved = open_folder(folder)
    digests = lambda a: [a.splits(fold, seed).digest for fold in a.folds for seed in SEEDS]  # noqa: E731
    assert digests(moved) == digests(prepared)
    keys = lambda a: {run.key for run in planned_runs(a, "coop")}  # noqa: E731
    assert keys(moved) == keys(prepared)
    Image.new("RGB", (32, 32), (1, 2, 3)).save(next(folder.glob("photo/dog/*.png")))
    edited = open_folder(folder)
    assert set(digests(edited)[2:4]).isdisjoint(digests(prepared))  # photo held out: tested on the edited image
    assert len(keys(edited) & keys(prepared)) < len(keys(prepared))


# --- features --------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """Images with a split column: 9 of each class to learn from, of which 3 + 2 are drawn, and 3 to test on."""
    make_shapes(tmp_path / "images", 9, CLASSES, ("photo", "sketch"))
    rows = [
        (path.relative_to(tmp_path), path.parent.name, environment, "train" if environment == "photo" else "test")
        for environment in ("photo", "sketch")
        for path in sorted((tmp_path / "images" / environment).glob("*/*.png"))
        if environment == "photo" or path.stem in "012"
    ]
    return write_csv(tmp_path / "parts.csv", rows)


def test_only_images_of_some_set_are_encoded(parts, monkeypatch):
    asked = []
    encode = FeatureBank.encode
    monkeypatch.setattr(FeatureBank, "encode", lambda self, paths, **o: asked.extend(paths) or encode(self, paths, **o))
    prepared = open_folder(parts, seeds=(1,))
    splits = prepared.splits(prepared.folds[0], 1)
    wanted = np.unique(splits.rows)
    assert sorted(asked) == sorted(prepared.manifest.paths[i] for i in wanted)
    assert len(wanted) == 3 * (SHOTS + 2) + 9 < len(prepared.manifest)
    assert (np.flatnonzero(prepared.rows >= 0) == wanted).all()
    assert prepared.problem.labels.tolist() == prepared.manifest.class_ids[wanted].tolist()
    left = np.flatnonzero(prepared.rows < 0)
    with pytest.raises(DataError, match=f"{len(left)} images of this split have no features here"):
        prepared.feature_rows(left)


def test_all_images_are_encoded_where_some_classes_are_new_whichever_seeds_are_asked_for(parts):
    """Base-to-new measures base images that were not learned from, too."""
    dataset, manifest = open_dataset(str(parts))
    plain = prepare_dataset(dataset, manifest, short_mini(), (1,), shots=3, val_shots=2)
    assert (plain.rows < 0).any()
    dataset = replace(dataset, base_classes=("dog", "guitar"), new_classes=("house",))
    prepared = prepare_dataset(dataset, manifest, short_mini(), (1,), shots=3, val_shots=2)
    assert (prepared.rows >= 0).all()


def test_features_are_those_of_the_images(prepared, mini):
    some = [0, 20, 50]
    encoded = FeatureBank(mini).encode([prepared.manifest.paths[i] for i in some])
    assert prepared.problem.features[prepared.feature_rows(np.array(some))].equal(encoded.features)
    assert prepared.problem.views is None


def test_an_unreadable_image_is_named(tmp_path):
    folder = make_shapes(tmp_path / "shapes", 4)
    (folder / "photo" / "dog" / "2.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"1 images cannot be read.*photo/dog/2\.png") as refused:
        open_folder(folder)
    assert "bayescal data check" in str(refused.value)


def test_views_belong_to_training_images_and_their_absence_is_noticed(pictures):
    """Under leave-one-out every image has a feature, so only the views can tell that a seed was not prepared."""
    prepared = open_folder(pictures, seeds=(1,), views=2)
    assert prepared.backbone_info.views == 2
    trained = np.unique(np.concatenate([prepared.splits(fold, 1).train for fold in prepared.folds]))
    has_views = prepared.problem.view_rows[prepared.feature_rows(np.arange(len(prepared.manifest)))] >= 0
    assert (np.flatnonzero(has_views.numpy()) == trained).all()
    assert prepared.problem.views.shape == (len(trained), 2, prepared.problem.features.shape[1])
    planned_runs(prepared, "coop", seeds=(1,))[0].run()
    unprepared = [run.run for run in planned_runs(prepared, "coop", seeds=(9,))]
    with pytest.raises(DataError, match="no augmented views here"):
        [run() for run in unprepared]
    other = planned_runs(open_folder(pictures, seeds=(1,)), "coop", seeds=(1,))[0]
    assert planned_runs(prepared, "coop", seeds=(1,))[0].key != other.key


# --- fewer classes ---------------------------------------------------------------------------------------------------


def test_with_classes_keeps_what_belongs_to_them_and_nothing_else(prepared):
    part = prepared.with_classes(("house", "dog"))
    assert part.manifest.classes == ("dog", "house")
    assert part.problem.class_words == part.manifest.class_words == ("dog", "house")
    assert part.problem.environment_words == prepared.problem.environment_words
    assert len(part.problem.features) == len(part.manifest) == 3 * 2 * IMAGES
    for i, row in enumerate(part.manifest.rows()):
        j = prepared.manifest.paths.index(row.path)
        old, new = (int(a.rows[at]) for a, at in ((prepared, j), (part, i)))
        assert part.problem.features[new].equal(prepared.problem.features[old])
        assert part.problem.class_words[part.problem.labels[new]] == row.class_name
        assert part.problem.environment_words[part.problem.environments[new]] == row.environment
        assert part.hashes[i] == prepared.hashes[j]
    words = [*part.problem.class_words, *part.problem.environment_words, *part.manifest.classes]
    assert "guitar" not in " ".join(words)


def test_fewer_classes_have_the_same_draws_as_before(prepared):
    part = prepared.with_classes(("dog", "house"))
    for whole, fold in zip(prepared.folds, part.folds, strict=True):
        before, now = prepared.splits(whole, 1), part.splits(fold, 1)
        guitars = {prepared.manifest.paths[i] for i in np.flatnonzero(prepared.manifest.class_ids == 1)}
        paths = lambda a, rows: {a.manifest.paths[i] for i in rows}  # noqa: E731
        assert paths(part, now.train) == paths(prepared, before.train) - guitars
        assert paths(part, now.eval_sets["val"]) == paths(prepared, before.eval_sets["val"]) - guitars
        assert now.digest != before.digest


def test_an_environment_without_the_classes_disappears_with_its_number(tmp_path):
    make_shapes(tmp_path / "shapes", 4, ("dog", "house"), ("photo", "sketch"))
    make_shapes(tmp_path / "more", 4, ("guitar",), ("art", "photo", "sketch"))
    shutil.copytree(tmp_path / "more", tmp_path / "shapes", dirs_exist_ok=True)
    prepared = open_folder(tmp_path / "shapes", seeds=(1,), shots=2, val_shots=1)
    part = prepared.with_classes(("dog", "house"))
    assert part.manifest.environments == part.problem.environment_words == ("photo", "sketch")
    for i, row in enumerate(part.manifest.rows()):
        assert part.problem.environment_words[part.problem.environments[part.rows[i]]] == row.environment


def test_an_unknown_class_is_refused(prepared):
    with pytest.raises(DataError, match="no class 'zebra'"):
        prepared.with_classes(("dog", "zebra"))


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("mini", "mini 2"),
        ("mini@bfloat16", "mini 2@bfloat16"),
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
    from bayescal.features import decode_process

    hashed = []
    real = decode_process.content_hash
    monkeypatch.setattr(decode_process, "content_hash", lambda source: hashed.append(str(source)) or real(source))
    prepared = open_folder(pictures, views=2, cache=tmp_path)
    assert sorted(hashed) == sorted(prepared.manifest.paths)


def test_digests_and_keys_are_what_they_were():
    """Records are found by them: another digest or key, and days of training would begin again.

    Where a change of them is meant, `runner.KEY_FORMAT` or a method's `version` goes up, and the values here are new.
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
    assert {name: splits.digest for name, splits in found.items()} == {
        "one held out": "d981c6a10f75011b6a4c751df864e40f8e511ecbc8448a23d897d0f5004d097f",
        "parts": "8f92d072d3473598b9379ddbbaef217276b0f016a4df93ccda22283c3fdfc66c",
        "ood": "c5911813f8a923e94cadffd378ef3d59a6ce20490e4780ee16e1ab150ed11438",
    }
    dataset, manifest, hashes = listed(grid(12))
    config = {"epochs": 3, "lambda_irm": 0.1, "class_specific": False}
    keys = []
    for views in (0, 2):
        backbone_info = BackboneInfo("mini", "f" * 16, TrainingDefaults(), views=views)
        prepared = PreparedDataset(
            dataset, manifest, tuple(hashes), backbone_info, None, np.zeros(len(manifest), dtype=np.int64), 8, 4
        )
        for name, more in (("coop", {}), ("bayes-cal-w2v", {"word_vectors": "/x/words.npz"})):
            keys.append(plan(prepared, get_variant(name), [Trial(3, {**config, **more})], (1,), "p")[0].key)
    assert keys == [
        "6e622c18372978899524fb978bedb0daf0d86a90",
        "ac98f2c3fcaa13790e068630035487a14ed4ca60",  # CAL's second version
        "0a982d9cdea7641d9c9cba62262112d255a7bf5f",  # views in turn, not drawn with replacement
        "1576a8098a18767ffef965905d663305d43e4ec4",  # both
    ]


def test_another_file_of_the_same_name_makes_another_run(tmp_path):
    dataset, manifest, hashes = listed(grid(12))
    prepared = PreparedDataset(
        dataset, manifest, tuple(hashes), BackboneInfo("mini", "f" * 16, TrainingDefaults()), None,
        np.zeros(len(manifest), dtype=np.int64), 8, 4,
    )  # fmt: skip
    keys = []
    for folder, content in (("a", b"one"), ("b", b"one"), ("c", b"other")):
        file = tmp_path / folder / "words.npz"
        file.parent.mkdir()
        file.write_bytes(content)
        trial = Trial(3, {"epochs": 3, "word_vectors": str(file)})
        keys.append(plan(prepared, get_variant("bayes-cal-w2v"), [trial], (1,), "p")[0].key)
    assert keys[0] == keys[1] != keys[2]
