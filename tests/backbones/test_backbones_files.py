"""Local weights files of every format, good and bad, on a tiny random model with CLIP's parts."""

import io
import json
import pickle
import warnings
import zipfile
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from bayescal.backbones import hub, load_backbone, loading
from bayescal.backbones.torchscript import read_torchscript
from bayescal.errors import BackboneError, BayescalWarning

TINY = "bayescal-test-tiny"
RESNET = "bayescal-test-tiny-resnet"
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2}
CONFIGS = {
    TINY: {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
        "text_cfg": TEXT,
    },
    RESNET: {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": TEXT,
    },
}


def make(name: str, quick_gelu: bool = False):
    """A random model whose weights are exact in half precision, so that every file format can hold them."""
    from open_clip.model import CLIP

    torch.manual_seed(0)
    model = CLIP(**CONFIGS[name], quick_gelu=quick_gelu).eval().requires_grad_(False)
    with torch.no_grad():
        model.logit_scale.fill_(4.0)
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().float())
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import open_clip

    folder = tmp_path_factory.mktemp("weights")
    for name, config in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
        open_clip.add_model_config(folder / f"{name}.json")
    return folder


@pytest.fixture(scope="module")
def tiny(folder):
    return make(TINY)


@pytest.fixture(scope="module")
def quick(folder):
    """The same weights as `tiny`, meant for QuickGELU, as OpenAI's are."""
    return make(TINY, quick_gelu=True)


@pytest.fixture(scope="module")
def safetensors_file(folder, tiny):
    save_file(tiny.state_dict(), folder / "tiny.safetensors")
    return folder / "tiny.safetensors"


@pytest.fixture(scope="module")
def archive(folder):
    """A traced TorchScript archive in half precision with the entries of OpenAI's files."""
    model = make(TINY, quick_gelu=True).half()
    model.positional_embedding.data = model.positional_embedding.data.half()
    del model.context_length, model.vocab_size
    for mark, value in (("input_resolution", 32), ("context_length", 77), ("vocab_size", 49408)):
        model.register_buffer(mark, torch.tensor(value))
    example = (torch.ones(1, 3, 32, 32).half(), torch.zeros(1, 77, dtype=torch.long))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated, but it is how OpenAI's files were made
        torch.jit.trace(model, example, check_trace=False).save(str(folder / "openai.pt"))
    return folder / "openai.pt"


def agrees(backbone, model) -> bool:
    pixels = torch.randn(3, 3, *[backbone.preprocess.size] * 2, generator=torch.Generator().manual_seed(1))
    ids = torch.zeros(2, 77, dtype=torch.long)
    for row, text in zip(ids, ("a dog", "two old cats."), strict=True):
        tokens = [backbone.sot, *backbone.tokenize(text), backbone.eot]
        row[: len(tokens)] = torch.tensor(tokens)
    with torch.no_grad():
        images, texts = model.encode_image(pixels), model.encode_text(ids)
    return torch.allclose(backbone.encode_images(pixels), images, atol=1e-5) and torch.allclose(
        backbone.encode_texts(["a dog", "two old cats."]), texts, atol=1e-5
    )


def test_safetensors(tiny, safetensors_file):
    backbone = load_backbone(f"{TINY}:{safetensors_file}")
    assert agrees(backbone, tiny)
    assert backbone.logit_scale == pytest.approx(torch.tensor(4.0).exp().item())
    assert (backbone.dim, backbone.architecture, backbone.trained_context) == (24, TINY, 77)
    assert backbone.known_tokens is None
    assert backbone.defaults.n_context == 16


def test_resnet(folder):
    model = make(RESNET)
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):  # something worth folding
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 1.5)
    save_file(model.state_dict(), folder / "resnet.safetensors")
    assert agrees(load_backbone(f"{RESNET}:{folder / 'resnet.safetensors'}"), model)


@pytest.mark.parametrize(
    ("wrap", "suffix"),
    [
        (lambda state: state, "bin"),
        (lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, "pt"),
        (lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}}, "pt"),
        (lambda state: {f"module._orig_mod.{k}": v.half() for k, v in state.items()}, "bin"),
        (lambda state: {**state, "logit_scale": state["logit_scale"].reshape(1)}, "pth"),
    ],
)
def test_torch_files(tmp_path, tiny, safetensors_file, wrap, suffix):
    path = tmp_path / f"weights.{suffix}"
    torch.save(wrap(tiny.state_dict()), path)
    backbone = load_backbone(f"{TINY}:{path}")
    assert agrees(backbone, tiny)
    # the fingerprint is of the weights, not of the file
    assert backbone.fingerprint == load_backbone(f"{TINY}:{safetensors_file}").fingerprint


def test_openai_archive_keeps_quickgelu(archive, tiny, quick, safetensors_file):
    backbone = load_backbone(f"{TINY}:{archive}")
    assert backbone.text.activation == "silu"  # with QuickGELU's factor in the weights
    assert agrees(backbone, quick)
    assert not agrees(backbone, tiny)
    assert backbone.fingerprint != load_backbone(f"{TINY}:{safetensors_file}").fingerprint


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:FutureWarning")
def test_archive_reader_agrees_with_torch(archive):
    expected = torch.jit.load(str(archive)).state_dict()
    found = read_torchscript(archive)
    assert expected.keys() <= found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(found[name].dtype == expected[name].dtype for name in expected)


