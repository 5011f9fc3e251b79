"""IRM-Games: an ensemble of one classifier per environment, in equilibrium (the variable-representation game V-IRM).

    z(x) = 1/E Σ_g w_g(Φ(x));     player g:  min over w_g of ℓ_g(z);     representation:  min over Φ of Σ_g ℓ_g(z)

Each player may change its own classifier only, and cares for its own environment only, but is evaluated by what the
ensemble says. At an equilibrium no environment wants to change the average: the defining property of an invariant
predictor. Players move in turn, one per step, each by a step of an Adam of its own towards its best response: E + 1
steps a round. The representation moves at `representation_rate` of the learning rate, a tenth, as in the authors' code.

Best responses need not settle: they may go round and round between the environments' wishes. So, as the authors do, a
run ends where the ensemble's training accuracy falls below a threshold close to chance, chance + `stop_below` ·
(1 − chance): their 0.55 for two classes. It must have been above it before (the authors wait for 100 steps instead,
which is the whole of many few-shot trainings). The accuracy is a running mean over about ten batches.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Samples, Task, Terms
from bayescal.methods.domain_generalization._environments import masked_mean
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.domain_generalization.network import Heads, Network
from bayescal.methods.hyperparameters import Space, number, setting

MEMORY = 0.9  # of the running mean of the training accuracy, from step to step
LEARNED = 2.0  # a run has learned where it is so many times as far above chance as the threshold that ends it


class IRMGames(VisualMethod):
    name = "irm-games"
    title = "IRM-Games"
    learns = "a two-layer representation of image features and a classifier per environment"
    cost = "one pass of the network, one head per environment; a round of all players takes E + 1 steps"
    citation = "Ahuja et al., Invariant Risk Minimization Games, ICML 2020"
    version = 4  # since a run has to learn before it can end, and has the time to
    capturable = False  # players move in turn
    # The state of the stopping rule, (R,) each; the last two are 0 or 1.
    frozen = ("train_accuracy", "has_learned", "has_stopped")
    space: ClassVar[Space] = {
        **VISUAL,
        "epochs": setting(800),
        "representation_rate": setting(0.1),  # of the learning rate
        "stop_below": number(0.1),  # of the way from chance to 1; 0: no run ends early
    }

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        self.players = Heads("player", task.n_environments, self.network.n_features, self.network.n_classes)

    def init(self, train: Samples) -> Params:
        body = {n: v for n, v in super().init(train).items() if n not in self.network.head}
        players = self.players.init(self.runs.seeds)
        at_start = next(iter(players.values())).new_zeros(len(self.runs))
        chance = torch.full_like(at_start, 1 / self.network.n_classes)
        rule = {"train_accuracy": chance, "has_learned": at_start, "has_stopped": at_start.clone()}
        return {**body, **players, **rule}

    def ensemble(self, params: Params, x: Tensor) -> Tensor:
        """z(x): (R, N, C)."""
        return self.players(params, self.network.features(params, x)).mean(1)

    def loss(self, params: Params, batch: Batch) -> Terms:
        """What the player whose turn it is minimises, and the ensemble's accuracy."""
        logits = self.ensemble(params, batch.features)
        each = losses.sample_cross_entropy(logits, batch.labels)
        risks, present = self.environment_losses(each, batch)
        player = self.turn(int(batch.step))
        total = masked_mean(risks, present) if player is None else risks[:, player]
        right = (logits.argmax(-1) == batch.labels).to(logits.dtype).mean(1)
        return {"ce": each.mean(1), "train_accuracy": right, "total": total}

    def turn(self, step: int) -> int | None:
        """The environment whose classifier moves in this step; None: the representation."""
        player = step % (self.players.count + 1)
        return player if player < self.players.count else None

    def moves(self, params: Params, step: int) -> Params:
        """The parameters of the player whose turn it is."""
        player = self.turn(step)
        if player is None:
            return {n: v for n, v in self.learned(params).items() if n not in self.players.own(params)}
        return {name: params[name] for name in self.players.names(player)}

    def gradients(self, params: Params, batch: Batch) -> tuple[Params, Terms]:
        leaves = {n: v.detach().requires_grad_() for n, v in self.moves(params, int(batch.step)).items()}
        terms = self.loss({**params, **leaves}, batch)
        grads = torch.autograd.grad(terms["total"].sum(), list(leaves.values()))
        self.watch(params, terms["train_accuracy"])
        return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}

    def watch(self, params: Params, accuracy: Tensor) -> None:
        """Take a batch's accuracy (R,) into the running mean, and end the runs whose mean has fallen too low."""
        mean, learned, stopped = params["train_accuracy"], params["has_learned"], params["has_stopped"]
        chance = 1 / self.network.n_classes
        end = self.runs["stop_below"] * (1 - chance)  # how far above chance a run that has learned must stay
        gained = mean.lerp_(accuracy, 1 - MEMORY) - chance
        stopped.copy_(torch.maximum(stopped, learned * ((gained < end) & (end > 0))))
        learned.copy_(torch.maximum(learned, (gained >= LEARNED * end).to(learned)))

    def stopped(self, params: Params) -> Tensor:
        return params["has_stopped"] > 0

    def rate_factor(self, name: str) -> float:
        return 1.0 if name.startswith("player.") else self.runs["representation_rate"]

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.known_classes(self.ensemble(prepared, features))[:, None]
