"""CLIP zero-shot: nothing is learned; a class is the text feature of its name in a template, or the mean of several."""

from typing import ClassVar

from torch import Tensor

from bayescal import objectives
from bayescal.errors import MethodError
from bayescal.methods.base import Batch, Method, Params, Samples, Terms
from bayescal.prompts import encode_token_lists, normalized
from bayescal.space import Space, setting


class ZeroShot(Method):
    name = "clip"
    title = "CLIP zero-shot"
    learns = "nothing"
    cost = "none"
    citation = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
    space: ClassVar[Space] = {
        "template": setting(lambda b: b.template),  # several templates, separated by "|", are averaged
    }

    def init(self, train: Samples) -> Params:
        return {}

    def loss(self, params: Params, batch: Batch) -> Terms:
        raise MethodError("zero-shot classification has nothing to train")

    def prepare(self, params: Params, draws: int) -> Tensor:
        templates = self.runs["template"].split("|")
        if any("{}" not in template for template in templates):
            raise MethodError(f"template {self.runs['template']!r} needs a {{}} where the class name goes")
        prompts = [self.task.tokenize(t.format(name)) for t in templates for name in self.task.classes]
        text = normalized(encode_token_lists(self.task.text, prompts))
        mean = text.view(len(templates), self.task.n_classes, -1).mean(0)
        return mean.expand(len(self.runs), 1, *mean.shape)  # (R, 1, C, D)

    def logits(self, prepared: Tensor, features: Tensor, groups: Tensor | None = None) -> Tensor:
        images = features[:, None] if features.dim() == 3 else features
        return objectives.cosine_logits(images, prepared, self.task.logit_scale)
