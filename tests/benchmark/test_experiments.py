"""Experiments one by one: published numbers, runs that stopped, curves with gaps, methods that do not fit."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bayescal.benchmark.bundle import load_bundle
from bayescal.benchmark.estimate import estimate
from bayescal.benchmark.experiments import (
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
from bayescal.benchmark.experiments.experiment import (
    SPREAD,
    explained,
    is_clear,
    line,
    mean_curve,
    overall_value,
    seed_curves,
    value,
)
from bayescal.benchmark.experiments.figures import pooled_bins, searched_numbers, trials_figure
from bayescal.benchmark.experiments.published import is_papers
from bayescal.benchmark.records import SplitInfo
from bayescal.benchmark.results import Column, Row, Table, Value
from bayescal.benchmark.searches import Search, remarks
from bayescal.benchmark.variants import get_variant, variant_names
from bayescal.data.datasets.base import Fold
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import get_rule
from bayescal.report.page import to_html
from benches import finished, open_bench, record, trained

pytestmark = [pytest.mark.xdist_group("bench"), pytest.mark.usefixtures("few_samples")]


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


def test_published_columns_stand_beside_ours_for_the_papers_backbone_alone(prepared, folder):
    options = {"methods": ("clip", "coop"), "trials": 1, "seeds": (1,)}
    mini = open_bench({"pacs": prepared}, folder, **options)
    rn50 = open_bench({"pacs": prepared}, folder, backbone="RN50:openai", **options)
    for experiment in (main, adapters):
        assert published(finished(mini, experiment)) == []
        (column,) = published(finished(rn50, experiment))
        assert column.group == "paper, RN50"
        rows = [row for row in experiment.section(rn50).tables[0].rows if not row.group]
        assert [row.cells[column.key] for row in rows] == [
            Value(pytest.approx(0.9076)),
            Value(pytest.approx(0.9147), pytest.approx(0.006)),
        ]


def test_published_base_to_new_and_instances(prepared, folder):
    named = replace(prepared, dataset=replace(prepared.dataset, base_classes=("dog", "house"), new_classes=("guitar",)))
    options = {"methods": ("coop",), "seeds": (1,), "trials": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instances, "QUICK_EPOCHS", 1)
        patch.setattr(instances, "QUICK_GRID", 3)
        for backbone, expected in (("mini", 0), ("RN50:openai", 4)):
            section = finished(open_bench({"pacs": named}, folder, backbone=backbone, **options), base_to_new)
            assert len(published(section)) == expected
        assert section.tables[0].rows[0].cells["paper/0"] == Value(pytest.approx(0.5518))
        for backbone, expected in (("mini", 0), ("RN50:openai", 3)):
            section = finished(open_bench({"pacs": prepared}, folder, backbone=backbone, **options), instances)
            assert len(published(section)) == expected
        assert section.tables[0].rows[0].cells["paper/final"] == Value(0.24)


def test_instances_that_are_no_prompts_share_the_authors_rate(prepared, folder, tmp_path):
    (tmp_path / "words.npz").touch()
    bench = open_bench({"pictures": prepared}, folder, word_vectors=tmp_path / "words.npz")
    rates = {variant.key: variant.fixed.get("learning_rate") for variant in instances.variants(bench)}
    assert rates == {"instance-coop": None, "instance-pl": None} | dict.fromkeys(
        ("instance-lv", "instance-w2v", "instance-visual"), 0.002
    )


# --- variants --------------------------------------------------------------------------------------------------------


def test_every_variant_has_a_method_and_fixes_what_it_has(prepared):
    for name in variant_names():
        variant = get_variant(name)
        space = variant.search_space(prepared.dataset)
        assert not set(space) & set(variant.fixed), name
        assert variant.title
    assert len({get_variant(name).title for name in variant_names()}) == len(variant_names())


def test_a_data_sets_ranges_are_for_the_cal_family_and_variants_stand_above_them():
    from bayescal.benchmark.search_ranges import search_ranges
    from bayescal.data.datasets import get_dataset

    ccd = get_dataset("ccd")
    plain, scaled = get_variant("bayes-cal").search_space(ccd), get_variant("bayes-cal-scaled").search_space(ccd)
    assert plain["lambda_irm"].draw == search_ranges("ccd")["lambda_irm"].draw != scaled["lambda_irm"].draw
    assert plain["class_specific"].draw is None  # CCD searches the position alone
    coop = get_variant("coop").search_space(ccd)
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
def test_an_experiment_without_anything_to_compare_says_so(prepared, folder, experiment, methods, said):
    with pytest.raises(BayescalError, match=said):
        experiment.searches(open_bench({"pictures": prepared}, folder, methods=methods))


def test_the_users_methods_take_the_place_of_the_experiments_own(prepared, folder):
    bench = open_bench({"pictures": prepared}, folder, methods=("erm", "bayes-cal"))
    for experiment in (main, ablation, adapters, epochs):
        assert [search.variant.key for search in experiment.searches(bench)] == ["erm", "bayes-cal"]
    assert [s.variant.key for s in wilcoxon.searches(bench)] == ["bayes-cal", "erm"]
    full = open_bench({"pictures": prepared}, folder, quick=False)
    names = [search.variant.key for search in main.searches(full)]
    assert {"bayes-cal-scaled", "erm", "dplclip"} <= set(names)
    assert not any("w2v" in name for name in names)
    assert len(names) == len(set(names))


# --- what is missing -------------------------------------------------------------------------------------------------


def test_values_say_why_they_are_missing(prepared, folder):
    bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1,))
    search = Search("pictures", get_variant("clip"))
    records = trained(bench, search)
    assert overall_value(bench, search, rule="ood").why == "the data set has no validation images of that kind"
    without = replace(records[1].scores["val"], auroc=None)  # an environment without a single error
    kept = [records[0], replace(records[1], scores=records[1].scores | {"val": without}), *records[2:]]
    bench._records[search.key] = kept
    assert overall_value(bench, search).mean is not None
    assert overall_value(bench, search, "auroc") == Value(None, why=f"not defined in {kept[1].fold}")
    bench._records[search.key] = [replace(r, stopped="stopped at step 1") for r in kept]
    assert overall_value(bench, search) == Value(None, why="no run finished")


def test_a_row_without_one_of_the_seeds_stands_apart(prepared, folder):
    """Three runs of seed 2 that stopped: the mean over seed 1 alone is not compared with means over both."""
    bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1, 2), methods=("clip", "coop", "erm"))
    for search in main.searches(bench):
        trained(bench, search)
    search = Search("pictures", get_variant("coop"))
    bench._records[search.key] = [replace(r, stopped="stopped" if r.seed == 2 else None) for r in bench.records(search)]
    for table in main.section(bench).tables:
        assert [(row.label, row.group, row.ranked) for row in table.rows] == [
            ("CLIP zero-shot", "", True),
            ("ERM", "", True),
            ("CoOp", "seed 1 only", False),
        ]


def test_how_the_annealing_is_drawn_is_said_beside_the_table(prepared, folder):
    for method, said in (("vrex", True), ("erm", False)):
        bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1,), methods=("clip", method))
        bench.train(main.searches(bench))
        assert ("share of the training's steps" in main.section(bench).tables[0].note) == said


def test_one_seed_has_no_spread():
    assert value({1: 0.5}) == Value(0.5, None, 1, seeds=(1,))
    assert value({1: 0.5, 2: 0.7}) == Value(pytest.approx(0.6), pytest.approx(0.1), 2, seeds=(1, 2))
    assert value({}).mean is None


@pytest.mark.parametrize(("n", "needed"), [(3, 4.30), (11, 2.23), (30, 2.05)])
def test_a_difference_is_clear_beyond_students_t(n, needed):
    """With 11 seeds a difference of 2.1 standard errors is not clear: it takes 2.23."""
    assert not is_clear(Value(needed - 0.01, 1.0, n))
    assert is_clear(Value(needed + 0.01, 1.0, n))
    assert is_clear(Value(-needed - 0.01, 1.0, n))
    assert not is_clear(Value(9.0, None, 1))


def test_stopped_runs_and_short_splits_are_remarked_once():
    about = {"split": SplitInfo("digest", 1, {}, ("dog: too few images in photo.",))}
    records = [
        record(seed=s, trial=t, stopped="stopped at step 9" if t else None, **about) for s in (1, 2) for t in (0, 1)
    ]
    stopped, short = remarks(Search("pictures", get_variant("coop")), records)
    assert stopped == "CoOp on pictures: 2 of 4 runs stopped, the first (photo, seed 1): stopped at step 9"
    assert short == "pictures, photo, seed 1: dog: too few images in photo. (and 1 more like this)"
    assert remarks(Search("pictures", get_variant("coop")), [record()]) == []


def test_remarks_belong_to_every_experiment_that_shows_the_search(prepared, folder):
    bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1,))
    search = Search("pictures", get_variant("clip"))
    stopped = [replace(r, stopped="stopped at step 1") for r in trained(bench, search)]
    bench._records[search.key] = stopped
    for _ in range(2):
        bench.notes.clear()
        bench.train([search])
        assert any("3 of 3 runs stopped" in note for note in bench.notes)


def test_gradients_of_a_run_that_stopped_are_not_counted(prepared, folder):
    bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1,), methods=("bayes-cal",))
    search = Search("pictures", get_variant("bayes-cal"))
    good = trained(bench, search)
    table = ablation.gradient_table(bench, ["bayes-cal"])
    broken = {name: [None] * len(norms) for name, norms in good[0].gradient_norms.items()}
    stopped = replace(good[0], trial=1, stopped="stopped at step 1", gradient_norms=broken)
    bench._records[search.key] = [*good, stopped]
    assert ablation.gradient_table(bench, ["bayes-cal"]) == table
    ablation.gradient_figure(bench, "pictures", ["bayes-cal"])


def test_a_test_without_a_difference_has_no_statistic(prepared, folder, monkeypatch):
    monkeypatch.setattr(wilcoxon, "pairs", lambda *_: ([0.5, 0.6], [0.5, 0.6]))
    bench = open_bench({"pictures": prepared}, folder, methods=("clip",))
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
    runs = (("a", 1, [1, 2, 3]), ("b", 1, [3, 4]), ("a", 2, [5, 6, 7]))
    records = [record(fold, seed, curves={"c": curve}) for fold, seed, curve in runs]
    curves = seed_curves(records, lambda r: r.curves["c"])
    assert curves == [[2.0, 3.0], [5.0, 6.0]]  # cut to the shortest
    assert mean_curve(curves) == ([3.5, 4.5], pytest.approx([1.5, 1.5]))
    assert line("x", curves) == {"name": "x", "x": [1, 2], "y": [3.5, 4.5], "error": pytest.approx([1.5, 1.5])}


def test_a_curve_is_drawn_where_every_run_has_a_number():
    records = [record(seed=s, curves={"c": [None, 0.2 * s, None, 0.4]}) for s in (1, 2)]
    drawn = line("x", seed_curves(records, lambda r: r.curves["c"]), [10, 20, 30, 40])
    assert drawn["x"] == [20, 40]
    assert drawn["y"] == pytest.approx([0.3, 0.4])
    assert len(drawn["error"]) == 2
    assert line("x", [[None]]) == {"name": "x", "x": [], "y": [], "error": None}


def test_methods_that_are_tested_at_the_end_alone_have_one_point(prepared, folder):
    """CoCoOp computes a prompt per image, so its test accuracy is not taken at every epoch."""
    bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=(1,), methods=("cocoop",))
    (figure,) = finished(bench, epochs).figures
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


def test_only_numbers_that_differ_between_trials_are_shown():
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
    (panel,) = trials_figure("k", "t", {"CAL": runs}, rule, {"lambda_irm"}).data["panels"]
    assert [(point["x"], round(point["y"], 3)) for point in panel["points"]] == [(0.1, 0.15), (0.2, 0.25)]
    assert panel["log_x"]
    (panel,) = trials_figure("k", "t", {"CAL": runs}, rule).data["panels"]
    assert not panel["log_x"]


def test_points_are_sampled_evenly_and_a_bundle_has_no_pictures(prepared, bundle, folder):
    rows = tsne.sample(prepared, 20)
    cells = list(zip(prepared.manifest.class_ids[rows], prepared.manifest.environment_ids[rows], strict=True))
    assert len(rows) == 18  # two of each of the nine cells
    assert all(cells.count(cell) == 2 for cell in cells)
    assert tsne.sample(prepared, 20).tolist() == rows.tolist()
    bench = open_bench({"pictures": load_bundle(bundle)}, folder)
    (figure,) = tsne.section(bench).figures
    assert figure.data["thumbnails"] == []
    assert any("no thumbnails" in note for note in bench.notes)
    assert np.isfinite(figure.data["x"]).all()


def test_points_are_test_images_and_new_classes_are_marked(prepared, folder):
    """ColoredMNIST's training digits are no part of the figure; on leave-one-out data every image is a test image."""
    manifest = prepared.manifest
    tested = np.arange(len(manifest)) % 2 == 0

    def folds(manifest):
        return [Fold("test", (0, 1, 2), ~tested, tested)]

    named = replace(prepared.dataset, folds=folds, base_classes=("dog", "house"), new_classes=("guitar",))
    half = replace(prepared, dataset=named, _splits={})
    rows = tsne.sample(half, 400)
    assert tested[rows].all()
    assert len(rows) == tested.sum()
    (figure,) = tsne.section(open_bench({"pictures": half}, folder)).figures
    assert figure.data["new"] == [manifest.classes.index("guitar")]


