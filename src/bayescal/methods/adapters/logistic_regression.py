"""Multinomial logistic regression on the frozen features, around the zero-shot classifier or around nothing.

    min over W, b   C · Σ_i CE(W f_i/‖f_i‖ + b, y_i)  +  ½ ‖W − W₀‖²

f are image features, C the strength of the data against the penalty; b is free. W₀ = s·T, the text features of the
class names times the logit scale (`around` "text"): the maximum a posteriori under a Gaussian prior whose mean is the
zero-shot classifier. With `around` "zero" W₀ is 0, and this is scikit-learn's `LogisticRegression`.

The problem is convex and small, so it is solved in float64 when the method is bound to its training images (L-BFGS with
a line search, one run after the other), and nothing is left for the training loop.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Method, Params, Runs, Samples, Task, Terms
from bayescal.methods.hyperparameters import Space, log10_uniform, number, setting
from bayescal.methods.text.zero_shot import ZeroShot

CENTRES = ("text", "zero")
MAX_ITERATIONS = 200
USUAL_ITERATIONS = 50
# Pairs of steps and gradients that L-BFGS remembers: 16 bytes per parameter each, so fewer where there are many.
HISTORY, HISTORY_OF_MANY, MANY = 100, 10, 1 << 20
TOLERANCE = 1e-7  # of the gradient, per image: far below what changes a probability in its fifth digit


class LogisticRegression(Method):
    name = "logistic-regression"
    title = "Logistic regression"
    learns = "a linear classifier on image features, near the zero-shot one; solved exactly"
    cost = "one convex problem at the start"
    citation = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
    trained_by_gradient = False
    uses_text = True
    frozen = ("weight", "bias")
    predict_chunk = 65536  # an image is one product per class
    space: ClassVar[Space] = {
        "strength": number(10.0, log10_uniform(-1, 3)),  # C
        "around": setting("text"),  # text or zero: where the penalty pulls
        "template": setting(lambda b: b.template),
    }

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        if runs["around"] not in CENTRES:
            raise MethodError(f"around is {runs['around']!r}, expected one of {', '.join(CENTRES)}")

    def init(self, train: Samples) -> Params:
        runs = zip(
            train.features, train.labels, train.mask, self.centres(), self.runs["strength"].tolist(), strict=True
        )
        solved = [
            logistic_regression(features[own], labels[own], centre, strength)
            for features, labels, own, centre, strength in runs
        ]
        return {"weight": torch.stack([w for w, _ in solved]), "bias": torch.stack([b for _, b in solved])}

    def centres(self) -> Tensor:
        """W₀ of each run: (R, D, C)."""
        if self.runs["around"] == "zero":
            return torch.zeros(len(self.runs), self.task.dim, self.task.n_classes, device=self.task.device)
        text = ZeroShot(self.task, self.runs).text_features()  # (R, C, D)
        return losses.class_weights(text, self.task.logit_scale).transpose(1, 2)

    def run_bytes(self, train: Samples) -> int:
        numbers = (self.task.dim + 1) * self.task.n_classes
        pairs = 30 if numbers < MANY else 2 * HISTORY_OF_MANY  # seldom as many as it may remember
        return 8 * (pairs * numbers + train.features[0].numel())

    def training_operations(self, train: Samples) -> float:
        """In float64, which counts twice."""
        return 2 * 6.0 * USUAL_ITERATIONS * train.features[0].numel() * self.task.n_classes

    def parameter_count(self, params: Params) -> int:
        return sum(value[0].numel() for value in params.values())  # solved for, not trained: but learned

    def loss(self, params: Params, batch: Batch) -> Terms:
        raise MethodError("logistic regression is solved at the start: there is nothing to train step by step")

    def prepare(self, params: Params, samples: int) -> Params:
        if params["bias"].shape[-1] != self.task.n_classes:
            known = params["bias"].shape[-1]
            raise MethodError(f"{self.title} knows the {known} classes it was trained with, not {self.task.n_classes}")
        return params

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        scores = F.normalize(features, dim=-1) @ prepared["weight"] + prepared["bias"][:, None]
        return scores[:, None]  # (R, 1, N, C)


def logistic_regression(features: Tensor, labels: Tensor, centre: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """W (D, C) and b (C,) of one training set: features (n, D), labels (n,), centre W₀ (D, C)."""
    x, centre = F.normalize(features.double(), dim=-1), centre.double().contiguous()
    weight = centre.clone().requires_grad_()
    bias = torch.zeros_like(centre[0]).requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=TOLERANCE,
        tolerance_change=0.0,
        history_size=HISTORY if weight.numel() < MANY else HISTORY_OF_MANY,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        solver.zero_grad()
        fit = F.cross_entropy(x @ weight + bias, labels)
        total = fit + (weight - centre).square().sum() / (2 * strength * len(x))  # divided by C·n: the same minimum
        total.backward()
        return total

    with torch.enable_grad():
        solver.step(objective)
    return weight.detach().to(features.dtype), bias.detach().to(features.dtype)
