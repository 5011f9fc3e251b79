"""What the visual methods share: a network, its prediction, and the loss of each environment."""

from typing import ClassVar

from torch import Tensor

from bayescal import objectives
from bayescal.errors import MethodError
from bayescal.methods.base import Batch, Method, Params, Runs, Samples, Schedule, Task
from bayescal.methods.visual.environments import environment_means
from bayescal.methods.visual.network import MLP, Network
from bayescal.optim import AdamW, Optimizer, constant
from bayescal.space import Space, log10_uniform, number, setting

# Rates and decay: DomainBed's ranges for networks trained from scratch. Its batch size is drawn too; here it is a
# setting without a draw, because runs of different batch sizes cannot share a stack.
VISUAL: Space = {
    "learning_rate": number(1e-3, log10_uniform(-4.5, -2.5)),
    "weight_decay": number(0.0, log10_uniform(-6, -2)),
    "epochs": setting(50),
    "batch_size": setting(32),
}


class VisualMethod(Method):
    """Cross-entropy training of `self.network`; a subclass says what it adds to the loss or to the update."""

    optimizer: ClassVar[Optimizer] = AdamW()  # DomainBed: Adam at a constant rate
    schedule: ClassVar[Schedule] = staticmethod(constant)
    space: ClassVar[Space] = VISUAL

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs)
        self.network: Network = MLP(task.dim, task.n_classes) if network is None else network
        self.frozen = (*self.frozen, *self.network.frozen)

    def init(self, train: Samples) -> Params:
        return self.network.init(self.runs.seeds)

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """Cross-entropy of each sample: (R, B)."""
        logits = self.network.classify(params, self.network.features(params, batch.features))
        return objectives.sample_cross_entropy(logits, batch.labels)

    def environment_losses(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """ℓ_g of each environment and whether it is in the batch: (R, E) each."""
        return environment_means(losses, batch.environments, self.task.n_environments)

    def learned(self, params: Params) -> Params:
        """The parameters that gradients move."""
        return {name: value for name, value in params.items() if name not in self.frozen}

    def decays(self, name: str) -> bool:
        return not name.endswith(".bias")

    def prepare(self, params: Params, draws: int) -> Params:
        return params

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.known_classes(self.network.classify(prepared, self.network.features(prepared, features)))[:, None]

    def known_classes(self, logits: Tensor) -> Tensor:
        """The logits, unless they are about other classes than the task's: a visual head cannot read new names."""
        if logits.shape[-1] != self.task.n_classes:
            known, asked = logits.shape[-1], self.task.n_classes
            raise MethodError(f"{self.title} knows the {known} classes it was trained with, not {asked}")
        return logits
