"""Prompt trees against the plain text tower of open_clip: every prompt on its own, 77 tokens, causal mask."""

import copy
import itertools

import pytest
import torch

from bayescal.errors import BackboneError
from bayescal.text.open_clip_tower import text_tower_from_open_clip
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptForest, PromptTree
from bayescal.text.tower import TextTower

NAMES = ["dog", "alarm clock", "giraffe", "less than five"]


def plain_text_features(model, embeddings: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """open_clip's own transformer on full-length embedded prompts (K, 77, W), read at the end token."""
    x = embeddings + model.positional_embedding
    x = model.transformer(x, attn_mask=model.attn_mask)
    x = model.ln_final(x)
    return x[torch.arange(len(ends)), ends] @ model.text_projection


def plain_prompt(model, name: list[int], context: torch.Tensor, layout: Layout, suffix: list[int]):
    """One prompt written out token by token: ([SOT] V… name V… . [EOT] 0 …) and where its end token stands."""
    embed = lambda ids: model.token_embedding(torch.tensor(ids, dtype=torch.long))  # noqa: E731
    before, after = context[: layout.n_before], context[layout.n_before :]
    parts = [embed([49406]), before, embed(name), after, embed(suffix), embed([49407])]
    prompt = torch.cat([p for p in parts if len(p)])
    end = len(prompt) - 1
    return torch.cat([prompt, embed([0] * (77 - len(prompt)))]), end


@pytest.fixture(scope="module")
def towers(mini):
    """(open_clip model, tokenizer) of the embedded backbone and of a randomly initialised RN50-size text tower."""
    import open_clip

    torch.manual_seed(0)
    config = {
        "embed_dim": 1024,
        "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12},
    }
    rn50 = open_clip.CLIP(**config, quick_gelu=True).eval().requires_grad_(False)
    small = open_clip.CLIP(
        embed_dim=512,
        vision_cfg={**config["vision_cfg"]},
        text_cfg={"context_length": 77, "vocab_size": 49408, "width": 256, "heads": 4, "layers": 4},
    )
    state = small.state_dict()
    theirs = _open_clip_names(mini.text)
    small.load_state_dict({**state, **theirs})
    return {"mini": small.eval().requires_grad_(False), "rn50": rn50}


def _open_clip_names(tower: TextTower) -> dict[str, torch.Tensor]:
    names = {
        "norm1": "ln_1", "norm2": "ln_2", "out": "attn.out_proj", "up": "mlp.c_fc", "down": "mlp.c_proj",
    }  # fmt: skip
    state = {
        "token_embedding.weight": tower.token_embedding.weight,
        "positional_embedding": tower.positions,
        "ln_final.weight": tower.norm.weight,
        "ln_final.bias": tower.norm.bias,
        "text_projection": tower.projection,
    }
    for i, block in enumerate(tower.blocks):
        for key, value in block.state_dict().items():
            module, kind = key.split(".")
            theirs = f"attn.in_proj_{kind}" if module == "qkv" else f"{names[module]}.{kind}"
            state[f"transformer.resblocks.{i}.{theirs}"] = value
    return state


LAYOUTS = [Layout(m, p, csc) for m, p, csc in itertools.product((1, 4, 5, 16), ("end", "middle"), (False, True))]


@pytest.mark.parametrize("size", ["mini", "rn50"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_tree_equals_plain_tower(towers, mini, size, layout):
    model = towers[size]
    tower = text_tower_from_open_clip(model)
    names, suffix = [mini.tokenize(n) for n in NAMES], mini.tokenize(".")
    runs, samples = 2, 2
    g = torch.Generator().manual_seed(1)
    context = 0.05 * torch.randn(runs, samples, *layout.context_shape(len(NAMES), tower.width), generator=g)
    with torch.no_grad():
        ours = PromptTree(tower, [names], layout, suffix)(context)
        prompts, ends = [], []
        for r, s, k in itertools.product(range(runs), range(samples), range(len(NAMES))):
            vectors = context[r, s, k] if layout.class_specific else context[r, s]
            prompt, end = plain_prompt(model, names[k], vectors, layout, suffix)
            prompts.append(prompt)
            ends.append(end)
        expected = plain_text_features(model, torch.stack(prompts), ends).view_as(ours)
    # 1e-5 relative to the features' own size, which is of order one in both towers
    assert float((ours - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("dense", [0, 160])
@pytest.mark.parametrize("layout", [Layout(4, "end", False), Layout(4, "middle", False), Layout(4, "middle", True)])
def test_gradients_equal_the_plain_tower(towers, mini, monkeypatch, layout, dense):
    monkeypatch.setattr("bayescal.text.prompt_tree.DENSE", dense)
    model = towers["mini"].double()
    tower = text_tower_from_open_clip(model)
    names, suffix = [mini.tokenize(n) for n in NAMES], mini.tokenize(".")
    g = torch.Generator().manual_seed(1)
    shape = layout.context_shape(len(NAMES), tower.width)
    context = (0.05 * torch.randn(1, 1, *shape, generator=g, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(len(NAMES), tower.dim, generator=g, dtype=torch.float64)
    ours = (PromptTree(tower, [names], layout, suffix)(context)[0, 0] * weights).sum()
    prompts = [
        plain_prompt(model, n, context[0, 0, k] if layout.class_specific else context[0, 0], layout, suffix)
        for k, n in enumerate(names)
    ]
    plain = plain_text_features(model, torch.stack([p for p, _ in prompts]), [e for _, e in prompts])
    expected = (plain * weights).sum()
    a, b = (torch.autograd.grad(x, context)[0] for x in (ours, expected))
    towers["mini"].float()
    assert torch.allclose(a, b, atol=1e-10, rtol=1e-8)


def test_runs_with_names_of_their_own(mini):
    """A stack whose runs have other names (training environments) gives what each run gives alone."""
    names = [["photo", "art painting"], ["sketch", "x"], ["cartoon", "real world photo"]]
    tokens = [[mini.tokenize(n) for n in row] for row in names]
    layout = Layout(4, "middle", False)
    context = 0.05 * torch.randn(3, 2, 4, mini.text.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stacked = PromptTree(mini.text, tokens, layout, mini.tokenize("."))(context)
        for r in range(3):
            alone = PromptTree(mini.text, [tokens[r]], layout, mini.tokenize("."))(context[r : r + 1])
            assert torch.allclose(stacked[r], alone[0], atol=1e-5)


@pytest.mark.parametrize("layout", [Layout(4), Layout(5, "middle"), Layout(4, "middle", True)], ids=str)
def test_one_sequence_equals_tree_by_tree(mini, monkeypatch, layout):
    """Class and environment names, the latter other ones in each row, under a mask or as trees: the same in float64."""
    classes = [[mini.tokenize(name) for name in NAMES]]
    environments = [
        [mini.tokenize(name) for name in row] for row in (["photo", "art painting"], ["real world photo", "x"])
    ]
    tower = copy.deepcopy(mini.text).double()
    g, found = torch.Generator().manual_seed(0), []
    shapes = [layout.context_shape(len(names[0]), tower.width) for names in (classes, environments)]
    contexts = [0.05 * torch.randn(2, 3, *shape, generator=g, dtype=torch.float64).requires_grad_() for shape in shapes]
    for dense in (0, 25, 1000):  # no sequence; of a small tree alone; of both
        monkeypatch.setattr("bayescal.text.prompt_tree.DENSE", dense)
        trees = [PromptTree(tower, names, layout, mini.tokenize(".")) for names in (classes, environments)]
        forest = PromptForest(trees)
        assert dense == 25 or (forest.packed is not None) == (dense == 1000)
        features = forest(contexts)
        found.append((*features, *torch.autograd.grad(sum(part.square().sum() for part in features), contexts)))
    for other in found[1:]:
        for ours, plain in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)
    for tree in trees:
        tree.budget = 1  # too little memory for one sequence: blocks of names
    for ours, plain in zip(forest(contexts), found[0], strict=False):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)


def test_fixed_prompts_equal_open_clip(towers, mini):
    import open_clip

    texts = ["a photo of a dog.", "x", "a cartoon of less than five giraffes in the morning."]
    tokens = open_clip.SimpleTokenizer()(texts)
    with torch.no_grad():
        expected = towers["mini"].encode_text(tokens)
    ours = mini.text.encode([mini.tokenize(t) for t in texts], chunk=2)
    assert torch.allclose(ours, expected, atol=1e-5)


def test_text_after_the_end_token_does_not_matter(mini):
    """A longer neighbour pads a name's tail; the name's feature must not notice."""
    layout, suffix = Layout(4), mini.tokenize(".")
    context = 0.05 * torch.randn(1, 1, 4, mini.text.width)
    dog, long = mini.tokenize("dog"), mini.tokenize("a very long name of many words indeed")
    with torch.no_grad():
        alone = PromptTree(mini.text, [[dog]], layout, suffix)(context)[0, 0, 0]
        beside = PromptTree(mini.text, [[long, dog]], layout, suffix)(context)[0, 0, 1]
    assert torch.allclose(alone, beside, atol=1e-5)


def test_too_long_prompts_are_refused(mini):
    with pytest.raises(BackboneError, match="78 tokens does not fit"):
        PromptTree(mini.text, [[[320] * 60]], Layout(16))
    PromptTree(mini.text, [[[320] * 59]], Layout(16))


@pytest.mark.parametrize("bad", [{"position": "front"}, {"n_context": 0}])
def test_layout_refuses_nonsense(bad):
    with pytest.raises(BackboneError, match=str(next(iter(bad.values())))):
        Layout(**bad)
