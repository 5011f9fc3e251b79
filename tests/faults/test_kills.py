"""Killed with SIGKILL at random moments: the same command then gives what an undisturbed one gives, and no more."""

import os
import shutil
import signal

import pytest
from campaign import contents, in_child

from bayescal.benchmark.store import Store, sqlite_url
from benches import like, same, short_trainings
from old_files import OLD

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
    pytest.mark.xdist_group("faults"),
]
KILLED = -signal.SIGKILL


def repeat(command: list, base, kills: int, r, undisturbed: float) -> None:
    """The command, killed so often on its way, and then to its end."""
    for _ in range(kills):
        code, _ = in_child(*command, kill_after=r.random() * undisturbed)
        assert code in (0, KILLED)
    assert in_child(*command)[0] == 0
    hidden = [path.name for path in base.iterdir() if path.name.startswith(".")]
    assert not hidden, f"left behind: {hidden}"


def test_a_kill_before_the_first_line_is_a_kill():
    for moment in (0.0, 0.0, 0.0001, 0.001):
        assert in_child("methods", kill_after=moment)[0] in (0, KILLED)


def test_fit(tmp_path, data, r, rounds):
    learn = ["fit", data, "--method", "coop", "--set", "epochs=4", "--quiet", "--force"]
    code, seconds = in_child(*learn, "-o", tmp_path / "undisturbed", "--cache", tmp_path / "cache-1")
    assert code == 0
    as_it_should_be = (tmp_path / "undisturbed" / "model.safetensors").read_bytes()
    for number in range(rounds):
        command = [*learn, "-o", tmp_path / "model", "--cache", tmp_path / f"cache-2-{number}"]
        repeat(command, tmp_path, 1, r, seconds)
        assert (tmp_path / "model" / "model.safetensors").read_bytes() == as_it_should_be
        shutil.rmtree(tmp_path / f"cache-2-{number}")


def test_report(tmp_path, r, rounds):
    results = tmp_path / "results"
    shutil.copytree(OLD / "results" / "sections", results / "sections")
    command = ["report", results, "--format", "all", "-o"]
    code, seconds = in_child(*command, tmp_path / "undisturbed")
    assert code == 0
    for number in range(rounds):
        target = tmp_path / f"killed-{number}"
        repeat([*command, target], target.parent, 1, r, seconds)
        found, expected = contents(target), contents(tmp_path / "undisturbed")
        assert found.keys() == expected.keys()
        assert found["report.md"] == expected["report.md"]


def test_bench(tmp_path, bundle, r, rounds):
    def command(output) -> list:
        options = "--methods coop,clip --trials 2 --seeds 1 --max-runs 2 --quiet"
        return ["bench", "main", "--data", bundle, "-o", output, *options.split()]

    def records(output) -> list:
        return same(Store(sqlite_url(output)).find())

    with short_trainings():
        code, seconds = in_child(*command(tmp_path / "undisturbed"))
        assert code == 0
        for number in range(rounds):
            output = tmp_path / f"killed-{number}"
            repeat(command(output), tmp_path, 2, r, seconds)
            assert records(output) == like(records(tmp_path / "undisturbed"))  # other stacks, other last digits
            assert (output / "sections" / "main.json").exists()
            assert not list((output / "checkpoints").glob("*"))


def test_pack(tmp_path, pictures, r, rounds):
    def command(output, cache) -> list:
        options = "--seeds 1 --shots 3 --val-shots 2"
        return ["data", "pack", "pictures", "--from", pictures, "-o", output, "--cache", cache, *options.split()]

    with short_trainings():
        code, seconds = in_child(*command(tmp_path / "undisturbed.bundle", tmp_path / "cache-1"))
        assert code == 0
        for number in range(rounds):
            output, cache = tmp_path / f"killed-{number}.bundle", tmp_path / f"cache-2-{number}"
            repeat([*command(output, cache), "--force"], tmp_path, 1, r, seconds)
            assert output.read_bytes() == (tmp_path / "undisturbed.bundle").read_bytes()
            shutil.rmtree(cache)
