"""DPLCLIP: environment features and prompts against direct loops; which images share a batch in prediction."""

import pytest
import torch
from text_side import F64, batch_of, bound, check_stack_equals_single_runs, stirred, train_accuracy
from torch.nn import functional as F

import tiny
from bayescal.backbones.defaults import CLIP
from bayescal.errors import MethodError
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config, draw_config
from bayescal.methods.text.dplclip import DPLCLIP, deal
from bayescal.text.conditional_prompts import ConditionalPrompts


def context_by_hand(method, params, images, row=0):
    """Context vectors (M, W) of one run from the images (n, D) of one environment, without dropout."""
    z = torch.stack([f / f.norm() for f in images]).mean(0) * images.shape[1] ** 0.5
    depth = method.runs["mlp_depth"]
    for i in range(depth):
        z = params[f"mlp.{i}.weight"][row].T @ z + params[f"mlp.{i}.bias"][row]
        z = torch.relu(z) if i < depth - 1 else z
    return z.view(method.runs["n_context"], -1)


def logits_by_hand(method, params, images, row=0):
    """Logits (n, C) of images that share one environment feature."""
    text = method.network.tree(context_by_hand(method, params, images, row)[None, None])[0, 0]  # (C, D)
    return method.task.logit_scale * F.normalize(images, dim=1) @ F.normalize(text, dim=1).T


@pytest.mark.parametrize("depth", [2, 3])
def test_each_image_is_scored_by_its_own_environment(depth):
    method, problem = bound("dplclip", seeds=(3, 4), mlp_depth=depth, mlp_width=8)
    params, batch = stirred(method.init(None)), batch_of(problem, rows=2)
    for row in range(2):
        ce = 0.0
        for e in range(3):
            mine = batch.environments[row] == e
            logits = logits_by_hand(method, params, batch.features[row, mine], row)
            ce += float(F.cross_entropy(logits, batch.labels[row, mine], reduction="sum")) / 24
        assert float(method.loss(params, batch)["ce"][row]) == pytest.approx(ce, abs=1e-10)


def test_an_environment_missing_from_the_batch_does_no_harm():
    method, problem = bound("dplclip", mlp_width=8)
    batch = batch_of(problem)
    keep = batch.environments[0] != 1
    batch = batch.__class__(batch.features[:, keep], batch.labels[:, keep], batch.environments[:, keep], 24, 0)
    grads, terms = method.gradients(stirred(method.init(None)), batch)
    assert torch.isfinite(terms["total"]).all()
    assert all(torch.isfinite(grad).all() and float(grad.abs().max()) > 0 for grad in grads.values())


def test_prediction_reads_each_place_in_batches():
    method, problem = bound("dplclip", seeds=(3, 4), predict_batch=8, mlp_width=8)
    params = stirred(method.init(None))
    groups = problem.environments.clone()
    groups[:7] = 5  # environments need not be numbered without gaps, and may be smaller than a batch
    logits = method.logits(params, problem.features, groups)
    assert logits.shape == (2, 1, 120, 3)
    batches = [batch[batch >= 0] for batch in deal(groups, 8)]
    assert sorted(torch.cat(batches).tolist()) == list(range(120))
    for batch in batches:
        assert len(set(groups[batch].tolist())) == 1
        for row in range(2):
            expected = logits_by_hand(method, params, problem.features[batch], row)
            assert torch.allclose(logits[row, 0, batch], expected, atol=1e-10)


def test_without_groups_all_images_come_from_one_place():
    method, problem = bound("dplclip", predict_batch=200)
    params = stirred(method.init(None))
    expected = logits_by_hand(method, params, problem.features)
    assert torch.allclose(method.logits(params, problem.features)[0, 0], expected, atol=1e-10)
    assert torch.allclose(predict(method, params, problem.features).probs[0], expected.softmax(-1), atol=1e-10)


def test_batches_are_even_and_no_place_is_read_in_its_given_order():
    groups = torch.tensor([4] * 65 + [1] * 3)
    batches = deal(groups, 32)
    assert batches.shape == (4, 32)
    assert sorted((batches >= 0).sum(1).tolist()) == [3, 21, 22, 22]  # 65 images: not 32 + 32 + 1
    assert torch.equal(batches, deal(groups, 32))
    # sorted by class, the given order would give each batch one class; dealt, each batch has some of all three
    labels = torch.arange(66) // 22
    for batch in deal(torch.zeros(66, dtype=torch.long), 22):
        assert labels[batch].bincount(minlength=3).min() >= 3


