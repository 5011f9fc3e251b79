"""Small steps are taken by one thread, large ones by all that torch has; whatever happens, the number is put back."""

from collections.abc import Iterator

import pytest
import torch

import tiny
from bayescal.engine import threads
from bayescal.engine.threads import LARGE_STEP, threads_for
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.methods.text.coop import CoOp
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack, step_operations, train_runs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("operations", "device", "expected"),
    [(0, "cpu", 1), (0.99 * LARGE_STEP, "cpu", 1), (LARGE_STEP, "cpu", 2), (0, "cuda", 2)],
)
def test_the_size_of_a_step_decides(operations, device, expected):
    with threads_for(operations, torch.device(device)) as used:
        assert used == torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_never_more_than_before_and_back_after_an_error():
    torch.set_num_threads(1)
    with threads_for(10 * LARGE_STEP, CPU) as used:
        assert used == 1
    torch.set_num_threads(2)
    with pytest.raises(KeyError), threads_for(0, CPU):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_a_training_uses_as_many_as_its_steps_deserve(monkeypatch):
    problem, seen = tiny.tiny_problem(), []
    loss = CoOp.loss
    monkeypatch.setattr(CoOp, "loss", lambda *given: seen.append(torch.get_num_threads()) or loss(*given))
    config = default_config(get_method("coop").space, tiny.Defaults, epochs=1, batch_size=18)
    runs = [Run(config, seed, torch.arange(18)) for seed in (1, 2)]
    train_runs("coop", problem, runs)
    bound, data, _ = bind_stack(CoOp, problem, runs)
    one, single, _ = bind_stack(CoOp, problem, runs[:1])
    assert step_operations(bound, data) == 2 * step_operations(one, single) > 0
    monkeypatch.setattr(threads, "LARGE_STEP", step_operations(bound, data))
    train_runs("coop", problem, runs)
    train_runs("coop", problem, runs[:1])
    assert seen == [1, 2, 1]
    assert torch.get_num_threads() == 2
