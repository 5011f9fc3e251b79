"""`load_backbone`: from a name to a frozen model.

mini                    the model that comes with the package
ARCH:TAG                published weights of open_clip, downloaded once ("RN50:openai")
ARCH:/path/to/file      a weights file on this machine ("RN50:/models/RN50.pt")
ARCH:TAG:/path/to/file  such a file, used with the settings of the published weights TAG
"""

import difflib
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayescal.backbones import mini
from bayescal.backbones.base import Backbone, Frozen, Preprocess, Tokenizer, usable_device
from bayescal.backbones.catalogue import why_unusable
from bayescal.backbones.defaults import CLIP, MINI
from bayescal.backbones.fingerprint import fingerprint
from bayescal.backbones.hub import Published, published
from bayescal.backbones.inference import fast_for_inference
from bayescal.backbones.text_tower import TextTower
from bayescal.backbones.weights import fit_weights, read_weights
from bayescal.errors import BackboneError, BayescalWarning

_HOW = 'expected "mini", "ARCH:TAG" (for example "RN50:openai") or "ARCH:/path/to/weights"'


def load_backbone(name: str = "mini", device: str | torch.device = "cpu") -> Backbone:
    """Load a frozen vision-language model by name; see this module's docstring for the names.

    A backbone is loaded once per process and device and then shared. Raises `BackboneError`.
    """
    device = usable_device(device)
    if name == "mini":
        return _on_device("mini", None, device)
    request = _parse(name)
    if request.path is None:
        return _on_device(request.name, None, device)
    if not request.path.is_file():
        raise BackboneError(f"{name}: there is no weights file {request.path}")
    status = request.path.stat()  # a file that was replaced meanwhile is another backbone
    return _on_device(request.name, (status.st_mtime_ns, status.st_size), device)


@lru_cache(maxsize=4)
def _on_device(name: str, stamp: tuple[int, int] | None, device: torch.device) -> Backbone:
    if device.type != "cpu":
        return _on_device(name, stamp, torch.device("cpu")).to(device)
    return _load_mini() if name == "mini" else _load(_parse(name))


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

    architecture, _, rest = name.partition(":")
    architecture = architecture.replace("/", "-")  # "ViT-B/32" is OpenAI's spelling
    if open_clip.get_model_config(architecture) is None:
        raise BackboneError(
            f"unknown backbone {name!r}: {_HOW}; open_clip has no architecture {architecture!r}"
            + _nearest(architecture, ["mini", *open_clip.list_models()])
        )
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
        + (_nearest(rest, known) or f"; there are {', '.join(known) or 'none'}")
    )


def _absolute(file: str) -> Path:
    return Path(os.path.abspath(Path(file).expanduser()))


def _nearest(word: str, among: Iterable[str]) -> str:
    lowered = {candidate.lower(): candidate for candidate in among}
    close = difflib.get_close_matches(word.lower(), lowered, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(lowered[match] for match in close)}?" if close else ""


def _load_mini() -> Backbone:
    state, known = mini.read()
    config = mini.config()
    model = _build(config)
    fit_weights(model, state, "bayescal-mini")
    return _assemble(
        model,
        config,
        _preprocess(model, {}),
        name="mini",
        architecture=mini.ARCHITECTURE,
        defaults=MINI,
        trained_context=mini.TRAINED_CONTEXT,
        known_tokens=known,
    )


def _load(request: _Request) -> Backbone:
    import open_clip

    config = open_clip.get_model_config(request.architecture)
    reason = why_unusable(config)
    if reason is not None:
        raise BackboneError(f"{request.name} cannot be used for prompt learning: {reason}")
    path = request.path or request.weights.fetch()
    weights = read_weights(path)
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
    shared = dict(zip(keys, preprocessing.pop(), strict=True)) if len(preprocessing) == 1 else {}
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


def _preprocess(model: nn.Module, settings: dict[str, Any]) -> Preprocess:
    from dataclasses import asdict

    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    usual = {**asdict(PreprocessCfg()), "size": model.visual.image_size}
    return Preprocess.from_open_clip(merge_preprocess_dict(usual, settings))


def _assemble(model: nn.Module, config: dict[str, Any], preprocess: Preprocess, **about: Any) -> Backbone:
    if getattr(model, "logit_bias", None) is not None:
        raise BackboneError(f"{about['name']} adds a bias to its similarities, which prompt learning would not honour")
    text = TextTower.from_open_clip(model)
    print_of = fingerprint(config, preprocess, model.state_dict())  # before batch norms are folded
    return Backbone(
        visual=Frozen(fast_for_inference(model.visual)),
        text=text,
        tokenizer=_tokenizer(config),
        preprocess=preprocess,
        logit_scale=float(model.logit_scale.detach().exp()),
        fingerprint=print_of,
        **about,
    )


def _tokenizer(config: dict[str, Any]) -> Tokenizer:
    from open_clip.tokenizer import SimpleTokenizer

    text = config["text_cfg"]
    return SimpleTokenizer(context_length=text.get("context_length", 77), **text.get("tokenizer_kwargs", {}))
