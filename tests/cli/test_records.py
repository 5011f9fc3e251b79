"""`bayescal records`: looking at runs, filtering them, and taking them to other programs without loss."""

import csv
import json

import pytest

from bayescal.benchmark.export import flat, matching
from bayescal.benchmark.records import Record
from bayescal.benchmark.store import Store, sqlite_url
from command_line import left_in, refused, run

pytestmark = pytest.mark.xdist_group("bench")


@pytest.fixture(scope="module")
def results(bench_all):
    assert bench_all[1].code == 0, bench_all[1].err
    return bench_all[0]


@pytest.fixture(scope="module")
def stored(results):
    return list(Store(sqlite_url(results)).find())


def test_the_table_shows_searches(results, stored):
    result = run("records", results)
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    coop = next(line for line in lines if line[:2] == ["pictures", "coop"])
    assert coop[2:4] == ["mini", "2"]
    own = [record for record in stored if record.variant == "coop" and not record.purpose]
    assert coop[4:8] == [str(len(own)), "2", "2", "3"]  # trials, seeds, folds
    assert result.out.endswith(f"{len(stored)} records\n")


def test_conditions_are_all_kept(results, stored):
    where = ["--where", "variant=bayes-cal", "--where", "seed=2", "--where", "fold=photo"]
    result = run("records", results, "--format", "json", *where)
    assert result.code == 0, result.err
    found = [json.loads(line) for line in result.out.splitlines()]
    mine = [r for r in stored if (r.variant, r.seed, r.fold) == ("bayes-cal", 2, "photo")]
    assert [Record.from_json(one) for one in found] == mine
    assert len(found) == 2
    assert result.err.strip() == "2 records"


def test_conditions_reach_into_configs_and_chosen_epochs(stored):
    position = [r for r in stored if r.config.get("position") == "middle"]
    assert list(matching(stored, ["config.position=middle"])) == position
    assert position
    assert list(matching(stored, ["dataset = pictures "])) == stored
    assert list(matching(stored, ["config.nothing=1"])) == []


def test_csv_holds_every_run_and_number(results, stored, tmp_path):
    result = run("records", results, "-o", tmp_path / "new" / "runs.csv")
    assert result.code == 0, result.err
    assert f"{len(stored)} records in " in result.err
    with open(tmp_path / "new" / "runs.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row, record in zip(rows, stored, strict=True):
        for name, value in flat(record).items():
            shown = row[name]
            if value is None:
                assert shown == ""
            elif isinstance(value, float):
                assert float(shown) == value
            else:
                assert shown == str(value)
    assert {"config.lambda_irm", "scores.val.accuracy", "scores.val.per_class.dog", "last.test", "best.val"} <= set(row)
    assert left_in(tmp_path / "new") == ["runs.csv"]


def test_parquet_holds_the_same_with_types(results, stored, tmp_path):
    import pyarrow.parquet

    assert run("records", results, "-o", tmp_path / "runs.parquet").code == 0
    rows = pyarrow.parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert len(rows) == len(stored)
    for row, record in zip(rows, stored, strict=True):
        for name, value in flat(record).items():
            assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    assert {row["config.epochs"] for row in rows} >= {3, 4, None}  # numbers, and nothing where a method has none


def test_json_holds_whole_records(results, stored, tmp_path):
    for name in ("runs.json", "runs.jsonl"):
        assert run("records", results, "-o", tmp_path / name).code == 0
        found = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [Record.from_json(one) for one in found] == stored


def test_a_file_is_replaced_only_when_asked(results, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("mine")
    refused(run("records", results, "-o", path), "exists already", "--force")
    assert path.read_text() == "mine"
    assert run("records", results, "-o", path, "--force", "--where", "variant=coop").code == 0
    assert path.read_text().startswith("key,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "colour=red"], ["--where colour", "dataset", "variant"]),
        (["--where", "variant"], ["expected name=value"]),
        (["--where", "entry=coop"], ["is called variant now", "variant=coop"]),
        (["--format", "excel"], ["--format excel", "table, csv, parquet, json"]),
        (["--format", "parquet"], ["-o FILE.parquet"]),
        (["-o", "runs.xlsx"], ["--format xlsx"]),
        (["-o", "runs"], ["-o runs", "no format"]),
        (["-o", "runs.csv", "--format", "table"], ["goes to the screen"]),
        (["--storage", "sqlite:///nowhere.db"], ["does not exist"]),
    ],
)
def test_mistakes_are_said_and_leave_nothing(results, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    refused(run("records", results, *arguments), *said)
    assert left_in(tmp_path) == []


def test_a_folder_without_records_is_said(tmp_path):
    refused(run("records", tmp_path), "holds no records", "bayescal bench")
    assert left_in(tmp_path) == []


def test_a_condition_that_nothing_meets_says_what_there_is(results, stored, tmp_path):
    told = (f"no record of {len(stored)} matches", "--where variant=coupe", "bayes-cal", "coop")
    refused(run("records", results, "--where", "variant=coupe", "-o", tmp_path / "runs.csv"), *told)
    assert not left_in(tmp_path)
    refused(run("records", results, "--where", "config.lambda=1"), "none has a config.lambda")
