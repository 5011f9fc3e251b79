"""Base-to-new: training never sees the new names or their images; two label spaces, each with a threshold that fits."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from bayescal.benchmark import runner
from bayescal.benchmark.experiments import base_to_new
from bayescal.benchmark.prepared import prepare_dataset
from bayescal.benchmark.study import Trial
from bayescal.data.datasets import open_dataset
from bayescal.errors import BayescalError, DataError
from bayescal.evaluation.calibration import MARGIN
from bayescal.evaluation.selection import get_rule
from bayescal.methods.contract import predict
from bayescal.training.stack import train_runs
from benches import open_bench, short_mini
from command_line import make_shapes

pytestmark = pytest.mark.xdist_group("bench")
BASE, NEW = ("dog", "house"), ("elephant", "guitar")
METHODS = ("clip", "coop", "bayes-cal")


@pytest.fixture(scope="module")
def named(tmp_path_factory, _own_cache):
    """Four classes in three environments, of which two are kept for new names."""
    folder = make_shapes(tmp_path_factory.mktemp("named") / "four", 5, (*BASE, *NEW), ("cartoon", "photo", "sketch"))
    dataset, manifest = open_dataset(str(folder))
    dataset = replace(dataset, name="four", title="four", base_classes=BASE, new_classes=NEW)
    mini = short_mini()  # in steps that overshoot: the best epoch is not always the last
    posterior = replace(
        mini.defaults.posterior,
        optimizer="sgd",
        learning_rate=0.3,
        epochs=4,
        batch_size=32,
        class_specific=False,
        beta=1.0,
        initial_scale=0.3,
    )
    mini = replace(mini, defaults=replace(mini.defaults, learning_rate=0.3, epochs=4, posterior=posterior))
    return prepare_dataset(dataset, manifest, mini, (1, 2), shots=3, val_shots=2)


@pytest.fixture(scope="module")
def seen(named, few_samples, tmp_path_factory):
    """The bench after the experiment, and what its trainings saw: class words, images, texts."""
    words, images, texts, training = set(), set(), set(), []

    def tokenize(text):
        if training:
            texts.add(text)
        return named.problem.tokenize(text)

    listening = replace(named, problem=replace(named.problem, tokenize=tokenize))
    train = runner._train

    def traced(stack, *rest):
        for run in stack.planned:
            words.update(run.prepared.problem.class_words)
            splits = run.prepared.splits(run.fold, run.seed)
            images.update(run.prepared.manifest.paths[i] for i in splits.rows)
        training.append(True)
        try:
            return train(stack, *rest)
        finally:
            training.pop()

    bench = open_bench({"four": listening}, tmp_path_factory.mktemp("bench"), trials=2, methods=METHODS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_train", traced)
        bench.train(base_to_new.searches(bench))
    return bench, words, images, texts


def test_training_sees_neither_the_new_names_nor_their_images(seen):
    _, words, images, texts = seen
    assert words == set(BASE)
    assert texts
    assert not any(name in text for text in texts for name in NEW)
    assert images
    assert not any(f"/{name}/" in path for path in images for name in NEW)


def trained_again(bench, search, record):
    """The run of a record once more, and what it was planned from."""
    prepared = bench.prepared(search)
    fold = next(fold for fold in prepared.folds if fold.name == record.fold)
    run = runner.PlannedRun(
        prepared, search.variant, fold, record.seed, Trial(record.trial, record.config), search.purpose
    )
    assert run.key == record.key
    return run, train_runs(search.variant.method, prepared.problem, [run.run()])[0]


def answers(result, run, named, rows, words, samples):
    """Probabilities (N, C) among these names and labels among them, of images by rows of the whole data set."""
    features = named.problem.features[named.feature_rows(rows)]
    probs = predict(result.bind(run.prepared.problem, words), result.best_params, features, samples).probs[0].numpy()
    return probs, np.array([words.index(named.manifest.classes[c]) for c in named.manifest.class_ids[rows]])


def rows_of(named, classes, mask):
    ids = [named.manifest.classes.index(name) for name in classes]
    return np.flatnonzero(np.isin(named.manifest.class_ids, ids) & mask)


def test_each_setting_and_label_space_by_hand(seen, named, few_samples):
    bench, *_ = seen
    search = base_to_new.search_of(bench, "four", "bayes-cal")
    early = [record for record in bench.records(search) if record.chosen["val"] < 4]
    assert early  # the best epoch is not the last: its parameters are the ones to be scored
    for record in [*early[:2], bench.records(search)[-1]]:
        run, result = trained_again(bench, search, record)
        splits = run.prepared.splits(run.fold, run.seed)
        used = {run.prepared.hashes[i] for i in (*splits.train, *splits.eval_sets["val"])}
        free = np.array([digest not in used for digest in named.hashes])
        held_out = named.manifest.environment_ids == named.manifest.environments.index(record.fold)
        for where, mask in (("ood", held_out), ("iid", ~held_out & free)):
            for space, kind, words in (
                ("own", "base", BASE), ("own", "new", NEW), ("all", "base", BASE + NEW), ("all", "new", BASE + NEW),
            ):  # fmt: skip
                rows = rows_of(named, BASE if kind == "base" else NEW, mask)
                probs, truth = answers(result, run, named, rows, words, few_samples)
                found = record.new[f"{where}/{space}/{kind}"]
                assert found.images == len(rows) == {"ood": 10, "iid": 20 if kind == "new" else 10}[where]
                assert found.accuracy == pytest.approx((probs.argmax(1) == truth).mean())
                assert found.nll == pytest.approx(-np.log(probs[np.arange(len(rows)), truth]).mean(), rel=1e-3)
                assert set(found.per_class) == set(BASE if kind == "base" else NEW)
        assert record.new["ood/own/base"].accuracy == record.scores["val"].accuracy


def test_each_label_space_has_a_threshold_from_as_many_names(seen, named, few_samples):
    """Confidence falls with the number of names: a threshold of five would let everything among two pass."""
    bench, *_ = seen
    search = base_to_new.search_of(bench, "four", "bayes-cal")
    record = bench.records(search)[-1]
    run, result = trained_again(bench, search, record)
    val = run.prepared.splits(run.fold, run.seed).eval_sets["val"]
    val = np.flatnonzero(np.isin(named.hashes, [run.prepared.hashes[i] for i in val]))
    probs, truth = answers(result, run, named, val, BASE + NEW, few_samples)
    right = probs.max(1)[probs.argmax(1) == truth]
    (one, two) = (record.new[f"ood/all/{kind}"].threshold for kind in ("base", "new"))
    assert one == two == pytest.approx(right.min() - MARGIN)  # fewer than 20 right answers: the least sure of them
    # Two names are new and two are base, so there is one choice of as many base names: all of them.
    assert record.new["ood/own/new"].threshold == record.scores["val"].threshold > one


def test_as_many_base_names_as_there_are_new_ones():
    words = ("a", "b", "c", "d", "e")
    assert len(base_to_new.choices(words, 2)) == 10
    assert base_to_new.choices(words, 7) == [words]
    many = base_to_new.choices(tuple("abcdefghijklm"), 6)  # 1,716 choices
    assert len(many) == len(set(many)) == 13
    assert {sum(letter in names for names in many) for letter in "abcdefghijklm"} == {6}


def test_a_threshold_for_two_new_names_comes_from_pairs_of_three_base_names(named, tmp_path, few_samples):
    base, new = (*BASE, "guitar"), ("elephant", "house")
    three = replace(named, dataset=replace(named.dataset, base_classes=base, new_classes=("elephant",)))
    bench = open_bench({"four": three}, tmp_path, trials=1, seeds=(1,), methods=("clip",))
    search = base_to_new.search_of(bench, "four", "clip")
    search = replace(search, add_to_record=base_to_new.ScoreNew(three.with_classes(new), bench.prepared(search).hashes))
    bench.train([search])
    for record in bench.records(search):
        run, result = trained_again(bench, search, record)
        val = run.prepared.splits(run.fold, run.seed).eval_sets["val"]
        val = np.flatnonzero(np.isin(named.hashes, [run.prepared.hashes[i] for i in val]))
        right = []
        for words in combinations(base, 2):
            images = val[np.isin(val, rows_of(named, words, True))]
            probs, truth = answers(result, run, named, images, words, few_samples)
            right += probs.max(1)[probs.argmax(1) == truth].tolist()
        assert record.new["ood/own/new"].threshold == pytest.approx(min(right) - MARGIN)
        assert record.new["ood/own/new"].threshold != record.scores["val"].threshold


def test_prompts_are_the_papers(seen):
    bench, *_ = seen
    for method in ("coop", "bayes-cal"):
        for record in bench.records(base_to_new.search_of(bench, "four", method)):
            assert {name: record.config[name] for name in base_to_new.SETTING} == base_to_new.SETTING
            assert record.purpose.startswith("base-to-new/3 elephant, guitar ")
    assert len(bench.records(base_to_new.search_of(bench, "four", "coop"))) == 3 * 2  # nothing is left to search


def test_other_new_names_words_or_images_are_other_runs(named, tmp_path):
    """What a record says of new names holds for these names alone, in these words, on these images."""

    def key(prepared):
        bench = open_bench({"four": prepared}, tmp_path, trials=1, seeds=(1,), methods=("coop",))
        search = base_to_new.search_of(bench, "four", "coop")
        run = runner.plan(bench.prepared(search), search.variant, [Trial(0, {})], [1], search.purpose)[0]
        return run.key

    manifest = named.manifest
    guitar = manifest.classes.index("guitar")
    words = replace(manifest, class_words=["violin" if w == "guitar" else w for w in manifest.class_words])
    hashes = [f"{h}x" if c == guitar else h for h, c in zip(named.hashes, manifest.class_ids, strict=True)]
    changed = [
        replace(named, dataset=replace(named.dataset, new_classes=("elephant",))),
        replace(named, manifest=words),
        replace(named, hashes=hashes),
    ]
    keys = {key(named), *map(key, changed)}
    assert len(keys) == 4
    assert key(named) in keys


def test_the_tables_have_the_runs_that_base_classes_chose(seen):
    bench, *_ = seen
    section = base_to_new.section(bench)
    assert [table.key for table in section.tables] == ["base-to-new/four/own", "base-to-new/four/all"]
    assert "base dog, house; new elephant, guitar" in section.lead
    records = bench.records(base_to_new.search_of(bench, "four", "bayes-cal"))
    chosen = get_rule("training-domain").choose(records)
    for space, table in zip(("own", "all"), section.tables, strict=True):
        assert [row.label for row in table.rows] == ["CLIP zero-shot", "CoOp", "Bayes-CAL"]
        cells, harmonic = table.rows[2].cells, []
        for seed in (1, 2):
            base, new = (
                sum(r.new[f"ood/{space}/{kind}"].accuracy for r in chosen if r.seed == seed) / 3
                for kind in ("base", "new")
            )
            harmonic.append(2 * base * new / (base + new))
        by_seed = [sum(r.new[f"ood/{space}/new"].accuracy for r in chosen if r.seed == seed) / 3 for seed in (1, 2)]
        assert cells["ood/new/accuracy"].mean == pytest.approx(sum(by_seed) / 2)
        assert cells["ood/harmonic/accuracy"].mean == pytest.approx(sum(harmonic) / 2)
        assert not any(column.published for column in table.columns)
    assert base_to_new.harmonic_mean(0.0, 0.0) == 0.0


def test_methods_that_know_only_their_own_classes_are_left_out(named, tmp_path):
    bench = open_bench({"four": named}, tmp_path, methods=("erm", "coop", "bayes-cal-lv", "bayes-cal-16"))
    assert [search.variant.key for search in base_to_new.searches(bench)] == ["coop", "bayes-cal-16"]
    assert any("left out" in note and "erm, bayes-cal-lv" in note for note in bench.notes)
    only = open_bench({"four": named}, tmp_path, methods=("erm",))
    with pytest.raises(BayescalError, match="methods that can read a new name: clip, coop"):
        base_to_new.searches(only)


def test_data_without_new_classes_are_refused(prepared, tmp_path):
    with pytest.raises(DataError, match=r"names base and new classes.*given: pictures"):
        base_to_new.searches(open_bench({"pictures": prepared}, tmp_path))
