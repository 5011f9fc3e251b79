"""Prompt trees: learned context vectors + names → text features, with all shared computation done once."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescal.backbones.text_tower import Packing, TextTower
from bayescal.errors import BackboneError, BayescalWarning, DataError
from bayescal.memory import activation_budget

if TYPE_CHECKING:
    from bayescal.backbones import Backbone

POSITIONS = ("end", "middle")
DENSE = 160  # tokens up to which trees are read as one sequence, where most of the mask is empty


@dataclass(frozen=True)
class Layout:
    """Where the context vectors stand.

    `end`: [V]1 … [V]M name "."        `middle`: half of the vectors before the name, half after.
    `class_specific`: every name has context vectors of its own instead of sharing one set.
    """

    n_context: int = 16
    position: str = "end"
    class_specific: bool = False

    def __post_init__(self) -> None:
        if self.position not in POSITIONS:
            raise BackboneError(f"position is {self.position!r}, expected one of {', '.join(POSITIONS)}")
        if self.n_context < 1:
            raise BackboneError(f"n_context is {self.n_context}, expected at least 1")

    @property
    def n_before(self) -> int:
        return self.n_context if self.position == "end" else self.n_context // 2

    def context_shape(self, n_names: int, width: int) -> tuple[int, ...]:
        """Shape of one run's context: (M, W), or (K, M, W) when class-specific."""
        shared = (self.n_context, width)
        return (n_names, *shared) if self.class_specific else shared


class PromptTree(nn.Module):
    """K prompts of R runs as one computation: context (R, S, [K,] M, W) → text features (R, S, K, D).

    `names` holds the token ids of the K names: once for all rows, or one list per row when rows have different
    names (for example other training environments); `suffix` are the ids that close a prompt, usually ".".

    Few tokens are read as one sequence under a mask. Of many, tails see their prefix and themselves without a mask over
    all tokens; and where the activations of all names would take more than `budget` bytes, they are read in blocks. The
    backward pass then reads a block again instead of keeping it: the same gradient, a third more work.
    """

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
        if any(len(row) != self.n_names for row in names):
            raise BackboneError("every row of a stack needs the same number of names")
        n_after = layout.n_context - layout.n_before
        before_in_tail = layout.n_before if layout.class_specific else 0

        # One tail per name as a list of ("token", id) and ("context", index); shorter ones are padded at the right,
        # behind the end-of-text token, where a causal tower never looks. Rows often have the same names: each list of
        # names is laid out once.
        distinct = dict.fromkeys(tuple(map(tuple, row)) for row in names)
        rows = [
            [
                [("context", i) for i in range(before_in_tail)]
                + [("token", i) for i in name]
                + [("context", layout.n_before + i) for i in range(n_after)]
                + [("token", i) for i in suffix]
                + [("token", tower.end_token)]
                for name in row
            ]
            for row in distinct
        ]
        length = max(len(tail) for row in rows for tail in row)
        tower.refuse_longer(self.n_prefix + length)
        g, k, device = len(rows), self.n_names, tower.positions.device
        ids = torch.full((g, k, length), -1)
        place = torch.zeros(g, k, length, layout.n_context)
        ends = torch.empty(g, k, dtype=torch.long)
        for r, row in enumerate(rows):
            for n, tail in enumerate(row):
                ends[r, n] = len(tail) - 1
                for t, (kind, value) in enumerate(tail):
                    if kind == "token":
                        ids[r, n, t] = value
                    else:
                        place[r, n, t, value] = 1.0
        numbers = {row: number for number, row in enumerate(distinct)}
        own = torch.tensor([numbers[tuple(map(tuple, row))] for row in names])  # (G,)
        ids, place, ends = ids[own], place[own], ends[own]
        words = tower.embed(ids.clamp(min=0).to(device)) * (ids >= 0).to(device)[..., None]
        self.register_buffer("words", words, persistent=False)  # (G, K, T, W), zero where no token stands
        in_tail = place.any()
        self.register_buffer(  # (G, K, T, M), one where a context vector stands
            "place", place.to(words) if in_tail else None, persistent=False
        )
        self.register_buffer("ends", ends.to(device), persistent=False)
        self.packing = self._packing(slice(None))
        self._blocks: dict[int, list[tuple[slice, Packing]]] = {}  # by number
        start = tower.embed(torch.tensor([tower.start_token], device=device))
        self.register_buffer("start", start, persistent=False)  # (1, W)
        self.packed = Packed([self]) if self.n_tokens <= DENSE else None

    def _packing(self, part: slice) -> Packing:
        """Where the padding of some of the names stands. Rows with names of their own have it in other places."""
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
        """Tokens that the tower computes per run and draw."""
        in_tails = self.n_names * self.words.shape[2] if self.packing.places is None else len(self.packing.places)
        return self.n_prefix + in_tails

    def n_blocks(self, copies: int) -> int:
        """Into how many blocks the names are divided for this many runs × draws."""
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
        if blocks not in self._blocks:  # kept: where the padding is, is a question that a GPU has to be waited for
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
        if self.place is not None:
            # A product with zeros and ones places the vectors exactly, and its backward is deterministic everywhere.
            own = context[:, :, part] if self.layout.class_specific else context[:, :, None]  # (R, S, K or 1, M, W)
            tails = tails + self.place[:, None, part] @ own
        return prefix, tails.expand(r, s, k, t, w).reshape(r * s, k, t, w)

    def affine(self) -> tuple[Tensor, Tensor]:
        """The tokens as a function of the context: x = base + place · context.

        base (G, P + K·T, W) holds words and positions; place (G or 1, P + K·T, M), or K·M columns where every name has
        a context of its own, is one where a context vector stands.
        """
        (g, k, t, w), p, m = self.words.shape, self.n_prefix, self.layout.n_context
        zero = self.words.new_zeros(1, 1, *self.layout.context_shape(k, w))
        prefix, tails = self.tower.with_positions(*self.embed(zero.expand(g, *zero.shape[1:])))
        shared = torch.eye(p, m + 1, device=zero.device, dtype=zero.dtype)[None, :, 1:]  # the start token is no context
        if self.place is None:
            below = shared.new_zeros(1, k * t, m)
        elif self.layout.class_specific:
            below = self.place[..., None, :] * torch.eye(k, device=zero.device, dtype=zero.dtype)[:, None, :, None]
            below, shared = below.reshape(g, k * t, k * m), shared.new_zeros(1, p, k * m)
        else:
            below = self.place.flatten(1, 2)
        return torch.cat([prefix, tails.flatten(1, 2)], dim=1), torch.cat([shared.expand(len(below), -1, -1), below], 1)


