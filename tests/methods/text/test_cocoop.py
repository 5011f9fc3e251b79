"""CoCoOp: equal to the plain loop over images and classes, in bounded memory."""

import pytest
import torch
from text_side import F64, batch_of, bound, check_stack_equals_single_runs, stirred, train_accuracy
from torch.nn import functional as F

import tiny
from bayescal.backbones.defaults import CLIP
from bayescal.errors import BackboneError, MethodError
from bayescal.methods.contract import Method, Task, predict
from bayescal.methods.hyperparameters import default_config, draw_config
from bayescal.methods.text.cocoop import CoCoOp
from bayescal.text import conditional_prompts
from bayescal.text.conditional_prompts import ConditionalPrompts
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptTree
from bayescal.text.tower import TextTower


def plain_tower(tower: TextTower, prompt: torch.Tensor) -> torch.Tensor:
    """CLIP's text transformer on one prompt of embeddings (L, W) that ends with the end-of-text token → (D,)."""
    length, w = prompt.shape
    pad = torch.zeros(tower.context_length - length, w, dtype=prompt.dtype)
    x = torch.cat([prompt, pad]) + tower.positions
    mask = torch.full((tower.context_length,) * 2, float("-inf"), dtype=prompt.dtype).triu(1)
    for block in tower.blocks:
        q, k, v = block.qkv(block.norm1(x)).view(-1, 3, tower.heads, w // tower.heads).permute(1, 2, 0, 3)
        attention = (q @ k.transpose(1, 2) / (w // tower.heads) ** 0.5 + mask).softmax(-1) @ v
        x = x + block.out(attention.transpose(0, 1).reshape(-1, w))
        up = block.up(block.norm2(x))
        x = x + block.down(up * torch.sigmoid(1.702 * up))
    return tower.norm(x)[length - 1] @ tower.projection


def plain_logits(method: CoCoOp, params: dict, features: torch.Tensor, row: int) -> torch.Tensor:
    """One run's logits (N, C), image by image and class by class, in full-length prompts."""
    tower, task, layout = method.task.text, method.task, method.network.tree.layout
    embed = lambda ids: tower.embed(torch.tensor(ids, dtype=torch.long))  # noqa: E731
    out = []
    for f in features:
        n = f / f.norm()
        hidden = torch.relu(n @ params["meta.hidden.weight"][row] + params["meta.hidden.bias"][row])
        shift = hidden @ params["meta.out.weight"][row] + params["meta.out.bias"][row]
        context = params["context"][row] + shift
        before, after = context[: layout.n_before], context[layout.n_before :]
        scores = []
        for name in task.classes:
            pieces = [embed([tower.start_token]), before, embed(task.tokenize(name)), after]
            text = plain_tower(tower, torch.cat([*pieces, embed([*task.tokenize("."), tower.end_token])]))
            scores.append(task.logit_scale * (n @ text) / text.norm())
        out.append(torch.stack(scores))
    return torch.stack(out)


@pytest.mark.parametrize("options", [{}, {"position": "middle"}, {"context_init": "a photo of a"}], ids=str)
def test_equals_the_plain_loop(options):
    method, problem = bound("cocoop", seeds=(3, 4), **options)
    params, batch = stirred(method.init(None)), batch_of(problem, rows=2, n=5)
    logits = method.logits(method.prepare(params, 0), batch.features)
    assert logits.shape == (2, 1, 5, 3)

    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    plain = torch.stack([plain_logits(method, leaves, batch.features[row], row) for row in range(2)])
    assert torch.allclose(logits[:, 0], plain, atol=1e-10)

    loss = F.cross_entropy(plain.flatten(0, 1), batch.labels.flatten(), reduction="none").view(2, 5).mean(1)
    expected = torch.autograd.grad(loss.sum(), list(leaves.values()))
    grads, terms = method.gradients(params, batch)
    assert torch.allclose(terms["total"], loss, atol=1e-10)
    for (name, grad), value in zip(grads.items(), expected, strict=True):
        assert torch.allclose(grad, value, atol=1e-10), name
        assert float(grad.abs().max()) > 1e-8, name


def test_in_single_precision_too():
    method, problem = bound("cocoop", dtype=torch.float32)
    params = stirred(method.init(None))
    plain = plain_logits(method, params, problem.features[:6], 0)
    assert torch.allclose(method.logits(params, problem.features[:6])[0, 0], plain, atol=1e-5 * 10)  # logits are 10·cos


@pytest.mark.parametrize("position", ["end", "middle"])
def test_sharing_the_start_token_changes_nothing(position):
    tree = PromptTree(tiny.tiny_tower(F64), [[[2], [3, 4], [5, 6, 7]]], Layout(5, position), suffix=[1])
    contexts = torch.randn(6, 5, 16, dtype=F64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ConditionalPrompts(tree)(contexts), tree(contexts[None])[0], atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_size_of_the_pieces_changes_nothing(at_once, monkeypatch):
    method, problem = bound("cocoop", seeds=(3, 4))
    params, batch = stirred(method.init(None)), batch_of(problem, rows=2)
    whole, terms = Method.gradients(method, params, batch)  # through `loss`, one graph for everything
    probs = predict(method, params, problem.features).probs
    monkeypatch.setattr(ConditionalPrompts, "at_once", at_once)
    grads, again = method.gradients(params, batch)
    assert torch.allclose(again["ce"], terms["ce"], atol=1e-12)
    assert all(torch.allclose(grads[name], whole[name], atol=1e-12) for name in whole)
    assert torch.allclose(predict(method, params, problem.features).probs, probs, atol=1e-12)


def test_a_piece_keeps_no_more_than_it_may():
    """65 names in a tower of CLIP RN50's size: what autograd keeps for one image, times the images of a piece."""
    tower = TextTower(vocab_size=100, start_token=98, end_token=99)
    task = Task(tower, lambda text: [1] if text == "." else [2, 3], 100.0, tuple(map(str, range(65))), (("a", "b"),))
    tree = PromptTree(tower, [task.tokens(task.classes)], Layout(16), suffix=[1])
    prompts = ConditionalPrompts(tree)
    own = {p.untyped_storage().data_ptr() for p in [*tower.parameters(), *tree.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        prompts(torch.randn(1, 16, 512).requires_grad_())
    assert prompts.at_once >= 2
    assert sum(kept.values()) * prompts.at_once <= conditional_prompts.ACTIVATION_BYTES
    assert sum(kept.values()) * (prompts.at_once + 2) > 0.8 * conditional_prompts.ACTIVATION_BYTES  # nor far less


def test_prompts_that_are_too_long_are_refused():
    with pytest.raises(BackboneError, match="does not fit"):
        bound("cocoop", n_context=30)


def test_options():
    with pytest.raises(MethodError, match="no option 'class_specific'"):
        default_config(CoCoOp.space, CLIP, class_specific=True)
    drawn = {draw_config(CoCoOp.space, CLIP, trial)["position"] for trial in range(20)}
    assert drawn == {"end", "middle"}


def test_starts_near_its_context():
    """At the start an image may nudge the context, not replace it: the prompt is still the one that was asked for."""
    method, problem = bound("cocoop", seeds=range(20))
    params = method.init(None)
    shift = method.contexts(params, problem.features) - params["context"][:, None]
    assert float(shift.abs().max()) > 0
    assert float(shift.mean((0, 1, 2)).abs().max()) < 0.1  # no common offset over the runs


@pytest.mark.parametrize("position", ["end", "middle"])
def test_stack_equals_single_runs(position):
    numbers = [{"learning_rate": 0.02}, {"weight_decay": 0.01}, {"learning_rate": 0.1}]
    check_stack_equals_single_runs("cocoop", numbers, position=position, epochs=2)


def test_learns():
    assert train_accuracy("cocoop", epochs=60, learning_rate=0.02) > 0.9
