"""Experiments one by one: published numbers, runs that stopped, curves with gaps, methods that do not fit."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bayescal.errors import BayescalError
from bayescal.experiments import (
    ablation,
    adapters,
    base_to_new,
    epochs,
    get_experiment,
    instances,
    landscape,
    main,
    tsne,
    wilcoxon,
)
from bayescal.experiments.bench import Search, _remarks
from bayescal.experiments.estimate import estimate
from bayescal.experiments.experiment import line, mean_curve, overall_value, seed_curves, value
from bayescal.experiments.figures import draws_figure, pooled_bins, searched_numbers
from bayescal.experiments.findings import Value
from bayescal.experiments.published import is_papers
from bayescal.protocol.bundle import load_bundle
from bayescal.protocol.entries import entry_names, get_entry
from bayescal.protocol.selection import get_rule
from benches import open_bench, record

pytestmark = [pytest.mark.xdist_group("bench"), pytest.mark.usefixtures("few_draws")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where benches of this module keep their records: what one has trained, the next one reads."""
    return tmp_path_factory.mktemp("experiments")


def published(section):
    return [column for table in section.tables for column in table.columns if column.published]


# --- the paper's numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "papers"),
    [("RN50:openai", True), ("RN50:/weights/RN50.pt", True), ("mini", False), ("RN50x4:openai", False)],
)
def test_the_papers_backbone_is_rn50_alone(name, papers):
    assert is_papers(name) == papers


def test_published_columns_stand_beside_ours_for_the_papers_backbone_alone(arena, folder):
    options = {"methods": ("clip", "coop"), "trials": 1, "seeds": (1,)}
    mini = open_bench({"pacs": arena}, folder, **options)
    rn50 = open_bench({"pacs": arena}, folder, backbone="RN50:openai", **options)
    for experiment in (main, adapters):
        assert published(experiment.section(mini)) == []
        (column,) = published(experiment.section(rn50))
        assert column.group == "paper, RN50"
        rows = experiment.section(rn50).tables[0].rows
        assert [row.cells[column.key] for row in rows] == [
            Value(pytest.approx(0.9076)),
            Value(pytest.approx(0.9147), pytest.approx(0.006)),
        ]


def test_published_base_to_new_and_instances(arena, folder):
    named = replace(arena, dataset=replace(arena.dataset, base_classes=("dog", "house"), new_classes=("guitar",)))
    options = {"methods": ("coop",), "seeds": (1,), "trials": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instances, "QUICK_EPOCHS", 1)
        patch.setattr(instances, "QUICK_GRID", 3)
        for backbone, expected in (("mini", 0), ("RN50:openai", 4)):
            section = base_to_new.section(open_bench({"pacs": named}, folder, backbone=backbone, **options))
            assert len(published(section)) == expected
        assert section.tables[0].rows[0].cells["paper/0"] == Value(pytest.approx(0.5518))
        for backbone, expected in (("mini", 0), ("RN50:openai", 3)):
            section = instances.section(open_bench({"pacs": arena}, folder, backbone=backbone, **options))
            assert len(published(section)) == expected
        assert section.tables[0].rows[0].cells["paper/final"] == Value(0.24)


# --- entries ---------------------------------------------------------------------------------------------------------


def test_every_entry_has_a_method_and_fixes_what_it_has(arena):
    for name in entry_names():
        entry = get_entry(name)
        space = entry.search_space(arena.dataset)
        assert not set(space) & set(entry.fixed), name
        assert entry.title
    assert len({get_entry(name).title for name in entry_names()}) == len(entry_names())


def test_a_data_sets_ranges_are_for_the_cal_family_and_entries_stand_above_them():
    from bayescal.data.datasets import get_dataset

    ccd = get_dataset("ccd")
    plain, scaled = get_entry("bayes-cal").search_space(ccd), get_entry("bayes-cal-scaled").search_space(ccd)
    assert plain["lambda_irm"].draw == ccd.space["lambda_irm"].draw != scaled["lambda_irm"].draw
    assert plain["class_specific"].draw is None  # CCD searches the position alone
    coop = get_entry("coop").search_space(ccd)
    assert coop["class_specific"].draw is not None
    assert "lambda_irm" not in coop


def test_an_unknown_experiment_is_answered_with_the_nearest_one():
    with pytest.raises(BayescalError, match=r"no experiment 'mian'\. Did you mean 'main'\?"):
        get_experiment("mian")


# --- methods that do not fit an experiment ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "methods", "said"),
    [
        (instances, ("erm",), "coop, bayes-cal, bayes-cal-lv"),
        (landscape, ("coop",), "bayes-cal-lv, visual-mlp, bayes-cal"),
        (wilcoxon, ("bayes-cal",), "another method"),
    ],
)
def test_an_experiment_without_anything_to_compare_says_so(arena, folder, experiment, methods, said):
    with pytest.raises(BayescalError, match=said):
        experiment.searches(open_bench({"pictures": arena}, folder, methods=methods))


