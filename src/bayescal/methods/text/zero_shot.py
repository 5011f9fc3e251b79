"""CLIP zero-shot: nothing is learned; a class is the text feature of its name in a template, or the mean of several."""

from typing import ClassVar

from torch import Tensor

from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Method, Params, Samples, Terms
from bayescal.methods.hyperparameters import Space, setting
from bayescal.text.tower import normalized


class ZeroShot(Method):
    name = "clip"
    title = "CLIP zero-shot"
    learns = "nothing"
    cost = "none"
    citation = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
    trained_by_gradient = False
    uses_text = True
    reads_new_names = True
    space: ClassVar[Space] = {
        "template": setting(lambda b: b.template),  # several templates, separated by "|", are averaged
    }

    def init(self, train: Samples) -> Params:
        return {}

    def loss(self, params: Params, batch: Batch) -> Terms:
        raise MethodError("zero-shot classification has nothing to train")

    def text_features(self) -> Tensor:
        """Of the classes, the mean over the templates: (R, C, D)."""
        templates = self.runs["template"].split("|")
        if any("{}" not in template for template in templates):
            raise MethodError(f"template {self.runs['template']!r} needs a {{}} where the class name goes")
        prompts = [self.task.tokenize(t.replace("{}", name)) for t in templates for name in self.task.classes]
        text = normalized(self.task.text.encode(prompts))
        mean = text.view(len(templates), self.task.n_classes, -1).mean(0)
        return mean.expand(len(self.runs), *mean.shape)

    def prepare(self, params: Params, samples: int) -> Tensor:
        return losses.class_weights(self.text_features(), self.task.logit_scale)[:, None]  # (R, 1, C, D)

    def logits(self, prepared: Tensor, features: Tensor, groups: Tensor | None = None) -> Tensor:
        images = features[:, None] if features.dim() == 3 else features
        return losses.weighted_logits(images, prepared)
