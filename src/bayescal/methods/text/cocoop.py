"""CoCoOp: conditional context optimisation. Every image shifts the context of its own prompts.

    v_m(x) = v_m + π(x),   π(x) = W2·relu(W1·n + b1) + b2,   n = f_I / ‖f_I‖        L = CE(Ŷ_C, y)

π is the meta-net, D → D/16 → W; one shift is added to all M context vectors, wherever they stand (`position`). The
weights start as torch's linear layers do; b2 starts at zero, because v carries an offset of its own and should start
where `context_init` puts it. The shift belongs to the image and not to a class, so contexts per class
(`class_specific`) have no meaning here and the method does not have that option.

Cost. There are images × classes prompts and no context is shared between images: a step is B prompt trees where CoOp
computes one, and prediction costs one tree per image. What exactness allows is saved: prompts end at their end-of-text
token, the context of an image is computed once for all classes, the start token once for all images, and the
gradient is taken over a few images at a time (the loss is a mean over images, so nothing is computed twice).
With the tower of CLIP RN50 (width 512, 12 layers), 16 context vectors and 65 names of two tokens, an image is
276 tokens in 12 layers (CoOp: 277 for the whole batch); a batch of 32 trains within 2 GB of memory, tower included,
however many runs are in the stack.
"""

from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine import rng
from bayescal.methods import losses
from bayescal.methods.contract import COMMON, Batch, Method, Params, Runs, Samples, Task, Terms
from bayescal.methods.hyperparameters import Space
from bayescal.methods.text.networks import PromptNetwork
from bayescal.text.conditional_prompts import ConditionalPrompts

REDUCTION = 16  # the meta-net's hidden layer has D/16 units


class CoCoOp(Method):
    name = "cocoop"
    title = "CoCoOp"
    learns = "context vectors of a class prompt and a meta-net that shifts them for every image"
    cost = "one prompt tree per image"
    citation = "Zhou et al., Conditional Prompt Learning for Vision-Language Models, CVPR 2022"
    uses_text = True
    reads_new_names = True
    prompts_depend_on_images = True
    # An image costs a prompt tree: each run reads its own images and no others. `logits` keeps memory bounded itself.
    predict_chunk = None
    space: ClassVar[Space] = {
        **COMMON,
        **{name: PromptNetwork.space[name] for name in ("n_context", "context_init", "position")},
    }

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        shared = replace(runs, settings={**runs.settings, "class_specific": False})
        self.network = PromptNetwork(task, shared, [task.classes], "class")
        self.prompts = ConditionalPrompts(self.network.tree)

    def init(self, train: Samples) -> Params:
        d, h, w = self.task.dim, max(1, self.task.dim // REDUCTION), self.task.text.width
        start = self.network.init()
        draw = partial(linear_init, self.runs.seeds, dtype=start["context"].dtype)
        return {
            **start,
            "meta.hidden.weight": draw("meta/hidden/weight", d, (d, h)),
            "meta.hidden.bias": draw("meta/hidden/bias", d, (h,)),
            "meta.out.weight": draw("meta/out/weight", h, (h, w)),
            "meta.out.bias": start["context"].new_zeros(len(self.runs), w),
        }

    def training_operations(self, train: Samples) -> float:
        return self.runs["epochs"] * train.labels.shape[1] * self.network.training_operations()  # a tree per image

    def contexts(self, params: Params, features: Tensor) -> Tensor:
        """The context of every image: (R, B, D) or (B, D) → (R, B, M, W)."""
        hidden = F.normalize(features, dim=-1) @ params["meta.hidden.weight"] + params["meta.hidden.bias"][:, None]
        shift = hidden.relu() @ params["meta.out.weight"] + params["meta.out.bias"][:, None]  # (R, B, W)
        return params["context"][:, None] + shift[:, :, None]

    def scores(self, contexts: Tensor, features: Tensor) -> Tensor:
        """Class logits of images under their own contexts: (n, M, W), (n, D) → (n, C)."""
        return losses.cosine_logits(features[:, None], self.prompts(contexts), self.task.logit_scale)[:, 0]

    def loss(self, params: Params, batch: Batch) -> Terms:
        ce = losses.cross_entropy(self.logits(params, batch.features)[:, 0], batch.labels)
        return {"ce": ce, "total": ce}

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        """As the base class's, with the graph of only a few images alive at any time.

        The loss is a sum over (run, image), so its gradient with respect to the contexts is taken in pieces; the
        meta-net and the context vectors then get theirs through all contexts at once.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        contexts = self.contexts(leaves, batch.features)  # (R, B, M, W)
        r, b = batch.labels.shape
        at_once = self.prompts.at_once
        pieces = zip(
            contexts.detach().flatten(0, 1).split(at_once),
            batch.features.flatten(0, 1).split(at_once),
            batch.labels.flatten().split(at_once),
            strict=True,
        )
        parts, gradients = [], []
        for context, features, labels in pieces:
            context = context.requires_grad_()
            each = losses.sample_cross_entropy(self.scores(context, features), labels)  # (n,)
            gradients.append(torch.autograd.grad(each.sum() / b, context)[0])
            parts.append(each.detach())
        gradient = torch.cat(gradients).view_as(contexts)
        grads = torch.autograd.grad(contexts, list(leaves.values()), gradient)
        ce = torch.cat(parts).view(r, b).mean(1)
        return dict(zip(leaves, grads, strict=True)), {"ce": ce, "total": ce}

    def prepare(self, params: Params, samples: int) -> Params:
        return params  # every prompt needs its image: nothing can be computed ahead

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        n_runs, at_once = len(self.runs), self.prompts.at_once
        parts = []
        for part in features.split(at_once, dim=-2):
            contexts = self.contexts(prepared, part)
            images = part.expand(n_runs, *part.shape[-2:])
            pairs = zip(contexts.flatten(0, 1).split(at_once), images.flatten(0, 1).split(at_once), strict=True)
            parts.append(torch.cat([self.scores(*pair) for pair in pairs]).view(n_runs, part.shape[-2], -1))
        return torch.cat(parts, dim=1)[:, None]  # (R, 1, N, C)


def linear_init(seeds: Tensor, stream: str, fan_in: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Weights or biases with the variance that torch.nn.Linear starts from, 1/(3·fan_in), one set per run."""
    return rng.normal(seeds, stream, 0, shape).to(dtype) * (3 * fan_in) ** -0.5
