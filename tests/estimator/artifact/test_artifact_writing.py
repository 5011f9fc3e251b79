"""A model on disk: nothing of value is replaced, and a failed write leaves everything as it was."""

import errno
import os

import pytest
from artifacts import SMALL, contents

from bayescal.errors import ArtifactError
from bayescal.estimator import artifact
from bayescal.estimator.artifact import CONFIG, TENSORS, check_output, read_artifact, write_artifact
from bayescal.estimator.predictor import Predictor

pytestmark = pytest.mark.xdist_group("artifact")


def test_an_existing_output_is_refused_and_replaced_only_when_asked(model, classifier):
    before = contents(model)
    with pytest.raises(ArtifactError, match="exists already"):
        classifier.save(model)
    assert contents(model) == before
    write_artifact(model, SMALL, {"method": "other"}, overwrite=True)
    assert read_artifact(model)[1]["method"] == "other"
    assert os.listdir(model.parent) == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_in_it_is_never_replaced(model, overwrite):
    (model / "thesis.tex").write_text("years of work")
    before = contents(model)
    with pytest.raises(ArtifactError, match=r"exists already|thesis\.tex"):
        write_artifact(model, SMALL, {}, overwrite=overwrite)
    assert contents(model) == before


def test_a_file_is_never_replaced(tmp_path):
    (tmp_path / "model").write_text("precious")
    with pytest.raises(ArtifactError, match="something else than a model"):
        write_artifact(tmp_path / "model", SMALL, {}, overwrite=True)
    assert (tmp_path / "model").read_text() == "precious"


def test_a_place_inside_a_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "notes").write_text("a file")
    with pytest.raises(ArtifactError, match=r"notes is a file"):
        check_output(tmp_path / "notes" / "model", overwrite=False)


def test_folders_above_are_made(tmp_path):
    write_artifact(tmp_path / "a" / "b" / "model", SMALL, {})
    assert read_artifact(tmp_path / "a" / "b" / "model")[0]["numbers"].equal(SMALL["numbers"])


def test_a_link_stays_a_link(model, tmp_path):
    (tmp_path / "latest").symlink_to(model)
    write_artifact(tmp_path / "latest", SMALL, {"method": "other"}, overwrite=True)
    assert (tmp_path / "latest").is_symlink()
    assert read_artifact(model)[1]["method"] == "other"
    assert sorted(os.listdir(tmp_path)) == ["latest", "model"]


def test_the_folder_one_stands_in_can_be_replaced(model, monkeypatch):
    monkeypatch.chdir(model)
    write_artifact(".", SMALL, {"method": "other"}, overwrite=True)
    assert read_artifact(model)[1]["method"] == "other"


def full_disk(*given, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fails_at(name: str, monkeypatch) -> None:
    """Let one step of the writing fail: the first or second file, flushing, or one of the two renamings."""
    if name == "flush":
        monkeypatch.setattr("bayescal.estimator.artifact.os.fsync", full_disk)
    elif name in ("first file", "second file"):
        real = artifact._write
        victim = TENSORS if name == "first file" else CONFIG
        monkeypatch.setattr(
            "bayescal.estimator.artifact._write",
            lambda path, content: (
                (real(path, content[: len(content) // 2]), full_disk()) if path.name == victim else real(path, content)
            ),
        )
    else:
        monkeypatch.setattr("bayescal.util.atomic.exchange", lambda one, other: False)  # as on systems without
        renamed = []
        real = os.replace
        which = 1 if name == "first renaming" else 2
        monkeypatch.setattr(
            "bayescal.estimator.artifact.os.replace",
            lambda a, b: (renamed.append(a), full_disk() if len(renamed) == which else real(a, b)),
        )


@pytest.mark.parametrize("step", ["first file", "second file", "flush", "first renaming"])
def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, step):
    fails_at(step, monkeypatch)
    with pytest.raises(ArtifactError, match=r"could not write the model to .*No space left"):
        write_artifact(tmp_path / "new" / "folder" / "model", SMALL, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["first file", "second file", "flush", "first renaming", "second renaming"])
def test_a_failed_write_leaves_the_old_model_as_it_was(model, monkeypatch, step):
    before = contents(model)
    fails_at(step, monkeypatch)
    with pytest.raises(ArtifactError, match="No space left"):
        write_artifact(model, SMALL, {}, overwrite=True)
    assert os.listdir(model.parent) == ["model"]
    assert contents(model) == before
    monkeypatch.undo()
    Predictor.load(model)


def test_an_interruption_leaves_the_old_model_as_it_was(model, monkeypatch):
    before = contents(model)

    def interrupt(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayescal.estimator.artifact._write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(model, SMALL, {}, overwrite=True)
    assert os.listdir(model.parent) == ["model"]
    assert contents(model) == before


def test_leftovers_of_a_killed_process_are_not_in_the_way(tmp_path, monkeypatch):
    """In a container every process may have the same number."""
    with monkeypatch.context() as patch:
        patch.setattr("bayescal.estimator.artifact._write", full_disk)
        patch.setattr("bayescal.util.atomic.shutil.rmtree", lambda *given, **more: None)  # killed before it could
        with pytest.raises(ArtifactError):
            write_artifact(tmp_path / "model", SMALL, {})
    assert len(os.listdir(tmp_path)) == 1
    write_artifact(tmp_path / "model", SMALL, {})
    read_artifact(tmp_path / "model")
