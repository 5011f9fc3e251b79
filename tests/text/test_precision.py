"""Layers in 16 bits: gradients of any size, row by row, through every way the tower is read; trainings that agree."""

import dataclasses

import pytest
import torch
from torch import Tensor

import tiny
from bayescal.errors import BayescalWarning
from bayescal.methods import get_method
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config
from bayescal.text.conditional_prompts import ConditionalPrompts
from bayescal.text.precision import lowered
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptForest, PromptTree
from bayescal.text.tower import TextTower
from bayescal.training.stack import bind_stack, train_runs

HALF, BRAIN, F64 = torch.float16, torch.bfloat16, torch.float64
TOLERANCE = {HALF: 0.008, BRAIN: 0.06}  # of the norm of a row; a number keeps 11 and 8 bits: 0.0005 and 0.004
SLOPES = (1e-12, 1e-6, 1.0, 1e5, 1e9)  # float16 has 6e-8 to 65,504
NAMES = [[2], [3, 4], [5, 6, 7], [8]]


def gentle(dtype: torch.dtype) -> TextTower:
    """Layers in `dtype`, and the rest in float32; for float64 everything."""
    return tiny.tiny_tower(F64, gentle=True) if dtype == F64 else tiny.tiny_tower(gentle=True).in_precision(dtype)


def tree_of(dtype: torch.dtype, layout: Layout = Layout(4)) -> PromptTree:  # noqa: B008
    return PromptTree(gentle(dtype), [NAMES], layout, [1])


def features_and_gradient(read, gradients: Tensor, layout: Layout = Layout(4)) -> tuple[Tensor, Tensor]:  # noqa: B008
    """Text features (R, K, D) of random contexts, and the gradient of weights · features in them, row by row."""
    g = torch.Generator().manual_seed(0)
    context = 0.3 * torch.randn(len(gradients), 1, *layout.context_shape(4, 16), generator=g, dtype=F64)
    weights = torch.randn(4, 12, generator=g, dtype=F64)
    context, weights = (x.to(gradients.dtype) for x in (context, weights))
    context.requires_grad_()
    features = read(context)[:, 0]
    gradient = weights * gradients[:, None, None]
    return features.detach(), torch.autograd.grad(features, context, gradient)[0]


def errors(ours: Tensor, expected: Tensor) -> Tensor:
    """Of each row, relative to its norm: (R,)."""
    difference = (ours.to(F64) - expected.to(F64)).flatten(1).norm(dim=1)
    return difference / expected.to(F64).flatten(1).norm(dim=1)


def test_small_and_large_slopes_beside_each_other():
    gradients = torch.tensor(SLOPES)
    _, ours = features_and_gradient(tree_of(HALF), gradients)
    _, expected = features_and_gradient(tree_of(F64), gradients.to(F64))
    assert float(errors(ours, expected).max()) < TOLERANCE[HALF]


def test_without_scales_such_slopes_vanish_or_overflow(monkeypatch):
    """What the test above would find of a tower whose tensors are simply converted."""
    convert = lambda x, dtype: (x.to(dtype), lambda y: y.to(x.dtype))  # noqa: E731
    monkeypatch.setattr("bayescal.text.tower.lowered", convert)
    _, gradient = features_and_gradient(tree_of(HALF), torch.tensor(SLOPES))
    assert float(gradient[0].abs().max()) == 0.0
    assert not gradient[3:].isfinite().any()


def test_scales_round_nothing():
    """What float16 can say comes back as it was, whatever its size."""
    x = torch.zeros(5, 100, requires_grad=True)
    low, raised = lowered(x, HALF)
    numbers = torch.randn(5, 100, generator=torch.Generator().manual_seed(0)).to(HALF).float()
    gradient = numbers * 2.0 ** torch.tensor([-100, -30, 0, 30, 100])[:, None]
    assert torch.equal(torch.autograd.grad(raised(low), x, gradient)[0], gradient)


