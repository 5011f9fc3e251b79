"""`bayescal bench` as processes of their own: killed in the middle, two at once; from a bundle, without open_clip."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bayescal.benchmark.records import Record
from bayescal.benchmark.store import Store, sqlite_url
from benches import same
from command_line import run

pytestmark = pytest.mark.xdist_group("bench")
WAIT = 120.0

# The command, with open_clip out of reach and every stack written down as it begins. With PEERS, no process begins
# before so many are there: each then has a share of the work.
TRACED = """
import json, os, sys, time
from pathlib import Path
sys.modules["open_clip"] = None
from bayescal.benchmark import runner
train, log = runner._train, Path(os.environ["TRACE"])

def traced(stack, *rest):
    mine = log / str(os.getpid())
    with open(mine, "a") as file:
        file.write(json.dumps([run.key for run in stack.planned]) + "\\n")
    end = time.monotonic() + 60
    while len(list(log.iterdir())) < int(os.environ["PEERS"]) and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(float(os.environ["PAUSE"]))
    return train(stack, *rest)

runner._train = traced
from bayescal.cli import main
main(sys.argv[1:])
"""


def command(bundle: Path, output: Path) -> list[str]:
    options = "--methods cal-lv,coop --trials 2 --seeds 1,2 --max-runs 2 --quiet"
    return ["bench", "main", "--data", str(bundle), "-o", str(output), *options.split()]


def start(arguments: list[str], trace: Path, peers: int = 1, pause: float = 0.0) -> subprocess.Popen:
    trace.mkdir(exist_ok=True)
    environment = {**os.environ, "TRACE": str(trace), "PEERS": str(peers), "PAUSE": str(pause)}
    return subprocess.Popen(
        [sys.executable, "-c", TRACED, *arguments], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def stacks(trace: Path) -> list[list[list[str]]]:
    """Of every process, the keys of every stack that it began."""
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(trace.iterdir())]


def records(output: Path) -> list[Record]:
    return list(Store(sqlite_url(output)).find())


@pytest.fixture(scope="module")
def uninterrupted(bundle, tmp_path_factory) -> list[Record]:
    output = tmp_path_factory.mktemp("uninterrupted")
    result = run(*command(bundle, output))
    assert result.code == 0, result.err
    found = records(output)
    assert len(found) == 2 * 3 * 2 * 2  # methods × folds × seeds × trials
    return found


def test_killed_in_the_middle_the_same_command_finishes(bundle, tmp_path, uninterrupted):
    output, trace = tmp_path / "out", tmp_path / "trace"
    process = start(command(bundle, output), trace, pause=0.2)
    end = time.monotonic() + WAIT
    while time.monotonic() < end and process.poll() is None:
        if (output / "study.db").exists() and len(list(Store(sqlite_url(output)).find())) >= 4:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=WAIT)
    assert process.returncode == -signal.SIGKILL
    before = {record.key: record for record in records(output)}
    assert 4 <= len(before) < len(uninterrupted)
    assert not (output / "sections").exists()

    result = run(*command(bundle, output))
    assert result.code == 0, result.err
    after = {record.key: record for record in records(output)}
    assert {key: after[key] for key in before} == before  # not trained again: even the times are the same
    assert same(list(after.values())) == same(uninterrupted)
    assert (output / "sections" / "main.json").exists()


def test_two_processes_without_open_clip_share_the_work_and_train_every_run_once(bundle, tmp_path, uninterrupted):
    output, trace = tmp_path / "out", tmp_path / "trace"
    started = [start(command(bundle, output), trace, peers=2) for _ in range(2)]
    ends = [process.communicate(timeout=WAIT) for process in started]
    assert [process.returncode for process in started] == [0, 0], ends
    shares = [[key for stack in process for key in stack] for process in stacks(trace)]
    assert len(shares) == 2
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == sorted(record.key for record in uninterrupted)
    found = records(output)
    assert [r.key for r in sorted(found, key=lambda r: r.key)] == sorted(shares[0] + shares[1])
    assert same(found) == same(uninterrupted)
    (first, _), (second, _) = ends  # both print the whole table
    assert "CoOp" in first
    assert "CAL (LV)" in first
    assert first == second