def test_archive_reader_runs_nothing(tmp_path, archive):
    """A file that would run a command when unpickled is refused, in an archive and in a torch file."""
    witness = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(witness), "w"))

    path = tmp_path / "evil.pt"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("evil/constants.pkl", pickle.dumps(()))
        out.writestr("evil/data.pkl", pickle.dumps(Evil(), protocol=2))
    plain = tmp_path / "evil.bin"
    torch.save({"state_dict": Evil()}, plain)
    for file in (path, plain):
        with pytest.raises(BackboneError, match="would run code"):
            load_backbone(f"{TINY}:{file}")
    assert not witness.exists()


def bad_files() -> dict[str, tuple[bytes, str]]:
    buffer = io.BytesIO()
    torch.save([1, 2, 3], buffer)
    return {
        "page.pt": (b"<!DOCTYPE html><html>not found</html>", "it is a web page"),
        "pointer.bin": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        "empty.pt": (b"", "it is empty"),
        "noise.safetensors": (bytes(range(256)) * 4, "is not a weights file"),
        "list.pt": (buffer.getvalue(), "holds no weights"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_files_that_are_no_weights(tmp_path, folder, name):
    content, message = bad_files()[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BackboneError, match=message):
        load_backbone(f"{TINY}:{tmp_path / name}")


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_files_cut_short(tmp_path, safetensors_file, archive, keep):
    for source in (safetensors_file, archive):
        data = source.read_bytes()
        (tmp_path / source.name).write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(BackboneError, match="not a weights file that can be read: it is damaged or cut short"):
            load_backbone(f"{TINY}:{tmp_path / source.name}")


def test_a_folder_is_not_a_file(tmp_path, folder):
    with pytest.raises(BackboneError, match="no weights file"):
        load_backbone(f"{TINY}:{tmp_path}")


def test_weights_of_another_architecture(tmp_path, tiny, safetensors_file):
    with pytest.raises(BackboneError, match=r"does not fit.*missing \(visual\.attnpool.*unexpected \(visual\."):
        load_backbone(f"{RESNET}:{safetensors_file}")
    state = tiny.state_dict()
    torch.save({**state, "ln_final.weight": torch.ones(7)}, tmp_path / "shape.pt")
    with pytest.raises(BackboneError, match=r"ln_final.weight is \(7,\) instead of \(64,\)"):
        load_backbone(f"{TINY}:{tmp_path / 'shape.pt'}")
    torch.save({**state, "logit_bias": torch.tensor(-10.0)}, tmp_path / "bias.pt")
    with pytest.raises(BackboneError, match="sigmoid loss"):
        load_backbone(f"{TINY}:{tmp_path / 'bias.pt'}")


def test_a_replaced_file_is_read_again(tmp_path, tiny):
    path = tmp_path / "weights.pt"
    torch.save(tiny.state_dict(), path)
    before = load_backbone(f"{TINY}:{path}")
    assert load_backbone(f"{TINY}:{path}") is before
    torch.save({**tiny.state_dict(), "logit_scale": torch.tensor(3.0)}, path)
    after = load_backbone(f"{TINY}:{path}")
    assert after.fingerprint != before.fingerprint


def test_published_settings_with_a_local_file(monkeypatch, folder, tiny, quick, safetensors_file):
    """ARCH:TAG:/path uses the file with the tag's activation and preprocessing."""
    settings = {"quick_gelu": True, "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bilinear"}
    settings |= {"resize_mode": "squash", "hf_hub": "someone/tiny/", "url": ""}
    tagged = hub._published(TINY, "v1", settings)
    other = replace(tagged, tag="v2", settings={**settings, "mean": (0.1,) * 3, "quick_gelu": False})
    monkeypatch.setattr(loading, "published", lambda name: {"v1": tagged, "v2": other} if name == TINY else {})
    backbone = load_backbone(f"{TINY}:V1:{safetensors_file}")
    assert backbone.preprocess.mean == (0.5, 0.5, 0.5)
    assert (backbone.preprocess.interpolation, backbone.preprocess.resize_mode) == ("bilinear", "squash")
    assert agrees(backbone, quick)
    # without the tag nobody can know; it says so
    loading._on_device.cache_clear()
    with pytest.warns(BayescalWarning, match=rf'write "{TINY}:TAG:.*v1, v2'):
        unknown = load_backbone(f"{TINY}:{safetensors_file}")
    assert agrees(unknown, tiny)


def test_every_published_quickgelu_weight_is_loaded_with_quickgelu():
    """open_clip itself only warns when RN50:openai is built without QuickGELU."""
    request = loading._parse("RN50:openai")
    assert request.weights.quick_gelu
    assert not loading._parse("ViT-B-32:laion2b_s34b_b79k").weights.quick_gelu
    assert request.weights.filenames == ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
    assert loading._parse("ViTamin-S:datacomp1b").weights.filenames == (
        "pytorch_model.safetensors",
        "pytorch_model.bin",
    )
