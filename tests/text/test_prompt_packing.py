"""A packed sequence is base + selection · context: the numbers of its trees written out, and a mask for attention."""

import itertools

import pytest
import torch
from torch import Tensor

import tiny
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_packing import Packed
from bayescal.text.prompt_tree import PromptForest, PromptTree

F64 = torch.float64
SHARED = [[[2], [3, 4], [5, 6, 7]]]
OWN = [[[2], [3, 4, 5]], [[6, 7], [8]], [[9, 2, 3, 4], [5]]]  # of each run: other names, of other lengths
LAYOUTS = [Layout(m, p, csc) for m, p, csc in itertools.product((1, 4, 5), ("end", "middle"), (False, True))]


def contexts_of(trees: list[PromptTree], runs: int = 3, samples: int = 2) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = [tree.layout.context_shape(tree.n_names, tree.tower.width) for tree in trees]
    return [torch.randn(runs, samples, *shape, generator=g, dtype=F64) for shape in shapes]


def written_out(tree: PromptTree, context: Tensor) -> Tensor:
    """Every token of every prompt, prefix first, positions included: (R·S, P + K·T, W)."""
    prefix, tails = tree.tower.with_positions(*tree.embed(context))
    return torch.cat([prefix, tails.flatten(1, 2)], dim=1)


@pytest.mark.parametrize("suffix", [[], [1]])
@pytest.mark.parametrize("names", [SHARED, OWN], ids=["shared names", "own names"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_affine_is_the_tree_written_out(layout, names, suffix):
    """Exactly: zeros and ones round nothing."""
    tree = PromptTree(tiny.tiny_tower(F64), names, layout, suffix)
    (context,) = contexts_of([tree])
    base, selection = tree.affine()
    x = base[:, None] + selection[:, None] @ context.flatten(2, -2)
    assert torch.equal(x.flatten(0, 1), written_out(tree, context))
    assert len(base) == len(names)
    assert len(selection) in (1, len(names))
    # Each vector stands once, or once per name behind it; never two at one position.
    assert set(selection.unique().tolist()) == {0.0, 1.0}
    assert int(selection.sum(-1).max()) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_sequence_holds_what_its_trees_hold(monkeypatch, layout):
    """Of several trees, with the same names in all runs and with others: every token that any run needs, in order."""
    tower = tiny.tiny_tower(F64)
    trees = [PromptTree(tower, names, layout, [1]) for names in (SHARED, OWN)]
    forest, contexts = PromptForest(trees), contexts_of(trees)
    seen = []
    monkeypatch.setattr(tower, "read", lambda x, mask, ends: seen.append((x, mask, ends)) or torch.zeros(6, 5, 12))
    forest(contexts)
    ((x, mask, ends),) = seen
    keep, ends_of, at = [], [], 0
    for tree in trees:
        p, t = tree.n_prefix, tree.words.shape[2]
        longest = tree.ends.amax(0)  # (K,): what stands behind in every row is read by nobody
        kept = [True] * p + [i <= end for end in longest.tolist() for i in range(t)]
        number = torch.tensor(kept).cumsum(0) - 1 + at
        ends_of.append(number[p + t * torch.arange(tree.n_names) + tree.ends].expand(3, -1))
        keep.append(torch.tensor(kept))
        at += sum(kept)
    expected = [written_out(tree, context)[:, k] for tree, context, k in zip(trees, contexts, keep, strict=True)]
    assert torch.equal(x, torch.cat(expected, dim=1))
    assert mask.shape == (at, at)
    assert torch.equal(ends, torch.cat(ends_of, dim=1).repeat_interleave(2, dim=0))


def test_the_mask_shows_each_token_its_ancestors():
    """Two trees by hand: S v a E / b c E, and S v d E. A row is a token, x what it sees."""
    tower = tiny.tiny_tower(F64)
    trees = [PromptTree(tower, names, Layout(1)) for names in ([[[2], [3, 4]]], [[[5]]])]
    expected = """
        x..........
        xx.........
        xxx........
        xxxx.......
        xx..x......
        xx..xx.....
        xx..xxx....
        .......x...
        .......xx..
        .......xxx.
        .......xxxx
    """
    packed = Packed(trees)
    sees = packed.mask == 0
    assert ["".join("x" if one else "." for one in row) for row in sees.tolist()] == expected.split()
    assert bool((packed.mask[~sees] == float("-inf")).all())
    assert packed.ends.tolist() == [[3, 6, 10]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", range(1, 9))
def test_rows_of_the_mask_begin_at_multiples_of_16_bytes(n, dtype):
    """For 1 to 8 vectors: 7 to 14 tokens, which leave every remainder."""
    tower = tiny.tiny_tower(F64 if dtype == F64 else torch.float32).in_precision(dtype)
    tree = PromptTree(tower, [[[2], [3, 4]]], Layout(n))
    mask = tree.packed.mask
    assert mask.dtype == dtype
    assert mask.shape == (tree.n_tokens, tree.n_tokens)
    assert mask.stride(1) == 1
    assert mask.stride(0) * mask.element_size() % 16 == 0
    assert mask.data_ptr() % 16 == 0
    assert 0 <= mask.stride(0) - tree.n_tokens < 8
