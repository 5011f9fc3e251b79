"""Penalties that start weak: weight 1 for the first steps, then λ, with a fresh optimiser at the change.

Both IRM and VREx need a network that already predicts something before invariance means anything, and both papers
raise the penalty by orders of magnitude at one step; Adam's running averages from before that step would be wrong.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods.base import Runs, Task
from bayescal.methods.visual.base import VisualMethod
from bayescal.methods.visual.network import Network


class AnnealedMethod(VisualMethod):
    penalty: ClassVar[str]  # name of the number that weighs the penalty in the end
    anneal: ClassVar[str]  # name of the number that says after how many steps

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        self._changes = {math.ceil(step) for step in runs[self.anneal].tolist()}

    def weight(self, step: int) -> Tensor:
        """Weight of the penalty at this step: (R,)."""
        return torch.where(step >= self.runs[self.anneal], self.runs[self.penalty], 1.0)

    def resets(self, step: int) -> Tensor | None:
        return self.runs[self.anneal].ceil() == step if step in self._changes else None
