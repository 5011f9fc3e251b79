"""Prompt trees: learned context vectors + names → text features, with all shared computation done once."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayescal.engine.memory import activation_budget
from bayescal.errors import BackboneError
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_packing import Packed
from bayescal.text.tower import Packing, TextTower

DENSE = 160  # tokens up to which trees are read as one sequence, where most of the mask is empty


class PromptTree(nn.Module):
    """K prompts of R runs as one computation: context (R, S, [K,] M, W) → text features (R, S, K, D).

    `names` holds the token ids of the K names: once for all runs, or one list per run when runs have different
    names (for example other training environments); `suffix` are the ids that close a prompt, usually ".".

    Few tokens are read as one sequence under a mask. Of many, tails see their prefix and themselves without a mask over
    all tokens; and where the activations of all names would take more than `budget` bytes, they are read in blocks. The
    backward pass then reads a block again instead of keeping it: the same gradient, a third more work.
    """

    words: Tensor  # (G, K, T, W): embeddings of the tails, zero where no token stands
    selection: Tensor | None  # (G, K, T, M): one where a context vector stands; None where the tails have none
    ends: Tensor  # (G, K): position of the end-of-text token in its tail
    start: Tensor  # (1, W)

    def __init__(
        self,
        tower: TextTower,
        names: Sequence[Sequence[Sequence[int]]],
        layout: Layout,
        suffix: Sequence[int] = (),
    ):
        super().__init__()
        self.tower, self.layout = tower, layout
        self.budget = activation_budget(tower.positions.device)
        self.n_names = len(names[0])
        if any(len(own) != self.n_names for own in names):
            raise BackboneError("every run of a stack needs the same number of names")
        n_after = layout.n_context - layout.n_before
        before_in_tail = layout.n_before if layout.class_specific else 0

        # One tail per name as a list of ("token", id) and ("context", index); shorter ones are padded at the right,
        # behind the end-of-text token, where a causal tower never looks. Runs often have the same names: each list of
        # names is laid out once.
        distinct = dict.fromkeys(tuple(map(tuple, own)) for own in names)
        tails = [
            [
                [("context", i) for i in range(before_in_tail)]
                + [("token", i) for i in name]
                + [("context", layout.n_before + i) for i in range(n_after)]
                + [("token", i) for i in suffix]
                + [("token", tower.end_token)]
                for name in own
            ]
            for own in distinct
        ]
        length = max(len(tail) for own in tails for tail in own)
        tower.refuse_longer(self.n_prefix + length)
        g, k, device = len(tails), self.n_names, tower.positions.device
        ids = torch.full((g, k, length), -1)
        selection = torch.zeros(g, k, length, layout.n_context)
        ends = torch.empty(g, k, dtype=torch.long)
        for r, own in enumerate(tails):
            for n, tail in enumerate(own):
                ends[r, n] = len(tail) - 1
                for t, (kind, value) in enumerate(tail):
                    if kind == "token":
                        ids[r, n, t] = value
                    else:
                        selection[r, n, t, value] = 1.0
        numbers = {own: number for number, own in enumerate(distinct)}
        which = torch.tensor([numbers[tuple(map(tuple, own))] for own in names])  # (G,)
        ids, selection, ends = ids[which], selection[which], ends[which]
        words = tower.embed(ids.clamp(min=0).to(device)) * (ids >= 0).to(device)[..., None]
        self.register_buffer("words", words, persistent=False)
        in_tail = selection.any()
        self.register_buffer(  # (G, K, T, M), one where a context vector stands
            "selection", selection.to(words) if in_tail else None, persistent=False
        )
        self.register_buffer("ends", ends.to(device), persistent=False)
        self.packing = self._packing(slice(None))
        self._blocks: dict[int, list[tuple[slice, Packing]]] = {}  # by number
        start = tower.embed(torch.tensor([tower.start_token], device=device))
        self.register_buffer("start", start, persistent=False)
        self.packed = Packed([self]) if self.n_tokens <= DENSE else None

    def _packing(self, part: slice) -> Packing:
        """Where the padding of some of the names stands. It differs between runs that have different names."""
        if len(self.ends) > 1:
            return Packing()
        length = self.words.shape[2]
        return Packing((torch.arange(length, device=self.ends.device) <= self.ends[0, part, None]).flatten())

    @property
    def n_prefix(self) -> int:
        """Tokens that all names share."""
        return 1 if self.layout.class_specific else 1 + self.layout.n_before

    @property
    def n_tokens(self) -> int:
        """Tokens that the tower computes per run and sample."""
        in_tails = self.n_names * self.words.shape[2] if self.packing.positions is None else len(self.packing.positions)
        return self.n_prefix + in_tails

    def n_blocks(self, copies: int) -> int:
        """Into how many blocks the names are divided for this many runs × samples."""
        per_token = copies * self.tower.kept_bytes(1)
        if not torch.is_grad_enabled():
            per_token //= self.tower.layers  # one layer at a time is all that is ever held
        room = self.budget // per_token - self.n_prefix  # tokens of tails; every block computes the prefix
        return min(self.n_names, math.ceil((self.n_tokens - self.n_prefix) / max(room, 1)))

    def forward(self, context: Tensor) -> Tensor:
        """Text features (R, S, K, D), not normalised."""
        blocks = self.n_blocks(context.shape[0] * context.shape[1])
        if blocks == 1:
            if self.packed is not None:
                return self.packed.read([self], [context])[0]
            return self._read(context, slice(None), self.packing)
        if blocks not in self._blocks:  # kept, because finding it again would wait for the GPU
            size = math.ceil(self.n_names / blocks)
            parts = [slice(at, at + size) for at in range(0, self.n_names, size)]
            self._blocks[blocks] = [(part, self._packing(part)) for part in parts]
        reads = [partial(self._read, part=part, packing=packing) for part, packing in self._blocks[blocks]]
        return torch.cat([_Again.apply(read, context) for read in reads], dim=2)

    def _read(self, context: Tensor, part: slice, packing: Packing) -> Tensor:
        """Text features of some of the names."""
        r, s = context.shape[:2]
        ends = self.ends[:, part] if len(self.ends) == 1 else self.ends[:, part].repeat_interleave(s, dim=0)
        return self.tower(*self.embed(context, part), ends, packing).unflatten(0, (r, s))

    def embed(self, context: Tensor, part: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Prefix (R·S, P, W) and tails (R·S, K, T, W) of some of the names, without positions."""
        r, s = context.shape[:2]
        words = self.words[:, part]
        _, k, t, w = words.shape
        start = self.start.expand(r * s, 1, w)
        if self.layout.class_specific:
            prefix = start
        else:
            shared = context[:, :, : self.layout.n_before].reshape(r * s, -1, w)
            prefix = torch.cat([start, shared], dim=1)
        tails = words[:, None]  # (G, 1, K, T, W)
        if self.selection is not None:
            # A product with zeros and ones selects the vectors exactly, and its backward is deterministic everywhere.
            own = context[:, :, part] if self.layout.class_specific else context[:, :, None]  # (R, S, K or 1, M, W)
            tails = tails + self.selection[:, None, part] @ own
        return prefix, tails.expand(r, s, k, t, w).reshape(r * s, k, t, w)

    def affine(self) -> tuple[Tensor, Tensor]:
        """The tokens as a function of the context: x = base + selection · context.

        base (G, P + K·T, W) holds words and positions; selection (G or 1, P + K·T, M), or K·M columns where every
        name has a context of its own, is one where a context vector stands.
        """
        (g, k, t, w), p, m = self.words.shape, self.n_prefix, self.layout.n_context
        zero = self.words.new_zeros(1, 1, *self.layout.context_shape(k, w))
        prefix, tails = self.tower.with_positions(*self.embed(zero.expand(g, *zero.shape[1:])))
        shared = torch.eye(p, m + 1, device=zero.device, dtype=zero.dtype)[None, :, 1:]  # the start token is no context
        if self.selection is None:
            below = shared.new_zeros(1, k * t, m)
        elif self.layout.class_specific:
            below = self.selection[..., None, :] * torch.eye(k, device=zero.device, dtype=zero.dtype)[:, None, :, None]
            below, shared = below.reshape(g, k * t, k * m), shared.new_zeros(1, p, k * m)
        else:
            below = self.selection.flatten(1, 2)
        return torch.cat([prefix, tails.flatten(1, 2)], dim=1), torch.cat([shared.expand(len(below), -1, -1), below], 1)


class PromptForest(nn.Module):
    """Trees of one tower: what each gives alone, read as one sequence while that is short."""

    def __init__(self, trees: Sequence[PromptTree]):
        super().__init__()
        self.trees = cast("list[PromptTree]", nn.ModuleList(trees))
        self.packed = Packed(trees) if sum(tree.n_tokens for tree in trees) <= DENSE else None

    def forward(self, contexts: Sequence[Tensor]) -> list[Tensor]:
        """Text features (R, S, K, D) of each tree."""
        copies = contexts[0].shape[0] * contexts[0].shape[1]
        if self.packed is None or any(tree.n_blocks(copies) > 1 for tree in self.trees):
            return [tree(context) for tree, context in zip(self.trees, contexts, strict=True)]
        return self.packed.read(self.trees, contexts)


class _Again(torch.autograd.Function):
    """A function of one tensor whose backward pass computes it again (torch's checkpoint, without its imports)."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return None, torch.autograd.grad(ctx.function(x), x, gradient)[0]
