"""`bayescal fit`: what it learns from, what it says, what it leaves behind."""

import json
import re
import shlex

import numpy as np
import pytest

from bayescal.cli.fit_screen import LARGEST_TABLE, print_found
from bayescal.cli.options import parse_settings
from bayescal.cli.screen import out
from bayescal.data import Manifest, read_manifest
from bayescal.errors import DataError, MethodError
from bayescal.estimator.artifact import read_artifact
from bayescal.estimator.training_data import choose_training_data
from bayescal.training import loop
from command_line import fit, make_shapes, run, shape, write_csv

pytestmark = pytest.mark.xdist_group("command-line")


def config_of(model):
    return json.loads((model / "config.json").read_text())


def test_fit_says_what_it_found_and_what_it_learned_and_the_command_it_prints_works(shapes, tmp_path):
    result = fit(shapes, tmp_path / "model")
    assert result.code == 0, result.err
    assert "Found 24 images of 2 classes in 2 environments." in result.out
    assert re.search(r"class +photo +sketch", result.out)
    assert re.search(r"dog +6 +6", result.out)
    accuracy = config_of(tmp_path / "model")["training"]["validation_accuracy"]
    assert f"Validation accuracy: {100 * accuracy:.1f} %" in result.out
    assert f"Threshold: {config_of(tmp_path / 'model')['threshold']:.3f}" in result.out
    assert re.search(r"in \d+\.\d s", result.out)
    command = shlex.split(result.out.strip().splitlines()[-1])
    assert command[0] == "bayescal"
    assert run(*command[1:]).code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["model"]  # checkpoints are gone


