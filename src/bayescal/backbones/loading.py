"""`load_backbone`: from a name to a frozen model.

mini                    the model that comes with the package
ARCH:TAG                published weights of open_clip, downloaded once ("RN50:openai")
hf-hub:ORG/REPOSITORY   the same, by where they are kept ("hf-hub:timm/resnet50_clip.openai")
ARCH:/path/to/file      a weights file on this machine ("RN50:/models/RN50.pt")
ARCH:TAG:/path/to/file  such a file, used with the settings of the published weights TAG
NAME@bfloat16           any of these, whose image tower multiplies in bfloat16
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from bayescal.backbones import mini
from bayescal.backbones.base import (
    BFLOAT16,
    FLOAT32,
    PRECISIONS,
    Backbone,
    Frozen,
    Preprocess,
    Tokenizer,
    usable_device,
)
from bayescal.backbones.catalogue import instead_of, usable_architectures, why_unusable
from bayescal.backbones.defaults import CLIP, MINI
from bayescal.backbones.fingerprint import fingerprint
from bayescal.backbones.hub import Published, published
from bayescal.backbones.inference import fast_for_inference
from bayescal.backbones.vit import VisionTransformer
from bayescal.backbones.weights import fit_weights, read_weights
from bayescal.errors import BackboneError, BayescalWarning
from bayescal.text.open_clip_tower import refuse_other_towers, text_tower_from_open_clip, text_tower_of
from bayescal.text.tower import LazyTower, TextTower
from bayescal.util.suggest import closest, or_did_you_mean

HUB = "hf-hub:"
_HOW = 'expected "mini", "ARCH:TAG" (for example "RN50:openai") or "ARCH:/path/to/weights"'


def load_backbone(name: str = "mini", device: str | torch.device = "auto") -> Backbone:
    """Load a frozen vision-language model by name; it is loaded once per process and device and then shared.

    Parameters
    ----------
    name : str
        "mini" (comes with the package), "ARCH:TAG" or "ARCH:/path/to/weights" of open_clip; `bayescal backbones` lists
        them.
    device : str
        "auto" (a GPU where there is one), "cpu", "cuda", "mps", …

    Returns
    -------
    Backbone
        Image tower, text tower, and how to feed them. One that cannot be loaded is a `BackboneError`.

    Examples
    --------
    >>> from bayescal import load_backbone
    >>> backbone = load_backbone("mini")
    >>> backbone.encode_texts(["a photo of a dog.", "a sketch of a house."]).shape == (2, backbone.dim)
    True
    """
    device = usable_device(device)
    plain, precision = split_precision(name)
    if precision == BFLOAT16 and not has_bfloat16(device):
        warnings.warn(
            f"{name}: this processor has no instructions for bfloat16, so images are encoded several times slower "
            f"than with {plain!r}",
            BayescalWarning,
            stacklevel=2,
        )
    if plain in (mini.NAME, mini.LABEL):
        return _on_device(mini.NAME, None, device, precision)
    request = _parse(plain)
    if request.path is None:
        return _on_device(request.name, None, device, precision)
    if not request.path.is_file():
        raise BackboneError(f"{name}: there is no weights file {request.path}")
    status = request.path.stat()  # a file that was replaced meanwhile is another backbone
    return _on_device(request.name, (status.st_mtime_ns, status.st_size), device, precision)


def describe_backbone(name: str) -> dict[str, str]:
    """What is known of published weights, or of a file, before anything is loaded; a name of none is refused."""
    request = _parse(split_precision(name)[0])
    found = {"name": request.name, "architecture": request.architecture}
    if request.weights is not None:
        here = request.weights.cached()
        found |= {"weights from": request.weights.origin, "here": "no: downloaded when first used"}
        if here is not None:
            found["here"] = str(here)
    if request.path is not None:
        found["here"] = str(request.path) if request.path.is_file() else f"{request.path} does not exist"
    found["licence"] = "that of its publisher: see where the weights come from"
    return found


def split_precision(name: str) -> tuple[str, str]:
    """A backbone's name without the precision behind it, and the precision: "mini@bfloat16" → "mini", "bfloat16"."""
    plain, at, precision = name.rpartition("@")
    return (plain, precision) if at and precision in PRECISIONS else (name, FLOAT32)


def has_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are faster there than in float32."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@lru_cache(maxsize=4)
def _on_device(name: str, stamp: tuple[int, int] | None, device: torch.device, precision: str) -> Backbone:
    if precision != FLOAT32:
        return _on_device(name, stamp, device, FLOAT32).in_precision(precision)
    if device.type != "cpu":
        return _on_device(name, stamp, torch.device("cpu"), FLOAT32).to(device)
    return _load_mini() if name == mini.NAME else _load(_parse(name))


