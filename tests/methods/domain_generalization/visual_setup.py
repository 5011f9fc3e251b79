"""A method bound to the tiny problem, with a batch that differs from row to row, and a plain network to check it by."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import tiny
from bayescal.engine.params import Params
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Method, Runs
from bayescal.methods.hyperparameters import default_config
from bayescal.training.loop import train
from bayescal.training.problem import Problem
from bayescal.training.stack import stack_data

torch.set_num_threads(1)  # on tensors this small, a second thread costs more than it gives

F64 = torch.float64
METHODS = (
    "visual-mlp", "erm", "irm", "vrex", "groupdro", "andmask", "rsc", "mmd", "sagnet", "mldg", "erdg", "irm-games",
    "stable",
)  # fmt: skip


@dataclass
class Case:
    method: Method
    params: Params
    batch: Batch

    def row(self, r: int) -> tuple["PlainNet", Tensor, Tensor, Tensor]:
        """One run as an ordinary network with its own samples: net, x (B, D), y (B,), e (B,)."""
        net = PlainNet({name: value[r].clone() for name, value in self.params.items()})
        return net, self.batch.features[r], self.batch.labels[r], self.batch.environments[r]


class PlainNet:
    """The MLP of one run, written out without stacks."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights = {name: value.detach().requires_grad_() for name, value in weights.items()}

    def features(self, x: Tensor) -> Tensor:
        w = self.weights
        h = x / x.norm(dim=1, keepdim=True) * x.shape[1] ** 0.5
        h = torch.relu(h @ w["hidden1.weight"] + w["hidden1.bias"])
        return torch.relu(h @ w["hidden2.weight"] + w["hidden2.bias"])

    def head(self, h: Tensor, name: str = "head") -> Tensor:
        return h @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)


def bind(problem: Problem, name: str, configs: list[dict], seeds: list[int], environments: tuple[str, ...]) -> Method:
    """The method of these runs, numbers and initial parameters in the precision of the problem's features."""
    method, dtype = get_method(name), problem.features.dtype
    runs = Runs.stack(method.space, configs, seeds)
    numbers = {n: torch.tensor([float(config[n]) for config in configs], dtype=dtype) for n in runs.numbers}
    bound = method(problem.task([environments]), Runs(runs.seeds, numbers, runs.settings))
    start = {n: v.to(dtype) for n, v in bound.init(None).items()}
    bound.init = lambda train: {n: v.clone() for n, v in start.items()}
    return bound


@dataclass
class Training:
    """A training of the real loop in float64, and what a plain loop needs to repeat it."""

    start: dict[str, Tensor]
    end: dict[str, Tensor]
    x: Tensor
    y: Tensor
    e: Tensor


def full_batch_training(name: str, environments: tuple[int, ...] = (0, 1), **options) -> Training:
    """Every epoch is one step on all 18 images."""
    problem = tiny.tiny_problem(dtype=F64)
    run = tiny.tiny_run(
        default_config(get_method(name).space, tiny.Defaults, batch_size=18, **options), 2, environments
    )
    words = tuple(tiny.ENVIRONMENTS[e] for e in environments)
    method = bind(problem, name, [run.config], [run.seed], words)
    end = train(method, stack_data(problem, [run], [list(environments)])).params
    only = lambda params: {n: v[0] for n, v in params.items()}  # noqa: E731
    data = problem.features[run.train], problem.labels[run.train], problem.environments[run.train]
    return Training(only(method.init(None)), only(end), *data)


def case(name: str, configs=({},), *, seeds=None, size: int = 24, step: int = 0, dtype=F64, absent: int | None = None):
    """`configs` has the options of each row; in row 0 environment `absent` has no sample."""
    problem = tiny.tiny_problem(dtype=dtype)
    method = get_method(name)
    full = [default_config(method.space, tiny.Defaults, **config) for config in configs]
    bound = bind(problem, name, full, list(seeds or range(1, len(full) + 1)), tiny.ENVIRONMENTS)
    params = bound.init(None)
    g = torch.Generator().manual_seed(5)
    rows = torch.stack([torch.randperm(120, generator=g)[:size] for _ in full])
    if absent is not None:
        pool = (problem.environments != absent).nonzero()[:, 0]
        rows[0] = pool[torch.randperm(len(pool), generator=g)[:size]]
    # More noise than the problem has, so that losses and gradients are far from zero.
    noise = torch.randn(len(full), size, problem.features.shape[1], generator=g, dtype=dtype)
    batch = Batch(problem.features[rows] + 2 * noise, problem.labels[rows], problem.environments[rows], 24, step)
    return Case(bound, params, batch)
