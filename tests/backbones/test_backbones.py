"""The embedded backbone, names, fingerprints, and which models can be used."""

import dataclasses
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file
from torch.nn import functional as F

from bayescal.backbones import Preprocess, describe_backbone, hub, list_backbones, load_backbone, loading
from bayescal.backbones import mini as embedded
from bayescal.backbones.base import usable_device
from bayescal.backbones.catalogue import instead_of, why_unusable
from bayescal.backbones.fingerprint import fingerprint
from bayescal.backbones.inference import LastBlock, fast_for_inference
from bayescal.data.transforms import normalised, plain_pixels
from bayescal.errors import BackboneError, BayescalWarning, DataError
from bayescal.text.open_clip_tower import text_tower_from_open_clip


@pytest.fixture(scope="module")
def plain():
    """mini built the way its README says, by open_clip alone."""
    import open_clip

    open_clip.add_model_config(embedded.CONFIG)
    model = open_clip.create_model("bayescal-mini", load_weights=False).eval()
    model.load_state_dict(embedded.read(), strict=False)
    return model


def test_the_fingerprint_that_is_written_down_is_that_of_the_weights(monkeypatch):
    assert embedded.is_unchanged()
    assert fingerprint(embedded.config(), embedded.PREPROCESS, embedded.read()) == embedded.FINGERPRINT
    monkeypatch.setattr(embedded, "WEIGHTS_SHA256", "0" * 64)  # another file: the fingerprint is computed
    monkeypatch.setattr("bayescal.backbones.loading.fingerprint", lambda *given: "computed")
    assert loading._load_mini().fingerprint == "computed"


