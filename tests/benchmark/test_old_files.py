"""What version 0.1 wrote (tests/fixtures/v0.1) is read, gives the same numbers, and is not trained again."""

import hashlib
import json
import shutil
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from bayescal.benchmark import runner
from bayescal.benchmark.bench import Bench
from bayescal.benchmark.bundle import bundled_dataset, bundled_name, load_bundle
from bayescal.benchmark.export import read_records
from bayescal.benchmark.records import Record
from bayescal.benchmark.results import Value, read_section
from bayescal.benchmark.runner import PlannedRun, plan, run_all
from bayescal.benchmark.searches import Search
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import get_variant
from bayescal.engine import rng
from bayescal.evaluation.selection import get_rule, overall, per_fold
from bayescal.report import read_sections
from bayescal.training import loop
from command_line import run

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1"
BACKBONE, METHODS = "bayescal-fixture-tiny:tiny.safetensors", ("clip", "coop", "bayes-cal")


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((OLD / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def results(tmp_path) -> Path:
    """A copy of the results: opening a database may write to it."""
    return Path(shutil.copytree(OLD / "results", tmp_path / "results"))


@pytest.fixture
def records(results) -> list[Record]:
    return list(Store(sqlite_url(results), create=False).find())


def test_every_record_says_what_it_said(records, expected):
    found = {record.key: record for record in records}
    assert set(found) == {old["key"] for old in expected["records"]["records"]}
    for old in expected["records"]["records"]:
        record = found[old["key"]]
        for name in ("dataset", "method", "purpose", "fold", "seed", "trial", "config", "chosen", "stopped"):
            assert getattr(record, name) == old[name], name
        assert record.variant == old["entry"]
        assert record.split.digest == old["split"]
        assert {name: curve[-1] for name, curve in record.curves.items()} == old["last"]
        assert (record.shots, record.val_shots, record.samples) == (8, 4, 20)
        assert set(record.scores) == set(old["scores"])
        for checkpoint, scores in old["scores"].items():
            found_scores = {name: getattr(record.scores[checkpoint], name) for name in scores if name != "set"}
            assert found_scores | {"set": record.scores[checkpoint].eval_set} == scores
        assert record.scores["val"].reliability.count
        assert record.scores["val"].per_class.keys() == {"dog", "guitar", "house"}
    bayes = [record for record in records if record.method == "bayes-cal"]
    assert all({"epoch", "ce", "irm", "orth", "kl"} <= set(record.gradient_norms) for record in bayes)


def test_nothing_of_a_record_is_lost_in_todays_words(results):
    """Every number of the old JSON is in the new one, under its new name."""
    names = {"variant": "entry", "gradient_norms": "probes", "samples": "draws"}
    for old in bodies(results):
        new = json.loads(json.dumps(Record.from_json(old).to_json()))
        assert (new.pop("format"), old.pop("format")) == (3, 2)  # it has no checksum, and gets none
        assert [new.pop("shots"), new.pop("val_shots")] == old.pop("shots")
        for scores in new["scores"].values():
            scores["set"] = scores.pop("eval_set")
        assert {names.get(name, name): value for name, value in new.items()} == old


def bodies(results: Path) -> list[dict]:
    """The JSON of the records as the old version wrote it."""
    with sqlite3.connect(results / "study.db") as database:
        return [json.loads(body) for (body,) in database.execute("SELECT body FROM bayescal_records")]


def test_rules_choose_the_same_runs_with_the_same_scores(records, expected):
    for name, by_variant in expected["records"]["chosen"].items():
        rule = get_rule(name)
        for variant, old in by_variant.items():
            chosen = rule.choose([record for record in records if record.variant == variant])
            rows = [[r.fold, r.seed, r.trial, r.key, rule.value(r), rule.score(r)] for r in chosen]
            assert rows == old["runs"]
            found = overall(per_fold(chosen, rule.score))
            assert {str(seed): value for seed, value in found.items()} == old["overall"]


def open_old(results: Path, methods=METHODS) -> Bench:
    data = {"shapes": OLD / "shapes.bundle"}
    return Bench.open(data, output=results, backbone=BACKBONE, methods=methods, trials=2, seeds=(1, 2))


def now(old: dict) -> Value:
    """A cell of an old section as it is today, with its seeds."""
    return Value(**old, seeds=(1, 2))


def test_old_records_of_runs_that_mean_the_same_are_not_trained_again(results, expected, monkeypatch):
    """In the database as it was written; only the keys are today's, since views mean another thing in them now."""
    bench = open_old(results)
    keys = {
        (search.variant.key, run.fold.name, run.seed, run.trial.number): run.key
        for search in bench.plan("main").searches
        for run in plan(bench.prepared(search), search.variant, bench.study(search).look(2), (1, 2))
    }
    with sqlite3.connect(results / "study.db") as database:
        for old in bodies(results):
            key = keys[old["entry"], old["fold"], old["seed"], old["trial"]]
            new = (key, json.dumps(old | {"key": key}), old["key"])
            database.execute("UPDATE bayescal_records SET key = ?, body = ? WHERE key = ?", new)
    monkeypatch.setattr(runner, "_train", lambda *_: pytest.fail("trains again what is recorded"))
    result = bench.run("main")
    accuracy = {row.label: row.cells["shapes"] for row in result.tables["accuracy"].rows}
    assert accuracy == {label: now(value) for label, value in expected["section"]["accuracy"].items()}
    assert len(list(bench.store.find())) == len(expected["records"]["records"])


def test_a_bench_on_an_old_database_leaves_what_is_there(results, records, expected):
    """Its search is continued, not begun anew, and what it trains stands beside the old records."""
    bench = open_old(results, ["clip"])
    value = bench.run("main").tables["accuracy"].rows[0].cells["shapes"]
    assert value == now(expected["section"]["accuracy"]["CLIP zero-shot"])
    found = {record.key: record for record in bench.store.find()}
    assert {record.key: found[record.key] for record in records} == {record.key: record for record in records}
    study = open_old(results).study(Search("shapes", get_variant("coop"))).optuna
    old = expected["records"]["studies"][study.study_name]
    assert [[t.number, t.state.name, t.value, t.params] for t in study.trials] == old


def test_old_and_new_records_lie_in_one_database(results, records):
    store = Store(sqlite_url(results))
    new = replace(records[0], key="new", variant="erm")
    store.add([new])
    assert store.records(["new", records[0].key]) == [new, records[0]]
    assert [record.key for record in store.find(variant="erm")] == ["new"]
    result = run("records", results, "--where", "variant=coop")
    assert result.code == 0, result.err
    assert result.out.endswith("12 records, 12 of them without a checksum (of before there were any)\n")


def test_an_old_export_is_taken_in(results, records, tmp_path):
    export = tmp_path / "old.json"
    export.write_text("".join(json.dumps(body) + "\n" for body in bodies(results)), encoding="utf-8")
    assert sorted(read_records(export), key=lambda r: r.key) == sorted(records, key=lambda r: r.key)
    result = run("records", tmp_path / "here", "--add", export)
    assert result.code == 0, result.err
    assert f"{len(records)} records, {len(records)} of them without a checksum" in result.out


def test_an_old_section_is_read_and_reported(results, expected):
    section = read_section(results / "sections" / "main.json")
    old = expected["section"]
    assert (section.title, section.command) == (old["title"], old["command"])
    assert [[t.key, len(t.columns), [r.label for r in t.rows]] for t in section.tables] == old["tables"]
    assert [[figure.key, figure.kind] for figure in section.figures] == old["figures"]
    cells = {row.label: row.cells["shapes"] for row in section.tables[0].rows}
    assert cells == {label: Value(**value) for label, value in old["accuracy"].items()}
    assert read_sections(results) == [section]
    assert run("report", results, "--format", "markdown").code == 0


def test_an_old_bundle_holds_the_same(expected):
    path, old = OLD / "shapes.bundle", expected["bundle"]
    prepared = load_bundle(path)
    problem, manifest = prepared.problem, prepared.manifest
    assert bundled_name(path) == bundled_dataset(path).name == prepared.dataset.name == old["dataset"]
    assert (list(manifest.classes), list(manifest.environments)) == (old["classes"], old["environments"])
    assert (list(problem.class_words), list(problem.environment_words)) == (
        old["class_words"], old["environment_words"],
    )  # fmt: skip
    info = prepared.backbone_info
    flat = asdict(info.defaults)  # how a posterior is trained has a part of its own since; then it had the same numbers
    flat |= flat.pop("posterior")
    assert {n: v for n, v in vars(info).items() if n != "defaults"}.items() <= old["facts"].items()
    assert old["facts"]["defaults"].items() <= flat.items()
    assert [prepared.shots, prepared.val_shots] == old["shots"]
    assert problem.logit_scale == old["logit_scale"]
    tensors = {
        "features": problem.features, "views": problem.views, "view_rows": problem.view_rows,
        "labels": problem.labels, "environment_ids": problem.environments,
    }  # fmt: skip
    for name, tensor in tensors.items():
        assert list(tensor.shape) == old[name]["shape"]
        assert digest(tensor) == old[name]["sha256"], name
    assert hashlib.sha256("".join(prepared.hashes).encode()).hexdigest() == old["hashes"]
    assert {text: problem.tokenize(text) for text in old["tokens"]} == old["tokens"]
    splits = {f"{fold.name}/{seed}": prepared.splits(fold, seed).digest for fold in prepared.folds for seed in (1, 2)}
    assert splits == old["splits"]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def views_of_0_1(seeds: torch.Tensor, epoch: int, n: int, n_views: int) -> torch.Tensor:
    """Views were drawn with replacement, from the numbers of the epoch: (R, n, V)."""
    first = epoch // n_views * n_views
    return torch.stack([rng.integers(seeds, "view", first + k, n, n_views) for k in range(n_views)], -1)


@pytest.mark.parametrize("name", METHODS)
def test_training_again_gives_what_was_recorded(records, name, tmp_path, monkeypatch):
    """Every curve and score of 0.1, trained anew by the code of today. Views alone are drawn as they were then: that is
    one of the corrections (CHANGELOG), and the others do not touch these runs."""
    monkeypatch.setattr(loop, "view_order", views_of_0_1)
    prepared, variant = load_bundle(OLD / "shapes.bundle", "cpu"), get_variant(name)
    folds = {fold.name: fold for fold in prepared.folds}
    old = {(r.fold, r.seed, r.trial): r for r in records if r.variant == name}
    planned = [
        PlannedRun(prepared, variant, folds[fold], seed, Trial(trial, record.config))
        for (fold, seed, trial), record in old.items()
    ]
    for new in run_all(Store(sqlite_url(tmp_path / "new")), planned):
        record = old[new.fold, new.seed, new.trial]
        assert new.curves["test"] == pytest.approx(record.curves["test"], abs=1e-6)
        assert new.curves["val"] == pytest.approx(record.curves["val"], abs=1e-6)
        assert new.chosen == record.chosen
        for checkpoint, scores in record.scores.items():
            assert new.scores[checkpoint].accuracy == pytest.approx(scores.accuracy, abs=1e-6)
            assert new.scores[checkpoint].nll == pytest.approx(scores.nll, abs=1e-3)
