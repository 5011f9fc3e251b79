"""DPLCLIP: domain prompt learning. The context is read off a batch of images from one environment.

    z_e = mean of f_I / ‖f_I‖ over the environment's images      [V]1 … [V]M = MLP(√D · z_e)
    prompt = [V]1 … [V]M name "."      L = CE of every image against the class prompts of its own environment

The MLP has `mlp_depth` linear layers of width 512 with ReLU and dropout between them; √D gives its inputs about unit
variance with any backbone. The layers start as torch's linear layers do, except that the output weights start at zero
and the output bias at what `context_init` says: training starts from a prompt that the tower can read.
(The authors' code averages the MLP's outputs over the images where this file averages its inputs, and scores an image
against the prompts of the other environments too, as if they were further classes.)

Prediction depends on which images are given together. Each environment (`groups`) is cut into batches of at most
`predict_batch` images, and a batch's own mean is its z. Images often come sorted by class, and the mean of one class
does not describe an environment: so its images are first put into a fixed pseudo-random order, a function of nothing
but their number, and dealt out evenly. The same images in the same order give the same prediction. An image given alone
is its own environment, z = its own feature: the prompt is then conditioned on one image, as in CoCoOp, and on a noisier
z than any in training. Its prediction may differ from the one it gets in a batch: compare at one `predict_batch`.

Cost: a step is one prompt tree per training environment (CoOp: one); prediction one tree per batch of images.
"""

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine import rng
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import COMMON, Batch, Method, Params, Runs, Samples, Step, Task, Terms
from bayescal.methods.hyperparameters import Space, choice, number, setting, uniform
from bayescal.methods.text.cocoop import linear_init
from bayescal.methods.text.networks import PromptNetwork
from bayescal.text.conditional_prompts import ConditionalPrompts


