"""One study on PostgreSQL for several processes: a real server on this machine, reached over loopback."""

import glob
import multiprocessing
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sql

from bayescal.benchmark import store as module
from bayescal.benchmark.records import Record
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.util.process import began
from benches import record as by_hand
from benches import same

pytestmark = pytest.mark.xdist_group("postgres")
WAIT = 180.0


def program(name: str) -> str | None:
    """A server program: Debian keeps them out of the way of ordinary users."""
    return shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


def as_server() -> list[str]:
    """What a command begins with, so that it does not run as root, which the server refuses."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    if not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    return ["runuser", "-u", "postgres", "--"]


@pytest.fixture(scope="module")
def server():
    """Its address, with a database that nobody has used."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install bayescal[postgres]")
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    if not initdb or not pg_ctl:
        pytest.skip("needs a PostgreSQL server: Debian's package postgresql")
    start = as_server()
    folder = Path(tempfile.mkdtemp(prefix="bayescal-postgres-"))  # not below pytest's own, which is closed to others
    try:
        if start:
            shutil.chown(folder, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "timeout": WAIT, "cwd": "/"}
        data = str(folder / "data")
        subprocess.run([*start, initdb, "-D", data, "-U", "bayescal", "-A", "trust", "--no-sync"], **quiet)
        options = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(folder / "log")
        subprocess.run([*start, pg_ctl, "-D", data, "-o", options, "-l", log, "-w", "start"], **quiet)
        try:
            yield f"postgresql+psycopg://bayescal@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*start, pg_ctl, "-D", data, "-m", "immediate", "-w", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server):
    yield server
    engine = sql.create_engine(server)
    with engine.begin() as connection:
        connection.execute(sql.text("DROP SCHEMA public CASCADE"))
        connection.execute(sql.text("CREATE SCHEMA public"))
    engine.dispose()


def record(key: str, **changes) -> Record:
    return by_hand(**{"key": key, "dataset": "pacs", "made": key} | changes)


def test_records_and_claims(url):
    store, other = Store(url), Store(url)
    other.owner = f"{os.uname().nodename}/1/{began(1)}"  # process 1 is alive
    keys = [f"{i:05d}" for i in range(603)]  # more than one query takes
    assert store.claim(keys) == keys
    assert other.claim([*keys, "x"]) == ["x"]
    store.add([record(key) for key in keys])
    store.add([record(keys[0], made="other")])
    assert store.records([keys[0]])[0].made == keys[0]
    assert other.claim(keys) == []
    store.renew()
    with other.releasing():
        pass
    assert store.claim(["x"]) == ["x"]


def _take(url, keys, out):
    store = Store(url)
    mine = [key for at in range(0, len(keys), 40) for key in store.claim(keys[at : at + 40])]
    store.add([record(key, made=str(os.getpid())) for key in mine])
    out.put(mine)


def test_processes_that_ask_in_opposite_orders_share_without_a_deadlock(url):
    keys = [f"{i:04d}" for i in range(400)]
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    orders = [keys, keys[::-1], keys[1::2] + keys[::2]]
    workers = [context.Process(target=_take, args=(url, order, out)) for order in orders]
    for worker in workers:
        worker.start()
    taken = [key for _ in workers for key in out.get(timeout=WAIT)]
    for worker in workers:
        worker.join()
    assert sorted(taken) == keys
    assert len(Store(url).finished(keys)) == 400


def bench(bundle: Path, output: Path, *more: str) -> subprocess.Popen:
    options = "--methods cal-lv,coop --trials 2 --seeds 1,2 --max-runs 2 --quiet"
    command = [sys.executable, "-m", "bayescal", "bench", "main", "--data", str(bundle), "-o", str(output)]
    return subprocess.Popen(
        [*command, *options.split(), *more], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finished(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 0, err
    return out


def test_two_benches_on_one_server_make_one_study(url, bundle, tmp_path):
    # Two output folders, as on two machines that share nothing but the database.
    processes = [bench(bundle, tmp_path / name, "--storage", url) for name in ("first", "second")]
    tables = [finished(process) for process in processes]
    alone = finished(bench(bundle, tmp_path / "alone"))
    assert tables == [alone, alone]
    records = list(Store(url).find())
    assert same(records) == same(list(Store(sqlite_url(tmp_path / "alone")).find()))
    with Store(url).engine.connect() as connection:
        assert not connection.execute(sql.select(module._claims)).all()
        trials = connection.execute(sql.text("SELECT count(*) FROM trials WHERE state = 'COMPLETE'")).scalar()
    assert trials >= 2 * 2  # Optuna's tables are there too: two trials of two methods
    assert not (tmp_path / "first" / "study.db").exists()


def test_a_server_that_does_not_answer_is_said_so():
    pytest.importorskip("psycopg")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(module.DataError, match=r"me:\*\*\*@.*the server does not answer"):
        Store(f"postgresql+psycopg://me:secret@127.0.0.1:{port}/none")
