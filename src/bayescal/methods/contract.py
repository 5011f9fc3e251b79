"""The contract that every method follows: parameters, loss, predict, search space.

A method is bound to a `Task` (what the names are, which text tower reads them) and to the `Runs` of one stack. Its
parameters are a dict of (R, …) tensors and its loss is an (R,) tensor per term; runs never mix.

What a method is and can do, it says in class attributes. Nobody asks for its name, its class or the look of its search
space, so that a method from outside the package is treated as one of its own.
"""

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayescal.engine.optim import SGD, Optimizer, cosine_with_warmup
from bayescal.engine.params import Params
from bayescal.errors import MethodError
from bayescal.methods.hyperparameters import Config, Space, number, setting
from bayescal.text.tower import LazyTower, TextTower

Step = int | Tensor  # counts steps from 0; a tensor (1,) where the step is a CUDA graph
Terms = dict[str, Tensor]  # every tensor is (R,); "total" is what is minimised

# Logits (images × runs × samples × classes) of one call: with thousands of classes, fewer images.
PREDICT_NUMBERS = 1 << 26
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
    """What is to be told apart, in words, and the frozen tower that reads the words.

    `text` is one of two towers, and `training` says which. In training it is the one whose layers may compute in a
    lower precision (`Problem.precision`); what is learned there is read by the tower of prediction, which has the
    precision of the weights. Without a lower precision the two are the same.
    """

    tower: TextTower | LazyTower
    tokenize: Callable[[str], list[int]]  # ids without start and end tokens
    logit_scale: float
    classes: tuple[str, ...]
    environments: tuple[tuple[str, ...], ...]  # of the training environments: once for all runs, or one per run
    training: bool = False  # whether `text` is the tower of training, and not that of prediction

    @property
    def text(self) -> TextTower:
        """Read from the backbone's file where nothing has asked for it before: ask for it when a text is to be read."""
        return self.tower.open() if isinstance(self.tower, LazyTower) else self.tower

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def n_environments(self) -> int:
        return len(self.environments[0])

    @property
    def dim(self) -> int:
        return self.tower.dim

    @property
    def device(self) -> torch.device:
        return self.tower.device

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
        """One run per (config, seed); all configs must agree in their settings."""
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
    """One step's samples: features (R, B, D), labels (R, B), environments (R, B) counted 0 … E−1 in each run."""

    features: Tensor
    labels: Tensor
    environments: Tensor
    n_train: int  # training samples of a run: the N of β/N
    step: Step  # names the random numbers of this step


@dataclass(frozen=True)
class Samples:
    """A whole set of images of each run: features (R, n, D), labels (R, n), environments (R, n) as in `Batch`.

    A run may have fewer than n images: `mask` (R, n) says which count.
    """

    features: Tensor
    labels: Tensor
    environments: Tensor
    mask: Tensor


