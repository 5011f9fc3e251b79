"""Task networks: what is learned on the text side, and how it becomes text features.

A network maps a run's variable φ to text features of its names. Which distribution φ has (a point in CAL, a Gaussian
in Bayes-CAL) is the method's business.
"""

import abc
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.params import Params
from bayescal.errors import MethodError
from bayescal.methods.contract import Runs, Task
from bayescal.methods.hyperparameters import Space, choice, setting
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptForest, PromptTree


class TaskNetwork(abc.ABC):
    """One branch: names → text features, through what the run has learned."""

    space: ClassVar[Space]

    def __init__(self, task: Task, runs: Runs, names: Sequence[Sequence[str]], stream: str):
        self.task, self.runs, self.names, self.stream = task, runs, names, stream

    @abc.abstractmethod
    def init(self) -> Params:
        """Initial parameters (R, …), from the runs' seeds."""

    @abc.abstractmethod
    def mean(self, params: Params) -> Tensor:
        """φ, or the mean of its Gaussian: (R, …)."""

    @abc.abstractmethod
    def features(self, phi: Tensor) -> Tensor:
        """Text features of samples of φ: (R, S, …) → (R, S, K, D)."""

    @classmethod
    def together(cls, networks: Sequence["TaskNetwork"]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """`features` of several networks of this kind, as one computation where that is faster."""
        return lambda phis: [network.features(phi) for network, phi in zip(networks, phis, strict=True)]

    def kept_bytes(self) -> int:
        """What `features` of one run and sample keeps for the backward pass."""
        return 0

    def training_operations(self) -> float:
        """Floating-point operations of `features` of one run and sample in a step, roughly."""
        return 0.0


class PromptNetwork(TaskNetwork):
    """PL, prompt learning: φ are M context vectors in front of (and behind) each name."""

    space: ClassVar[Space] = {
        "n_context": setting(lambda b: b.n_context),
        "context_init": setting(lambda b: b.context_init),  # words, or "" for N(0, 0.02²)
        "position": setting("end", choice("end", "middle")),
        "class_specific": setting(lambda b: b.class_specific, choice(True, False)),
    }
    random_scale = 0.02

    def __init__(self, task: Task, runs: Runs, names: Sequence[Sequence[str]], stream: str):
        super().__init__(task, runs, names, stream)
        self.layout = Layout(runs["n_context"], runs["position"], runs["class_specific"])

    @cached_property
    def tree(self) -> PromptTree:
        """The names' prompts. Made when they are read: a model that keeps what they said needs no text tower."""
        known = dict.fromkeys(name for own in self.names for name in own)  # runs mostly share their names
        ids = dict(zip(known, self.task.tokens(list(known)), strict=True))
        tokens = [[ids[name] for name in own] for own in self.names]
        return PromptTree(self.task.text, tokens, self.layout, suffix=self.task.tokenize("."))

    def init(self) -> Params:
        layout, tower, runs = self.layout, self.task.text, self.runs
        shape = layout.context_shape(self.tree.n_names, tower.width)
        words = runs["context_init"]
        if not words:
            noise = rng.normal(runs.seeds, f"{self.stream}/context", 0, shape).to(tower.positions.dtype)
            return {"context": self.random_scale * noise}
        ids = self.task.tokenize(words)
        if len(ids) != layout.n_context:
            raise MethodError(
                f"context_init {words!r} has {len(ids)} tokens but n_context is {layout.n_context}: make them equal, "
                "or leave context_init empty for random vectors"
            )
        vectors = tower.embed(torch.tensor(ids, device=self.task.device))
        return {"context": vectors.expand(len(runs), *shape).clone()}

    def mean(self, params: Params) -> Tensor:
        return params["context"]

    def features(self, phi: Tensor) -> Tensor:
        return self.tree(phi)

    @classmethod
    def together(cls, networks: Sequence["TaskNetwork"]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        return PromptForest([cast(PromptNetwork, network).tree for network in networks])

    def kept_bytes(self) -> int:
        return self.task.text.kept_bytes(self.tree.n_tokens)

    def training_operations(self) -> float:
        # Forwards, backwards (the tower is frozen: its inputs alone have gradients), and of many names forwards again.
        return (3 if self.tree.n_blocks(1) > 1 else 2) * self.task.text.operations(self.tree.n_tokens)