def test_a_single_image_is_its_own_environment():
    method, problem = bound("dplclip", mlp_width=8)
    params = stirred(method.init(None))
    one = problem.features[7:8]
    assert torch.allclose(method.logits(params, one)[0, 0], logits_by_hand(method, params, one), atol=1e-10)
    # ... so an image's answer depends on its company
    assert not torch.allclose(method.logits(params, problem.features[:20])[0, 0, 7:8], method.logits(params, one)[0, 0])
    assert method.logits(params, problem.features[:0]).shape == (1, 1, 0, 3)


def test_rows_may_have_images_of_their_own():
    method, problem = bound("dplclip", seeds=(3, 4), predict_batch=6, mlp_width=8)
    params = stirred(method.init(None))
    images = torch.stack([torch.arange(20), torch.arange(50, 70)])
    groups = problem.environments[images].clone()
    groups[1, 11:] = -1  # the second row has 11 images
    both = method.logits(params, problem.features[images], groups)
    for row, count in enumerate((20, 11)):
        mine = images[row, :count]
        alone = method.logits(params, problem.features[mine], problem.environments[mine])
        assert torch.allclose(both[row, 0, :count], alone[row, 0], atol=1e-12)


def test_the_size_of_the_pieces_changes_nothing(monkeypatch):
    method, problem = bound("dplclip", seeds=(3, 4), predict_batch=5, mlp_width=8)
    params = stirred(method.init(None))
    whole = method.logits(params, problem.features, problem.environments)
    monkeypatch.setattr(ConditionalPrompts, "at_once", 3)
    assert torch.allclose(method.logits(params, problem.features, problem.environments), whole, atol=1e-12)


def test_dropout_is_each_runs_own():
    method, _ = bound("dplclip", seeds=(3, 4), dropout=0.1)
    method.runs.numbers["dropout"] = torch.tensor([0.0, 0.4])
    x = torch.ones(2, 3, 5000, dtype=F64)
    dropped = method.drop(x, "stream", 7)
    assert torch.equal(dropped[0], x[0])
    assert float((dropped[1] == 0).double().mean()) == pytest.approx(0.4, abs=0.02)
    assert float(dropped[1].mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(dropped, method.drop(x, "stream", 7))
    assert not torch.equal(dropped, method.drop(x, "stream", 8))


def test_dropout_acts_in_training_alone():
    method, problem = bound("dplclip", dropout=0.5, mlp_width=32)
    params = stirred(method.init(None))
    first, second = (float(method.loss(params, batch_of(problem, step=step))["ce"]) for step in (0, 1))
    assert first != second
    assert torch.equal(*(predict(method, params, problem.features).probs for _ in range(2)))


def test_training_starts_from_the_words():
    method, problem = bound("dplclip", context_init="a photo of a")
    params = method.init(None)
    words = method.task.text.embed(torch.tensor(tiny.tokenize("a photo of a")))
    assert torch.allclose(params["mlp.1.bias"].view(4, -1), words)
    assert torch.allclose(method.contexts(params, problem.features[None, :2])[0], words.expand(2, -1, -1))


def test_options():
    for name in ("class_specific", "position"):
        with pytest.raises(MethodError, match=f"no option '{name}'"):
            default_config(DPLCLIP.space, CLIP, **{name: True})
    drawn = [draw_config(DPLCLIP.space, CLIP, trial) for trial in range(30)]
    assert {config["mlp_depth"] for config in drawn} == {2, 3}
    assert all(0 <= config["dropout"] <= 0.1 and config["mlp_width"] == 512 for config in drawn)
    with pytest.raises(MethodError, match="predict_batch 0"):
        bound("dplclip", predict_batch=0)


def test_stack_equals_single_runs():
    numbers = [{"learning_rate": 0.02, "dropout": 0.1}, {"dropout": 0.0}, {"learning_rate": 0.1, "dropout": 0.3}]
    check_stack_equals_single_runs("dplclip", numbers, mlp_width=16)


@pytest.mark.parametrize("depth", [2, 3])
def test_learns(depth):
    assert (
        train_accuracy(
            "dplclip", epochs=60, learning_rate=0.01, mlp_depth=depth, mlp_width=64, context_init="a photo of a"
        )
        > 0.9
    )