class Method(abc.ABC):
    """A learner on frozen features. Subclasses state what they learn, what it costs, and whose idea it is.

    A subclass has the equations: `init`, `loss`, `prepare` and `logits`, on R runs at once. What the other attributes
    and methods are for is in docs/adding-a-method.md.

    Parameters
    ----------
    task : Task
        The names, and the text tower that reads them.
    runs : Runs
        The hyper-parameters and seeds of the R runs of a stack.

    Examples
    --------
    Nearest class mean, which learns nothing by gradient, on features that tell two classes apart:

    >>> import numpy as np, torch
    >>> from bayescal import Method, Problem, Run, load_backbone, train_runs
    >>> from bayescal.methods.losses import cosine_logits, one_hot
    >>> class NearestMean(Method):
    ...     name, title = "nearest-mean", "Nearest mean"
    ...     learns, cost = "the mean feature of each class", "none"
    ...     citation = "Snell et al., Prototypical Networks for Few-shot Learning, NeurIPS 2017"
    ...     space = {}
    ...     trained_by_gradient = False
    ...
    ...     def init(self, train):  # labels (R, n), features (R, n, D) → means (R, C, D)
    ...         member = one_hot(train.labels, self.task.n_classes, train.features.dtype)
    ...         return {"means": member.transpose(1, 2) @ train.features}
    ...
    ...     def loss(self, params, batch):
    ...         raise NotImplementedError
    ...
    ...     def prepare(self, params, samples):
    ...         return params["means"][:, None]  # (R, 1, C, D)
    ...
    ...     def logits(self, prepared, features, groups=None):  # (N, D) or (R, N, D) → (R, 1, N, C)
    ...         images = features[:, None] if features.dim() == 3 else features
    ...         return cosine_logits(images, prepared, self.task.logit_scale)
    >>> backbone, labels = load_backbone("mini"), np.arange(12) % 2
    >>> features = torch.eye(2, backbone.dim)[labels]
    >>> problem = Problem.of(backbone, features, labels, np.zeros(12, int), ["dog", "house"], ["photo"])
    >>> (result,) = train_runs(NearestMean, problem, [Run({}, seed=1, train=torch.arange(8))])
    >>> result.predict(problem, problem.features[8:], samples=0).probs.argmax(-1)
    tensor([[0, 1, 0, 1]])
    """

    # --- what it is, in words
    name: ClassVar[str]  # as typed: "bayes-cal"
    title: ClassVar[str]  # as printed: "Bayes-CAL"
    learns: ClassVar[str]
    cost: ClassVar[str]  # of a step
    citation: ClassVar[str]
    space: ClassVar[Space]
    # Goes up when the same config and seed give another result: records and checkpoints of before are not taken for it.
    # Also when `prepare` returns something else for `logits`: what models of before have kept is then not used.
    version: ClassVar[int] = 1

    # --- what it can do
    # Whether a loss is minimised by gradient; otherwise all is done in `init` and `finish`, and there are no epochs.
    trained_by_gradient: ClassVar[bool] = True
    # Whether prediction samples a posterior: `prepare` then gives different answers for samples = 0, 1, 2 …
    has_posterior: ClassVar[bool] = False
    # Whether the text tower reads the names of the classes, and those of the training environments.
    uses_text: ClassVar[bool] = False
    reads_environment_names: ClassVar[bool] = False
    # Whether it can predict among class names that were not in training.
    reads_new_names: ClassVar[bool] = False
    # Whether the text tower reads prompts that depend on the image, so that `logits` needs it. Otherwise a saved model
    # keeps what `prepare` returns (tensors, in dictionaries, lists and tuples), and predicts without the text tower.
    prompts_depend_on_images: ClassVar[bool] = False
    # Whether the answer to an image depends on the images given with it, such as those of its environment. Images of
    # one question are then answered together, and those of different questions never are.
    answers_depend_on_batch: ClassVar[bool] = False
    # Whether its loss has CAL's terms, weighted by lambda_env, lambda_irm and lambda_orth: the ranges that a data set
    # gives for these, and for the form of the prompts, are meant for such methods.
    alignment_terms: ClassVar[bool] = False
    # Whether what it learns is a table of its training images × classes, which thousands of classes make too large.
    keeps_images: ClassVar[bool] = False
    # Options of the space that are files. In records and their keys the name of a file counts, not its folder.
    file_options: ClassVar[tuple[str, ...]] = ()
    # Whether it learns on frozen features, and whether it can train an image model from pixels (`end_to_end/`).
    on_features: ClassVar[bool] = True
    end_to_end: ClassVar[bool] = False

    # --- how it is trained
    optimizer: Optimizer = SGD()  # of the class, or of an instance whose settings choose it
    # Parameters that no gradient touches (caches, running weights, what validation chose).
    frozen: tuple[str, ...] = ()
    # Images × runs × samples per call of `logits` in prediction, so that memory stays bounded; None: all at once, and
    # each run is evaluated on its own images alone (where images are costly, or the answer depends on the whole batch).
    predict_chunk: ClassVar[int | None] = 16384
    # Whether a step can be a CUDA graph (`engine/cuda_graph.py`): the same operations in every step, on tensors alone.
    # `batch.step` is then a tensor; a method that decides by it in Python says False and gets a number.
    capturable: ClassVar[bool] = True

    def __init__(self, task: Task, runs: Runs):
        self.task, self.runs = task, runs

    @staticmethod
    def schedule(base: Tensor, epoch: int, epochs: int) -> Tensor:
        """Learning rates (R,) of an epoch, from the config's; another one is `schedule = staticmethod(constant)`."""
        return cosine_with_warmup(base, epoch, epochs)

    @classmethod
    def epochs_of(cls, config: Config) -> int:
        """Epochs that a run with this config is trained for; 0 where nothing is trained by gradient."""
        return config["epochs"] if cls.trained_by_gradient else 0

    @abc.abstractmethod
    def init(self, train: Samples) -> Params:
        """Initial parameters, (R, …) each, from the runs' seeds (and, for cache models, the training set)."""

    @abc.abstractmethod
    def loss(self, params: Params, batch: Batch) -> Terms:
        """Every term of the objective, unweighted, and their weighted sum as "total"; (R,) each."""

    @abc.abstractmethod
    def prepare(self, params: Params, samples: int) -> Any:
        """What prediction needs and no image changes, computed once; samples = 0: the posterior mean."""

    @abc.abstractmethod
    def logits(self, prepared: Any, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """Class logits of images: features (N, D) or (R, N, D) → (R, S, N, C).

        `groups` (N,) numbers the environment each image comes from, for methods that read it off a whole
        batch; None: all images come from one.
        """

    def finish(self, params: Params, val: Samples) -> Params:
        """Choose on validation data what no gradient learns; returns the parameters with the choice in them."""
        return params

    def begin(self, n_steps: int) -> None:  # noqa: B027 - most methods do not ask
        """Told before the first step (and after a resume) how many steps the whole training has."""

    def resets(self, step: int) -> Tensor | None:
        """Runs (R,) whose optimiser starts afresh before this step; None: no run."""
        return None

    def stopped(self, params: Params) -> Tensor | None:
        """Runs (R,) that are at their end before the last step, and stay as they are; None: no run ever is."""
        return None

    def decays(self, name: str) -> bool:
        """Whether weight decay applies to this parameter."""
        return True

    def rate_factor(self, name: str) -> float:
        """What the learning rate is multiplied with for this parameter."""
        return 1.0

    def scale_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that are scales of a posterior, and not what it is about; (): none."""
        return ()

    def measured_parameters(self, params: Params) -> tuple[str, ...]:
        """Names of the parameters at which each loss term's gradient norm is measured; (): none."""
        return ()

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        """Gradient of the total; a method with an update rule of its own overrides this.

        Parameters that are not in the result are left alone in this step.
        """
        leaves = {n: value.detach().requires_grad_() for n, value in params.items() if n not in self.frozen}
        terms = self.loss({**params, **leaves}, batch)
        # Runs are independent, so the gradient of the sum is each run's own gradient.
        grads = torch.autograd.grad(terms["total"].sum(), list(leaves.values()), allow_unused=True)
        return (
            {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(leaves.items(), grads, strict=True)},
            {name: value.detach() for name, value in terms.items()},
        )

    def run_bytes(self, train: Samples) -> int:
        """What one more run takes in training, roughly and rather too much: for `training.stack.group_runs`.

        Here: parameters with their gradients, moments, best values and temporaries, and a batch on its way through, to
        its logits.
        """
        held = 24 * sum(value[0].nbytes for value in self.init(train).values())
        batch, images = self.runs.settings.get("batch_size", 0), train.labels.shape[1]
        logits = min(batch, images) * self.task.n_classes * train.features.itemsize
        return held + 16 * (batch * train.features[0, 0].nbytes + logits)

    def training_operations(self, train: Samples) -> float:
        """Floating-point operations of one run's training, roughly: for the time that is said, and what `auto` affords.

        Here: every parameter meets every image of every epoch, forwards and twice backwards.
        """
        if not self.trained_by_gradient:
            return 0.0
        return 6.0 * self.runs["epochs"] * train.labels.shape[1] * self.parameter_count(self.init(train))

    def steps(self, train: Samples) -> int:
        """Steps of one run's training."""
        size = max(1, self.runs["batch_size"])  # a smaller one is refused when training begins
        return self.runs["epochs"] * math.ceil(train.labels.shape[1] / size)

    def images_at_once(self, n: int, samples: int = 1) -> int:
        """How many of n images a call of `logits` is given."""
        if self.predict_chunk is None:
            return max(1, n)
        larger = GPU_CHUNKS if self.runs.seeds.is_cuda else 1
        chunk = min(self.predict_chunk, PREDICT_NUMBERS // max(1, self.task.n_classes)) * larger
        return max(1, chunk // (len(self.runs) * max(samples, 1)))

    def parameter_count(self, params: Params) -> int:
        """Learned numbers per run."""
        return sum(value[0].numel() for name, value in params.items() if name not in self.frozen)


@dataclass(frozen=True)
class Predictive:
    """Posterior predictive of N images under R runs."""

    probs: Tensor  # (R, N, C): mean of the softmax over the samples
    expected_entropy: Tensor = field(repr=False)  # (R, N): mean entropy of the samples


@torch.no_grad()
def predict(
    method: Method,
    params: Params,
    features: Tensor,
    samples: int = 0,
    groups: Tensor | None = None,
    prepared: Any = None,
) -> Predictive:
    """Posterior predictive of images (N, D) or (R, N, D), in chunks so that memory stays bounded.

    `prepared`: what `method.prepare(params, samples)` gave, where it is at hand.
    """
    prepared = method.prepare(params, samples) if prepared is None else prepared
    probs, entropy = [], []
    n = features.shape[-2]
    at_once = method.images_at_once(n, samples)
    for start in range(0, max(n, 1), at_once):
        part = slice(start, start + at_once)
        their_groups = None if groups is None else groups[part]
        log_p = method.logits(prepared, features[..., part, :], their_groups).log_softmax(-1)  # (R, S, n, C)
        p = log_p.exp()
        probs.append(p.mean(1))
        entropy.append(-(p * log_p.clamp(min=-1e4)).sum(-1).mean(1))
    return Predictive(torch.cat(probs, dim=1), torch.cat(entropy, dim=1))
