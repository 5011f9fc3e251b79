"""What the visual methods share: a network, its prediction, and the loss of each environment."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bayescal.engine.optim import Adam, Optimizer, constant
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Method, Params, Runs, Samples
from bayescal.methods.domain_generalization._environments import environment_means
from bayescal.methods.domain_generalization.network import MLP, Network
from bayescal.methods.hyperparameters import Space, log10_uniform, number, setting

# Rates and decay: DomainBed's ranges for networks trained from scratch. Its batch size is drawn too; here it is a
# setting without a draw, because runs of different batch sizes cannot share a stack.
VISUAL: Space = {
    "learning_rate": number(1e-3, log10_uniform(-4.5, -2.5)),
    "weight_decay": number(lambda b: b.network_weight_decay, log10_uniform(-6, -2)),
    "epochs": setting(50),
    "batch_size": setting(32),
}


class VisualTask(Protocol):
    """What visual methods need of their task. `Task` has it, and so has a task on pixels, which has no text tower."""

    @property
    def n_classes(self) -> int: ...

    @property
    def n_environments(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def device(self) -> torch.device: ...


class VisualMethod(Method):
    """Cross-entropy training of `self.network`; a subclass says what it adds to the loss or to the update."""

    end_to_end = True
    version = 2  # since weight decay is in Adam's gradient
    optimizer: Optimizer = Adam()  # DomainBed: Adam at a constant rate, weight decay in the gradient
    schedule = staticmethod(constant)
    space: ClassVar[Space] = VISUAL

    task: VisualTask

    def __init__(self, task: VisualTask, runs: Runs, network: Network | None = None):
        self.task, self.runs = task, runs
        self.network: Network = MLP(task.dim, task.n_classes) if network is None else network
        self.frozen = (*self.frozen, *self.network.frozen)

    def init(self, train: Samples | None) -> Params:
        return self.network.init(self.runs.seeds)

    def sample_losses(self, params: Params, batch: Batch) -> Tensor:
        """Cross-entropy of each sample: (R, B)."""
        logits = self.network.classify(params, self.network.features(params, batch.features))
        return losses.sample_cross_entropy(logits, batch.labels)

    def environment_losses(self, each: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """ℓ_g of each environment and whether it is in the batch: (R, E) each."""
        return environment_means(each, batch.environments, self.task.n_environments)

    def learned(self, params: Params) -> Params:
        """The parameters that gradients move."""
        return {name: value for name, value in params.items() if name not in self.frozen}

    def decays(self, name: str) -> bool:
        return not name.endswith(".bias")

    def prepare(self, params: Params, samples: int) -> Params:
        return params

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.known_classes(self.network.classify(prepared, self.network.features(prepared, features)))[:, None]

    def known_classes(self, logits: Tensor) -> Tensor:
        """The logits, unless they are about other classes than the task's: a visual head cannot read new names."""
        if logits.shape[-1] != self.task.n_classes:
            known, asked = logits.shape[-1], self.task.n_classes
            raise MethodError(f"{self.title} knows the {known} classes it was trained with, not {asked}")
        return logits
