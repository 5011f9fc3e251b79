"""CLIP-Adapter: a bottleneck on the frozen features, mixed in by a small residual ratio.

    A(f) = ReLU(ReLU(f W1) W2),  W1: d → d/4,  W2: d/4 → d,      f* = α A(f) + (1 − α) f
    L = CE( s · cos(f_I*, f_T), y )

The image side is adapted by default (α = 0.2), the text side or both as a setting. No biases, so f* scales with f and
the length of a backbone's features does not matter. α stays as it is set: at 0 this is zero-shot CLIP.
"""

from typing import ClassVar

from torch import Tensor

from bayescal import objectives, rng
from bayescal.errors import MethodError
from bayescal.methods.base import Batch, Method, Params, Runs, Samples, Schedule, Task, Terms
from bayescal.methods.zero_shot import ZeroShot
from bayescal.optim import AdamW, Optimizer, constant, per_row
from bayescal.space import Space, number, setting

SIDES = {"image": ("image",), "text": ("text",), "both": ("image", "text")}


class CLIPAdapter(Method):
    name = "clip-adapter"
    title = "CLIP-Adapter"
    learns = "a bottleneck network on image features, added to them"
    cost = "one pass of the bottleneck"
    citation = "Gao et al., CLIP-Adapter: Better Vision-Language Models with Feature Adapters, IJCV 2024"
    optimizer: ClassVar[Optimizer] = AdamW()
    schedule: ClassVar[Schedule] = staticmethod(constant)
    space: ClassVar[Space] = {
        "learning_rate": number(3e-4),
        "weight_decay": number(0.01),
        "epochs": setting(30),
        "batch_size": setting(32),
        "adapter_ratio": number(0.2),  # α
        "adapter_side": setting("image"),  # image, text or both
        "adapter_reduction": setting(4),
        "template": setting(lambda b: b.template),
    }

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        if runs["adapter_side"] not in SIDES:
            raise MethodError(f"adapter_side is {runs['adapter_side']!r}, expected one of {', '.join(SIDES)}")
        self.sides = SIDES[runs["adapter_side"]]
        self.text = ZeroShot(task, runs).prepare({}, 0)[:, 0]  # (R, C, D)

    def init(self, train: Samples) -> Params:
        width, narrow = self.task.dim, max(1, self.task.dim // self.runs["adapter_reduction"])
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
        ratio = per_row(self.runs["adapter_ratio"], change)
        return ratio * change + (1 - ratio) * features

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.logits(self.prepare(params, 0), batch.features)[:, 0]
        ce = objectives.cross_entropy(logits, batch.labels)
        return {"ce": ce, "total": ce}

    def prepare(self, params: Params, draws: int) -> tuple[Params, Tensor]:
        return params, self.adapted(params, "text", self.text)

    def logits(self, prepared: tuple[Params, Tensor], features: Tensor, groups: Tensor | None = None) -> Tensor:
        params, text = prepared
        images = self.adapted(params, "image", features)
        return objectives.cosine_logits(images, text, self.task.logit_scale)[:, None]
