"""CLIP-Adapter: a bottleneck on the frozen features, mixed in by a small residual ratio.

    A(f) = ReLU(ReLU(f W1) W2),  W1: d → d/4,  W2: d/4 → d,      f* = α A(f) + (1 − α) f
    L = CE( s · cos(f_I*, f_T), y )

The image side is adapted by default (α = 0.2, on mini 0.5), the text side or both as a setting. No biases, so f* scales
with f and the length of a backbone's features does not matter. α stays as it is set: at 0 this is zero-shot CLIP.
"""

from functools import cached_property
from typing import ClassVar

from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.optim import AdamW, Optimizer, constant
from bayescal.engine.params import per_run
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Method, Params, Runs, Samples, Task, Terms
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.text.zero_shot import ZeroShot

SIDES = {"image": ("image",), "text": ("text",), "both": ("image", "text")}


class CLIPAdapter(Method):
    name = "clip-adapter"
    title = "CLIP-Adapter"
    learns = "a bottleneck network on image features, added to them"
    cost = "one pass of the bottleneck"
    citation = "Gao et al., CLIP-Adapter: Better Vision-Language Models with Feature Adapters, IJCV 2024"
    uses_text = True
    reads_new_names = True
    optimizer: Optimizer = AdamW()
    schedule = staticmethod(constant)
    space: ClassVar[Space] = {
        "learning_rate": number(3e-4),
        "weight_decay": number(0.01),
        "epochs": setting(30),
        "batch_size": setting(32),
        "ratio": number(lambda b: b.adapter_ratio),  # α
        "side": setting("image"),  # image, text or both
        "reduction": setting(4, at_least=1),
        "template": setting(lambda b: b.template),
    }

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        if runs["side"] not in SIDES:
            raise MethodError(f"side is {runs['side']!r}, expected one of {', '.join(SIDES)}")
        self.sides = SIDES[runs["side"]]

    @cached_property
    def text(self) -> Tensor:
        """Of the classes, by their names alone: (R, C, D)."""
        return ZeroShot(self.task, self.runs).text_features()

    def init(self, train: Samples) -> Params:
        width, narrow = self.task.dim, max(1, self.task.dim // self.runs["reduction"])
        shapes = {"down": (width, narrow), "up": (narrow, width)}
        params: Params = {}
        for side in self.sides:
            for layer, (n_in, n_out) in shapes.items():
                # The variance of torch's default linear layer: the start the published ratio was tuned on.
                noise = rng.normal(self.runs.seeds, f"adapter/{side}/{layer}", 0, (n_in, n_out))
                params[f"{side}.{layer}"] = noise / (3 * n_in) ** 0.5
        return params

    def adapted(self, params: Params, side: str, features: Tensor) -> Tensor:
        """f* of features (N, D) or (R, N, D) → (R, N, D); unchanged on a side that has no adapter."""
        if side not in self.sides:
            return features
        change = ((features @ params[f"{side}.down"]).relu() @ params[f"{side}.up"]).relu()
        ratio = per_run(self.runs["ratio"], change)
        return ratio * change + (1 - ratio) * features

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.logits(self.prepare(params, 0), batch.features)[:, 0]
        ce = losses.cross_entropy(logits, batch.labels)
        return {"ce": ce, "total": ce}

    def prepare(self, params: Params, samples: int) -> tuple[Params, Tensor]:
        return params, losses.class_weights(self.adapted(params, "text", self.text), self.task.logit_scale)

    def logits(self, prepared: tuple[Params, Tensor], features: Tensor, groups: Tensor | None = None) -> Tensor:
        params, weights = prepared
        return losses.weighted_logits(self.adapted(params, "image", features), weights)[:, None]
