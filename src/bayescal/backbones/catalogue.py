"""Which backbones there are, and why some models of open_clip are none."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bayescal.backbones import mini
from bayescal.backbones.defaults import CLIP, MINI, TrainingDefaults
from bayescal.backbones.hub import published
from bayescal.util.suggest import closest

# The embedded one and those that most papers use.
WELL_KNOWN = (
    "mini",
    "RN50:openai",
    "RN101:openai",
    "ViT-B-32:openai",
    "ViT-B-16:openai",
    "ViT-L-14:openai",
    "ViT-B-32:laion2b_s34b_b79k",
    "ViT-B-16:laion2b_s34b_b88k",
    "ViT-B-16:datacomp_xl_s13b_b90k",
    "ViT-L-14:datacomp_xl_s13b_b90k",
)


@dataclass(frozen=True)
class CatalogueEntry:
    """One line of `bayescal backbones`."""

    name: str
    origin: str  # where the weights come from
    available: bool  # on this machine, without network
    image_size: int
    dim: int  # D, width of the joint space
    parameters: int | None  # None: not known before the weights are read
    defaults: TrainingDefaults


def why_unusable(config: Mapping[str, Any]) -> str | None:
    """Why prompts cannot be learned for a model with this open_clip configuration; None if they can.

    The text tower is checked again when it is loaded; this answers before anything is built or fetched.
    """
    text = config["text_cfg"]
    if text.get("hf_model_name"):
        return f"its text tower is {text['hf_model_name']}, not a CLIP transformer"
    if config.get("multimodal_cfg") or text.get("embed_cls"):
        return "its text tower is read at a class token, not at the end-of-text token (CoCa)"
    if config.get("init_logit_bias") is not None:
        return "it was trained with a sigmoid loss (SigLIP), not with a softmax over similarities"
    if text.get("no_causal_mask"):
        return "its text tower is not causal"
    if text.get("hf_tokenizer_name"):
        return f"its tokenizer ({text['hf_tokenizer_name']}) is not CLIP's"
    if text.get("pool_type", "argmax") != "argmax":
        return f"its text tower is read at the {text['pool_type']!r} token, not at the end-of-text token"
    return None


@lru_cache
def usable_architectures() -> tuple[str, ...]:
    """open_clip's architectures that prompts can be learned for."""
    import open_clip

    configs = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
    return tuple(name for name, config in configs.items() if config is not None and why_unusable(config) is None)


def instead_of(architecture: str) -> str:
    """A sentence for whoever named an architecture that cannot be used: the nearest that can, with their weights."""
    plain = [name for name in usable_architectures() if not name.endswith("-quickgelu")]  # the same, spelled otherwise
    named = [f"{name}:{next(iter(tags))}" for name in plain if (tags := published(name))]
    near = closest(architecture, named, n=3) or list(WELL_KNOWN[:3])
    return f"These work: {', '.join(near)}; `bayescal backbones --all` lists all that do"


def list_backbones() -> list[CatalogueEntry]:
    """All backbones by name, the embedded one first; builds no model and uses no network."""
    import open_clip

    entries = [_mini_entry()]
    for architecture in dict.fromkeys(architecture for architecture, _ in open_clip.list_pretrained()):
        config = open_clip.get_model_config(architecture)
        # "-quickgelu" architectures are open_clip's other spelling of the same weights
        if config is None or architecture.endswith("-quickgelu") or why_unusable(config) is not None:
            continue
        for tag, weights in published(architecture).items():
            entries.append(
                CatalogueEntry(
                    name=f"{architecture}:{tag}",
                    origin=weights.origin,
                    available=weights.cached() is not None,
                    image_size=_side(config["vision_cfg"].get("image_size", 224)),
                    dim=config["embed_dim"],
                    parameters=None,
                    defaults=CLIP,
                )
            )
    return entries


def _mini_entry() -> CatalogueEntry:
    config = mini.config()
    return CatalogueEntry(
        name=mini.NAME,
        origin=f"{mini.LABEL}, comes with the package",
        available=mini.WEIGHTS.is_file(),
        image_size=_side(config["vision_cfg"]["image_size"]),
        dim=config["embed_dim"],
        parameters=mini.PARAMETERS,
        defaults=MINI,
    )


def _side(size: int | list[int]) -> int:
    return size if isinstance(size, int) else size[0]