def test_the_image_tower_is_open_clips(mini, plain, monkeypatch):
    pixels = torch.randn(3, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = plain.visual(pixels)
    found = mini.encode_images(pixels)
    # Another library's float32 may round by 2e-5 of numbers up to 7, as plain open_clip's does against float64.
    torch.testing.assert_close(F.normalize(found), F.normalize(expected), rtol=0, atol=1e-6)
    monkeypatch.setattr("bayescal.engine.linear.one_dnn_is_faster", lambda: False)
    torch.testing.assert_close(mini.encode_images(pixels), expected, rtol=0, atol=1e-5)


def test_images_are_encoded_without_reading_texts(monkeypatch):
    monkeypatch.setattr(embedded, "read_texts", lambda: pytest.fail("the text tower was read"))
    backbone = loading._load_mini()
    assert backbone.encode_images(torch.zeros(1, 3, 112, 112)).shape == (1, 512)
    assert not backbone.tower.is_open
    assert backbone.to("cpu").dim == 512


def test_importing_backbones_imports_no_heavy_library():
    code = "import sys, bayescal.backbones, bayescal.features; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"open_clip", "torchvision", "timm", "rich"} & set(modules.split())


def test_mini_has_the_numbers_of_its_card(mini):
    assert mini.logit_scale == pytest.approx(46.9, abs=0.05)
    assert (mini.name, mini.label) == ("mini", "mini 2")
    assert (mini.dim, mini.preprocess.size, mini.trained_context) == (512, 112, 34)
    assert sum(p.numel() for p in mini.visual.parameters()) == pytest.approx(21.7e6, rel=0.01)
    assert (mini.text.layers, mini.text.width, mini.text.heads, mini.text.context_length) == (4, 256, 4, 77)
    assert len(mini.known_tokens) == 15_287
    assert mini.preprocess.mean == (0.48145466, 0.4578275, 0.40821073)
    assert (mini.preprocess.interpolation, mini.preprocess.resize_mode) == ("bicubic", "shortest")
    assert mini.text.activation == "gelu"


def test_mini_matrices_follow_the_formula():
    """X = rows_int8 · rows_scale, for every matrix that is stored so; all else is as it stands in the file."""
    stored, state = load_file(embedded.WEIGHTS), embedded.read()
    matrices = {name.removesuffix(".rows_int8") for name in stored if name.endswith(".rows_int8")} - {"token_embedding"}
    assert len(matrices) == 4 * 12 + 1  # four of each layer, and the projection
    assert all(name.startswith("visual.") for name in matrices)
    for name in matrices:
        expected = stored[f"{name}.rows_int8"].double() * stored[f"{name}.rows_scale"].double()
        assert torch.equal(state[name].double(), expected), name
    others = {name: value for name, value in stored.items() if ".rows_" not in name and "token_embedding" not in name}
    assert state.keys() == {*matrices, *others, "token_embedding.weight"}
    assert all(torch.equal(state[name], value.float()) for name, value in others.items())


def test_mini_token_table_follows_the_formula(mini):
    stored = load_file(embedded.WEIGHTS)
    ids = stored["token_embedding.ids"].long()
    rows = stored["token_embedding.rows_int8"].float() * stored["token_embedding.rows_scale"].float()
    table = mini.text.token_embedding.weight
    assert torch.equal(table[ids], rows)
    others = torch.ones(len(table), dtype=torch.bool).index_fill(0, ids, False)
    assert others.sum() == 49_408 - 15_287
    assert embedded.known_tokens() == mini.known_tokens == frozenset(ids.tolist())
    assert torch.equal(table[others], stored["token_embedding.mean"].float().expand(int(others.sum()), -1))


def test_mini_equals_the_plain_open_clip_model(mini, plain):
    import open_clip

    pixels = torch.randn(5, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    texts = ["a photo of a dog.", "a sketch of the Eiffel tower at night", "x" * 300]
    with torch.no_grad():
        images = plain.encode_image(pixels)
        words = plain.encode_text(open_clip.get_tokenizer("bayescal-mini")(texts))
    assert (mini.encode_images(pixels) - images).abs().max() < 1e-5 * images.abs().max()
    assert (mini.encode_texts(texts) - words).abs().max() < 1e-5 * words.abs().max()


def digits(how: Preprocess, ink: str, paper: str) -> torch.Tensor:
    """The ten digits in print, as the image tower wants them: (10, 3, size, size)."""
    pixels = []
    for digit in range(10):
        image = Image.new("RGB", (140, 112), paper)
        ImageDraw.Draw(image).text((70, 56), str(digit), fill=ink, font=ImageFont.load_default(size=80), anchor="mm")
        pixels.append(plain_pixels(image, how))
    return torch.from_numpy(normalised(np.stack(pixels), how)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("ink", "paper"), [("white", "black"), ("red", "blue")])
def test_mini_reads_digits(mini, plain, ink, paper):
    pixels = digits(mini.preprocess, ink, paper)
    images = mini.encode_images(pixels)
    texts = F.normalize(mini.encode_texts([f"the digit {digit}" for digit in range(10)]), dim=-1)
    assert (F.normalize(images, dim=-1) @ texts.T).argmax(dim=1).tolist() == list(range(10))
    with torch.no_grad():
        assert (images - plain.encode_image(pixels)).abs().max() < 1e-5 * images.abs().max()


def test_only_the_class_token_passes_mini_s_last_layer(mini, plain):
    """The saving is a saving: the whole block gives the same at that token."""
    tower = mini.visual.inner
    x = torch.randn(2, 65, 384, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, whole = tower.transformer.resblocks[-1](x, 1), plain.visual.transformer.resblocks[-1](x)
        assert tower.transformer(x).shape == found.shape == (2, 1, 384)
    assert torch.allclose(found, whole[:, :1], atol=1e-5 * whole.abs().max())


def test_only_the_class_token_passes_the_last_layer_of_open_clips_transformers():
    from open_clip.transformer import VisionTransformer

    sizes = {"image_size": 16, "patch_size": 8, "width": 32, "layers": 2, "heads": 2, "mlp_ratio": 2.0}
    tower = VisionTransformer(**sizes, output_dim=8).eval()
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = tower(pixels)
        faster = fast_for_inference(tower)
        assert isinstance(faster.transformer.resblocks[-1], LastBlock)
        torch.testing.assert_close(faster(pixels), expected)


def test_a_tower_that_averages_its_tokens_keeps_them_all():
    from open_clip.transformer import VisionTransformer

    sizes = {"image_size": 16, "patch_size": 8, "width": 32, "layers": 2, "heads": 2, "mlp_ratio": 2.0}
    tower = VisionTransformer(**sizes, output_dim=8, pool_type="avg").eval()
    pixels = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        expected = tower(pixels)
        torch.testing.assert_close(fast_for_inference(tower)(pixels), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*no instructions for bfloat16")
def test_another_precision_is_another_backbone_with_nearly_the_same_features(mini):
    lower = load_backbone("mini@bfloat16")
    assert load_backbone("mini 2@bfloat16") is lower
    assert (lower.name, lower.label, lower.precision) == ("mini@bfloat16", "mini 2@bfloat16", "bfloat16")
    assert lower.fingerprint != mini.fingerprint
    assert len(lower.fingerprint) == len(mini.fingerprint)
    assert lower.visual is mini.visual
    assert load_backbone("mini@float32") is mini
    pixels = digits(mini.preprocess, "white", "black")[:4]
    features, expected = lower.encode_images(pixels), mini.encode_images(pixels)
    assert features.dtype == torch.float32
    assert not torch.equal(features, expected)
    assert F.cosine_similarity(features, expected).min() > 0.999
    assert torch.equal(lower.encode_texts(["a dog"]), mini.encode_texts(["a dog"]))


def test_a_processor_without_bfloat16_is_said(monkeypatch):
    monkeypatch.setattr(loading, "has_bfloat16", lambda device: False)
    with pytest.warns(BayescalWarning, match="mini@bfloat16: this processor has no instructions for bfloat16"):
        load_backbone("mini@bfloat16")


def test_everything_is_frozen_and_stays_so(mini):
    pixels = torch.randn(2, 3, *[mini.preprocess.size] * 2)
    before = mini.encode_images(pixels)
    mini.visual.train()
    modules = [mini.visual, mini.text]
    assert not any(p.requires_grad for m in modules for p in m.parameters())
    assert not any(inner.training for inner in mini.visual.modules())
    assert torch.equal(mini.encode_images(pixels), before)
    assert not before.is_inference()  # may be used in training
    with pytest.raises(dataclasses.FrozenInstanceError):
        mini.logit_scale = 1.0


def test_loading_twice_gives_the_same_object_and_moves_no_generator(mini):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_backbone("mini")
    from bayescal.backbones.loading import _load_mini

    again = _load_mini()
    assert torch.equal(torch.rand(1), expected)
    assert again.fingerprint == mini.fingerprint
    assert load_backbone("mini") is load_backbone("mini 2") is mini


def test_auto_is_the_best_device_there_is(monkeypatch):
    assert usable_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    real = torch.ones

    def with_apples_gpu(n, device):
        if device == "cuda":
            raise AssertionError("Torch not compiled with CUDA enabled")
        return real(n, device="cpu") if device == "mps" else real(n, device=device)

    monkeypatch.setattr(torch, "ones", with_apples_gpu)
    tried = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: tried.append(self) or self)
    usable_device("auto")
    assert len(tried) == 1  # what is there has to compute before it is taken


def test_devices_do_not_disturb_each_other(mini):
    elsewhere = mini.to("meta")
    assert elsewhere.device.type == "meta"
    assert mini.device.type == "cpu"
    assert elsewhere.fingerprint == mini.fingerprint
    assert mini.to("cpu") is mini
    with pytest.raises(BackboneError, match="device 'nonsense' cannot be used"):
        load_backbone("mini", device="nonsense")
    if not torch.cuda.is_available():
        with pytest.raises(BackboneError, match="device 'cuda' cannot be used here"):
            load_backbone("mini", device="cuda")


def test_wrong_shape_of_pixels_is_refused(mini):
    with pytest.raises(BackboneError, match=r"expected pixels of shape \(B, 3, 112, 112\), found \(1, 3, 64, 64\)"):
        mini.encode_images(torch.zeros(1, 3, 64, 64))


def test_tokens(mini):
    ids = mini.tokenize("a photo of a dog.")
    assert ids == [320, 1125, 539, 320, 1929, 269]
    assert (mini.sot, mini.eot) == (49406, 49407) == (mini.text.start_token, mini.text.end_token)
    assert mini.encode_texts([]).shape == (0, 512)
    with pytest.raises(DataError, match="reserves"):
        mini.tokenize("cat <end_of_text>")


def test_words_the_tower_never_saw_are_named(mini):
    assert mini.unknown_tokens("a photo of a dog.") == []
    unknown = mini.unknown_tokens("a dog called 犬")
    assert unknown == ["犬"]
    seen_nothing_missing = dataclasses.replace(mini, known_tokens=None)
    assert seen_nothing_missing.unknown_tokens("a dog called 犬") == []


def test_fingerprint_is_quick_and_changes_with_every_part(plain, mini):
    config, state, how = embedded.config(), plain.state_dict(), mini.preprocess
    started = time.process_time()
    reference = fingerprint(config, how, state)
    assert time.process_time() - started < 0.6  # 0.1 s on a quiet machine
    assert reference == mini.fingerprint == "01c0693ea44d2735201d"  # models saved elsewhere rely on it
    assert len(reference) == 20
    assert int(reference, 16) >= 0

    def nudged(name):
        tensor = state[name].clone()
        flat = tensor.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(9.0))
        return {**state, name: tensor}

    others = [
        fingerprint(config, how, nudged("visual.transformer.resblocks.11.ln_2.bias")),
        fingerprint(config, how, nudged("token_embedding.weight")),
        fingerprint(config, how, nudged("logit_scale")),
        fingerprint({**config, "quick_gelu": True}, how, state),
        fingerprint(config, dataclasses.replace(how, resize_mode="squash"), state),
        fingerprint(config, dataclasses.replace(how, mean=(0.5, 0.5, 0.5)), state),
    ]
    assert len({reference, *others}) == 7
    assert fingerprint({**config, "quick_gelu": False}, how, dict(reversed(state.items()))) == reference


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RN5:openai", "did you mean 'RN50:openai'"),
        ("RN5:cc12m", "did you mean 'RN50:cc12m'"),
        ("RN5O", "did you mean 'RN50:openai' or 'RN50x"),
        ("ViT-B32", "did you mean ('ViT[^:']*:[^']*'( or )?)+[?]$"),
        ("RN5O:/models/mine.pt", "did you mean 'RN50:/models/mine.pt'"),
        ("mimi", "did you mean 'mini'"),
        ("mini 1", "did you mean 'mini'"),
        ("mini@int4", "did you mean 'mini'"),
        ("RN50", "Published: RN50:openai"),
        ("RN50:openia", "did you mean 'openai'"),
        ("RN50:/no/such/file.pt", "there is no weights file /no/such/file.pt"),
        ("ViT-B-16-SigLIP:webli", "sigmoid loss.* These work: .*ViT-B-16:openai"),
        ("ViT-B-16-SigLIP:/somewhere/file.pt", "sigmoid loss.* These work: "),
        ("hf-hub:timm/ViT-B-16-SigLIP", "sigmoid loss.* These work: "),
        ("hf-hub:nobody/nothing", "does not list the weights of this repository"),
        ("coca_ViT-B-32:laion2b_s13b_b90k", "class token"),
        ("roberta-ViT-B-32:laion2b_s12b_b32k", "roberta-base"),
        ("MobileCLIP-S1:datacompdr", "not causal"),
        ("ViT-H-14-worldwide:metaclip2_worldwide", "tokenizer"),
    ],
)
def test_names_that_cannot_be_used_say_why(name, message):
    with pytest.raises(BackboneError, match=message):
        load_backbone(name)


