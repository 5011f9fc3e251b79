"""The methods that `auto` mixes: from what the class names alone say to what the images alone say.

Which are here, and with which numbers, was chosen on six development sets by the likelihood on left-out training
environments (docs/auto.md); methods that never earned weight beside these are not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.estimator.artifact import AUTO
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import Config, default_config
from bayescal.training.forecast import training_operations
from bayescal.training.problem import Problem
from bayescal.training.runs import Run

STEPS = 200  # of a posterior's training, where all images fit into a batch; with more images, as many steps
WORDS = "a photo of a"  # the context of prompts at the start


@dataclass(frozen=True)
class Member:
    """A method with some of its numbers, under a name of its own."""

    name: str
    title: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    learns_prompts: bool = False  # as PROMPTS says on any backbone, in steps proportional to the width of the prior
    fixed_steps: bool = False  # STEPS of them, where the method's default counts epochs

    def config(self, defaults: TrainingDefaults, images: int) -> Config:
        """Every hyper-parameter, for a backbone and a number of training images."""
        method, given = get_method(self.method), dict(self.options)
        if self.learns_prompts:
            given = {**PROMPTS, "learning_rate": 0.1 * defaults.posterior.prior_scale, **given}
        config = default_config(method.space, defaults, **given)
        if self.fixed_steps:
            config["epochs"] = max(1, round(STEPS / math.ceil(images / config["batch_size"])))
        return config


PROMPTS = {
    "class_specific": True,
    "context_init": WORDS,
    "n_context": len(WORDS.split()),
    "optimizer": "adam",
    "initial_scale": 0.1,
    "batch_size": 4096,  # all images in every step
}


def bayes_cal(beta: float, class_specific: bool = True) -> Member:
    name, title, options = f"bayes-cal-{beta:g}", f"Bayes-CAL, β = {beta:g}", {"beta": beta}
    if not class_specific:
        name, title, options = f"{name}-shared", f"{title}, one context", {**options, "class_specific": False}
    return Member(name, title, "bayes-cal", options, learns_prompts=True, fixed_steps=True)


def bayes_taskres(beta: float) -> Member:
    name, title = f"bayes-taskres-{beta:g}", f"Bayes-TaskRes, β = {beta:g}"
    return Member(name, title, "bayes-taskres", {"beta": beta}, fixed_steps=True)


def tip_adapter(alpha: float, beta: float, learns_keys: bool = False) -> Member:
    """With its two numbers fixed: without validation images there is nothing to search them on."""
    method, title = ("tip-adapter-f", "Tip-Adapter-F") if learns_keys else ("tip-adapter", "Tip-Adapter")
    title, options = f"{title}, α = {alpha:g}, β = {beta:g}", {"alpha": alpha, "beta": beta}
    return Member(f"{method}-{alpha:g}-{beta:g}", title, method, options)


MEMBERS = (
    Member("zero-shot", "zero-shot", "clip"),
    bayes_cal(1.0),
    bayes_cal(0.3),
    bayes_cal(0.1),
    bayes_taskres(0.3),
    bayes_taskres(0.1),
    Member("regression-text", "logistic regression around zero-shot", "logistic-regression"),
    Member("regression", "logistic regression", "logistic-regression", {"around": "zero"}),
    tip_adapter(1.0, 2.0),
    tip_adapter(3.0, 5.5),
    Member(
        "network", "network on features", "erm", {"learning_rate": 1e-3, "weight_decay": 0.1, "epochs": 15}
    ),
)  # fmt: skip

# By the name that `fit --method` takes. The second is Bayes-CAL alone: environments left out decide how far it trusts
# the zero-shot prompt, and whether every class needs a context of its own.
MIXTURES = {
    AUTO: MEMBERS,
    "bayes-cal-mixed": (*map(bayes_cal, (1.0, 0.3, 0.1)), bayes_cal(0.3, class_specific=False)),
}

# What `auto` may spend on the training of one member, all its runs together: about twenty minutes on two cores, or on a
# GPU. And the most numbers that a member may keep of the images (images × classes).
AFFORDABLE_OPERATIONS = {"cpu": 2e14, "cuda": 2e16}
AFFORDABLE_NUMBERS = 1 << 25


@dataclass(frozen=True)
class Choice:
    """The members that a problem can afford, what their training takes, and why the others were left out."""

    members: tuple[Member, ...]
    operations: float
    notes: tuple[str, ...] = ()


def affordable(
    problem: Problem,
    defaults: TrainingDefaults,
    sets: Sequence[Tensor],
    members: Sequence[Member] = MEMBERS,
    seed: int = 1,
) -> Choice:
    """Of these members those whose runs, one on each of these sets of images, do not take too much time or memory.

    Decided by counting, so that the same images give the same members on every machine with the same kind of device.
    """
    device, kept, total, long, wide = problem.features.device, [], 0.0, [], []
    most = AFFORDABLE_OPERATIONS.get(device.type, AFFORDABLE_OPERATIONS["cpu"])
    for member in members:
        runs = [Run(member.config(defaults, len(images)), seed, images) for images in sets]
        if (
            get_method(member.method).keeps_images
            and max(map(len, sets)) * len(problem.class_words) > AFFORDABLE_NUMBERS
        ):
            wide.append(member.title)
        elif (operations := training_operations(member.method, problem, runs)) > most:
            long.append(member.title)
        else:
            kept.append(member)
            total += operations
    notes = [
        f"left out of the mixture, because {len(problem.class_words):,} classes make {it} {why}: {'; '.join(titles)}"
        for titles, why in ((long, "too long to train"), (wide, "too large"))
        for it in ("it" if len(titles) == 1 else "them",)
        if titles
    ]
    return Choice(tuple(kept), total, tuple(notes))
