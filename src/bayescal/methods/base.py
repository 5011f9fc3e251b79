"""The contract that every method follows: parameters, loss, predict, search space.

A method is bound to a `Task` (what the names are, which text tower reads them) and to the `Runs` of one stack. Its
parameters are a dict of (R, …) tensors and its loss is an (R,) tensor per term; rows never mix.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayescal.backbones.text_tower import TextTower
from bayescal.errors import MethodError
from bayescal.optim import SGD, Optimizer, Params, cosine_with_warmup
from bayescal.space import Config, Space, number, setting

Schedule = Callable[[Tensor, int, int], Tensor]  # (base rates (R,), epoch, epochs) → rates (R,)
Terms = dict[str, Tensor]  # every tensor is (R,); "total" is what is minimised

GPU_CHUNKS = 8  # a GPU is asked for more images at once than a CPU, whose chunks should stay in its cache

# What every trained method has. Defaults that depend on the backbone are functions of its training defaults.
COMMON: Space = {
    "learning_rate": number(lambda b: b.learning_rate),
    "weight_decay": number(5e-4),
    "epochs": setting(lambda b: b.epochs),
    "batch_size": setting(lambda b: b.batch_size),
}


@dataclass(frozen=True)
class Task:
    """What is to be told apart, in words, and the frozen tower that reads the words."""

    text: TextTower
    tokenize: Callable[[str], list[int]]  # ids without start and end tokens
    logit_scale: float
    classes: tuple[str, ...]
    environments: tuple[tuple[str, ...], ...]  # of the training environments: once for all rows, or one per row

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_environments(self) -> int:
        return len(self.environments[0])

    @property
    def dim(self) -> int:
        return self.text.dim

    @property
    def device(self) -> torch.device:
        return self.text.positions.device

    def tokens(self, names: Sequence[str]) -> list[list[int]]:
        return [self.tokenize(name) for name in names]


@dataclass(frozen=True)
class Runs:
    """The R runs of one stack: their seeds, their numbers as (R,) tensors, and the settings they share."""

    seeds: Tensor
    numbers: dict[str, Tensor]
    settings: Config

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name] if name in self.settings else self.numbers[name]

    @classmethod
    def stack(cls, space: Space, configs: Sequence[Config], seeds: Sequence[int], device: Any = "cpu") -> "Runs":
        """One row per (config, seed); all configs must agree in their settings."""
        first = configs[0]
        settings = {name: first[name] for name in first if not space[name].is_number}
        if any(config[name] != settings[name] for config in configs for name in settings):
            raise MethodError("runs that differ in a setting cannot share a stack")
        numbers = {
            name: torch.tensor([float(config[name]) for config in configs], device=device)
            for name in first
            if space[name].is_number
        }
        return cls(torch.tensor(seeds, dtype=torch.int64, device=device), numbers, settings)


@dataclass(frozen=True)
class Batch:
    """One step's samples: features (R, B, D), labels (R, B), environments (R, B) counted 0 … E−1 in each row."""

    features: Tensor
    labels: Tensor
    environments: Tensor
    n_train: int  # training samples of a run: the N of β/N
    step: int | Tensor  # counts steps from 0: names the random numbers of this step


@dataclass(frozen=True)
class Samples:
    """A whole set of images of each run: features (R, n, D), labels (R, n), environments (R, n) as in `Batch`.

    Rows may hold fewer than n images: `mask` (R, n) says which entries count.
    """

    features: Tensor
    labels: Tensor
    environments: Tensor
    mask: Tensor