def test_the_users_methods_take_the_place_of_the_experiments_own(arena, folder):
    bench = open_bench({"pictures": arena}, folder, methods=("erm", "bayes-cal"))
    for experiment in (main, ablation, adapters, epochs):
        assert [search.entry.key for search in experiment.searches(bench)] == ["erm", "bayes-cal"]
    assert [s.entry.key for s in wilcoxon.searches(bench)] == ["bayes-cal", "erm"]
    full = open_bench({"pictures": arena}, folder, quick=False)
    names = [search.entry.key for search in main.searches(full)]
    assert {"bayes-cal-scaled", "erm", "dplclip"} <= set(names)
    assert not any("w2v" in name for name in names)
    assert len(names) == len(set(names))


# --- what is missing -------------------------------------------------------------------------------------------------


def test_values_say_why_they_are_missing(arena, folder):
    bench = open_bench({"pictures": arena}, folder, trials=1, seeds=(1,))
    search = Search("pictures", get_entry("clip"))
    assert overall_value(bench, search, rule="ood").why == "the data set has no validation images of that kind"
    records = bench.records(search)
    kept = [json.loads(json.dumps(r)) for r in records]
    kept[1]["scores"]["val"]["auroc"] = None  # an environment without a single error
    bench._records[search.key] = kept
    assert overall_value(bench, search).mean is not None
    assert overall_value(bench, search, "auroc") == Value(None, why=f"not defined in {kept[1]['fold']}")
    bench._records[search.key] = [{**r, "stopped": "stopped at step 1"} for r in kept]
    assert overall_value(bench, search) == Value(None, why="no run finished")


def test_one_seed_has_no_spread():
    assert value({1: 0.5}) == Value(0.5, None, 1)
    assert value({1: 0.5, 2: 0.7}) == Value(pytest.approx(0.6), pytest.approx(0.1), 2)
    assert value({}).mean is None


def test_stopped_runs_and_short_draws_are_remarked_once():
    about = {"split": {"notes": ["dog: too few images in photo."]}}
    records = [
        record(seed=s, trial=t, stopped="stopped at step 9" if t else None, **about) for s in (1, 2) for t in (0, 1)
    ]
    stopped, short = _remarks(Search("pictures", get_entry("coop")), records)
    assert stopped == "CoOp on pictures: 2 of 4 runs stopped, the first (photo, seed 1): stopped at step 9"
    assert short == "pictures, photo, seed 1: dog: too few images in photo. (and 1 more like this)"
    assert _remarks(Search("pictures", get_entry("coop")), [record(split={"notes": []})]) == []


def test_remarks_belong_to_every_experiment_that_shows_the_search(arena, folder):
    bench = open_bench({"pictures": arena}, folder, trials=1, seeds=(1,))
    search = Search("pictures", get_entry("clip"))
    stopped = [{**r, "stopped": "stopped at step 1"} for r in bench.records(search)]
    bench._records[search.key] = stopped
    for _ in range(2):
        bench.notes.clear()
        bench.run([search])
        assert any("3 of 3 runs stopped" in note for note in bench.notes)


def test_gradients_of_a_run_that_stopped_are_not_counted(arena, folder):
    bench = open_bench({"pictures": arena}, folder, trials=1, seeds=(1,), methods=("bayes-cal",))
    search = Search("pictures", get_entry("bayes-cal"))
    good = bench.records(search)
    table = ablation.gradient_table(bench, ["bayes-cal"])
    broken = {name: [None] * len(norms) for name, norms in good[0]["probes"].items()}
    bench._records[search.key] = [*good, {**good[0], "trial": 1, "stopped": "stopped at step 1", "probes": broken}]
    assert ablation.gradient_table(bench, ["bayes-cal"]) == table
    ablation.gradient_figure(bench, "pictures", ["bayes-cal"])


def test_a_test_without_a_difference_has_no_statistic(arena, folder, monkeypatch):
    monkeypatch.setattr(wilcoxon, "pairs", lambda *_: ([0.5, 0.6], [0.5, 0.6]))
    bench = open_bench({"pictures": arena}, folder, methods=("clip",))
    (row,) = wilcoxon._table(bench, "datasets").rows
    assert row.cells["n"].mean == 0
    assert row.cells["statistic"] == row.cells["p"] == row.cells["floor"] == Value(None, why="no pair differs")


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ({"a": {1: 0.5}}, {"a": {1: 0.4}}, "+10.0"),
        ({"a": {1: 0.5}}, {"b": {1: 0.4}}, "–"),
        ({"a": {1: 0.5}}, {"a": {2: 0.4}}, "–"),
        ({"a": {1: 0.5, 2: 0.5}}, {"a": {1: 0.4, 2: 0.4}}, "+10.0 [+10.0, +10.0]"),
    ],
)
def test_intervals_pair_folds_and_seeds(ours, theirs, shown):
    assert wilcoxon._interval(ours, theirs) == shown