def test_quiet_prints_nothing(shapes, tmp_path):
    result = fit(shapes, tmp_path / "model", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_options_reach_the_classifier(shapes, tmp_path):
    words = tmp_path / "words.json"
    words.write_text('{"dog": "small dog"}')
    environment_words = tmp_path / "environment_words.json"
    environment_words.write_text('{"sketch": "black and white sketch"}')
    result = fit(
        shapes, tmp_path / "model", "--method", "coop", "--set", "learning_rate=0.5", "--set", "position=middle",
        "--members", 2, "--trials", 2, "--samples", 3, "--shots", 3, "--val-shots", 2, "--views", 1, "--seed", 7,
        "--calibrate", "--class-words", words, "--environment-words", environment_words,
    )  # fmt: skip
    assert result.code == 0, result.err
    config = config_of(tmp_path / "model")
    assert config["method"] == "coop"
    assert (config["config"]["learning_rate"], config["config"]["position"]) == (0.5, "middle")
    assert config["config"]["epochs"] == 2
    assert config["seeds"] == [7, 8]
    assert (config["samples"], config["training"]["trials"], config["training"]["views"]) == (3, 2, 1)
    assert (config["training"]["train_images"], config["training"]["validation_images"]) == (6, 4)
    assert config["class_words"] == ["small dog", "house"]
    assert config["trained_environments"] == ["photo", "black and white sketch"]
    assert config["temperature"] != 1.0


def test_left_out_environments_are_not_learned_from(tmp_path):
    data = make_shapes(tmp_path / "data", environments=("photo", "sketch", "cartoon"), n=3)
    result = fit(data, tmp_path / "model", "--leave-out", "cartoon")
    assert result.code == 0, result.err
    assert "cartoon left out (6 images)" in result.out
    config = config_of(tmp_path / "model")
    assert config["environments"] == ["photo", "sketch"]
    assert config["training"]["train_images"] + config["training"]["validation_images"] == 12
    assert "cartoon" in result.out.strip().splitlines()[-1]  # the image to try is one it has not seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--leave-out", "skech"], "no environment 'skech'; did you mean 'sketch'? There are: photo, sketch"),
        (["--leave-out", "photo", "--leave-out", "sketch"], "none is left to learn from"),
        (["--set", "epoch=3"], "no option 'epoch'; did you mean 'epochs'?"),
        (["--method", "vrex", "--set", "vrex_beta=3"], "no option 'vrex_beta'; did you mean 'lambda_variance'?"),
        (["--method", "my_method.Mine"], "A class is written module:Class, here my_method:Mine"),
        (["--method", "nowhere_at_all:Mine"], "cannot be imported here: No module named 'nowhere_at_all'"),
        (["--method", "math:sqrt"], "expected a method, a subclass of bayescal.Method"),
        (["--set", "epochs"], "expected name=value"),
        (["--set", "epochs=many"], "--set epochs=many: expected a whole number"),
        (["--set", "learning_rate=fast"], "--set learning_rate=fast: expected a number"),
        (["--set", "learning_rate=NaN"], "--set learning_rate=NaN: expected a number"),
        (["--set", "class_specific=1"], "expected true or false"),
        (["--set", "epochs=0"], "epochs (0)"),
        (["--method", "bayescal"], "there is no method 'bayescal'. Did you mean 'bayes-cal'?"),
        (["--backbone", "RN5:openai"], "did you mean 'RN50"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--class-words", "nowhere.json"], "--class-words nowhere.json: cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_by_name(shapes, tmp_path, arguments, message):
    result = fit(shapes, tmp_path / "model", *arguments)
    assert result.code == 2
    assert message in result.err
    assert list(tmp_path.iterdir()) == []


def test_values_are_json_where_they_are_json_and_text_elsewhere():
    given = parse_settings("bayes-cal", ["beta=1e-3", "epochs=7", "class_specific=true", "context_init=a photo of a"])
    assert given == {"beta": 1e-3, "epochs": 7, "class_specific": True, "context_init": "a photo of a"}
    assert parse_settings("clip", ['template="a {}"']) == {"template": "a {}"}
    assert parse_settings("bayes-cal", ["context_init=1", "context_init="]) == {"context_init": ""}
    with pytest.raises(MethodError, match="expected name=value"):
        parse_settings("coop", ["=3"])


@pytest.mark.parametrize("text", ["[1]", "nonsense", '{"dog": 3}'])
def test_a_file_of_words_has_to_hold_words(shapes, tmp_path, text):
    (tmp_path / "words.json").write_text(text)
    result = fit(shapes, tmp_path / "model", "--class-words", tmp_path / "words.json")
    assert result.code == 2
    assert "words.json" in result.err
    assert not (tmp_path / "model").exists()


def with_splits(folder, parts=("train", "train", "train", "val", "val", "test")):
    """A CSV in which image i of every class and environment has the split parts[i]."""
    data = make_shapes(folder / "data", n=len(parts))
    paths = sorted(data.rglob("*.png"))
    rows = [(p, p.parent.name, p.parent.parent.name, parts[int(p.stem)]) for p in paths]
    return write_csv(folder / "images.csv", rows)


def test_splits_of_the_manifest_are_respected(tmp_path):
    manifest = with_splits(tmp_path)
    for image in (tmp_path / "data").rglob("5.png"):
        image.write_bytes(image.read_bytes()[:200])  # a test image that is opened would be reported
    result = fit(manifest, tmp_path / "model")
    assert result.code == 0, result.err
    assert "4 test images not touched" in result.out
    assert "could not be read" not in result.err
    record = config_of(tmp_path / "model")["training"]
    assert (record["train_images"], record["validation_images"], record["unreadable_images"]) == (12, 8, 0)
    assert result.out.strip().endswith("5.png")


def test_shots_are_drawn_from_the_training_part_alone(tmp_path):
    manifest = with_splits(tmp_path)
    result = fit(manifest, tmp_path / "model", "--shots", 2, "--val-shots", 4)
    assert result.code == 0, result.err
    record = config_of(tmp_path / "model")["training"]
    assert (record["train_images"], record["validation_images"]) == (4, 8)


def test_without_a_validation_part_one_is_drawn_from_the_training_part(tmp_path):
    manifest = with_splits(tmp_path, ("train", "train", "train", "train", "", "test"))
    result = fit(manifest, tmp_path / "model")
    assert result.code == 0, result.err
    assert "4 images have no split" in result.err
    record = config_of(tmp_path / "model")["training"]
    assert record["train_images"] + record["validation_images"] == 16
    assert record["validation_images"] == 4


def test_a_split_without_training_images_is_refused(tmp_path):
    result = fit(with_splits(tmp_path, ("val", "test")), tmp_path / "model")
    assert result.code == 2
    assert 'No image has the split "train"' in result.err


def test_a_class_that_is_only_in_what_is_kept_apart_is_refused():
    manifest = Manifest.from_columns(list("abcd"), ["dog", "cat", "dog", "bird"], ["p", "p", "s", "s"])
    with pytest.raises(DataError, match="no image of bird is left"):
        choose_training_data(manifest, ["s"], None, None, seed=1)


def test_missing_cells_of_a_given_split_are_said(tmp_path):
    manifest = with_splits(tmp_path)
    lines = [line for line in manifest.read_text().splitlines() if "sketch/dog/0" not in line]
    lines = [line for line in lines if not ("sketch/dog" in line and line.endswith("train"))]
    manifest.write_text("\n".join(lines))
    result = fit(manifest, tmp_path / "model")
    assert result.code == 0, result.err
    assert "dog: no training image in sketch" in result.err


def test_words_in_a_json_manifest_are_used(tmp_path):
    data = make_shapes(tmp_path / "data", n=2)
    images = [{"path": str(p), "class": p.parent.name, "environment": p.parts[-3]} for p in sorted(data.rglob("*.png"))]
    manifest = tmp_path / "images.json"
    manifest.write_text(json.dumps({"images": images, "class_words": {"house": "red house"}}))
    assert fit(manifest, tmp_path / "model").code == 0
    assert config_of(tmp_path / "model")["class_words"] == ["dog", "red house"]


def test_an_interrupted_training_continues_and_ends_the_same(shapes, tmp_path, monkeypatch):
    whole = fit(shapes, tmp_path / "whole", "--set", "epochs=6")
    assert whole.code == 0

    epochs = []
    train_epoch = loop._train_epoch

    def counted(method, data, state, epoch, decay):
        if epochs == [0, 1, 2]:
            epochs.append(None)
            raise KeyboardInterrupt
        epochs.append(epoch)
        return train_epoch(method, data, state, epoch, decay)

    monkeypatch.setattr(loop, "_train_epoch", counted)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    cut = fit(shapes, tmp_path / "model", "--set", "epochs=6")
    assert cut.code == 130
    assert "interrupted; the same command continues" in cut.err
    assert "Traceback" not in cut.err
    assert not (tmp_path / "model").exists()
    again = fit(shapes, tmp_path / "model", "--set", "epochs=6")
    assert again.code == 0, again.err
    assert epochs == [0, 1, 2, None, 3, 4, 5]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "whole"]
    one, other = (read_artifact(tmp_path / name)[0] for name in ("whole", "model"))
    assert all(np.array_equal(one[name].numpy(), other[name].numpy()) for name in one)


def test_large_data_sets_are_counted_not_listed(tmp_path):
    data = tmp_path / "data"
    for i in range(LARGEST_TABLE[0] + 1):
        (data / "photo" / f"class {i}").mkdir(parents=True)
        shape("dog", "photo", i).save(data / "photo" / f"class {i}" / "0.png")
    chosen = choose_training_data(read_manifest(data), [], None, None, seed=1)
    screen = out()
    with screen.capture() as printed:
        print_found(screen, chosen)
    said = printed.get().splitlines()
    assert said[0].startswith("Read as layout environment/class/image: 31 classes (class 0, class 1, class 10, ")
    assert said[1:] == ["Found 31 images of 31 classes in 1 environment."]
