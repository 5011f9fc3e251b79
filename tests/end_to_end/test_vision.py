"""timm models by name, and their weights."""

import pytest
import torch
from safetensors.torch import save_file
from whole_models import MODEL, SIZE

from bayescal.end_to_end.vision import load_vision, rebuild
from bayescal.errors import BackboneError


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(BackboneError, match=r"timm has no model 'resnet_50'\. Did you mean .*'resnet50'"):
        load_vision("resnet_50")
    with pytest.raises(BackboneError, match="Common ones: resnet18"):
        load_vision("zzzz")
    with pytest.raises(BackboneError, match="expected the name of a timm model"):
        load_vision("hf-hub:someone/model")


def test_size_and_normalisation_come_from_timm_unless_given():
    vision = load_vision(MODEL)
    assert (vision.preprocess.size, vision.preprocess.mean, vision.preprocess.interpolation) == (
        160,
        (0.5, 0.5, 0.5),
        "bilinear",
    )
    assert load_vision(MODEL, 64).preprocess.size == 64
    with pytest.raises(BackboneError, match="at least 16"):
        load_vision(MODEL, 4)


def test_transformers_are_built_for_the_size_and_width_is_what_comes_out():
    for name in ("test_vit", "test_efficientnet", "test_convnext"):
        vision = load_vision(name, 64)
        assert vision.module.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, vision.n_features)
        assert rebuild(vision.description()).preprocess == vision.preprocess


def test_weights_from_a_file_fill_the_body_and_leave_the_old_classifier(tmp_path):
    state = load_vision(MODEL, SIZE, seed=4).module.state_dict()
    torch.save({"state_dict": {f"module.{n}": v for n, v in state.items()}}, tmp_path / "weights.pth")
    loaded = load_vision(MODEL, SIZE, tmp_path / "weights.pth", seed=1)
    assert loaded.pretrained
    assert all(torch.equal(v, state[n]) for n, v in loaded.module.state_dict().items())
    state.pop("conv1.0.weight")
    save_file({**state, "extra.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(BackboneError, match=r"1 missing \(conv1.0.weight\); 1 unexpected \(extra.weight\)"):
        load_vision(MODEL, SIZE, tmp_path / "other.safetensors")
    with pytest.raises(BackboneError, match="there is no weights file"):
        load_vision(MODEL, SIZE, tmp_path / "nowhere.pth")


def test_a_download_that_fails_says_what_else_there_is(monkeypatch):
    import timm

    def offline(name, pretrained, **more):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(BackboneError, match=r"could not be downloaded \(no route to host\).*--vision-weights FILE"):
        load_vision(MODEL, SIZE, "timm")
