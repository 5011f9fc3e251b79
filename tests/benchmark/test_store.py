"""Records and claims: never lost, never made twice, taken over when their owner dies."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import sqlalchemy as sql

from bayescal.benchmark import store as module
from bayescal.benchmark.records import Record
from bayescal.benchmark.store import Store, shown, sqlite_url
from bayescal.errors import DataError
from bayescal.util.process import began, process_identity
from benches import record as by_hand


def record(key: str, **changes) -> Record:
    return by_hand(**{"key": key, "dataset": "pacs", "made": key} | changes)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(sqlite_url(tmp_path / "new" / "folder"))


def test_records_come_back_in_the_order_asked_for(store):
    store.add([record("a"), record("b", seed=2), record("c", variant="cal")])
    assert [r.made for r in store.records(["c", "missing", "a"])] == ["c", "a"]
    assert store.finished(["a", "x"]) == {"a"}
    assert [r.key for r in store.find(variant="coop")] == ["a", "b"]
    assert [r.key for r in store.find(seed=[2, 3])] == ["b"]


def test_a_record_is_never_replaced(store):
    store.add([record("a")])
    store.add([record("a", made="other")])
    assert store.records(["a"])[0].made == "a"


def test_records_of_before_the_renaming_have_the_names_of_today(store):
    old = {"config": {"irm_lambda": 3.0, "irm_anneal": 5, "epochs": 2}, "settings": {"epochs": 2}}
    store.add([record("a", method="irm", **old), record("b", method="somebody.elses:IRM", **old)])
    irm, other = store.records(["a", "b"])
    assert irm.config == {"lambda_irm": 3.0, "epochs": 2}  # its annealing is no option any more
    assert irm.settings == {"epochs": 2}
    assert other.config == old["config"]  # an option of another method is another option


def test_more_keys_than_one_query_takes(store):
    keys = [f"{i:05d}" for i in range(1203)]
    assert store.claim(keys) == keys
    store.add([record(key) for key in keys])
    assert len(store.finished(keys)) == 1203
    assert store.claim(keys) == []


def test_another_living_process_keeps_its_claims(tmp_path):
    url = sqlite_url(tmp_path)
    first, second = Store(url), Store(url)
    second.owner = f"{os.uname().nodename}/1/{began(1)}"  # process 1 is alive
    assert second.claim(["a", "b"]) == ["a", "b"]
    assert first.claim(["a", "b", "c"]) == ["c"]
    second.add([record("a")])
    assert first.claim(["a", "b"]) == []


def test_a_dead_process_of_this_machine_loses_its_claims_at_once(tmp_path):
    url = sqlite_url(tmp_path)
    code = f"from bayescal.benchmark.store import Store; Store({url!r}).claim(['a'])"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Store(url).claim(["a"]) == ["a"]


def test_a_process_number_that_was_given_again_is_another_process(tmp_path):
    store = Store(sqlite_url(tmp_path))
    host, pid, start = store.owner.rsplit("/", 2)
    store.owner = f"{host}/{pid}/{start}0"
    store.claim(["a"])
    store.owner = process_identity()
    assert store.claim(["a"]) == ["a"]


def test_another_machine_loses_its_claims_when_it_is_silent(store, monkeypatch):
    mine, store.owner = store.owner, "elsewhere/1/1"
    store.claim(["a", "b"])
    store.owner = mine
    assert store.claim(["a"]) == []
    monkeypatch.setattr(module, "STALE_SECONDS", -1.0)
    assert store.claim(["a"]) == ["a"]


def test_renewing_keeps_a_claim(store, monkeypatch):
    mine, store.owner = store.owner, "elsewhere/1/1"
    store.claim(["a"])
    with store.engine.begin() as connection:
        connection.execute(sql.update(module._claims).values(renewed=time.time() - 1000))
    store.renew()
    store.owner = mine
    assert store.claim(["a"]) == []


def test_claims_are_renewed_while_work_goes_on_whatever_it_is(store, monkeypatch):
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.02)
    with store.releasing():
        store.claim(["a"])
        with store.engine.begin() as connection:
            connection.execute(sql.update(module._claims).values(renewed=0.0))
        end = time.monotonic() + 20
        renewed = 0.0
        while not renewed and time.monotonic() < end:  # the work tells nobody how far it is
            time.sleep(0.02)
            with store.engine.connect() as connection:
                renewed = connection.execute(sql.select(module._claims.c.renewed)).scalar_one()
    assert time.time() - renewed < 30


def test_reading_slowly_keeps_nobody_from_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_IN_ONE_QUERY", 2)
    store, other = Store(sqlite_url(tmp_path)), Store(sqlite_url(tmp_path))
    store.add([record(key) for key in "abcde"])
    for reader in (store.find(), store.entries()):
        read = [next(reader)]
        with other.engine.connect() as connection:
            connection.execute(sql.text("PRAGMA busy_timeout = 0"))
            connection.execute(sql.text("BEGIN EXCLUSIVE"))
            connection.rollback()
        assert len([*read, *reader]) == 5


def test_claims_are_given_up_after_a_failure(store):
    def fail():
        with store.releasing():
            store.claim(["a"])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    store.owner = f"{os.uname().nodename}/1/{began(1)}"
    assert store.claim(["a"]) == ["a"]


def _take(url, keys, out):
    store = Store(url)
    mine = store.claim(keys)
    store.add([record(key, made=str(os.getpid())) for key in mine])
    out.put(mine)


def test_two_processes_never_take_the_same_run(tmp_path):
    url, keys = sqlite_url(tmp_path), [str(i) for i in range(300)]
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [context.Process(target=_take, args=(url, keys, out)) for _ in range(2)]
    for worker in workers:
        worker.start()
    taken = [out.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(taken[0] + taken[1]) == sorted(keys)


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////proc/nowhere/study.db", "nodriver://host/name"])
def test_a_database_that_cannot_be_opened_is_said_so(url):
    with pytest.raises(DataError, match="cannot be opened"):
        Store(url)


def test_tables_that_two_processes_make_at_once_are_made():
    there = sql.exc.OperationalError("CREATE TABLE x", {}, Exception("table x already exists"))
    twice = iter([there, sql.exc.IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed")), None])

    def make():
        if (error := next(twice)) is not None:
            raise error
        return "made"

    assert module.made_together(make) == "made"
    calls = []

    def fails():
        calls.append(1)
        raise sql.exc.OperationalError("CONNECT", {}, Exception("server is gone"))

    with pytest.raises(sql.exc.OperationalError, match="server is gone"):
        module.made_together(fails)
    assert len(calls) == 1  # a server that does not answer is not asked again and again


def test_a_database_that_has_to_be_there_is_not_made(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Store(sqlite_url(tmp_path), create=False)
    assert not list(tmp_path.iterdir())


def test_a_password_is_not_shown():
    assert "secret" not in shown("postgresql://me:secret@host/name")
