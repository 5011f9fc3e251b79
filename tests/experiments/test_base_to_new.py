"""Base-to-new: training never sees the new names or their images, and new classes are told apart among themselves."""

from dataclasses import replace

import numpy as np
import pytest

from bayescal.data.datasets import open_dataset
from bayescal.errors import BayescalError, DataError
from bayescal.experiments import base_to_new
from bayescal.methods.base import predict
from bayescal.protocol import runner
from bayescal.protocol.arena import open_arena
from bayescal.protocol.selection import get_rule
from bayescal.protocol.study import Drawn
from bayescal.stacks import train_runs
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
    mini = replace(mini, defaults=replace(mini.defaults, learning_rate=0.3, epochs=4))
    return open_arena(dataset, manifest, mini, (1, 2), shots=3, val_shots=2)


@pytest.fixture(scope="module")
def seen(named, few_draws, tmp_path_factory):
    """The bench after the experiment, and what its trainings saw: class words, images, texts."""
    words, images, texts, training = set(), set(), set(), []

    def tokenize(text):
        if training:
            texts.add(text)
        return named.problem.tokenize(text)

    listening = replace(named, problem=replace(named.problem, tokenize=tokenize))
    train = runner._train

    def traced(store, planned, *rest):
        for run in planned:
            words.update(run.arena.problem.class_words)
            sets = run.arena.sets(run.fold, run.seed)
            images.update(run.arena.manifest.paths[i] for i in sets.rows)
        training.append(True)
        try:
            return train(store, planned, *rest)
        finally:
            training.pop()

    bench = open_bench({"four": listening}, tmp_path_factory.mktemp("bench"), trials=2, methods=METHODS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_train", traced)
        bench.run(base_to_new.searches(bench))
    return bench, words, images, texts


def test_training_sees_neither_the_new_names_nor_their_images(seen):
    _, words, images, texts = seen
    assert words == set(BASE)
    assert texts
    assert not any(name in text for text in texts for name in NEW)
    assert images
    assert not any(f"/{name}/" in path for path in images for name in NEW)


def test_accuracy_is_over_the_new_names_alone(seen, named, few_draws):
    bench, *_ = seen
    search = base_to_new.search_of(bench, "four", "bayes-cal")
    arena = bench.arena(search)
    early = [record for record in bench.records(search) if record["chosen"]["val"] < 4]
    assert early
    for record in [*early[:2], bench.records(search)[-1]]:
        fold = next(fold for fold in arena.folds if fold.name == record["fold"])
        draw = Drawn(record["trial"], record["config"])
        run = runner.Planned(arena, search.entry, fold, record["seed"], draw, search.purpose)
        assert run.key == record["key"]
        result = train_runs("bayes-cal", arena.problem, [run.run()])[0]
        names, places = named.manifest.classes, named.manifest.environments
        for where in ("ood", "iid"):
            held_out = named.manifest.environment_ids == places.index(record["fold"])
            rows = np.flatnonzero(
                np.isin(named.manifest.class_ids, [names.index(n) for n in NEW]) & (held_out == (where == "ood"))
            )
            features = named.problem.features[named.feature_rows(rows)]
            probs = predict(result.bind(arena.problem, NEW), result.best_params, features, few_draws).probs[0].numpy()
            truth = np.array([NEW.index(names[c]) for c in named.manifest.class_ids[rows]])
            found = record["new"][where]
            assert found["accuracy"] == pytest.approx((probs.argmax(1) == truth).mean())
            assert found["nll"] == pytest.approx(-np.log(probs[np.arange(len(rows)), truth]).mean(), rel=1e-3)
            assert found["images"] == len(rows) == (10 if where == "ood" else 20)
            assert set(found["per_class"]) == set(NEW)
            assert found["threshold"] == record["scores"]["val"]["threshold"]  # nothing new is looked at


def test_prompts_are_the_papers(seen):
    bench, *_ = seen
    for method in ("coop", "bayes-cal"):
        for record in bench.records(base_to_new.search_of(bench, "four", method)):
            assert {name: record["config"][name] for name in base_to_new.SETTING} == base_to_new.SETTING
            assert record["purpose"] == "base-to-new"
    assert len(bench.records(base_to_new.search_of(bench, "four", "coop"))) == 3 * 2  # nothing is left to search


def test_the_table_has_the_runs_that_base_classes_chose(seen):
    bench, *_ = seen
    section = base_to_new.section(bench)
    (table,) = section.tables
    assert [row.label for row in table.rows] == ["CLIP zero-shot", "CoOp", "Bayes-CAL"]
    assert "base dog, house; new elephant, guitar" in section.lead
    records = bench.records(base_to_new.search_of(bench, "four", "bayes-cal"))
    chosen = get_rule("training-domain").choose(records)
    by_seed = [sum(r["new"]["ood"]["accuracy"] for r in chosen if r["seed"] == seed) / 3 for seed in (1, 2)]
    cell = table.rows[2].cells["ood/accuracy"]
    assert cell.mean == pytest.approx(sum(by_seed) / 2)
    assert not any(column.published for column in table.columns)


def test_methods_that_know_only_their_own_classes_are_left_out(named, tmp_path):
    bench = open_bench({"four": named}, tmp_path, methods=("erm", "coop", "bayes-cal-lv", "bayes-cal-16"))
    assert [search.entry.key for search in base_to_new.searches(bench)] == ["coop", "bayes-cal-16"]
    assert any("left out" in note and "erm, bayes-cal-lv" in note for note in bench.notes)
    only = open_bench({"four": named}, tmp_path, methods=("erm",))
    with pytest.raises(BayescalError, match="methods that can read a new name: clip, coop"):
        base_to_new.searches(only)


def test_data_without_new_classes_are_refused(arena, tmp_path):
    with pytest.raises(DataError, match=r"names base and new classes.*given: pictures"):
        base_to_new.searches(open_bench({"pictures": arena}, tmp_path))
