"""Small prompt trees as one sequence of tokens under a mask."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from bayescal.text.prompt_tree import PromptTree


class Packed(nn.Module):
    """Small trees as one sequence of tokens, cut at the ends of the names, and a mask that shows each its ancestors.

    What a token reads is the same in every step, but for the context vectors: x = base + selection · context.
    """

    base: Tensor  # (G, L, W): words and positions
    selection: Tensor  # (G or 1, L, ΣM): one where a context vector stands
    mask: Tensor  # (L, L)
    ends: Tensor  # (G, K of all trees)

    def __init__(self, trees: "Sequence[PromptTree]"):
        super().__init__()
        tokens, ends = [], []  # a token: tree, name (prefix: −1), position in the prompt, whether anyone reads it
        for i, tree in enumerate(trees):
            p, last = tree.n_prefix, tree.ends.amax(0).tolist()
            starts = len(tokens) + p + tree.words.shape[2] * torch.arange(tree.n_names)
            ends.append(starts + tree.ends.cpu())  # (G, K)
            tokens += [(i, -1, at, True) for at in range(p)]
            tokens += [(i, k, p + t, t <= end) for k, end in enumerate(last) for t in range(tree.words.shape[2])]
        table = torch.tensor(tokens)
        keep = table[:, 3].nonzero()[:, 0]
        tree, name, at, _ = table[keep].T
        sees = (tree[:, None] == tree) & (at[:, None] >= at) & ((name == -1) | (name[:, None] == name))
        mask = torch.zeros(sees.shape, dtype=trees[0].tower.dtype).masked_fill(~sees, float("-inf"))
        runs = max(map(len, ends))
        end_positions = table[:, 3].cumsum(0)[torch.cat([each.expand(runs, -1) for each in ends], dim=1)] - 1
        device = trees[0].words.device
        parts = [tree.affine() for tree in trees]
        base = torch.cat([part.expand(runs, -1, -1) if len(part) < runs else part for part, _ in parts], dim=1)
        several = max(len(selection) for _, selection in parts)
        blocks = [
            torch.block_diag(*(selection[run % len(selection)] for _, selection in parts)) for run in range(several)
        ]
        self.register_buffer("base", base[:, keep.to(device)], persistent=False)  # (G, L, W), positions included
        self.register_buffer("selection", torch.stack(blocks)[:, keep.to(device)], persistent=False)  # (G or 1, L, ΣM)
        # Rows that begin at multiples of 16 bytes, which attention on a GPU reads faster.
        aligned = mask.new_zeros(len(mask), -(-len(mask) // 8) * 8).to(device)
        aligned[:, : len(mask)] = mask
        self.register_buffer("mask", aligned[:, : len(mask)], persistent=False)  # (L, L)
        self.register_buffer("ends", end_positions.to(device), persistent=False)  # (G, K of all trees)

    def read(self, trees: "Sequence[PromptTree]", contexts: Sequence[Tensor]) -> list[Tensor]:
        """Text features (R, S, K, D) of each tree."""
        r, s = contexts[0].shape[:2]
        context = torch.cat([context.flatten(2, -2) for context in contexts], dim=2)  # (R, S, ΣM, W)
        # A product with zeros and ones selects the vectors exactly, and its backward is deterministic everywhere.
        x = self.selection[:, None] @ context + self.base[:, None]
        ends = self.ends if len(self.ends) == 1 else self.ends.repeat_interleave(s, dim=0)
        features = trees[0].tower.read(x.flatten(0, 1), self.mask, ends).unflatten(0, (r, s))
        return list(features.split([tree.n_names for tree in trees], dim=2))