class Method(abc.ABC):
    """A learner on frozen features. Subclasses state what they learn, what it costs, and whose idea it is."""

    name: ClassVar[str]
    title: ClassVar[str]
    learns: ClassVar[str]
    cost: ClassVar[str]
    citation: ClassVar[str]
    space: ClassVar[Space]
    optimizer: ClassVar[Optimizer] = SGD()
    schedule: ClassVar[Schedule] = staticmethod(cosine_with_warmup)
    # Entries of the parameters that no gradient touches (caches, running weights, what validation chose).
    frozen: ClassVar[tuple[str, ...]] = ()
    # Images × rows × draws per call of `logits` in prediction, so that memory stays bounded; None: all at once, and
    # each row is judged on its own images alone (where images are costly, or answered differently in other company).
    predict_chunk: ClassVar[int | None] = 16384
    # Whether a step may be recorded and played back (`recording.py`): the same operations in every step, on tensors
    # alone. `batch.step` is then a tensor; a method that decides by it in Python says False and gets a number.
    recorded: ClassVar[bool] = True

    def __init__(self, task: Task, runs: Runs):
        self.task, self.runs = task, runs

    @abc.abstractmethod
    def init(self, train: Samples) -> Params:
        """Initial parameters, (R, …) each, from the runs' seeds (and, for cache models, the training set)."""

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch) -> Terms:
        """Every term of the objective, unweighted, and their weighted sum as "total"; (R,) each."""

    @abc.abstractmethod
    def prepare(self, params: Params, draws: int) -> Any:
        """What prediction needs and no image changes, computed once; draws = 0: the posterior mean."""

    @abc.abstractmethod
    def logits(self, prepared: Any, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """Class logits of images: features (N, D) or (R, N, D) → (R, S, N, C).

        `groups` (N,) numbers the place each image comes from, for methods that read it off a whole batch;
        None: all images come from one place.
        """

    def finish(self, params: Params, val: Samples) -> Params:
        """Choose on validation data what no gradient learns; returns the parameters with the choice in them."""
        return params

    def resets(self, step: int) -> Tensor | None:
        """Rows (R,) whose optimiser starts afresh before this step; None: no row."""
        return None

    def decays(self, name: str) -> bool:
        """Whether weight decay applies to this parameter."""
        return True

    def probed(self, params: Params) -> tuple[str, ...]:
        """Names of the parameters at which probes measure the pull of each loss term (`probes.py`); (): none."""
        return ()

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        """Gradient of the total; a method with an update rule of its own overrides this.

        Parameters without an entry in the answer are left alone in this step.
        """
        leaves = {n: value.detach().requires_grad_() for n, value in params.items() if n not in self.frozen}
        terms = self.loss({**params, **leaves}, batch)
        # Rows are independent, so the gradient of the sum is each row's own gradient.
        grads = torch.autograd.grad(terms["total"].sum(), list(leaves.values()), allow_unused=True)
        return (
            {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(leaves.items(), grads, strict=True)},
            {name: value.detach() for name, value in terms.items()},
        )

    def row_bytes(self, train: Samples) -> int:
        """What one more row of a stack takes in training, roughly and rather too much: `stacks.group_runs` asks.

        Here: parameters with their gradients, moments, best values and temporaries, and a batch on its way through.
        """
        held = 24 * sum(value[0].nbytes for value in self.init(train).values())
        return held + 16 * self.runs.settings.get("batch_size", 0) * train.features[0, 0].nbytes

    def images_at_once(self, n: int, draws: int = 1) -> int:
        """How many of n images a call of `logits` is given."""
        if self.predict_chunk is None:
            return max(1, n)
        chunk = self.predict_chunk * (GPU_CHUNKS if self.runs.seeds.is_cuda else 1)
        return max(1, chunk // (len(self.runs) * max(draws, 1)))

    def parameter_count(self, params: Params) -> int:
        """Learned numbers per run."""
        return sum(value[0].numel() for name, value in params.items() if name not in self.frozen)


@dataclass(frozen=True)
class Predictive:
    """Posterior predictive of N images under R runs."""

    probs: Tensor  # (R, N, C): mean of the softmax over the draws
    expected_entropy: Tensor = field(repr=False)  # (R, N): mean entropy of the draws


@torch.no_grad()
def predict(
    method: Method, params: Params, features: Tensor, draws: int = 0, groups: Tensor | None = None
) -> Predictive:
    """Posterior predictive of images (N, D) or (R, N, D), in chunks so that memory stays bounded."""
    prepared = method.prepare(params, draws)
    probs, entropy = [], []
    n = features.shape[-2]
    for part in torch.arange(n, device=features.device).split(method.images_at_once(n, draws)):
        places = None if groups is None else groups[part]
        log_p = method.logits(prepared, features[..., part, :], places).log_softmax(-1)  # (R, S, n, C)
        p = log_p.exp()
        probs.append(p.mean(1))
        entropy.append(-(p * log_p.clamp(min=-1e4)).sum(-1).mean(1))
    return Predictive(torch.cat(probs, dim=1), torch.cat(entropy, dim=1))
