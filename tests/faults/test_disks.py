"""Disks that are full, at every size, or may not be written to: a sentence, exit code 2, and what was there stays."""

import os
import resource
import shutil

import pytest
from campaign import in_child
from mounts import make_read_only, small_disk

from bayescal.benchmark.store import Store, sqlite_url
from bayescal.errors import DataError
from bayescal.estimator import artifact
from bayescal.estimator.artifact import TENSORS
from bayescal.training import loop
from bayescal.util.atomic import write_bytes
from benches import record
from command_line import fit, left_in, make_shapes, refused, run
from old_files import OLD


@pytest.fixture
def small_files():
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_database_that_may_not_grow(tmp_path, small_files, r, rounds):
    store = Store(sqlite_url(tmp_path))
    store.add([record(key="a")])
    size = os.path.getsize(tmp_path / "study.db")
    for number in range(4 * rounds):
        small_files(size + r.randrange(4096))
        with pytest.raises(DataError, match=r"study\.db: the disk is full"):
            store.add([record(key=f"b{number}", made="x" * 200_000)])
        small_files(resource.RLIM_INFINITY)
        assert [one.key for one in Store(sqlite_url(tmp_path)).find()] == ["a"]


def test_a_file_that_may_not_grow_stays_as_it_was(tmp_path, small_files, r, rounds):
    write_bytes(tmp_path / "file", b"old")
    for _ in range(10 * rounds):
        small_files(r.randrange(1, 1000))
        with pytest.raises(OSError, match="large") as caught:
            write_bytes(tmp_path / "file", bytes(2000))
        assert caught.value.filename == str(tmp_path / "file")  # which the user knows
        small_files(resource.RLIM_INFINITY)
        assert os.listdir(tmp_path) == ["file"]
        assert (tmp_path / "file").read_bytes() == b"old"


def test_a_fit_that_may_not_write_leaves_no_model_and_can_be_repeated(tmp_path, data, small_files, rounds):
    if rounds == 1:
        pytest.skip("two whole fits: with --faults-long")
    learn = ["fit", data, "-o", tmp_path / "model", "--method", "coop", "--set", "epochs=1", "--quiet"]
    small_files(8_000)
    code, _ = in_child(*learn, "--cache", tmp_path / "cache")
    small_files(resource.RLIM_INFINITY)
    assert code == 2
    assert not (tmp_path / "model").exists()
    assert in_child(*learn, "--cache", tmp_path / "cache")[0] == 0
    assert sorted(os.listdir(tmp_path)) == ["cache", "data", "model"]


# ---- full when the model is to be saved ----------------------------------------------------------------------------


def test_a_disk_that_is_full_at_the_save_keeps_the_training_and_the_same_command_continues(tmp_path, data, monkeypatch):
    """What was learned is not learned again, and the model is that of an undisturbed command."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        learn = [data, disk / "model", "--set", "epochs=3"]
        assert fit(data, tmp_path / "undisturbed", "--set", "epochs=3").code == 0
        epochs = count_epochs(monkeypatch)
        with monkeypatch.context() as patch:
            fill_before(patch, artifact, "_write", disk / "filler")
            result = fit(*learn)
            refused(result, "could not write the model", "No space left")
        assert f"what was learned is kept in {disk / '.model.checkpoints'}: the same command continues" in result.err
        assert left_in(disk) == [".model.checkpoints", "filler"]
        assert len(epochs) == 3
        (disk / "filler").unlink()
        assert fit(*learn).code == 0
        assert len(epochs) == 3  # none was trained again
        assert left_in(disk) == ["model"]
        assert (disk / "model" / TENSORS).read_bytes() == (tmp_path / "undisturbed" / TENSORS).read_bytes()


def fill_before(patch, module, function: str, filler) -> None:
    """From now on, the disk of `filler` is full when the function is called."""
    real = getattr(module, function)

    def on_a_full_disk(*given):
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        return real(*given)

    patch.setattr(module, function, on_a_full_disk)


def count_epochs(monkeypatch) -> list[int]:
    """Grows by one with every epoch that is trained from now on."""
    done, real = [], loop._train_epoch
    monkeypatch.setattr(loop, "_train_epoch", lambda *given: (done.append(1), real(*given))[1])
    return done


# ---- places that may not be written to -----------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path, model):
    """A disk with a model, results and records, which can be read and nothing else."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        shutil.copytree(model, disk / "model")
        shutil.copytree(OLD / "results" / "sections", disk / "results" / "sections")
        store = Store(sqlite_url(disk / "results"))
        store.add([record(key="a")])
        store.engine.dispose()
        make_read_only(disk)
        yield disk


def test_commands_that_write_to_a_place_that_may_not_be_written_to(read_only, data, model, bundle, tmp_path):
    bench = ["bench", "main", "--data", bundle, "--methods", "clip", "--seeds", 1, "--quiet"]
    new = make_shapes(tmp_path / "new", environments=("cartoon",), n=1)
    for command, said in (
        (["fit", data, "-o", read_only / "new", "--method", "clip"], "cannot be written to"),
        (["fit", data, "-o", read_only / "model", "--method", "clip", "--force"], "Read-only"),
        (["predict", model, data, "-o", read_only / "answers.csv"], "cannot be written to"),
        (["evaluate", model, data, "-o", read_only / "report"], "cannot be written to"),
        (["suggest", model, new, "-o", read_only / "to-label.csv"], "cannot be written to"),
        (["export", model, "-o", read_only / "exported"], "cannot be written to"),
        (["report", read_only / "results"], "Read-only"),
        (["records", read_only / "results", "-o", read_only / "runs.csv"], "Read-only"),
        ([*bench, "-o", read_only / "bench"], "Read-only"),
        ([*bench, "-o", read_only / "results"], "may not be written to"),
        (["data", "pack", "shapes", "--from", data, "-o", read_only / "a.bundle", "--shots", 1, "--val-shots", 1,
          "--seeds", 1], "cannot be written to"),
    ):  # fmt: skip
        result = run(*command)
        refused(result, str(read_only))
        assert any(words in result.err for words in said.split("|")), result.err
    assert left_in(read_only) == ["model", "results"]
    assert left_in(tmp_path) == ["data", "disk", "new"]


def test_what_may_be_read_is_read(read_only, data, tmp_path):
    assert run("predict", read_only / "model", data, "--csv").code == 0
    assert run("evaluate", read_only / "model", data, "-o", tmp_path / "report").code == 0
    assert run("records", read_only / "results").out.endswith("1 record\n")
    assert run("records", read_only / "results", "--verify").code == 0
    assert run("report", read_only / "results", "-o", tmp_path / "report.html").code == 0
    result = fit(data, tmp_path / "new", "--cache", read_only / "cache")
    assert result.code == 0
    assert "goes on without it" in result.err