def test_slopes_times_a_power_of_two_are_gradients_times_it():
    """Bit for bit, through the whole tower."""
    powers = 2.0 ** torch.tensor([0, -60, -31, -1, 1, 20, 60])
    tree = tree_of(HALF)
    for gradient in (1.0, 0.7, 1.9999):
        one = [features_and_gradient(tree, torch.full_like(powers, gradient) * p)[1] for p in (1.0, powers)]
        assert torch.equal(one[1], one[0] * powers.view(-1, 1, 1, 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_rows_do_not_disturb_each_other(bad):
    """A row without a gradient gets none; one whose gradient is not finite says so, and its neighbours are as ever."""
    tree = tree_of(HALF)
    _, usual = features_and_gradient(tree, torch.tensor([0.3, 2.0, 1e-9]))
    _, gradient = features_and_gradient(tree, torch.tensor([0.3, bad, 1e-9]))
    assert torch.equal(gradient[::2], usual[::2])
    assert bool((gradient[1] == 0).all()) if bad == 0.0 else not gradient[1].isfinite().all()


def test_every_backward_pass_through_one_graph_has_scales_of_its_own():
    """Probes go through a graph once per loss term, and terms differ by orders of magnitude."""
    x = torch.ones(2, 3, requires_grad=True)
    low, raised = lowered(x, HALF)
    y = raised(low * 2)
    for gradient in (1e-12, 1e9, 3.0):
        (found,) = torch.autograd.grad(y, x, torch.full_like(y, gradient), retain_graph=True)
        torch.testing.assert_close(found, torch.full_like(x, 2 * gradient), rtol=1e-3, atol=0)


def test_its_own_precision_is_left_alone():
    x = torch.ones(2, 3, requires_grad=True)
    low, raised = lowered(x, torch.float32)
    assert low is x
    assert raised(x) is x


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize(
    ("way", "layout"),
    [
        ("sequence", Layout(4)),
        ("sequence", Layout(5, "middle", True)),
        ("tree", Layout(4)),
        ("tree", Layout(5, "middle", True)),
        ("blocks", Layout(4)),
        ("blocks", Layout(4, "middle")),
        ("conditional", Layout(4)),
        ("conditional", Layout(5, "middle")),
        ("forest", Layout(4)),
    ],
)
def test_every_way_of_reading_agrees_with_float64(monkeypatch, way, layout, dtype):
    if way not in ("sequence", "forest"):
        monkeypatch.setattr("bayescal.text.prompt_tree.DENSE", 0)

    def reader(kind: torch.dtype):
        tree = tree_of(kind, layout)
        if way == "conditional":
            prompts = ConditionalPrompts(tree)
            return lambda context: prompts(context[:, 0])[:, None]
        if way == "forest":
            forest = PromptForest([tree, PromptTree(tree.tower, [[[6], [7]]], layout, [1])])
            assert forest.packed.mask.dtype == kind
            return lambda context: forest([context, context])[0]
        if way == "blocks":
            tree.budget = 1
            assert tree.n_blocks(3) == len(NAMES)
        assert (tree.packed is None) == (way != "sequence")
        return tree

    gradients = torch.tensor([1.0, 1e-9, 1e6])
    ours = features_and_gradient(reader(dtype), gradients, layout)
    expected = features_and_gradient(reader(F64), gradients.to(F64), layout)
    for one, two in zip(ours, expected, strict=True):
        assert one.dtype == torch.float32
        assert float(errors(one, two).max()) < TOLERANCE[dtype]
        assert float(errors(one, two).max()) > 1e-5  # and it was not float32 all along


def test_a_tower_in_another_precision_shares_all_but_its_layers():
    tower = tiny.tiny_tower()
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    other = tower.in_precision(HALF)
    assert other.in_precision(HALF) is other
    assert tower.in_precision(torch.float32) is tower
    assert (tower.dtype, other.dtype) == (torch.float32, HALF)
    for name in ("token_embedding", "positions", "norm", "projection"):
        assert getattr(other, name) is getattr(tower, name)
    assert all(value.dtype == HALF for value in other.blocks.state_dict().values())
    assert other.kept_bytes(100) * 2 == tower.kept_bytes(100)
    other.blocks[0].up.weight.zero_()
    assert before.keys() == tower.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in tower.state_dict().items())
    assert not any(parameter.requires_grad for parameter in other.parameters())


@pytest.mark.parametrize("name", ["coop", "cal", "bayes-cal", "cocoop", "dplclip"])
@pytest.mark.parametrize(("dtype", "gap"), [(HALF, 0.008), (BRAIN, 0.06)])
def test_trainings_agree_with_float32(name, dtype, gap):
    """Every loss of every epoch, the layers really being in 16 bits. Half of ten seeds are within 0.002 and 0.02."""
    problem = tiny.tiny_problem(gentle=True)
    low = dataclasses.replace(problem, precision=dtype)
    space = get_method(name).space
    options = {"epochs": 6, "mlp_width": 8, "learning_rate": tiny.Defaults.learning_rate / 2}
    config = default_config(space, tiny.Defaults, **{k: v for k, v in options.items() if k in space})
    runs = [tiny.tiny_run(config, seed) for seed in (1, 2)]
    assert bind_stack(get_method(name), low, runs)[0].task.text.dtype == dtype
    for plain, ours in zip(train_runs(name, problem, runs), train_runs(name, low, runs), strict=True):
        assert ours.curves["total"] != plain.curves["total"]
        assert plain.curves["total"][0] - plain.curves["total"][-1] > 2 * gap  # while the losses fall
        for term in plain.curves.keys() - {"val", "test", "kl"}:  # the KL is as large as its weight is small
            assert ours.curves[term] == pytest.approx(plain.curves[term], rel=0, abs=gap), term
        for parameter, value in plain.params.items():
            assert ours.params[parameter].dtype == value.dtype == torch.float32


def test_predictions_are_read_by_the_tower_as_it_is():
    problem = tiny.tiny_problem(gentle=True)
    low = dataclasses.replace(problem, precision=BRAIN)
    config = default_config(get_method("bayes-cal").space, tiny.Defaults)
    (result,) = train_runs("bayes-cal", low, [tiny.tiny_run(config, 1)])
    assert result.bind(low).task.text is low.text is problem.text
    for samples in (0, 3):
        ours, plain = (result.predict(each, problem.features, samples=samples).probs for each in (low, problem))
        assert torch.equal(ours, plain)
    run = tiny.tiny_run(config, 1)
    in_training = predict(bind_stack(get_method("bayes-cal"), low, [run])[0], result.params, problem.features).probs
    assert not torch.equal(in_training, result.predict(low, problem.features, samples=0).probs)


def test_a_stack_of_rows_in_16_bits_is_its_runs_one_by_one():
    """Scales belong to rows: who stands beside a row changes nothing but the order of sums."""
    problem = dataclasses.replace(tiny.tiny_problem(gentle=True), precision=HALF)
    config = default_config(get_method("cal").space, tiny.Defaults)
    runs = [tiny.tiny_run(config, seed) for seed in (1, 2, 3)]
    for run, row in zip(runs, train_runs("cal", problem, runs), strict=True):
        (alone,) = train_runs("cal", problem, [run])
        for name, value in alone.params.items():
            torch.testing.assert_close(row.params[name], value, rtol=0, atol=2e-3)


def test_a_checkpoint_of_another_precision_is_not_continued(tmp_path):
    problem = tiny.tiny_problem(gentle=True)
    run = tiny.tiny_run(default_config(get_method("coop").space, tiny.Defaults), 1)
    train_runs("coop", dataclasses.replace(problem, precision=BRAIN), [run], checkpoints=tmp_path)
    (after,) = train_runs("coop", problem, [run], checkpoints=tmp_path)
    (fresh,) = train_runs("coop", problem, [run])
    assert after.curves == fresh.curves


def test_a_tower_that_is_too_loud_for_float16_trains_as_it_is():
    """Towers that were trained in bfloat16 may have activations beyond 65,504."""
    problem = tiny.tiny_problem(gentle=True)
    block = problem.text.blocks[0]
    block.up.weight.mul_(3e5)  # beyond float16 behind the activation; what is read is the same but for its scale
    block.down.weight.div_(3e5)
    run = tiny.tiny_run(default_config(get_method("coop").space, tiny.Defaults), 1)
    half, lower = (dataclasses.replace(problem, precision=dtype) for dtype in (torch.float16, torch.bfloat16))
    with pytest.warns(BayescalWarning, match="cannot compute in float16: .* It is trained in float32"):
        assert half.training_text is problem.text
    assert lower.training_text.dtype == torch.bfloat16
    (one,), (two,) = train_runs("coop", half, [run]), train_runs("coop", problem, [run])
    assert one.curves == two.curves
    assert one.stopped is None