# --- curves and points -----------------------------------------------------------------------------------------------


def test_curves_are_averaged_over_folds_then_over_seeds():
    records = [record(f, s, c=c) for f, s, c in (("a", 1, [1, 2, 3]), ("b", 1, [3, 4]), ("a", 2, [5, 6, 7]))]
    curves = seed_curves(records, lambda r: r["c"])
    assert curves == [[2.0, 3.0], [5.0, 6.0]]  # cut to the shortest
    assert mean_curve(curves) == ([3.5, 4.5], pytest.approx([1.5, 1.5]))
    assert line("x", curves) == {"name": "x", "x": [1, 2], "y": [3.5, 4.5], "error": pytest.approx([1.5, 1.5])}


def test_a_curve_is_drawn_where_every_run_has_a_number():
    records = [record(seed=s, c=[None, 0.2 * s, None, 0.4]) for s in (1, 2)]
    drawn = line("x", seed_curves(records, lambda r: r["c"]), [10, 20, 30, 40])
    assert drawn["x"] == [20, 40]
    assert drawn["y"] == pytest.approx([0.3, 0.4])
    assert len(drawn["error"]) == 2
    assert line("x", [[None]]) == {"name": "x", "x": [], "y": [], "error": None}


def test_methods_that_are_tested_at_the_end_alone_have_one_point(arena, folder):
    """CoCoOp computes a prompt per image, so its test accuracy is not taken at every epoch."""
    bench = open_bench({"pictures": arena}, folder, trials=1, seeds=(1,), methods=("cocoop",))
    (figure,) = epochs.section(bench).figures
    test, val = (panel["series"][0] for panel in figure.data["panels"])
    assert (test["x"], val["x"]) == ([3], [1, 2, 3])
    json.dumps(figure.data, allow_nan=False)


def test_bins_of_several_runs_are_weighted_by_their_counts():
    rule = get_rule("training-domain")
    bins = [
        {"count": [1, 0], "confidence": [0.2, None], "accuracy": [0.0, None]},
        {"count": [3, 0], "confidence": [0.4, None], "accuracy": [1.0, None]},
    ]
    runs = [record(scores={"val": {"reliability": b, "ece": e}}) for b, e in zip(bins, (0.1, 0.3), strict=True)]
    pooled = pooled_bins(runs, rule)
    assert pooled["count"] == [4.0, 0.0]
    assert pooled["confidence"] == [pytest.approx(0.35), None]
    assert pooled["accuracy"] == [pytest.approx(0.75), None]
    assert pooled["ece"] == pytest.approx(0.2)


def test_only_numbers_that_differ_between_draws_are_shown():
    rule = get_rule("training-domain")
    about = {"curves": {"val": [0.5]}, "chosen": {"val": 1}}
    configs = [
        {"lambda_irm": 0.1, "epochs": 3, "position": "end", "csc": True},
        {"lambda_irm": 0.2, "epochs": 3, "csc": False},
    ]
    runs = [
        record(seed=seed, trial=t, config=config, scores={"val": {"accuracy": 0.1 * (t + seed)}}, **about)
        for t, config in enumerate(configs)
        for seed in (1, 2)
    ]
    assert searched_numbers(runs) == ["lambda_irm"]
    (panel,) = draws_figure("k", "t", {"CAL": runs}, rule).data["panels"]
    assert [(point["x"], round(point["y"], 3)) for point in panel["points"]] == [(0.1, 0.15), (0.2, 0.25)]
    assert panel["log_x"]


def test_points_are_sampled_evenly_and_a_bundle_has_no_pictures(arena, bundle, folder):
    rows = tsne.sample(arena, 20)
    cells = list(zip(arena.manifest.class_ids[rows], arena.manifest.environment_ids[rows], strict=True))
    assert len(rows) == 18  # two of each of the nine cells
    assert all(cells.count(cell) == 2 for cell in cells)
    assert tsne.sample(arena, 20).tolist() == rows.tolist()
    bench = open_bench({"pictures": load_bundle(bundle)}, folder)
    (figure,) = tsne.section(bench).figures
    assert figure.data["thumbnails"] == []
    assert any("no thumbnails" in note for note in bench.notes)
    assert np.isfinite(figure.data["x"]).all()


# --- how long it will take -------------------------------------------------------------------------------------------


def test_time_is_estimated_from_records_or_from_a_short_trial(arena, folder, tmp_path):
    search = Search("pictures", get_entry("coop"))
    fresh = open_bench({"pictures": arena}, tmp_path, trials=2, seeds=(1,))
    assert estimate(fresh, search, 0) == 0.0
    assert 0 < estimate(fresh, search, 6) < 60
    assert list(fresh.store.find()) == []
    taken = [r["seconds"] for r in fresh.records(search)]
    assert estimate(fresh, search, 10) == pytest.approx(10 * np.median(taken))