class DPLCLIP(Method):
    name = "dplclip"
    title = "DPLCLIP"
    learns = "an MLP from the mean image feature of an environment to the context vectors"
    cost = "one prompt tree per environment"
    citation = "Zhang et al., Domain Prompt Learning for Efficiently Adapting CLIP to Unseen Domains, 2021"
    uses_text = True
    reads_new_names = True
    prompts_depend_on_images = True
    answers_depend_on_batch = True
    space: ClassVar[Space] = {
        **COMMON,
        **{name: PromptNetwork.space[name] for name in ("n_context", "context_init")},
        "mlp_depth": setting(2, choice(2, 3)),
        "mlp_width": setting(512, at_least=1),
        "dropout": number(0.0, uniform(0.0, 0.1)),
        "predict_batch": setting(32),  # images that share an environment feature in prediction: part of the result
    }
    predict_chunk = None  # images of one environment may only be divided in `logits`

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        if runs["mlp_depth"] < 2 or runs["predict_batch"] < 1:
            raise MethodError(
                f"mlp_depth is {runs['mlp_depth']} and predict_batch {runs['predict_batch']}: "
                "expected at least 2 linear layers and at least 1 image"
            )
        fixed = replace(runs, settings={**runs.settings, "class_specific": False, "position": "end"})
        self.network = PromptNetwork(task, fixed, [task.classes], "class")
        self.prompts = ConditionalPrompts(self.network.tree)

    def init(self, train: Samples) -> Params:
        seeds, depth, width = self.runs.seeds, self.runs["mlp_depth"], self.runs["mlp_width"]
        bias = self.network.init()["context"].flatten(1)  # (R, M·W)
        sizes = [self.task.dim, *[width] * (depth - 1), bias.shape[1]]
        params = {}
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            params[f"mlp.{i}.weight"] = linear_init(seeds, f"mlp/{i}/weight", n_in, (n_in, n_out), bias.dtype)
            params[f"mlp.{i}.bias"] = linear_init(seeds, f"mlp/{i}/bias", n_in, (n_out,), bias.dtype)
        last = f"mlp.{depth - 1}"
        return {**params, f"{last}.weight": torch.zeros_like(params[f"{last}.weight"]), f"{last}.bias": bias}

    def run_bytes(self, train: Samples) -> int:
        return super().run_bytes(train) + self.task.n_environments * self.network.kept_bytes()

    def training_operations(self, train: Samples) -> float:
        return self.steps(train) * self.task.n_environments * self.network.training_operations()

    def contexts(self, params: Params, z: Tensor, step: Step | None = None) -> Tensor:
        """Context vectors of environment features (R or 1, G, D) → (R, G, M, W); with a step, under its dropout."""
        depth = self.runs["mlp_depth"]
        z = z * self.task.dim**0.5
        for i in range(depth):
            z = z @ params[f"mlp.{i}.weight"] + params[f"mlp.{i}.bias"][:, None]
            if i < depth - 1:
                z = (z if step is None else self.drop(z, f"dropout/{i}", step)).relu()
        return z.unflatten(-1, (self.runs["n_context"], self.task.text.width))

    def drop(self, x: Tensor, stream: str, step: Step) -> Tensor:
        """Dropout of (R, G, H), each run with its own rate and numbers."""
        rate = self.runs["dropout"][:, None, None]
        u = rng.integers(self.runs.seeds, stream, step, x[0].numel(), 2**24).view_as(x) * 2.0**-24
        return torch.where(u < rate, 0.0, x / (1.0 - rate))

    def loss(self, params: Params, batch: Batch) -> Terms:
        environments = batch.environments
        z = group_means(batch.features, environments, self.task.n_environments)  # (R, E, D)
        contexts = self.contexts(params, z, batch.step)
        text = self.prompts(contexts.flatten(0, 1)).unflatten(0, contexts.shape[:2])  # (R, E, C, D)
        logits = losses.cosine_logits(batch.features[:, None], text, self.task.logit_scale)  # (R, E, B, C)
        own = environments[:, None, :, None].expand(-1, 1, -1, self.task.n_classes)
        ce = losses.cross_entropy(logits.gather(1, own)[:, 0], batch.labels)
        return {"ce": ce, "total": ce}

    def prepare(self, params: Params, samples: int) -> Params:
        return params  # the context depends on the images

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        """As the contract says. `groups` may also be (R, N), where −1 marks an image that is not to be read at all."""
        n_runs, n = len(self.runs), features.shape[-2]
        if groups is None:
            groups = torch.zeros(n, dtype=torch.long, device=features.device)
        tables = [deal(own, self.runs["predict_batch"]) for own in (groups[None] if groups.dim() == 1 else groups)]
        images = F.pad(F.normalize(features, dim=-1), (0, 0, 0, 1)).expand(n_runs, -1, -1)  # image n: nothing
        out = features.new_zeros(n_runs, n + 1, self.task.n_classes)
        run = torch.arange(n_runs, device=features.device)[:, None, None]
        # A run has the same batches alone or in a stack: runs with fewer of them are filled up with empty ones.
        table = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True, padding_value=-1)  # (R or 1, G, P)
        table = torch.where(table < 0, n, table).expand(n_runs, -1, -1)
        for part in table.split(max(1, self.prompts.at_once // n_runs), dim=1):
            batch = images[run, part]  # (R, g, P, D)
            z = batch.sum(2) / (part < n).sum(2, keepdim=True).clamp(min=1)
            text = self.prompts(self.contexts(prepared, z).flatten(0, 1)).unflatten(0, z.shape[:2])  # (R, g, C, D)
            out[run, part] = losses.cosine_logits(batch, text, self.task.logit_scale)
        return out[:, None, :n]


def group_means(features: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Mean direction of each group's images: (R, B, D), (R, B) in 0 … G−1 → (R, G, D); 0 where a group is empty."""
    member = losses.one_hot(groups, n_groups, features.dtype).transpose(-1, -2)  # (R, G, B)
    return member @ F.normalize(features, dim=-1) / member.sum(-1, keepdim=True).clamp(min=1)


def deal(groups: Tensor, size: int) -> Tensor:
    """Batches of at most `size` images of one environment each: groups (N,) → image numbers (G, size), −1: none.

    Sizes within an environment differ by one at most, so no image is left over as a batch of its own.
    """
    key = torch.zeros(1, dtype=torch.int64, device=groups.device)
    batches = [groups.new_empty(0, size)]
    for group in groups[groups >= 0].unique().tolist():
        images = (groups == group).nonzero()[:, 0]
        order = images[rng.permutations(key, "dplclip/predict", 0, len(images))[0]]
        n_batches = -(-len(order) // size)
        rounds = -(-len(order) // n_batches)  # as in dealing cards: one image to every batch in each round
        dealt = F.pad(order, (0, n_batches * rounds - len(order)), value=-1).view(rounds, n_batches).T
        batches.append(F.pad(dealt, (0, size - rounds), value=-1))
    return torch.cat(batches)
