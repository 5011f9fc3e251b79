"""Prompts whose context is not learned once but computed for every image (or group of images).

A prompt tree shares the context between names. Here it differs from image to image as well, so there are three levels:

    start token  ─►  context of one image  ─►  one tail per name

The start token sees nothing but itself and no parameter reaches it: its keys and values are constants of the tower,
computed once. What is left per image are M context tokens and the tails of the names, cut at their end-of-text token.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescal.engine.linear import linear
from bayescal.text.precision import lowered
from bayescal.text.prompt_tree import PromptTree
from bayescal.text.tower import Block, scaled, two_part_attention

# What one call may keep for its backward pass. More would not be faster: the products are large enough long before.
ACTIVATION_BYTES = 2**30


class ConditionalPrompts(nn.Module):
    """The text features of a prompt tree under n different contexts: (n, M, W) → (n, K, D), not normalised.

    Equal to `tree(contexts[None])[0]`, with the start token computed once. Needs a tree whose contexts are shared
    between names and whose names are the same for every run.
    """

    def __init__(self, tree: PromptTree):
        super().__init__()
        self.tree = tree
        self.start = _start_keys_and_values(tree)  # per layer: (2, H, 1, w)

    @property
    def at_once(self) -> int:
        """Contexts per call that keep the backward pass within ACTIVATION_BYTES."""
        k, t = self.tree.words.shape[1:3]  # padding included: here it is computed
        return max(1, ACTIVATION_BYTES // self.tree.tower.kept_bytes(self.tree.layout.n_before + k * t))

    def forward(self, contexts: Tensor) -> Tensor:
        tree, tower = self.tree, self.tree.tower
        n, w, p = contexts.shape[0], tower.width, tree.layout.n_before
        k, t = tree.words.shape[1:3]
        tails = tree.words if tree.selection is None else tree.words + tree.selection @ contexts[:, None]
        tails = (tails + tower.positions[1 + p : 1 + p + t]).expand(n, k, t, w)
        prefix = contexts[:, :p] + tower.positions[1 : 1 + p]
        x, raised = lowered(torch.cat([prefix, tails.reshape(n, k * t, w)], dim=1), tower.dtype)
        for block, start in zip(tower.blocks[:-1], self.start, strict=False):
            x = x + scaled(self._attend(block, block.norm1(x), start, p, k, t), block.scale1)
            x = x + scaled(tower.mlp(block, block.norm2(x)), block.scale2)
        return tower.project(raised(self._last_block(tower.blocks[-1], x, self.start[-1], p, k, t)))

    def _attend(self, block: Block, x: Tensor, start: Tensor, p: int, k: int, t: int) -> Tensor:
        """Causal attention in (n, P + K·T, W): a context sees start and itself, a tail sees both and itself."""
        n, length, w = x.shape
        h = self.tree.tower.heads
        q, key, v = block.qkv(x).view(n, length, 3, h, w // h).permute(2, 0, 3, 1, 4)  # each (n, H, L, w)
        key_p, v_p = self._above(key, v, start, p)
        seen = torch.ones(p, p + 1, dtype=torch.bool, device=x.device).tril(1)
        above = F.scaled_dot_product_attention(q[:, :, :p], key_p, v_p, attn_mask=seen)
        q_t, k_t, v_t = (z[:, :, p:].reshape(n, h, k, t, w // h) for z in (q, key, v))
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        below = two_part_attention(q_t, key_p, v_p, k_t, v_t, hidden)
        both = torch.cat([above, below.reshape(n, h, k * t, w // h)], dim=2)
        return block.out(both.transpose(1, 2).reshape(n, length, w))

    def _last_block(self, block: Block, x: Tensor, start: Tensor, p: int, k: int, t: int) -> Tensor:
        """The last layer at the end-of-text tokens alone: (n, L, W) → (n, K, W)."""
        n, length, w = x.shape
        h, ends = self.tree.tower.heads, self.tree.ends
        at = ends.expand(n, k)[:, :, None, None].expand(n, k, 1, w)
        x_end = x[:, p:].reshape(n, k, t, w).gather(2, at)[:, :, 0]  # (n, K, W)
        normed = block.norm1(x)
        normed_end = normed[:, p:].reshape(n, k, t, w).gather(2, at)
        key, v = linear(normed, block.qkv.weight[w:], block.qkv.bias[w:]).view(n, length, 2, h, w // h).unbind(2)
        key, v = key.transpose(1, 2), v.transpose(1, 2)  # (n, H, L, w)
        q = linear(normed_end, block.qkv.weight[:w], block.qkv.bias[:w])
        q = q.view(n, k, h, 1, w // h).transpose(1, 2)  # (n, H, K, 1, w)
        k_t, v_t = (z[:, :, p:].reshape(n, h, k, t, w // h) for z in (key, v))
        hidden = torch.arange(t, device=x.device) > ends[:, None, :, None, None]  # (1, 1, K, 1, T)
        out = two_part_attention(q, *self._above(key, v, start, p), k_t, v_t, hidden)
        x_end = x_end + scaled(block.out(out.permute(0, 2, 3, 1, 4).reshape(n, k, w)), block.scale1)
        return x_end + scaled(self.tree.tower.mlp(block, block.norm2(x_end)), block.scale2)

    def _above(self, key: Tensor, v: Tensor, start: Tensor, p: int) -> tuple[Tensor, Tensor]:
        """Keys and values of everything before the tails: (n, H, 1 + P, w) each."""
        n = key.shape[0]
        key_s, v_s = (z.expand(n, *z.shape) for z in start)
        return torch.cat([key_s, key[:, :, :p]], dim=2), torch.cat([v_s, v[:, :, :p]], dim=2)


@torch.no_grad()
def _start_keys_and_values(tree: PromptTree) -> list[Tensor]:
    """Keys and values (2, H, 1, w) of the start token in every layer: alone with itself, its attention is its value."""
    tower = tree.tower
    x = (tree.start + tower.positions[:1]).to(tower.dtype)  # (1, W)
    kept = []
    for block in tower.blocks:
        _, key, v = block.qkv(block.norm1(x)).chunk(3, dim=-1)
        kept.append(torch.stack([key, v]).view(2, tower.heads, 1, -1))
        x = x + scaled(block.out(v), block.scale1)
        x = x + scaled(tower.mlp(block, block.norm2(x)), block.scale2)
    return kept