@dataclass(frozen=True)
class _Request:
    architecture: str
    weights: Published | None  # the published weights that were named, if any
    path: Path | None  # the file that was named, if any

    @property
    def name(self) -> str:
        parts = [self.architecture, self.weights and self.weights.tag, self.path and str(self.path)]
        return ":".join(part for part in parts if part)


def _parse(name: str) -> _Request:
    import open_clip

    if name.startswith(HUB):
        return _on_the_hub(name)
    architecture, _, rest = name.partition(":")
    architecture = architecture.replace("/", "-")  # "ViT-B/32" is OpenAI's spelling
    config = open_clip.get_model_config(architecture)
    if config is None:
        raise BackboneError(
            f"unknown backbone {name!r}: {_HOW}; open_clip has no architecture {architecture!r}"
            + _nearest_whole(architecture, rest)
        )
    if (reason := why_unusable(config)) is not None:
        raise BackboneError(f"{name} cannot be used for prompt learning: {reason}. {instead_of(architecture)}")
    known = published(architecture)
    if not rest:
        tags = ", ".join(f"{architecture}:{tag}" for tag in known) or "none, so a weights file has to be given"
        raise BackboneError(f"backbone {name!r} does not say which weights: {_HOW}. Published: {tags}")
    tag, _, file = rest.partition(":")
    tag = tag.lower().replace("-", "_")
    if tag in known:
        return _Request(architecture, known[tag], _absolute(file) if file else None)
    if any(mark in rest for mark in ("/", "\\", ".", "~")):
        return _Request(architecture, None, _absolute(rest))
    raise BackboneError(
        f"unknown backbone {name!r}: {architecture} has no published weights {rest!r}"
        + or_did_you_mean(rest, known, n=3, otherwise=f"; there are {', '.join(known) or 'none'}")
    )


def _nearest_whole(architecture: str, rest: str) -> str:
    """ "; did you mean 'RN50:openai'?": names that are taken as they stand, with the weights that were asked for."""
    names = []
    known = [name for name in usable_architectures() if os.sep in rest or published(name)]
    for name in closest(architecture, [mini.NAME, *known], n=3):
        tags = published(name) if name != mini.NAME else {}
        weights = rest if rest in tags or os.sep in rest else next(iter(tags), "")
        names.append(f"{name}:{weights}" if weights and name != mini.NAME else name)
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""


def _on_the_hub(name: str) -> _Request:
    """ "hf-hub:ORG/REPOSITORY", as open_clip writes it: the published weights that are kept there."""
    import open_clip

    repository = name.removeprefix(HUB).strip("/")
    for architecture, tag in open_clip.list_pretrained():
        # "-quickgelu" architectures are open_clip's other spelling of the same weights
        if not architecture.endswith("-quickgelu") and published(architecture)[tag].repository == repository:
            return _parse(f"{architecture}:{tag}")
    raise BackboneError(
        f"{name}: open_clip does not list the weights of this repository. Download its weights file and say which "
        "architecture it is: --backbone ARCH:/path/to/open_clip_model.safetensors (`bayescal backbones --all` lists "
        "architectures)"
    )


def _absolute(file: str) -> Path:
    return Path(os.path.abspath(Path(file).expanduser()))


def _load_mini() -> Backbone:
    """Without open_clip, whose import takes longer than an answer; texts are read when something asks for them."""
    config = mini.config()
    state = mini.read_images()
    print_of = mini.FINGERPRINT
    if not mini.is_unchanged():
        print_of = fingerprint(config, mini.PREPROCESS, mini.read())
    with torch.device("meta"):  # every tensor comes from the file: none is drawn first
        visual = VisionTransformer(config["embed_dim"], config["vision_cfg"])
    own = {name.removeprefix(mini.IMAGES): value for name, value in state.items() if name.startswith(mini.IMAGES)}
    try:
        visual.load_state_dict(own, assign=True)
        logit_scale = float(state["logit_scale"].exp())
    except (RuntimeError, KeyError) as error:
        raise BackboneError(mini.damaged(str(error).splitlines()[0])) from error
    return Backbone(
        visual=Frozen(visual),
        tower=LazyTower(config["embed_dim"], torch.device("cpu"), _mini_texts),
        tokenizer=LazyTokenizer(config),
        preprocess=mini.PREPROCESS,
        logit_scale=logit_scale,
        fingerprint=print_of,
        name=mini.NAME,
        label=mini.LABEL,
        architecture=mini.ARCHITECTURE,
        defaults=MINI,
        trained_context=mini.TRAINED_CONTEXT,
        known_tokens=mini.known_tokens(),
    )


