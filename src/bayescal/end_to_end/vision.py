"""timm models as image towers: finding them by name, building them, and giving them weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayescal.backbones.base import Preprocess
from bayescal.backbones.weights import check_tensors, read_weights
from bayescal.errors import BackboneError
from bayescal.util.suggest import did_you_mean

DOWNLOAD = "timm"  # instead of a weights file: the weights that timm publishes for this name
_SMALLEST = 16  # pixels per side; below, the strides of common networks leave nothing


@dataclass(frozen=True)
class Vision:
    """A timm model without its classifier, and the pixels it takes."""

    name: str
    module: nn.Module  # (N, 3, size, size) → (N, n_features)
    n_features: int
    preprocess: Preprocess
    pretrained: bool

    def description(self) -> dict[str, Any]:
        """What `rebuild` needs, as JSON."""
        return {"name": self.name, "preprocess": asdict(self.preprocess)}


def load_vision(name: str, image_size: int = 0, weights: str | Path | None = None, seed: int = 0) -> Vision:
    """Build a timm model. Without `weights` it starts from random numbers, fixed by the seed.

    `weights`: a file (.safetensors, or a torch state dict), or "timm" to download what timm publishes.
    """
    timm = _timm()
    check_vision(name)
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size = image_size or (config.input_size[-1] if config else 224)
    if size < _SMALLEST:
        raise BackboneError(f"image_size {size}: expected at least {_SMALLEST} pixels per side, or 0 for the model's")
    # Transformers are built for one size; convolutions take any and have no such argument.
    fixed = {"img_size": size} if config and config.fixed_input_size else {}
    download = str(weights) == DOWNLOAD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _create(timm, name, download, fixed)
    if weights is not None and not download:
        _fill(module, Path(weights), name, config.classifier if config else None)
    found: Any = module.pretrained_cfg
    how = Preprocess(
        size=int(size),
        mean=_per_channel(found.get("mean")),
        std=_per_channel(found.get("std")),
        interpolation="bilinear" if found.get("interpolation") == "bilinear" else "bicubic",
        resize_mode="squash",  # DomainBed's: nothing is cut off, the proportions are lost
    )
    return Vision(name, module, _width(module), how, pretrained=weights is not None)


def rebuild(description: dict[str, Any]) -> Vision:
    """The model of a `description`, with random weights: for models whose weights are read afterwards."""
    how = description["preprocess"]
    vision = load_vision(description["name"], how["size"])
    # What was trained decides, should another version of timm describe the model differently.
    how = Preprocess(**{**how, "mean": tuple(how["mean"]), "std": tuple(how["std"])})
    return Vision(vision.name, vision.module, vision.n_features, how, pretrained=True)


def check_vision(name: str) -> None:
    """Refuse a name that timm does not have, with the nearest that it has."""
    timm = _timm()
    if ":" in name or "/" in name:
        raise BackboneError(f"--vision {name}: expected the name of a timm model, such as resnet50")
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), n=3) or " Common ones: resnet18, resnet50"
        raise BackboneError(f"timm has no model {name!r}.{hint}")


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise BackboneError(f"end-to-end training needs timm: pip install timm ({error})") from error
    return timm


def _create(timm: Any, name: str, download: bool, extra: dict[str, Any]) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=download, num_classes=0, **extra)
    except Exception as error:  # timm, huggingface_hub and urllib each fail in their own ways
        if not download:
            raise BackboneError(f"timm could not build {name!r}: {_brief(error)}") from error
        raise BackboneError(
            f"the weights of {name!r} could not be downloaded ({_brief(error)}). Without a connection, give a "
            "file with --vision-weights FILE, or leave the option out to start from random weights"
        ) from error


def _fill(module: nn.Module, path: Path, name: str, classifier: str | tuple[str, ...] | None) -> None:
    """Put a file's weights into the model; the file's own classifier is left out."""
    tensors = read_weights(path).tensors
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    wanted = module.state_dict()
    own = {n: v for n, v in tensors.items() if n in wanted or not n.startswith(tuple(f"{head}." for head in heads))}
    counters = {n for n in wanted if n.endswith("num_batches_tracked")}
    check_tensors(wanted, own, f"{path} does not fit {name!r}", may_lack=counters)
    module.load_state_dict({**wanted, **own})


def _per_channel(values: Sequence[float] | None) -> tuple[float, float, float]:
    red, green, blue = values or (0.5, 0.5, 0.5)
    return red, green, blue


def _width(module: Any) -> int:
    # Some models have a layer between the pooling and the classifier, and it stays when the classifier goes.
    return int(getattr(module, "head_hidden_size", None) or module.num_features)


def _brief(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
