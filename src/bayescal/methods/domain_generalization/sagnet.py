"""SagNet: reduce style bias. The class must be read off the content of a feature, whatever its style.

    style of h: its mean μ and standard deviation σ over the channels;  content: (h − μ)/σ
    L = CE(classify(content of i with mixed style of i and j), y)        trains features and head
      + CE(style head(content of j with style of i), y)                  trains the style head alone
      + λ · CE(style head(…), uniform)                                   trains the features alone, through the style

Mixed style: α·style_i + (1−α)·style_j, α ~ U(0, 1), j a random other sample. In the paper style is the statistics of
feature maps; on vector features it is the statistics over the channels of the last hidden layer. The three updates
of the paper's algorithm are taken in one step, at the same parameters.
"""

from typing import ClassVar

from torch import Tensor

from bayescal.engine import rng
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Samples, Task, Terms
from bayescal.methods.domain_generalization._environments import detached, uniform
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.domain_generalization.network import Heads, Network
from bayescal.methods.hyperparameters import Space, log10_uniform, number

EPS = 1e-5  # a feature whose channels are all equal has no content


class SagNet(VisualMethod):
    name = "sagnet"
    title = "SagNet"
    learns = "a three-layer network on image features and a style head"
    cost = "one pass of the network, three of a head"
    citation = "Nam et al., Reducing Domain Gap by Reducing Style Bias, CVPR 2021"
    space: ClassVar[Space] = {
        **VISUAL,
        "lambda_adversary": number(0.1, log10_uniform(-2, 1), drawn_as="sagnet_adversary"),
    }

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        self.style_head = Heads("style", 1, self.network.n_features, self.network.n_classes)

    def init(self, train: Samples) -> Params:
        return {**super().init(train), **self.style_head.init(self.runs.seeds)}

    def loss(self, params: Params, batch: Batch) -> Terms:
        seeds, size = self.runs.seeds, batch.labels.shape[1]
        h = self.network.features(params, batch.features)
        other = rng.permutations(seeds, "sagnet/other", batch.step, size)
        alpha = uniform(seeds, "sagnet/alpha", batch.step, (size, 1))

        content = losses.cross_entropy(self.network.classify(params, mix_style(h, other, alpha)), batch.labels)
        swapped = swap_content(h, other)
        style = losses.cross_entropy(self.style_head(params, swapped.detach())[:, 0], batch.labels)
        guess = self.style_head(detached(self.style_head.own(params)), swapped)[:, 0]
        adversary = -guess.log_softmax(-1).mean((1, 2))
        total = content + style + self.runs["lambda_adversary"] * adversary
        return {"ce": content, "style": style, "adversary": adversary, "total": total}


def statistics(h: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the channels: (R, B, F) → (R, B, 1) each."""
    return h.mean(-1, keepdim=True), h.var(-1, keepdim=True)


def mix_style(h: Tensor, other: Tensor, alpha: Tensor) -> Tensor:
    """Own content, style between one's own and another sample's: other (R, B), alpha (R, B, 1)."""
    mean, var = statistics(h)
    content = (h - mean) / (var + EPS).sqrt()
    mixed_mean = alpha * mean + (1 - alpha) * mean.gather(1, other[..., None])
    mixed_var = alpha * var + (1 - alpha) * var.gather(1, other[..., None])
    return content * (mixed_var + EPS).sqrt() + mixed_mean


def swap_content(h: Tensor, other: Tensor) -> Tensor:
    """Another sample's content, without its gradient, in one's own style."""
    mean, var = statistics(h)
    content = ((h - mean) / (var + EPS).sqrt()).detach()
    return content.gather(1, other[..., None].expand_as(content)) * (var + EPS).sqrt() + mean
