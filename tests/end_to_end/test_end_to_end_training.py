"""Training whole models on images: every algorithm, learning, continuing after a kill, stopping."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from whole_models import (
    MODEL,
    SIZE,
    accuracy_on,
    drawn_manifest,
    equal,
    everything_learned,
    fit,
    load_vision,
    pacs_manifest,
)

from bayescal.end_to_end import EndToEndPredictor, algorithm_names, state
from bayescal.end_to_end import train as training
from bayescal.errors import ArtifactError, BayescalError, BayescalWarning, MethodError
from bayescal.estimator.artifact import read_artifact
from bayescal.estimator.predictor import Predictor


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return drawn_manifest(tmp_path_factory.mktemp("drawn"), 4)  # 24 pictures


@pytest.fixture(scope="module")
def real_images(request, tmp_path_factory):
    """Photographs, sketches and cartoons where they are at hand, else drawn pictures."""
    try:
        return pacs_manifest(request.getfixturevalue("shared_data") / "pacs", 5)
    except pytest.skip.Exception:
        return drawn_manifest(tmp_path_factory.mktemp("drawn-instead"), 5)


@pytest.mark.parametrize("name", algorithm_names())
def test_every_algorithm_trains_an_epoch_on_images_saves_and_answers(name, real_images, tmp_path):
    predictor = fit(real_images, method=name, batch_size=6)  # 4 steps: a round of IRM-Games
    start = load_vision(MODEL, SIZE, seed=1).module.state_dict()
    trained = predictor.backbone.vision.module.state_dict()
    assert not torch.equal(start["conv1.0.weight"], trained["conv1.0.weight"])
    assert not torch.equal(start["bn1.running_mean"], trained["bn1.running_mean"])
    assert all(torch.isfinite(value).all() for value in trained.values())
    assert predictor.record["curves"].keys() >= {"ce", "total", "val"}
    predictor.save(tmp_path / "model")
    loaded = Predictor.load(tmp_path / "model")
    assert isinstance(loaded, EndToEndPredictor)
    features, _, _ = loaded.backbone.encode(real_images.paths[:3])
    said, again = predictor.details(features), loaded.details(features)
    assert said.probabilities.shape == (3, len(real_images.classes))
    assert (said.probabilities == again.probabilities).all()
    assert loaded.threshold == predictor.threshold
    assert set(again.environment) <= set(real_images.environments)


def test_it_learns_to_tell_shapes_apart(tmp_path):
    manifest = drawn_manifest(tmp_path, 12)
    predictor = fit(manifest, epochs=16, batch_size=24, learning_rate=3e-3, augment=False)
    assert accuracy_on(predictor, manifest) > 0.9
    assert predictor.record["curves"]["ce"][-1] < 0.3 * predictor.record["curves"]["ce"][0]
    assert predictor.record["best_epoch"] > 1
    assert 0 < predictor.threshold < 1


def test_pretrained_weights_are_the_start_and_change_the_default_rate(drawn, tmp_path):
    from safetensors.torch import save_file

    state = load_vision(MODEL, SIZE, seed=9).module.state_dict()
    save_file({**state, "fc.weight": torch.zeros(5, 96), "fc.bias": torch.zeros(5)}, tmp_path / "weights.safetensors")
    predictor = fit(drawn, weights=tmp_path / "weights.safetensors", learning_rate=0.0)
    assert torch.equal(predictor.backbone.vision.module.state_dict()["conv1.0.weight"], state["conv1.0.weight"])
    assert fit(drawn).config["learning_rate"] == 1e-3
    assert fit(drawn, weights=tmp_path / "weights.safetensors").config["learning_rate"] == 5e-5


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


@pytest.mark.parametrize("method", ["erm", "groupdro", "irm"])
def test_a_training_that_was_killed_continues_bit_for_bit(method, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    options = {"method": method, "epochs": 3} | ({"anneal_share": 0.5} if method == "irm" else {})
    whole = fit(drawn, **options)

    def kill(method, state):
        if state.epoch == 3:
            raise Killed

    with pytest.raises(Killed):
        fit(drawn, checkpoints=tmp_path, on_epoch=kill, **options)
    epochs = []
    continued = fit(drawn, checkpoints=tmp_path, on_epoch=lambda m, state: epochs.append(state.epoch), **options)
    assert epochs == [3]  # the first two were not trained again
    assert equal(everything_learned(whole), everything_learned(continued))
    for curves in (whole.record["curves"], continued.record["curves"]):
        assert len(curves["total"]) == 3
    assert whole.record["curves"] == continued.record["curves"]
    assert whole.threshold == continued.threshold


def test_a_checkpoint_of_another_training_is_not_continued(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    fit(drawn, checkpoints=tmp_path, epochs=1)
    epochs = []
    fit(drawn, checkpoints=tmp_path, epochs=2, on_epoch=lambda m, state: epochs.append(state.epoch))
    assert epochs == [1, 2]
    (tmp_path / "training.safetensors").write_bytes(b"cut short")
    epochs.clear()
    fit(drawn, checkpoints=tmp_path, epochs=2, on_epoch=lambda m, state: epochs.append(state.epoch))
    assert epochs == [1, 2]


def test_a_killed_process_leaves_a_checkpoint_that_another_process_continues(drawn, tmp_path, monkeypatch):
    """SIGKILL in the middle of an epoch: nothing gets a chance to clean up."""
    script = f"""
        import os, signal, sys
        from bayescal.end_to_end import train as training
        from whole_models import drawn_manifest, fit
        from pathlib import Path
        training.CHECKPOINT_SECONDS = 0.0
        real, calls = training.to_inputs, []
        def to_inputs(*arguments):
            calls.append(1)
            if len(calls) == 5:  # epochs have 2 steps and a chunk of validation images
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)
        training.to_inputs = to_inputs
        fit(drawn_manifest(Path({str(tmp_path / "same")!r}), 4), checkpoints={str(tmp_path / "c")!r}, epochs=3)
    """
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["training.safetensors"]
    epochs = []
    continued = fit(
        drawn, checkpoints=tmp_path / "c", epochs=3, on_epoch=lambda m, state: epochs.append(state.epoch)
    )  # the same pictures under other names
    assert epochs == [2, 3]
    assert equal(everything_learned(fit(drawn, epochs=3)), everything_learned(continued))


def test_a_loss_that_is_no_number_stops_the_training_and_says_so(drawn):
    with pytest.raises(BayescalError, match=r"epoch 1: the loss or a parameter is not finite\. Try a smaller"):
        fit(drawn, learning_rate=1e30, epochs=2)


def test_after_a_good_epoch_its_model_is_kept(drawn, monkeypatch):
    def spoil(method, state):
        next(iter(state.params.values())).fill_(float("nan"))

    with pytest.warns(BayescalWarning, match="The model is that of epoch 1"):
        predictor = fit(drawn, epochs=3, on_epoch=spoil)
    assert len(predictor.record["curves"]["total"]) == 1
    assert all(torch.isfinite(value).all() for value in everything_learned(predictor).values())


def test_on_epoch_may_end_the_training(drawn):
    assert len(fit(drawn, epochs=5, on_epoch=lambda m, state: state.epoch == 2).record["curves"]["val"]) == 2


def test_unreadable_images_are_left_out_with_a_note(tmp_path):
    manifest = drawn_manifest(tmp_path, 4)
    Path(manifest.paths[0]).write_bytes(b"")  # cannot even be opened
    Path(manifest.paths[7]).write_bytes(b"\x89PNG damaged")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predictor = fit(manifest)
    said = [str(w.message) for w in caught if issubclass(w.category, BayescalWarning)]
    assert any("000.png" in text and "empty" in text for text in said)
    assert any("007.png" in text for text in said)
    assert predictor.record["unreadable_images"] >= 1


def test_weight_decay_reaches_matrices_and_no_vectors(drawn):
    method = fit(drawn).bound
    params = {"body.conv1.0.weight": torch.ones(1, 2, 2), "body.bn1.weight": torch.ones(1, 2)}
    method.runs.numbers["weight_decay"] = torch.tensor([0.5])
    training._optimizer(method, params).step({name: torch.zeros_like(v) for name, v in params.items()}, rate=0.1)
    # Decay is all of the gradient here, and Adam's first step has the length of the rate.
    assert torch.allclose(params["body.conv1.0.weight"], torch.tensor(0.9))
    assert torch.equal(params["body.bn1.weight"], torch.ones(1, 2))


def test_the_representation_of_irm_games_moves_at_a_tenth_of_the_rate(drawn):
    method = fit(drawn, method="irm-games", batch_size=6).bound
    params = method.init(None)
    optimizer = training._optimizer(method, params)
    names = {id(value): name for name, value in params.items()}
    before = {name: value.clone() for name, value in params.items()}
    optimizer.step({name: torch.ones_like(value) for name, value in method.learned(params).items()}, rate=0.1)
    for group in optimizer.inner.param_groups:
        for value in group["params"]:
            name = names[id(value)]
            moved = (before[name] - value).flatten()
            step = 0.1 if name.startswith("player.") else 0.01
            torch.testing.assert_close(moved, torch.full_like(moved, step), rtol=1e-3, atol=1e-6)


def test_precision_is_explicit_and_off_on_a_cpu():
    assert training.choose_precision("auto", torch.device("cpu")) == torch.float32
    assert training.choose_precision("bfloat16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(MethodError, match="expected auto, float32 or bfloat16"):
        training.choose_precision("float16", torch.device("cpu"))


def test_artifact_is_whole_checked_and_names_its_kind(drawn, tmp_path):
    fit(drawn).save(tmp_path / "model")
    tensors, config = read_artifact(tmp_path / "model")
    assert config["kind"] == "end-to-end"
    assert config["vision"]["name"] == MODEL
    assert config["vision"]["preprocess"]["size"] == SIZE
    assert {"body.conv1.0.weight", "body.bn1.running_var", "params/head.weight"} <= tensors.keys()
    with pytest.raises(ArtifactError, match="leave --backbone out"):
        Predictor.load(tmp_path / "model", backbone="mini")
    blob = bytearray((tmp_path / "model" / "model.safetensors").read_bytes())
    blob[-1] ^= 1
    (tmp_path / "model" / "model.safetensors").write_bytes(blob)
    with pytest.raises(ArtifactError, match="was changed"):
        Predictor.load(tmp_path / "model")


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_training(drawn, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(BayescalWarning, match="could not write a checkpoint"):
        fit(drawn, checkpoints=tmp_path / "file")
    assert state.State({}, {}).load(tmp_path / "file", "x") is False
