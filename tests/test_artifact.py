"""A model on disk: the same answers in another process, and nothing read that is damaged, foreign or executable."""

import errno
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescal import FewShotClassifier, __version__, artifact
from bayescal.artifact import CONFIG, FORMAT_VERSION, TENSORS, check_output, read_artifact, write_artifact
from bayescal.errors import ArtifactError
from bayescal.predictor import Predictor
from pictures import make_pictures, save_pictures

pytestmark = pytest.mark.xdist_group("artifact")

SMALL = {"numbers": torch.arange(6.0).view(2, 3)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[Path]:
    return save_pictures(make_pictures(4).images, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def classifier(cache, paths) -> FewShotClassifier:
    data = make_pictures(4)
    options = {"epochs": 2, "prior_scale": 0.3, "position": "middle", "learning_rate": 1e-4}
    classifier = FewShotClassifier(
        "bayes-cal",
        cache=cache,
        members=2,
        draws=3,
        options=options,
        class_words={"ball": "red ball"},
        seed=3,
    )
    classifier.fit(paths, data.classes, data.environments, data.every(2))
    classifier.predictor_.temperature = 1.3  # as if calibrated
    return classifier


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory) -> Path:
    """A model that tests read and never change."""
    path = tmp_path_factory.mktemp("models") / "model"
    classifier.save(path)
    return path


@pytest.fixture
def model(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- there and back ------------------------------------------------------------------------------------------------

IN_A_FRESH_PROCESS = """
import sys
import numpy as np
from bayescal import FewShotClassifier
model, cache, out, *paths = sys.argv[1:]
details = FewShotClassifier.load(model, cache=cache).details(paths)
np.savez(out, **vars(details))
"""


def test_a_fresh_process_gives_bit_identical_answers(classifier, saved, cache, paths, tmp_path):
    out = tmp_path / "answers.npz"
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(saved), str(cache), str(out), *map(str, paths)]
    # the number of threads decides in which order a sum is taken: the same here and there
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run(command, check=True, env=environment)
    expected = vars(classifier.details(paths))
    with np.load(out) as answers:  # no pickle: np.load refuses objects
        assert set(answers) == set(expected)
        for name, value in expected.items():
            assert answers[name].dtype == value.dtype, name
            assert np.array_equal(answers[name], value), name


def test_everything_learned_comes_back(classifier, saved, cache):
    loaded, made = FewShotClassifier.load(saved, cache=cache), classifier.predictor_
    again = loaded.predictor_
    assert set(again.params) == set(made.params)
    assert all(value.equal(again.params[name]) for name, value in made.params.items())
    assert again.prototypes.equal(made.prototypes)
    for name in (
        "method",
        "config",
        "seeds",
        "classes",
        "class_words",
        "environments",
        "trained_environments",
        "draws",
    ):
        assert getattr(again, name) == getattr(made, name), name
    assert (again.threshold, again.temperature) == (made.threshold, made.temperature)
    assert again.temperature != 1
    assert again.record == made.record
    assert loaded.classes_.tolist() == classifier.classes_.tolist()
    assert loaded.environments_.tolist() == classifier.environments_.tolist()
    assert (loaded.threshold_, loaded.record_) == (classifier.threshold_, classifier.record_)
    assert (loaded.members, loaded.draws, loaded.seed, loaded.method) == (2, 3, 3, "bayes-cal")


def test_saving_what_was_loaded_gives_the_same_files(saved, tmp_path):
    FewShotClassifier.load(saved).save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(saved)


def test_the_config_is_readable_and_complete(classifier, saved, mini):
    text = (saved / CONFIG).read_text(encoding="utf-8")
    config = json.loads(text, parse_constant=pytest.fail)
    assert text.count("\n") > 30  # for people, one entry a line
    assert config["format_version"] == FORMAT_VERSION
    assert config["method"] == "bayes-cal"
    assert config["config"]["position"] == "middle"
    assert config["classes"] == ["ball", "box", "tent"]
    assert config["class_words"] == ["red ball", "box", "tent"]
    assert config["environments"] == ["night", "snow"]
    assert config["backbone"] == {"name": "mini", "fingerprint": mini.fingerprint}
    assert config["threshold"] == classifier.threshold_
    assert config["temperature"] == classifier.predictor_.temperature
    assert (config["draws"], config["seeds"]) == (3, [3, 4])
    record = config["training"]
    assert (record["train_images"], record["validation_images"]) == (12, 12)
    assert len(record["curves"]["ce"]) == len(record["curves"]["val"]) == 2
    assert record["validation_accuracy"] == classifier.record_["validation_accuracy"]
    assert config["versions"]["bayescal"] == __version__
    assert {"torch", "python"} <= set(config["versions"])
    assert sorted(p.name for p in saved.iterdir()) == [CONFIG, TENSORS]


def test_zero_shot_and_one_environment_can_be_saved_too(cache, paths, tmp_path):
    data = make_pictures(4)
    with pytest.warns(UserWarning, match="only one environment"):
        made = FewShotClassifier("clip", cache=cache).fit(paths, data.classes)
    made.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model", cache=cache)
    assert np.array_equal(loaded.predict_proba(paths), made.predict_proba(paths))


def test_json_is_strict_even_where_numbers_are_not(classifier, tmp_path, paths, cache):
    """No validation image answered correctly: the threshold is infinite. A curve may hold NaN."""
    record = {**classifier.record_, "curves": {"ce": [math.nan, 1.0, math.inf], "val": (0.5, -math.inf)}}
    shy = replace(classifier.predictor_, threshold=math.inf, record=record)
    shy.save(tmp_path / "shy")
    config = json.loads((tmp_path / "shy" / CONFIG).read_text(), parse_constant=pytest.fail)
    assert config["threshold"] is None
    assert config["training"]["curves"] == {"ce": [None, 1.0, None], "val": [0.5, None]}
    loaded = FewShotClassifier.load(tmp_path / "shy", cache=cache)
    assert loaded.threshold_ == math.inf
    assert set(loaded.predict_selective(paths)) == {"unsure"}


def test_names_of_any_language_survive(tmp_path):
    write_artifact(tmp_path / "model", SMALL, {"classes": ["Köln", "猫", "naïve 🐈"]})
    assert "猫" in (tmp_path / "model" / CONFIG).read_text(encoding="utf-8")
    assert read_artifact(tmp_path / "model")[1]["classes"] == ["Köln", "猫", "naïve 🐈"]


# ---- damage --------------------------------------------------------------------------------------------------------


def refused(model: Path, *said: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Predictor.load(model)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize("where", [0.0, 0.02, 0.5, 0.999])
def test_one_flipped_bit_in_the_tensors_is_refused(model, where):
    blob = bytearray((model / TENSORS).read_bytes())
    blob[int(where * len(blob))] ^= 1
    (model / TENSORS).write_bytes(blob)
    refused(model, str(model / TENSORS), "was changed after it was written")


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_tensors_cut_short_are_refused(model, keep):
    (model / TENSORS).write_bytes((model / TENSORS).read_bytes()[:keep])
    refused(model, str(model / TENSORS), "cut short")


def test_tensors_that_grew_are_refused(model):
    with (model / TENSORS).open("ab") as file:
        file.write(b"\0")
    refused(model, str(model / TENSORS))


def test_tensors_of_another_model_are_refused(model, tmp_path):
    tensors, _ = read_artifact(model)
    other = {name: value + 1 for name, value in tensors.items()}
    write_artifact(tmp_path / "other", other, {})
    assert (tmp_path / "other" / TENSORS).stat().st_size == (model / TENSORS).stat().st_size
    shutil.copy(tmp_path / "other" / TENSORS, model / TENSORS)
    refused(model, str(model / TENSORS))


def test_missing_files_are_refused(model):
    (model / TENSORS).unlink()
    refused(model, str(model / TENSORS), "cannot be read")
    (model / CONFIG).unlink()
    refused(model, str(model), CONFIG, TENSORS, "not a model")
    refused(model.parent / "nowhere", "nowhere", "not a model")


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config.update(threshold=0.0),
        lambda config: config["config"].update(n_context=5),
        lambda config: config["classes"].reverse(),
        lambda config: config["files"][TENSORS].update(bytes=1),
        lambda config: config.pop("seeds"),
        lambda config: config.update(checksum="0" * 64),
        lambda config: config.pop("checksum"),
        lambda config: config.update(more=1),
    ],
)
def test_an_edited_config_is_refused(model, edit):
    config = json.loads((model / CONFIG).read_text())
    edit(config)
    (model / CONFIG).write_text(json.dumps(config))
    refused(model, str(model / CONFIG), "was changed after it was written")


