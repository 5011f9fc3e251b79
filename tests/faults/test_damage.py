"""Damaged files: what is read from them is what was written, or it is refused. Never something else."""

import json
import sqlite3
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from campaign import spoil
from safetensors.torch import save_file

import tiny
from bayescal.benchmark.bundle import FORMAT, bundled_dataset, bundled_name, load_bundle
from bayescal.benchmark.database import in_words
from bayescal.benchmark.results import read_section
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.benchmark.study import Study
from bayescal.errors import BayescalError, BayescalWarning, DataError
from bayescal.estimator.artifact import CONFIG, TENSORS, read_artifact, write_artifact
from bayescal.features.store import RowStore, make_keys
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs
from benches import like, record, short_trainings
from benches import same as equal
from command_line import run
from old_files import OLD

pytestmark = pytest.mark.filterwarnings("ignore::bayescal.errors.BayescalWarning")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_checkpoints(tmp_path, r, rounds):
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(default_config(get_method("bayes-cal").space, tiny.Defaults, epochs=1), 1)
    fresh = train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)[0]
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for _ in range(10 * rounds):
        path.write_bytes(spoil(whole, r))
        again = train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)[0]
        assert same(fresh.params, again.params)
        assert fresh.curves == again.curves


def test_records(tmp_path, r, rounds):
    store = Store(sqlite_url(tmp_path))
    written = {key: record(key=key, scores={"val": {"accuracy": r.random()}}) for key in "abcdefgh"}
    store.add(written.values())
    store.engine.dispose()
    path, whole = tmp_path / "study.db", (tmp_path / "study.db").read_bytes()
    for _ in range(30 * rounds):
        path.write_bytes(spoil(whole, r))
        try:
            opened = Store(sqlite_url(tmp_path), create=False)
            found = list(opened.find())
        except BayescalError:
            continue
        finally:
            for rest in tmp_path.glob("study.db-*"):
                rest.unlink()
        opened.engine.dispose()
        assert all(one == written.get(one.key) for one in found)


@pytest.mark.xdist_group("faults")
def test_bench_on_a_damaged_database(tmp_path, bundle, r, rounds):
    """Whatever is damaged, records, claims or trials: what comes out is that of an undisturbed one, or a sentence."""
    options = "--methods coop,clip --trials 2 --seeds 1 --quiet"
    command = ["bench", "main", "--data", bundle, "-o", tmp_path, *options.split()]
    with short_trainings():
        undisturbed = run(*command)
        path, expected = tmp_path / "study.db", equal(Store(sqlite_url(tmp_path)).find())
        claim(Store(sqlite_url(tmp_path)))
        whole = path.read_bytes()
        for _ in range(3 * rounds):
            path.write_bytes(spoil(whole, r))
            result = run(*command)
            assert result.code in (0, 2), result.err
            assert "Traceback" not in result.err
            if result.code == 0:
                assert result.out == undisturbed.out
                with suppress(DataError):  # in a part of the file that `bench` did not look at
                    assert equal(Store(sqlite_url(tmp_path)).find()) == like(expected)
            for rest in tmp_path.glob("study.db-*"):
                rest.unlink()


def claim(store: Store) -> None:
    """A claim of a process that has died."""
    store.owner = "elsewhere/1/1"
    store.claim(["0" * 40])
    store.engine.dispose()


def test_results(tmp_path, r, rounds):
    whole = read_section(OLD / "results" / "sections" / "main.json")
    sealed = type(whole)(**{**vars(whole), "checked": True})
    path = sealed.save(tmp_path)
    content = path.read_bytes()
    for _ in range(60 * rounds):
        path.write_bytes(spoil(content, r))
        try:
            assert read_section(path) == sealed
        except BayescalError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_models(tmp_path, r, rounds):
    tensors = {"a": torch.randn(40), "b": torch.arange(7)}
    write_artifact(tmp_path / "model", tensors, {"method": "x", "classes": ["a", "b"]})
    files = {name: (tmp_path / "model" / name).read_bytes() for name in (CONFIG, TENSORS)}
    config = read_artifact(tmp_path / "model")[1]
    for _ in range(60 * rounds):
        name = r.choice((CONFIG, TENSORS))
        (tmp_path / "model" / name).write_bytes(spoil(files[name], r))
        try:
            found, about = read_artifact(tmp_path / "model")
        except BayescalError:
            continue
        finally:
            (tmp_path / "model" / name).write_bytes(files[name])
        assert same(found, tensors)
        assert about == config