def test_without_network_the_error_says_what_to_download(monkeypatch):
    monkeypatch.setattr(hub.Published, "cached", lambda self: None)
    monkeypatch.setattr(hub, "_reachable", lambda address: False)
    started = time.perf_counter()
    with pytest.raises(BackboneError) as error:
        load_backbone("RN50:openai")
    assert time.perf_counter() - started < 2
    text = str(error.value)
    assert "762/RN50.pt" in text
    assert '--backbone "RN50:/path/to/RN50.pt"' in text
    assert "timm/resnet50_clip.openai" in text
    assert '--backbone "RN50:openai:/path/to/open_clip_model.safetensors"' in text


def test_an_unreachable_server_is_noticed_within_seconds(monkeypatch):
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    assert not hub._reachable("http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:1")
    assert hub._reachable("https://huggingface.co")  # the proxy decides


def test_list_of_backbones():
    backbones = {entry.name: entry for entry in list_backbones()}
    first = next(iter(backbones.values()))
    assert (first.name, first.available, first.image_size, first.dim) == ("mini", True, 112, 512)
    assert "mini 2" in first.origin
    assert first.parameters == sum(v.numel() for v in embedded.read().values())
    assert first.defaults.context_init == "a photo of a"
    rn50 = backbones["RN50:openai"]
    assert (rn50.image_size, rn50.dim, rn50.parameters) == (224, 1024, None)
    assert (rn50.defaults.learning_rate, rn50.defaults.n_context, rn50.defaults.views) == (0.002, 16, 30)
    assert "ViT-B-16:laion2b_s34b_b88k" in backbones
    assert not [name for name in backbones if "SigLIP" in name or "coca" in name or "roberta" in name]