def test_another_layout_of_the_same_config_is_fine(model):
    """What counts is what it says: line ends and indentation may be changed by tools that copy text."""
    config = json.loads((model / CONFIG).read_text())
    (model / CONFIG).write_text(json.dumps(dict(reversed(config.items()))).replace("\n", "\r\n"))
    assert Predictor.load(model).classes == ["ball", "box", "tent"]


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"\x00\xff\xfe garbage", b"[" * 100_000, b'{"format": "bayescal-model", "format_version": 1'],
    ids=["empty", "cut", "binary", "deep", "half"],
)
def test_garbage_instead_of_json_is_refused(model, garbage):
    (model / CONFIG).write_bytes(garbage)
    refused(model, str(model / CONFIG), "damaged")


@pytest.mark.parametrize("other", ["[]", "1", '"text"', "null", "{}", '{"format": "something"}'])
def test_json_of_something_else_is_refused(model, other):
    (model / CONFIG).write_text(other)
    refused(model, str(model / CONFIG), "does not describe a bayescal model")


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", None])
def test_an_unknown_format_version_is_refused(model, version):
    config = json.loads((model / CONFIG).read_text())
    config["format_version"] = version
    del config["checksum"]
    config["checksum"] = artifact._checksum(config)  # a true file of another version has a true checksum
    (model / CONFIG).write_text(json.dumps(config))
    refused(model, str(model), f"format version {version}", f"reads version {FORMAT_VERSION}")


