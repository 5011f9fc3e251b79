"""Prompt trees: learned context vectors + names → text features, with all shared computation done once."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescal.backbones.text_tower import Packing, TextTower
from bayescal.errors import BackboneError, BayescalWarning, DataError

if TYPE_CHECKING:
    from bayescal.backbones import Backbone

POSITIONS = ("end", "middle")


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
        self.n_names = len(names[0])
        if any(len(row) != self.n_names for row in names):
            raise BackboneError("every row of a stack needs the same number of names")
        n_after = layout.n_context - layout.n_before
        before_in_tail = layout.n_before if layout.class_specific else 0

        # One tail per name as a list of ("token", id) and ("context", index); shorter ones are padded at the right,
        # behind the end-of-text token, where a causal tower never looks.
        rows = [
            [
                [("context", i) for i in range(before_in_tail)]
                + [("token", i) for i in name]
                + [("context", layout.n_before + i) for i in range(n_after)]
                + [("token", i) for i in suffix]
                + [("token", tower.end_token)]
                for name in row
            ]
            for row in names
        ]
        length = max(len(tail) for row in rows for tail in row)
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
        words = tower.embed(ids.clamp(min=0).to(device)) * (ids >= 0).to(device)[..., None]
        self.register_buffer("words", words, persistent=False)  # (G, K, T, W), zero where no token stands
        in_tail = place.any()
        self.register_buffer(  # (G, K, T, M), one where a context vector stands
            "place", place.to(words) if in_tail else None, persistent=False
        )
        self.register_buffer("ends", ends.to(device), persistent=False)
        # Rows with names of their own have padding in other places: they keep it.
        real = torch.arange(length) <= ends[0, :, None] if g == 1 else None  # (K, T)
        self.packing = Packing(None if real is None else real.flatten().to(device))
        start = tower.embed(torch.tensor([tower.start_token], device=device))
        self.register_buffer("start", start, persistent=False)  # (1, W)

    @property
    def n_tokens(self) -> int:
        """Tokens that the tower computes per run and draw."""
        shared = 0 if self.layout.class_specific else self.layout.n_before
        in_tails = self.n_names * self.words.shape[2] if self.packing.places is None else len(self.packing.places)
        return 1 + shared + in_tails

    def forward(self, context: Tensor) -> Tensor:
        """Text features (R, S, K, D), not normalised."""
        r, s = context.shape[:2]
        _, k, t, w = self.words.shape
        start = self.start.expand(r * s, 1, w)
        if self.layout.class_specific:
            prefix = start
        else:
            shared = context[:, :, : self.layout.n_before].reshape(r * s, -1, w)
            prefix = torch.cat([start, shared], dim=1)
        tails = self.words[:, None]  # (G, 1, K, T, W)
        if self.place is not None:
            # A product with zeros and ones places the vectors exactly, and its backward is deterministic everywhere.
            own = context if self.layout.class_specific else context[:, :, None]  # (R, S, K or 1, M, W)
            tails = tails + self.place[:, None] @ own
        tails = tails.expand(r, s, k, t, w).reshape(r * s, k, t, w)
        ends = self.ends if self.ends.shape[0] == 1 else self.ends.repeat_interleave(s, dim=0)
        return self.tower(prefix, tails, ends, self.packing).view(r, s, k, -1)


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
