"""Captured training steps, played back, are the steps of an ordinary training; `fake_cuda` stands in for the GPU."""

import dataclasses
import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor

import tiny
from bayescal.engine import cuda_graph
from bayescal.engine.cuda_graph import WARM_UP, CudaGraphStep
from bayescal.engine.params import per_run
from bayescal.errors import BayescalWarning
from bayescal.methods import get_method, method_names
from bayescal.methods.domain_generalization.irm_games import IRMGames
from bayescal.training import loop
from bayescal.training.loop import Steps, epoch_order, epoch_views, gather_batch, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import bind_stack, train_runs
from bayescal.training.state import State
from fake_cuda import FakeCuda
from small_runs import LEARNING


@pytest.fixture
def fake_cuda(monkeypatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def with_views(problem: Problem) -> Problem:
    """Five noisy views of every image."""
    noise = torch.randn(120, 5, 12, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(problem, views=problem.features[:, None] + noise, view_rows=torch.arange(120))


def same(one: Tensor, two: Tensor) -> bool:
    """Equal bit for bit, NaN being NaN."""
    return torch.equal(one.nan_to_num(nan=12.5), two.nan_to_num(nan=12.5))


def check_same(ours, plain) -> None:
    """Parameters, curves of losses and accuracies, choices and messages of two trainings."""
    for one, two in zip(ours, plain, strict=True):
        assert one.stopped == two.stopped
        assert one.curves.keys() == two.curves.keys()
        for name in one.curves:
            assert same(torch.tensor(one.curves[name]), torch.tensor(two.curves[name])), name
        assert {k: best.epoch for k, best in one.best.items()} == {k: best.epoch for k, best in two.best.items()}
        for name in two.params:
            assert same(one.params[name], two.params[name]), name
            assert same(one.best_params[name], two.best_params[name]), name


def check_recording(fake_cuda, monkeypatch, name: str, problem: Problem, runs: list[Run], steps: int = 12) -> None:
    """Ordinary training against the same with recorded steps, which must really have been played back."""
    plain = train_runs(name, problem, runs)
    with monkeypatch.context() as patch:
        fake_cuda.train_as_on_a_gpu(patch)
        recorded = train_runs(name, problem, runs)
    assert fake_cuda.log.count("record on side") == 1
    assert fake_cuda.log.count("replay") == steps - cuda_graph.WARM_UP
    check_same(recorded, plain)


def check_loop(name: str, problem: Problem, runs: list[Run]) -> None:
    """Ordinary training against a loop that counts epochs and steps in Python, and takes everything anew from them."""
    method, data, _ = bind_stack(get_method(name), problem, runs)
    numbers, params = method.runs, method.init(training_samples(data))
    learned = {n: value for n, value in params.items() if n not in method.frozen}
    decay = {n: numbers["weight_decay"] for n in learned if method.decays(n)}
    factors = {n: method.rate_factor(n) for n in learned}
    moments = method.optimizer.init(learned)
    method.begin(numbers["epochs"] * epoch_order(numbers.seeds, 0, data.train.shape[1], numbers["batch_size"]).shape[1])
    for epoch in range(numbers["epochs"]):
        order = epoch_order(numbers.seeds, epoch, data.train.shape[1], numbers["batch_size"])
        rate = method.schedule(numbers["learning_rate"], epoch, numbers["epochs"])
        for i in range(order.shape[1]):
            step = epoch * order.shape[1] + i
            rows = method.resets(step)
            if rows is not None:
                moments = {n: torch.where(per_run(rows, value), 0.0, value) for n, value in moments.items()}
            batch = gather_batch(data, order[:, i], epoch_views(data, numbers.seeds, epoch), step)
            grads, _ = method.gradients(params, batch)
            method.optimizer.step(params, grads, moments, rate, decay, factors)
    for r, result in enumerate(train_runs(name, problem, runs)):
        for n in learned:
            assert torch.equal(result.params[n][0], params[n][r]), n


@pytest.mark.parametrize("name", LEARNING)
def test_training_is_a_plain_loop(make_runs, name):
    """Step and epoch are tensors in a training and numbers here: random numbers, views and penalties are the same."""
    check_loop(name, with_views(tiny.tiny_problem()), make_runs(name))


@pytest.mark.parametrize("name", [name for name in LEARNING if get_method(name).capturable])
def test_recorded_training_is_ordinary_training(fake_cuda, monkeypatch, make_runs, name):
    """Bit for bit: orders, random numbers, rates, changes of penalties and resets are all read anew in each step."""
    check_recording(fake_cuda, monkeypatch, name, tiny.tiny_problem(), make_runs(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bayes-cal", {"position": "middle", "class_specific": True}),
        ("cal", {"lambda_env": 0.0, "lambda_orth": 0.0}),  # without a second branch
        ("cocoop", {"position": "middle"}),
        ("clip-adapter", {"side": "both"}),
        ("mldg", {"second_order": True}),
    ],
)
def test_steps_of_other_settings(fake_cuda, monkeypatch, make_runs, name, options):
    check_recording(fake_cuda, monkeypatch, name, tiny.tiny_problem(), make_runs(name, **options))


@pytest.mark.parametrize("name", ["bayes-cal", "irm"])
def test_one_call_is_enough_to_warm_up(fake_cuda, monkeypatch, make_runs, name):
    """Whatever is made at its first use (sums of the losses, prior means) is there before the recording."""
    monkeypatch.setattr(cuda_graph, "WARM_UP", 1)
    check_recording(fake_cuda, monkeypatch, name, tiny.tiny_problem(), make_runs(name))


@pytest.mark.parametrize("name", ["cal", "erm"])
def test_every_epoch_has_views_of_its_own(fake_cuda, monkeypatch, make_runs, name):
    check_recording(fake_cuda, monkeypatch, name, with_views(tiny.tiny_problem()), make_runs(name))


@pytest.mark.parametrize("name", ["bayes-cal", "groupdro", "cocoop"])
def test_a_row_that_fails_while_steps_are_played_back_stops_alone(fake_cuda, monkeypatch, make_runs, name):
    """One image of the first row is not a number. All other batches are finite: a stopped row must not come back."""
    problem, runs = tiny.tiny_problem(), make_runs(name, n=45)
    order = epoch_order(torch.tensor([1]), 0, 45, 8)  # 6 steps
    fine = [image for image in runs[0].train.tolist() if image not in runs[1].train]
    step, bad = next((s, i) for s in (5, 4, 3) for i in runs[0].train[order[0, s]].tolist() if i in fine)
    features = problem.features.clone()
    features[bad] = torch.nan
    broken = dataclasses.replace(problem, features=features)
    check_recording(fake_cuda, monkeypatch, name, broken, runs, steps=24)
    stopped, goes_on = train_runs(name, broken, runs)
    assert stopped.stopped.startswith(f"stopped at step {step}:")
    assert all(value.isfinite().all() for value in stopped.params.values())
    check_same([goes_on], [train_runs(name, problem, runs)[1]])


def test_a_continued_training_is_recorded_anew(fake_cuda, monkeypatch, make_runs, tmp_path):
    """What comes out of a checkpoint are other tensors: the recording of the second part is made of those."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    problem, runs = tiny.tiny_problem(), make_runs("bayes-cal")
    plain = train_runs("bayes-cal", problem, runs)
    fake_cuda.train_as_on_a_gpu(monkeypatch)

    real = loop._train_epoch

    def stop(method, data, state, epoch, steps):
        if epoch == 2:
            raise KeyboardInterrupt
        return real(method, data, state, epoch, steps)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_train_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            train_runs("bayes-cal", problem, runs, checkpoints=tmp_path)
    check_same(train_runs("bayes-cal", problem, runs, checkpoints=tmp_path), plain)
    assert fake_cuda.log.count("record on side") == 2


def test_layers_in_16_bits_can_be_recorded(fake_cuda, monkeypatch, make_runs):
    """Scales of the gradients are found in each backward pass, without a look at them."""
    problem = dataclasses.replace(tiny.tiny_problem(), precision=torch.float16)
    check_recording(fake_cuda, monkeypatch, "bayes-cal", problem, make_runs("bayes-cal"))


def test_trees_that_are_no_sequence_can_be_recorded(fake_cuda, monkeypatch, make_runs):
    monkeypatch.setattr("bayescal.text.prompt_tree.DENSE", 0)
    check_recording(fake_cuda, monkeypatch, "bayes-cal", tiny.tiny_problem(), make_runs("bayes-cal"))


def test_names_in_blocks_can_be_recorded(fake_cuda, monkeypatch, make_runs):
    """Blocks are computed again in the backward pass, which is then a part of the recording."""
    monkeypatch.setattr("bayescal.text.prompt_tree.activation_budget", lambda device: 1)
    check_recording(fake_cuda, monkeypatch, "bayes-cal", tiny.tiny_problem(), make_runs("bayes-cal"))


def test_only_players_in_turn_are_not_recorded(fake_cuda, monkeypatch, make_runs):
    assert [name for name in method_names() if not get_method(name).capturable] == ["irm-games"]
    fake_cuda.train_as_on_a_gpu(monkeypatch)
    train_runs("irm-games", tiny.tiny_problem(), make_runs("irm-games"))
    assert fake_cuda.log == []


def test_players_in_turn_cannot_be_recorded(fake_cuda, monkeypatch, make_runs):
    """Who moves is decided in Python. Asked for the step, a recording refuses, and the training goes on without."""
    problem, runs = tiny.tiny_problem(), make_runs("irm-games")
    plain = train_runs("irm-games", problem, runs)
    real = IRMGames.turn
    monkeypatch.setattr(IRMGames, "capturable", True)
    monkeypatch.setattr(IRMGames, "turn", lambda self, step: real(self, int(step)))
    fake_cuda.train_as_on_a_gpu(monkeypatch)
    with pytest.warns(BayescalWarning, match="^irm-games cannot be captured as a CUDA graph and goes on call by call"):
        check_same(train_runs("irm-games", problem, runs), plain)
    assert "replay" not in fake_cuda.log


# CudaGraphStep itself


def test_elsewhere_a_function_is_simply_called():
    x = torch.zeros(())
    call = partial(CudaGraphStep(torch.device("cpu")), lambda: x.add_(float(x) + 1))  # which no recording would allow
    for expected in (1, 3, 7, 15):
        call()
        assert float(x) == expected


def test_warm_up_then_record_then_replay(fake_cuda):
    """Every call counts once, the one of the recording too: recording computes nothing."""
    x, called = torch.zeros(3), []

    def function() -> None:
        called.append(fake_cuda.current.name)
        x.add_(1)

    call = partial(CudaGraphStep(fake_cuda.device), function)
    for expected in range(1, 7):
        call()
        assert x.tolist() == [expected] * 3
    assert called == ["side"] * (WARM_UP + 1)
    warm_up = ["side waits for current", "current waits for side"]
    assert fake_cuda.log == [*warm_up * WARM_UP, "record on side", *["replay"] * 4]
    assert fake_cuda.current.name == "current"


def test_what_cannot_be_recorded_is_called(fake_cuda):
    x, called = torch.zeros(1, dtype=torch.int64), []

    def function() -> None:
        called.append(1)
        x.add_(1)
        called.append(int(x))  # a look at a value

    call = partial(CudaGraphStep(fake_cuda.device, "counting"), function)
    for _ in range(WARM_UP):
        call()
    with pytest.warns(BayescalWarning) as warned:
        call()
    (message,) = [str(each.message) for each in warned]
    assert message.startswith("counting cannot be captured as a CUDA graph and goes on call by call, which is slower (")
    assert message.endswith("_local_scalar_dense.default)")  # the first line of the reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expected in range(WARM_UP + 2, WARM_UP + 5):
            call()
            assert int(x) == expected  # once each; the attempt left nothing behind
    assert fake_cuda.log[-1] == "record on side"  # no second attempt, no other stream
    assert len(called) == 2 * (WARM_UP + 4) + 1  # the attempt broke off in the middle


def test_a_recording_goes_when_the_training_goes(fake_cuda, monkeypatch, make_runs):
    """Its memory is a step's activations: it must not wait for the garbage collector."""
    fake_cuda.train_as_on_a_gpu(monkeypatch)
    method, data, _ = bind_stack(get_method("bayes-cal"), tiny.tiny_problem(), make_runs("bayes-cal"))
    steps = Steps(method, data, State.fresh(method, method.init(training_samples(data)), ()))
    gc.collect()
    gc.disable()
    try:
        steps.begin(0)
        for _ in range(WARM_UP + 1):
            steps.advance()
        graph = weakref.ref(steps.graph_step.graph)
        assert graph() is not None
        del steps
        assert graph() is None
    finally:
        gc.enable()


def test_mistakes_in_a_function_are_not_taken_for_a_refusal(fake_cuda):
    call = partial(CudaGraphStep(fake_cuda.device), lambda: {}["no such parameter"])
    with pytest.raises(KeyError):
        call()
    call = partial(CudaGraphStep(fake_cuda.device), lambda: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError):  # in the warm-up
        call()


@pytest.mark.parametrize(
    "look",
    [
        lambda x: float(x[0]),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x[x > 1],
        lambda x: torch.equal(x, x),
        lambda x: torch.tensor([1.0, 2.0]) + x,
        lambda x: x[[0, 1]],
    ],
)
def test_the_stand_in_refuses_what_a_gpu_refuses(fake_cuda, look):
    """Or the tests above would show nothing."""
    x = torch.tensor([1.0, 2.0])
    call = partial(CudaGraphStep(fake_cuda.device), lambda: look(x))
    for _ in range(WARM_UP):
        call()
    with pytest.warns(BayescalWarning, match="not permitted when stream is capturing"):
        call()


def test_the_stand_in_plays_addresses_and_not_values(fake_cuda):
    """A tensor that takes a name's place is not read, a number is what it was, and a temporary is computed anew."""
    held = {"tensor": torch.zeros(1), "number": 1.0}
    start, total = held["tensor"], torch.zeros(1)

    def function() -> None:
        total.add_(held["tensor"] * 10 + held["number"])
        held["tensor"], held["number"] = held["tensor"] + 1, held["number"] + 1

    call = partial(CudaGraphStep(fake_cuda.device), function)
    for _ in range(WARM_UP):
        call()
    recorded = held["tensor"]
    expected = float(total)
    for value in (float(recorded), 7.0):
        recorded.fill_(value)
        call()
        expected += 10 * value + WARM_UP + 1
        assert float(total) == expected
    assert float(start) == 0.0
