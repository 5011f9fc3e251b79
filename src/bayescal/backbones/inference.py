"""Faster inference of CLIP's image towers with the same result."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from bayescal.engine.linear import freeze_products

# Where open_clip's ModifiedResNet has a batch norm right behind a convolution (names in one parent).
_PAIRS = (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("0", "1"))


def fast_for_inference(visual: nn.Module) -> nn.Module:
    """Leave out what does not change an image tower's answer, in place; features move by rounding errors alone.

    A ResNet's batch norms are folded into its convolutions, and its images stored channels-last. A transformer that
    is read at its class token needs no other token from its last layer. Products with weights are `engine.linear`'s.
    """
    if type(visual).__name__ == "ModifiedResNet":
        _fold(visual.eval())
        return visual.to(memory_format=torch.channels_last)
    if _reads_class_token(visual):
        blocks = visual.get_submodule("transformer.resblocks")
        setattr(blocks, str(len(list(blocks.children())) - 1), LastBlock(list(blocks.children())[-1]))
    return freeze_products(visual)


def _fold(parent: nn.Module) -> None:
    children = dict(parent.named_children())
    for conv_name, norm_name in _PAIRS:
        conv, norm = children.get(conv_name), children.get(norm_name)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
            setattr(parent, norm_name, nn.Identity())
    for child in children.values():
        _fold(child)


def _reads_class_token(visual: Any) -> bool:
    """Whether it is open_clip's plain vision transformer, and nothing behind its blocks looks at another token."""
    return (
        type(visual).__name__ == "VisionTransformer"
        and visual.pool_type == "tok"
        and visual.attn_pool is None
        and not visual.output_tokens
        and visual.transformer.batch_first
        and type(visual.transformer.resblocks[-1]).__name__ == "ResidualAttentionBlock"
    )


class LastBlock(nn.Module):
    """open_clip's ResidualAttentionBlock at the class token alone: (B, L, W) → (B, 1, W).

    All tokens are seen, so keys and values are computed for all of them; query, output and MLP for one. That is a
    sixth of the block's work: a tower of 12 layers gets 7 % faster.
    """

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block: Any = block  # open_clip's, whose parts have no types

    def forward(self, x: Tensor, attn_mask: None = None) -> Tensor:
        block, seen = self.block, self.block.ln_1(x)
        x = x[:, :1] + block.ls_1(block.attention(seen[:, :1], seen, seen))
        return x + block.ls_2(block.mlp(block.ln_2(x)))