class PromptForest(nn.Module):
    """Trees of one tower: what each gives alone, read as one sequence while that is short."""

    def __init__(self, trees: Sequence[PromptTree]):
        super().__init__()
        self.trees = nn.ModuleList(trees)
        self.packed = Packed(trees) if sum(tree.n_tokens for tree in trees) <= DENSE else None

    def forward(self, contexts: Sequence[Tensor]) -> list[Tensor]:
        """Text features (R, S, K, D) of each tree."""
        copies = contexts[0].shape[0] * contexts[0].shape[1]
        if self.packed is None or any(tree.n_blocks(copies) > 1 for tree in self.trees):
            return [tree(context) for tree, context in zip(self.trees, contexts, strict=True)]
        return self.packed.read(self.trees, contexts)


class Packed(nn.Module):
    """Small trees as one sequence of tokens, cut at the ends of the names, and a mask that shows each its ancestors.

    What a token reads is the same in every step, but for the context vectors: x = base + place · context.
    """

    def __init__(self, trees: Sequence[PromptTree]):
        super().__init__()
        tokens, ends = [], []  # a token: tree, name (prefix: −1), place in the prompt, whether anyone reads it
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
        rows = max(map(len, ends))
        places = table[:, 3].cumsum(0)[torch.cat([each.expand(rows, -1) for each in ends], dim=1)] - 1
        device = trees[0].words.device
        parts = [tree.affine() for tree in trees]
        base = torch.cat([part.expand(rows, -1, -1) if len(part) < rows else part for part, _ in parts], dim=1)
        several = max(len(place) for _, place in parts)
        blocks = [torch.block_diag(*(place[row % len(place)] for _, place in parts)) for row in range(several)]
        self.register_buffer("base", base[:, keep.to(device)], persistent=False)  # (G, L, W), positions included
        self.register_buffer("place", torch.stack(blocks)[:, keep.to(device)], persistent=False)  # (G or 1, L, ΣM)
        # Rows that begin at multiples of 16 bytes, which attention on a GPU reads faster.
        aligned = mask.new_zeros(len(mask), -(-len(mask) // 8) * 8).to(device)
        aligned[:, : len(mask)] = mask
        self.register_buffer("mask", aligned[:, : len(mask)], persistent=False)  # (L, L)
        self.register_buffer("ends", places.to(device), persistent=False)  # (G, K of all trees)

    def read(self, trees: Sequence[PromptTree], contexts: Sequence[Tensor]) -> list[Tensor]:
        """Text features (R, S, K, D) of each tree."""
        r, s = contexts[0].shape[:2]
        context = torch.cat([context.flatten(2, -2) for context in contexts], dim=2)  # (R, S, ΣM, W)
        # A product with zeros and ones places the vectors exactly, and its backward is deterministic everywhere.
        x = self.place[:, None] @ context + self.base[:, None]
        ends = self.ends if len(self.ends) == 1 else self.ends.repeat_interleave(s, dim=0)
        features = trees[0].tower.read(x.flatten(0, 1), self.mask, ends).unflatten(0, (r, s))
        return list(features.split([tree.n_names for tree in trees], dim=2))


class _Again(torch.autograd.Function):
    """A function of one tensor whose backward pass computes it again (torch's checkpoint, without its imports)."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return None, torch.autograd.grad(ctx.function(x), x, slope)[0]


def encode_token_lists(tower: TextTower, prompts: Sequence[Sequence[int]], chunk: int = 256) -> Tensor:
    """Text features (N, D) of fixed prompts given as token ids without start and end tokens."""
    device = tower.positions.device
    out = []
    for at in range(0, len(prompts), chunk):
        part = [[*prompt, tower.end_token] for prompt in prompts[at : at + chunk]]
        length = max(map(len, part))
        ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in part], device=device)
        ends = torch.tensor([[len(prompt) - 1 for prompt in part]], device=device)
        start = tower.embed(torch.tensor([[tower.start_token]], device=device))
        with torch.no_grad():
            out.append(tower(start, tower.embed(ids)[None], ends)[0])
    return torch.cat(out)


def check_prompts(backbone: "Backbone", names: Sequence[str], n_context: int | None = None) -> None:
    """Refuse names that the text tower cannot read or tell apart; warn about those it never learned to read."""
    n_context = backbone.defaults.n_context if n_context is None else n_context
    overhead = n_context + 3  # start token, context, "." and end token
    seen: dict[tuple[int, ...], str] = {}
    for name in names:
        ids = backbone.tokenize(name)
        if len(ids) + overhead > backbone.text.context_length:
            raise DataError(
                f"the name {name[:60]!r} takes {len(ids)} tokens; with {n_context} context vectors the text tower has "
                f"room for {backbone.text.context_length - overhead}: give it shorter words"
            )
        if len(ids) + overhead > backbone.trained_context:
            _warn(f"the name {name[:60]!r} is longer than any text that backbone {backbone.name!r} was trained on")
        known = backbone.known_tokens
        read = tuple(i if known is None or i in known else -1 for i in ids)  # unknown tokens all look alike
        if read in seen:
            raise DataError(
                f"backbone {backbone.name!r} cannot tell the names {seen[read]!r} and {name!r} apart: it has never "
                "seen their words. Describe the classes in plain English words"
            )
        seen[read] = name
        if set(read) == {-1}:
            _warn(f"backbone {backbone.name!r} has never seen the name {name!r}: plain English words would help it")


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)


def normalized(features: Tensor) -> Tensor:
    return F.normalize(features, dim=-1)