def test_bundles(tmp_path, r, rounds):
    as_written, whole = load_bundle(OLD / "shapes.bundle"), (OLD / "shapes.bundle").read_bytes()
    path = tmp_path / "shapes.bundle"
    for _ in range(8 * rounds):
        path.write_bytes(spoil(whole, r))
        for look in (bundled_name, bundled_dataset):  # which read a part of it, and so cannot compare its digest
            with suppress(BayescalError):
                look(path)
        try:
            found = load_bundle(path)
        except BayescalError:
            continue
        assert torch.equal(found.problem.features, as_written.problem.features)
        assert found.hashes == as_written.hashes


def test_cached_features(tmp_path, r, rounds):
    rows = np.random.default_rng(0).normal(size=(20, 6)).astype("<f4")
    keys = make_keys([f"{i:064x}" for i in range(20)], [0])
    RowStore(tmp_path, 6, {}).append(keys, rows)
    files = [*tmp_path.glob("*.rows"), *tmp_path.glob("*.keys"), tmp_path / "bank.json"]
    whole = {path: path.read_bytes() for path in files}
    for _ in range(30 * rounds):
        path = r.choice(files)
        path.write_bytes(spoil(whole[path], r))
        out = np.full((20, 6), np.nan, dtype="<f4")
        try:
            found, _ = RowStore(tmp_path, 6, {}).read(keys, out, np.arange(20))
            assert np.array_equal(out[found], rows[found])
        except BayescalError:
            assert path.name == "bank.json"
        for name, content in whole.items():  # what held less than a row has been removed
            name.write_bytes(content)


def test_every_record_that_is_left_out_is_named(tmp_path, r):
    store = Store("sqlite://")
    store.add([record(key="a")])
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE bayescal_records SET body = '{}'")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", BayescalWarning)
        assert list(store.find()) == []
    assert "the record a" in str(said[0].message)
    assert json.loads(json.dumps(record(key="a").to_json()))["checksum"]


# ---- what the campaign found, one by one ---------------------------------------------------------------------------


@pytest.mark.parametrize("said", ['near "x": syntax error', "unrecognized token", "malformed database schema"])
def test_whatever_sqlite_says_of_a_damaged_file_is_a_sentence(said):
    error = in_words("sqlite:///a.db", sqlite3.OperationalError(said))
    assert error is not None
    assert "a.db: it is damaged" in str(error)
    assert in_words("sqlite:///a.db", sqlite3.OperationalError("table x already exists")) is None
    assert in_words("sqlite:///a.db", sqlite3.ProgrammingError("the program is wrong")) is None


def change(store: Store, command: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(command)


@pytest.mark.parametrize(
    "command",
    [
        "UPDATE trial_params SET distribution_json = '{'",
        'UPDATE trial_params SET distribution_json = \'{"name": "Other"}\'',
        "UPDATE trials SET state = 'DONE'",
        "UPDATE version_info SET schema_version = 99",
        "UPDATE alembic_version SET version_num = 'v9'",
        "DROP TABLE studies",
    ],
)
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_trials_that_are_damaged_are_the_right_ones_or_a_sentence(tmp_path, command, sampler):
    def ask() -> list:
        study = Study(sqlite_url(tmp_path), "x", get_method("bayes-cal").space, tiny.Defaults(), {}, sampler)
        return study.ask(3)

    expected = ask()
    change(Store(sqlite_url(tmp_path)), command)
    with suppress(DataError):
        assert ask() == expected


@pytest.mark.parametrize(("column", "value"), [("owner", "'x'"), ("owner", "x'ff'"), ("renewed", "'soon'")])
def test_a_claim_that_is_damaged_is_nobodys(tmp_path, column, value):
    store, other = Store(sqlite_url(tmp_path)), Store(sqlite_url(tmp_path))
    other.owner = "elsewhere/1/1"
    assert other.claim(["a"]) == ["a"]
    assert store.claim(["a"]) == []
    change(store, f"UPDATE bayescal_claims SET {column} = {value}")
    assert store.claim(["a"]) == ["a"]


@pytest.mark.parametrize(
    "about", ["{}", "[]", '{"dataset": 3}', '{"dataset": "x", "classes": 3}', "[" * 100_000], ids=range(5)
)
def test_a_bundle_that_describes_nothing(tmp_path, about):
    path, ids = tmp_path / "a.bundle", torch.zeros(1, dtype=torch.int64)
    save_file({"class_ids": ids, "environment_ids": ids.clone()}, path, {"format": FORMAT, "about": about})
    for look in (bundled_name, bundled_dataset):
        if look is bundled_name and about.startswith('{"dataset": "x"'):
            continue
        with pytest.raises(DataError, match=r"a\.bundle: is damaged"):
            look(path)


@pytest.mark.parametrize("content", ["[1]", "3", '"x"', "", "{"])
def test_a_bank_that_describes_nothing(tmp_path, content):
    RowStore(tmp_path, 6, {})
    (tmp_path / "bank.json").write_text(content)
    with pytest.raises(DataError, match="describes other features"):
        RowStore(tmp_path, 6, {})
