"""The text tower of an open_clip model, as this package computes it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescal.errors import BackboneError
from bayescal.text.tower import QUICK, TextTower

ACTIVATIONS = {"GELU": "gelu", "QuickGELU": "silu"}
# our name of a block's tensor → open_clip's
BLOCK_TENSORS = {
    "norm1.weight": "ln_1.weight",
    "norm1.bias": "ln_1.bias",
    "qkv.weight": "attn.in_proj_weight",
    "qkv.bias": "attn.in_proj_bias",
    "out.weight": "attn.out_proj.weight",
    "out.bias": "attn.out_proj.bias",
    "norm2.weight": "ln_2.weight",
    "norm2.bias": "ln_2.bias",
    "up.weight": "mlp.c_fc.weight",
    "up.bias": "mlp.c_fc.bias",
    "down.weight": "mlp.c_proj.weight",
    "down.bias": "mlp.c_proj.bias",
}
BLOCKS = "transformer.resblocks."
REFUSAL = "prompt trees need a causal CLIP text transformer that is read at its end-of-text token; "


def text_tower_from_open_clip(model: Any) -> TextTower:
    """The frozen text tower of an open_clip model; it shares the model's tensors."""
    refuse_other_towers(model)
    text = _text_part(model)
    blocks, first = text.transformer.resblocks, text.transformer.resblocks[0]
    activation = ACTIVATIONS.get(type(first.mlp.gelu).__name__)
    if activation is None:
        raise BackboneError(f"unknown activation {type(first.mlp.gelu).__name__} in the text tower")
    projection, bias = _projection(text)
    tensors = {**text.state_dict(keep_vars=True), "text_projection": projection}
    tower = text_tower_of(tensors, first.attn.num_heads, activation)
    for ours, source in zip(tower.blocks, blocks, strict=True):
        ours.scale1 = getattr(source.ls_1, "gamma", None)
        ours.scale2 = getattr(source.ls_2, "gamma", None)
        ours.norm1.eps, ours.norm2.eps = source.ln_1.eps, source.ln_2.eps
    tower.norm.eps = text.ln_final.eps
    tower.projection_bias = None if bias is None else bias.detach()
    return tower.requires_grad_(False).eval()


def text_tower_of(tensors: Mapping[str, Tensor], heads: int, activation: str) -> TextTower:
    """A frozen text tower with these tensors, by open_clip's names; others among them are left alone."""
    first = f"{BLOCKS}0."
    with torch.device("meta"):  # the tensors are replaced below: allocate none
        tower = TextTower(
            vocab_size=tensors["token_embedding.weight"].shape[0],
            context_length=tensors["positional_embedding"].shape[0],
            width=tensors["positional_embedding"].shape[1],
            heads=heads,
            layers=len({name.split(".")[2] for name in tensors if name.startswith(BLOCKS)}),
            dim=tensors["text_projection"].shape[1],
            hidden=tensors[f"{first}mlp.c_fc.weight"].shape[0],
            activation=activation,
        )
    state = {
        "token_embedding.weight": tensors["token_embedding.weight"],
        "positions": tensors["positional_embedding"],
        "norm.weight": tensors["ln_final.weight"],
        "norm.bias": tensors["ln_final.bias"],
        "projection": tensors["text_projection"],
    }
    for i in range(tower.layers):
        own = {name: tensors[f"{BLOCKS}{i}.{theirs}"] for name, theirs in BLOCK_TENSORS.items()}
        state |= {f"blocks.{i}.{name}": value for name, value in _for_activation(own, activation).items()}
    tower.load_state_dict({key: value.detach() for key, value in state.items()}, assign=True)
    return tower.requires_grad_(False).eval()


def _text_part(model: Any) -> Any:
    return getattr(model, "text", model)  # CustomTextCLIP keeps its tower under .text


def refuse_other_towers(model: Any) -> None:
    """Say why the text tower of an open_clip model is none that `TextTower` computes, if so; nothing is built."""
    text = _text_part(model)
    blocks = getattr(getattr(text, "transformer", None), "resblocks", None)
    if blocks is None:
        raise BackboneError(REFUSAL + f"this model's text tower is a {type(text).__name__}")
    if getattr(text, "attn_mask", None) is None:
        raise BackboneError(REFUSAL + "this one is not causal")
    pool = getattr(text, "pool_type", getattr(text, "text_pool_type", "argmax"))
    if pool not in ("argmax", "eos") or getattr(text, "cls_emb", None) is not None:
        raise BackboneError(REFUSAL + f"this one is read at {'a class token' if pool != 'last' else 'the last token'}")
    if any(type(block).__name__ != "ResidualAttentionBlock" for block in blocks):
        raise BackboneError(REFUSAL + f"this one is built of {type(blocks[0]).__name__}")


def _projection(text: Any) -> tuple[Tensor, Tensor | None]:
    """The matrix (W, D) into the joint space, and its bias where there is one."""
    projection = text.text_projection
    if isinstance(projection, nn.Linear):
        return projection.weight.T, projection.bias
    return (torch.eye(text.positional_embedding.shape[1]) if projection is None else projection), None


def _for_activation(ours: dict[str, Tensor], activation: str) -> dict[str, Tensor]:
    """A block's tensors as our activation wants them."""
    if activation == "silu":
        # x·σ(1.702 x) = silu(1.702 x) / 1.702. With the factors in the weights around it the activation is one
        # operation instead of three, and keeps one tensor for its backward pass instead of two.
        for name, factor in (("up.weight", QUICK), ("up.bias", QUICK), ("down.weight", 1 / QUICK)):
            ours[name] = ours[name] * factor
    return ours
