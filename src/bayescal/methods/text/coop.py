"""CoOp: context optimisation. One branch, no Bayes, cross-entropy alone:  L = CE(Ŷ_C, y)."""

from typing import ClassVar

from torch import Tensor

from bayescal.methods import losses
from bayescal.methods.contract import COMMON, Batch, Method, Params, Runs, Samples, Task, Terms
from bayescal.methods.hyperparameters import Space
from bayescal.methods.text.networks import PromptNetwork


class CoOp(Method):
    name = "coop"
    title = "CoOp"
    learns = "context vectors of a class prompt"
    cost = "one prompt tree"
    citation = "Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022"
    uses_text = True
    reads_new_names = True
    predict_chunk = 65536  # an image is one cosine per class
    space: ClassVar[Space] = {**COMMON, **PromptNetwork.space}

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        self.prompts = PromptNetwork(task, runs, [task.classes], "class")

    def init(self, train: Samples) -> Params:
        return self.prompts.init()

    def run_bytes(self, train: Samples) -> int:
        return super().run_bytes(train) + self.prompts.kept_bytes()

    def training_operations(self, train: Samples) -> float:
        return self.steps(train) * self.prompts.training_operations()

    def measured_parameters(self, params: Params) -> tuple[str, ...]:
        return ("context",)

    def loss(self, params: Params, batch: Batch) -> Terms:
        logits = self.logits(self.prepare(params, 0), batch.features)[:, 0]
        ce = losses.cross_entropy(logits, batch.labels)
        return {"ce": ce, "total": ce}

    def prepare(self, params: Params, samples: int) -> Tensor:
        text = self.prompts.features(params["context"][:, None])  # (R, 1, C, D)
        return losses.class_weights(text, self.task.logit_scale)

    def logits(self, prepared: Tensor, features: Tensor, groups: Tensor | None = None) -> Tensor:
        images = features[:, None] if features.dim() == 3 else features
        return losses.weighted_logits(images, prepared)