def _mini_texts() -> TextTower:
    return text_tower_of(mini.read_texts(), mini.config()["text_cfg"]["heads"], "gelu")


def _load(request: _Request) -> Backbone:
    import open_clip

    config: dict[str, Any] = open_clip.get_model_config(request.architecture) or {}
    if request.weights is None and request.path is None:
        raise BackboneError(f"{request.name} names neither published weights nor a file")
    path = request.path or cast(Published, request.weights).fetch()
    weights = read_weights(path)
    settings: dict[str, Any]
    if request.weights is not None:
        settings = request.weights.settings
    else:
        settings = _settings_without_tag(request.architecture, config, path, weights.from_openai)
    if settings.get("quick_gelu") or weights.from_openai:
        config["quick_gelu"] = True
    model = _build(config)
    fit_weights(model, weights.tensors, f"{path} as {request.architecture}")
    return _assemble(
        model,
        config,
        _preprocess(model, settings),
        name=request.name,
        label=request.name,
        architecture=request.architecture,
        defaults=CLIP,
        trained_context=config["text_cfg"].get("context_length", 77),
        known_tokens=None,
    )


def _settings_without_tag(architecture: str, config: dict, path: Path, from_openai: bool) -> dict[str, Any]:
    """Settings for a file that does not say: those on which all published weights agree, if they do."""
    if from_openai:
        return {"quick_gelu": True}  # with OpenAI's preprocessing, which is also open_clip's default
    known = published(architecture)
    keys = ("mean", "std", "interpolation", "resize_mode")
    preprocessing = {tuple(weights.settings[key] for key in keys) for weights in known.values()}
    shared: dict[str, Any] = dict(zip(keys, preprocessing.pop(), strict=True)) if len(preprocessing) == 1 else {}
    quick = {weights.quick_gelu for weights in known.values()}
    if preprocessing or quick - {bool(config.get("quick_gelu", False))}:
        warnings.warn(
            f"{path.name} does not say how it was trained; it is used with "
            f"{'QuickGELU' if config.get('quick_gelu') else 'GELU'} and "
            f"{'the usual' if shared else 'CLIP’s'} preprocessing. If it is one of the published "
            f'weights of {architecture}, write "{architecture}:TAG:{path}" with its TAG: {", ".join(known)}',
            BayescalWarning,
            stacklevel=5,
        )
    return shared


def _build(config: dict[str, Any]) -> nn.Module:
    """A plain open_clip model with random weights; nothing is downloaded and no global generator moves."""
    from open_clip.model import CLIP as Plain
    from open_clip.model import CustomTextCLIP

    options = dict(config)
    kind = CustomTextCLIP if options.pop("custom_text", False) else Plain
    with torch.random.fork_rng(devices=[]):
        return kind(**options)


def _preprocess(model: Any, settings: dict[str, Any]) -> Preprocess:
    from dataclasses import asdict

    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    usual = {**asdict(PreprocessCfg()), "size": model.visual.image_size}
    return Preprocess.from_open_clip(merge_preprocess_dict(usual, settings))


def _assemble(model: Any, config: dict[str, Any], preprocess: Preprocess, **about: Any) -> Backbone:
    if getattr(model, "logit_bias", None) is not None:
        raise BackboneError(f"{about['name']} adds a bias to its similarities, which prompt learning would not honour")
    refuse_other_towers(model)
    print_of = fingerprint(config, preprocess, model.state_dict())  # before batch norms are folded
    return Backbone(
        visual=Frozen(fast_for_inference(model.visual)),
        tower=LazyTower(config["embed_dim"], torch.device("cpu"), partial(text_tower_from_open_clip, model)),
        tokenizer=LazyTokenizer(config),
        preprocess=preprocess,
        logit_scale=float(model.logit_scale.detach().exp()),
        fingerprint=print_of,
        **about,
    )


class LazyTokenizer:
    """The tokenizer of an open_clip configuration, made when a text is to be read."""

    def __init__(self, config: dict[str, Any]):
        self._config = config

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from open_clip.tokenizer import SimpleTokenizer

        text = self._config["text_cfg"]
        return SimpleTokenizer(context_length=text.get("context_length", 77), **text.get("tokenizer_kwargs", {}))

    @property
    def sot_token_id(self) -> int:
        return self._tokenizer.sot_token_id

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eot_token_id

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)
