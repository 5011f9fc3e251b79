"""A stack's result: its runs are views of it, some of them are a stack again, and all of them predict together."""

import pytest
import torch

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training import stack as stacks
from bayescal.training.runs import StackResult
from bayescal.training.stack import train_runs, train_stack


@pytest.fixture(scope="module")
def problem():
    return tiny.tiny_problem()


@pytest.fixture(scope="module")
def runs():
    config = default_config(get_method("bayes-cal").space, tiny.Defaults)
    return [tiny.tiny_run(config, seed, environments) for seed, environments in ((1, (0, 1)), (2, (1, 2)), (3, (0, 1)))]


@pytest.fixture(scope="module")
def stack(problem, runs) -> StackResult:
    return train_stack("bayes-cal", problem, runs, trajectory=True, gradient_norms_every=2)


def same_memory(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def test_runs_are_views_of_their_stack(stack, runs):
    assert len(stack) == 3
    for r, (result, run) in enumerate(zip(stack, runs, strict=True)):
        assert (result.config, result.seed) == (run.config, run.seed)
        for name, value in result.params.items():
            assert value.shape == (1, *stack.params[name].shape[1:])
            assert torch.equal(value[0], stack.params[name][r])
            assert same_memory(value, stack.params[name])
            assert same_memory(result.best_params[name], stack.best["val"].params[name])
            assert torch.equal(result.trajectory[name][-1], value[0])
            assert same_memory(result.trajectory[name], stack.trajectory[name])
        assert result.best_epoch == stack.best["val"].epochs[r]
        assert result.curves["ce"] == stack.curves["ce"][:, r].tolist()
        assert result.gradient_norms["epoch"] == [0, 2]
    assert [result.environments for result in stack] == [
        ("photo", "sketch"),
        ("sketch", "cartoon"),
        ("photo", "sketch"),
    ]
    assert stack[-1].seed == 3
    with pytest.raises(IndexError):
        stack[3]


def test_a_slice_is_a_view_and_any_runs_are_a_stack(stack):
    part, picked = stack[1:], stack.take([2, 0])
    assert isinstance(part, StackResult)
    assert (part.seeds, picked.seeds) == ((2, 3), (3, 1))
    for name, value in stack.params.items():
        assert same_memory(part.params[name], value)
        assert torch.equal(picked.params[name], value[[2, 0]])
        assert torch.equal(picked.best["val"].params[name], stack.best["val"].params[name][[2, 0]])
    assert picked[0].curves == stack[2].curves
    assert picked[1].gradient_norms == stack[0].gradient_norms
    assert picked.best["val"].epochs == (stack[2].best_epoch, stack[0].best_epoch)


@pytest.mark.parametrize("checkpoint", ["last", "val"])
def test_a_stack_predicts_what_its_runs_predict(problem, stack, checkpoint):
    together = stack.predict(problem, problem.features, samples=3, checkpoint=checkpoint)
    assert together.probs.shape == (3, 120, 3)
    for r, result in enumerate(stack):
        alone = result.predict(problem, problem.features, samples=3, checkpoint=checkpoint)
        assert torch.allclose(together.probs[r], alone.probs[0], atol=1e-5)
        assert torch.allclose(together.expected_entropy[r], alone.expected_entropy[0], atol=1e-4)


def test_other_names_are_predicted_by_the_whole_stack(problem, stack):
    together = stack.predict(problem, problem.features[:4], samples=0, classes=("house", "photo"))
    assert together.probs.shape == (3, 4, 2)
    assert stack.predict(problem, problem.features[:0], samples=0, classes=("house", "photo")).probs.shape == (3, 0, 2)


def test_a_checkpoint_that_a_stack_does_not_have_is_refused_by_name(problem, stack):
    with pytest.raises(MethodError, match=r"no checkpoint 'ood_val'; it has 'last', 'val'$"):
        stack.predict(problem, problem.features, samples=0, checkpoint="ood_val")


def test_results_of_several_stacks_can_be_joined(problem, runs):
    first, second = (train_runs("bayes-cal", problem, [run])[0] for run in runs[:2])
    joined = StackResult.of([first, second])
    assert joined.seeds == (1, 2)
    for name, value in joined.best["val"].params.items():
        assert torch.equal(value, torch.cat([first.best_params[name], second.best_params[name]]))
        assert not same_memory(value, first.best_params[name])
    assert joined[1].curves == second.curves
    assert joined[0].best_epoch == first.best_epoch


def test_a_stack_that_is_grouped_already_is_not_grouped_again(problem, runs, monkeypatch):
    """Grouping binds a run to ask for its memory; whoever has grouped calls `train_stack`."""
    monkeypatch.setattr(stacks, "group_runs", lambda *given: pytest.fail("grouped again"))
    done = []
    train_stack("bayes-cal", problem, runs, progress=done.append)
    assert done == [3] * tiny.Defaults.epochs


def test_results_come_in_the_order_of_the_runs(problem):
    space = get_method("coop").space
    positions = ("end", "middle", "end", "middle")
    mixed = [
        tiny.tiny_run(default_config(space, tiny.Defaults, position=position), seed)
        for seed, position in enumerate(positions)
    ]
    results = train_runs("coop", problem, mixed)
    assert [(r.seed, r.config["position"]) for r in results] == list(enumerate(positions))
    by_class = train_runs(get_method("coop"), problem, mixed)  # as good as its name
    assert [r.curves for r in by_class] == [r.curves for r in results]