def test_landscapes_are_those_of_the_paper_and_of_prompts(prepared, folder, tmp_path):
    (tmp_path / "words.npz").touch()
    bench = open_bench({"pictures": prepared}, folder, word_vectors=tmp_path / "words.npz")
    assert [variant.title for variant in landscape.variants(bench)] == ["PL (Bayes-CAL)", "LV", "visual"]
    assert "W2V" in [variant.title for variant in instances.variants(bench)]


# --- how long it will take -------------------------------------------------------------------------------------------


def test_time_is_estimated_from_records_or_from_a_short_trial(prepared, folder, tmp_path):
    search = Search("pictures", get_variant("coop"))
    fresh = open_bench({"pictures": prepared}, tmp_path, trials=2, seeds=(1,))
    assert estimate(fresh, search, 0) == 0.0
    assert 0 < estimate(fresh, search, 6) < 60
    assert list(fresh.store.find()) == []
    taken = [r.seconds for r in trained(fresh, search)]
    assert estimate(fresh, search, 10) == pytest.approx(10 * np.median(taken))


def test_a_table_explains_the_plus_minus_that_it_has():
    """One seed has no spread: a quick look prints no ±, so nothing below it speaks of one."""
    columns = (Column("a", "a"),)
    one, several = (
        Table("t", "t", columns, (Row("CoOp", {"a": value(scores)}),), "Held out.")
        for scores in ({1: 0.5}, {1: 0.5, 2: 0.7})
    )
    assert explained(one).note == "Held out."
    assert explained(several).note == f"Held out. {SPREAD}"
    assert SPREAD.startswith("±")


def test_a_quick_look_speaks_of_no_spread_anywhere(prepared, folder):
    """Notes, leads and figures of what one seed found; with two seeds the same text has it."""
    for seeds, said in (((1,), False), ((1, 2), True)):
        bench = open_bench({"pictures": prepared}, folder, trials=1, seeds=seeds, methods=("clip", "bayes-cal"))
        for experiment in (main, epochs, ablation):
            bench.train(experiment.searches(bench))
            section = experiment.section(bench)
            below = [*(table.note for table in section.tables), *(figure.note for figure in section.figures)]
            assert any("±" in text or "standard error" in text for text in below) == said, experiment.__name__
        page = to_html([main.section(bench)])
        assert ("± is one standard error" in page) == said
