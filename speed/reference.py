"""The plain loop: prompt learning with an open_clip model as the field's code does it, one run at a time.

Each step encodes its images again, builds full-length prompts for all class and environment names, runs the whole text
transformer under its causal mask, and takes both penalties by double backward. Nothing is slow on purpose: the image
tower runs without a graph, the double backward goes through the logits alone and not through the text tower. The noise
of a posterior sample is the package's own, so that losses can be compared number by number; everything else is torch,
open_clip and nothing of the package.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from bayescal.engine import rng

MOMENTUM = 0.9
CLIP_LOGIT_SCALE = 100.0  # of every published CLIP; a new model starts at 14.3

Tokenize = Callable[[list[str]], Tensor]  # texts → (N, 77): start token, ids, end token, zeros


def random_clip(architecture: str = "RN50-quickgelu") -> tuple[nn.Module, Tokenize]:
    """An open_clip model of this size with random weights, frozen, and its tokenizer."""
    import open_clip

    with _quiet_logging():  # which says that no weights were loaded
        model = open_clip.create_model(architecture, pretrained=None)
        tokenize = open_clip.get_tokenizer(architecture)
    nn.init.constant_(model.logit_scale, math.log(CLIP_LOGIT_SCALE))
    return model.requires_grad_(False).eval(), tokenize


class PromptLearner(nn.Module):
    """Context vectors in front of names: the prompts "X X … X name." with their X replaced, as in CoOp."""

    def __init__(self, model: nn.Module, tokenize: Tokenize, names: Sequence[str], context: Tensor):
        super().__init__()
        n_context = len(context)
        self.model = [model]  # in a list, so that its weights are not parameters of this module
        self.context = nn.Parameter(context.clone())
        ids = tokenize([" ".join(["X"] * n_context) + f" {name}." for name in names]).to(context.device)
        embedded = model.token_embedding(ids)
        self.ends = ids.argmax(dim=-1)  # the end-of-text token has the largest id
        self.prefix = embedded[:, :1]
        self.suffix = embedded[:, 1 + n_context :]

    def forward(self, context: Tensor) -> Tensor:
        """Text features (K, D) of all names with this context (M, W)."""
        model = self.model[0]
        shared = context.expand(len(self.prefix), -1, -1)
        x = torch.cat([self.prefix, shared, self.suffix], dim=1) + model.positional_embedding
        x = model.transformer(x, attn_mask=model.attn_mask)
        x = model.ln_final(x)
        return x[torch.arange(len(x), device=x.device), self.ends] @ model.text_projection


class PlainRun:
    """One run of CoOp, CAL or Bayes-CAL ("coop", "cal", "bayes-cal") in the plain loop."""

    def __init__(
        self,
        method: str,
        model: nn.Module,
        tokenize: Tokenize,
        names: Mapping[str, Sequence[str]],
        initial: Mapping[str, Tensor],
        config: Mapping[str, Any],
        seed: int,
        n_train: int,
    ):
        """`names`: of "class" and "environment". `initial`: a branch's starting context (M, W), also the prior's mean.

        A method without environment branch gets no variant for it.
        """
        self.method, self.model, self.config, self.n_train = method, model, config, n_train
        self.seed = torch.tensor([seed], device=initial["class"].device)
        self.prior_mean = {branch: context.clone() for branch, context in initial.items()}
        self.branches = {
            branch: PromptLearner(model, tokenize, names[branch], context) for branch, context in initial.items()
        }
        self.bayesian = method == "bayes-cal"
        means = [prompts.context for prompts in self.branches.values()]
        groups = [{"params": means, "weight_decay": config["weight_decay"]}]
        self.rho: dict[str, nn.Parameter] = {}
        if self.bayesian:
            start = math.log(math.expm1(config["initial_scale"] * config["prior_scale"]))
            self.rho = {b: nn.Parameter(torch.full_like(mean, start)) for b, mean in self.prior_mean.items()}
            groups.append({"params": list(self.rho.values()), "weight_decay": 0.0})
        self.optimizer = torch.optim.SGD(groups, lr=config["learning_rate"], momentum=MOMENTUM)

    def step(self, pixels: Tensor, labels: Tensor, environments: Tensor, step: int) -> dict[str, Tensor]:
        """One update; returns the terms of the loss before it."""
        terms = self.loss(pixels, labels, environments, step)
        self.optimizer.zero_grad()
        terms["total"].backward()
        self.optimizer.step()
        return {name: value.detach() for name, value in terms.items()}

    def loss(self, pixels: Tensor, labels: Tensor, environments: Tensor, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            image = self.model.encode_image(pixels)
        if self.method == "coop":
            logits = self.logits(image, self.branches["class"](self.branches["class"].context))
            ce = F.cross_entropy(logits, labels)
            return {"ce": ce, "total": ce}
        image.requires_grad_()
        logits_c = self.logits(image, self.branches["class"](self.sample("class", step)))
        logits_e = self.logits(image, self.branches["environment"](self.sample("environment", step)))
        config = self.config
        terms = {
            "ce": F.cross_entropy(logits_c, labels),
            "env": F.cross_entropy(logits_e, environments),
            "irm": irm_penalty(logits_c, labels, environments),
            "orth": orthogonality(image, logits_c, labels, logits_e, environments),
        }
        total = terms["ce"] + config["lambda_env"] * terms["env"]
        total = total + config["lambda_irm"] * terms["irm"] + config["lambda_orth"] * terms["orth"]
        if self.bayesian:
            terms["kl"] = sum(self.kl(branch) for branch in self.branches)
            total = total + config["beta"] / self.n_train * terms["kl"]
        return {**terms, "total": total}

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        image = image / image.norm(dim=-1, keepdim=True)
        text = text / text.norm(dim=-1, keepdim=True)
        return self.model.logit_scale.exp() * image @ text.t()

    def sample(self, branch: str, step: int) -> Tensor:
        """The context of this step: (M, W)."""
        mean = self.branches[branch].context
        if not self.bayesian:
            return mean
        noise = rng.normal(self.seed, f"{branch}/train", step, (1, *mean.shape))[0, 0]
        return mean + F.softplus(self.rho[branch]) * noise.to(mean.dtype)

    def kl(self, branch: str) -> Tensor:
        posterior = Normal(self.branches[branch].context, F.softplus(self.rho[branch]))
        return kl_divergence(posterior, Normal(self.prior_mean[branch], self.config["prior_scale"])).sum()


def irm_penalty(logits: Tensor, labels: Tensor, environments: Tensor) -> Tensor:
    """IRMv1 with its dummy scale."""
    penalty = logits.new_zeros(())
    for environment in environments.unique():
        own = environments == environment
        w = logits.new_ones(()).requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(w * logits[own], labels[own]), w, create_graph=True)
        penalty = penalty + gradient.square()
    return penalty


def orthogonality(image: Tensor, logits_c: Tensor, labels: Tensor, logits_e: Tensor, environments: Tensor) -> Tensor:
    """Mean of cos² between the two losses' gradients at each image feature."""
    # Samples do not mix, so the gradient of the summed loss holds each sample's own gradient.
    (g_c,) = torch.autograd.grad(F.cross_entropy(logits_c, labels, reduction="sum"), image, create_graph=True)
    (g_e,) = torch.autograd.grad(F.cross_entropy(logits_e, environments, reduction="sum"), image, create_graph=True)
    return F.cosine_similarity(g_c, g_e, dim=-1).square().mean()


@contextmanager
def _quiet_logging() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