def test_another_backbone_is_refused(saved, mini, monkeypatch):
    changed = replace(mini, name="mini", fingerprint="0" * 20)
    monkeypatch.setattr("bayescal.predictor.load_backbone", lambda name, device: changed)
    refused(saved, str(saved), mini.fingerprint, "0" * 20, "'mini'")


def test_where_the_backbone_is_now_may_be_said(saved, mini, monkeypatch):
    asked = []
    moved = replace(mini, name="mini:/new/place")
    monkeypatch.setattr("bayescal.predictor.load_backbone", lambda name, device: asked.append(name) or moved)
    assert Predictor.load(saved, backbone="mini:/new/place").backbone is moved
    assert asked == ["mini:/new/place"]


NO_PICKLE = """
import pickle, sys
import torch
from bayescal import FewShotClassifier

def explode(*given, **more):
    raise AssertionError("a pickle was loaded")

pickle.load = pickle.loads = torch.load = explode
pickle.Unpickler = type("Unpickler", (pickle.Unpickler,), {"load": explode})
model, cache, *paths = sys.argv[1:]
print(len(FewShotClassifier.load(model, cache=cache).predict(paths)))
"""


def test_nothing_is_unpickled(saved, cache, paths):
    command = [sys.executable, "-c", NO_PICKLE, str(saved), str(cache), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, str(len(paths))), done.stderr


def test_a_pickle_in_place_of_the_tensors_is_not_run(model, tmp_path):
    """Even with sizes and sums that fit it: what reads the tensors knows no pickle."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    blob = pickle.dumps(Trap())
    pickle.loads(blob)
    assert (tmp_path / "sprung").is_dir()  # the trap works
    (tmp_path / "sprung").rmdir()
    torch.save({"a": Trap()}, tmp_path / "archive.pt")
    for content in (blob, (tmp_path / "archive.pt").read_bytes()):
        config = json.loads((model / CONFIG).read_text())
        config["files"][TENSORS] = {"bytes": len(content), "sha256": artifact.hashlib.sha256(content).hexdigest()}
        del config["checksum"]
        config["checksum"] = artifact._checksum(config)
        (model / CONFIG).write_text(json.dumps(config))
        (model / TENSORS).write_bytes(content)
        refused(model, str(model / TENSORS))
        assert not (tmp_path / "sprung").exists()


# ---- writing -------------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr("bayescal.artifact.os.fsync", full_disk)
    elif name in ("first file", "second file"):
        real = artifact._write
        victim = TENSORS if name == "first file" else CONFIG
        monkeypatch.setattr(
            "bayescal.artifact._write",
            lambda path, content: (
                (real(path, content[: len(content) // 2]), full_disk()) if path.name == victim else real(path, content)
            ),
        )
    else:
        renamed = []
        real = os.replace
        which = 1 if name == "first renaming" else 2
        monkeypatch.setattr(
            "bayescal.artifact.os.replace",
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

    monkeypatch.setattr("bayescal.artifact._write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(model, SMALL, {}, overwrite=True)
    assert os.listdir(model.parent) == ["model"]
    assert contents(model) == before


def test_leftovers_of_a_killed_process_are_not_in_the_way(tmp_path, monkeypatch):
    """In a container every process may have the same number."""
    with monkeypatch.context() as patch:
        patch.setattr("bayescal.artifact._write", full_disk)
        patch.setattr("bayescal.artifact.shutil.rmtree", lambda *given, **more: None)  # killed before it could
        with pytest.raises(ArtifactError):
            write_artifact(tmp_path / "model", SMALL, {})
    assert len(os.listdir(tmp_path)) == 1
    write_artifact(tmp_path / "model", SMALL, {})
    read_artifact(tmp_path / "model")