def test_the_list_agrees_with_the_text_tower():
    """Every kind of text tower in open_clip's list, built small: usable exactly when the list says so."""
    import open_clip
    from open_clip.model import CLIP, CustomTextCLIP

    small = {"layers": 1, "width": 64, "heads": 1, "vocab_size": 64, "context_length": 8, "mlp_ratio": 1.0}
    seen = set()
    for architecture in dict.fromkeys(name for name, _ in open_clip.list_pretrained()):
        config = open_clip.get_model_config(architecture)
        text = config["text_cfg"] | small
        key = json.dumps([text, config.get("custom_text"), "multimodal_cfg" in config], sort_keys=True)
        if text.get("hf_model_name") or text.get("hf_tokenizer_name") or key in seen:
            continue
        seen.add(key)
        kind = CustomTextCLIP if config.get("custom_text") else CLIP
        vision = {"layers": 1, "width": 64, "image_size": 8, "patch_size": 8}
        model = kind(16, vision, text)
        if why_unusable(config) is None:
            assert text_tower_from_open_clip(model).dim == 16
        else:
            with pytest.raises(BackboneError):
                text_tower_from_open_clip(model)
    assert len(seen) >= 4


def test_preprocessing_that_is_not_supported_is_refused():
    usual = {"size": (64, 64), "mean": 0.5, "std": (1, 1, 1), "interpolation": "random", "resize_mode": "squash"}
    how = Preprocess.from_open_clip(usual)
    assert how == Preprocess(64, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0), "bicubic", "squash")
    with pytest.raises(BackboneError, match="longest"):
        Preprocess.from_open_clip(usual | {"resize_mode": "longest"})
    with pytest.raises(BackboneError, match="square"):
        Preprocess.from_open_clip(usual | {"size": (64, 32)})


def test_a_suggested_name_is_never_refused():
    """Whatever is typed: what is suggested instead is a name that prompts can be learned for."""
    import open_clip

    for typed in ("SigLIP-B-16:webli", "coca-ViT-B-32:x", "xlm-roberta:y", "ViT-B-16-SigLip2:webli", "MobileCLIP-S9:z"):
        with pytest.raises(BackboneError) as refusal:
            load_backbone(typed)
        suggested = re.findall(r"did you mean (.*?)\?", str(refusal.value).replace("'", ""))
        for name in (part for found in suggested for part in found.split(" or ")):
            assert name == "mini" or describe_backbone(name)["name"] == name, typed
            config = {} if name == "mini" else open_clip.get_model_config(name.partition(":")[0])
            assert name == "mini" or (config is not None and why_unusable(config) is None), f"{typed}: {name}"
    for name in re.findall(r"[\w-]+:\w+", instead_of("ViT-L-16-SigLIP-384")):
        assert describe_backbone(name)["name"] == name


def test_weights_are_found_by_their_repository():
    about = describe_backbone("hf-hub:timm/resnet50_clip.openai")
    assert about["name"] == "RN50:openai"
    assert about["weights from"] == "hf-hub timm/resnet50_clip.openai"
