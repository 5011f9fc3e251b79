"""Penalties that start weak: weight 1 for the first steps, then λ, with a fresh optimiser at the change.

Both IRM and VREx need a network that already predicts something before invariance means anything, and both papers
raise the penalty by orders of magnitude at one step; Adam's running averages from before that step would be wrong.

When that is, is a share of the training. DomainBed draws 10^U(0, 4) steps of its 5,000; few-shot trainings have 50 to
500, and most of such draws would never raise the penalty. `ANNEAL_SHARE` is DomainBed's default and range, relative to
its 5,000 steps and cut off at the end of the training.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods.contract import Runs, Step, Task
from bayescal.methods.domain_generalization.base import VisualMethod
from bayescal.methods.domain_generalization.network import Network
from bayescal.methods.hyperparameters import Param, log10_uniform, number

ANNEAL_SHARE: Param = number(0.1, log10_uniform(-3.7, 0))


class AnnealedMethod(VisualMethod):
    """Its space has "anneal_share": the share of the steps with a weight of 1; 0: none, 1: all of them."""

    version = 3  # since annealing is a share of the training
    penalty: ClassVar[str]  # name of the number that weighs the penalty in the end

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        self.begin(0)  # outside a training the penalty has its full weight

    def begin(self, n_steps: int) -> None:
        # Rounded down, with a margin for float32, so that a share below 1 leaves at least the last step.
        self.change = (self.runs["anneal_share"] * n_steps + 1e-3).floor()  # (R,): the first step with full weight
        self._changes = set(self.change.int().tolist())

    def weight(self, step: Step) -> Tensor:
        """Weight of the penalty at this step: (R,)."""
        return torch.where(step >= self.change, self.runs[self.penalty], 1.0)

    def resets(self, step: int) -> Tensor | None:
        return self.change == step if step in self._changes else None
