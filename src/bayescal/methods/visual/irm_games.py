"""IRM-Games: an ensemble of one classifier per environment, in equilibrium (the variable-representation game V-IRM).

    z(x) = 1/E Σ_g w_g(Φ(x));     player g:  min over w_g of ℓ_g(z);     representation:  min over Φ of Σ_g ℓ_g(z)

Each player may change its own classifier only, and cares for its own environment only, but is judged by what the
ensemble says. At an equilibrium no environment wants to change the average: the defining property of an invariant
predictor. Players move in turn, one per step, each by a gradient step towards its best response: E + 1 steps a round.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bayescal import objectives
from bayescal.methods.base import Batch, Params, Runs, Samples, Task, Terms
from bayescal.methods.visual.base import VISUAL, VisualMethod
from bayescal.methods.visual.environments import masked_mean
from bayescal.methods.visual.network import Heads, Network
from bayescal.space import Space, setting


class IRMGames(VisualMethod):
    name = "irm-games"
    title = "IRM-Games"
    learns = "a two-layer representation of image features and a classifier per environment"
    cost = "one pass of the network, one head per environment; a round of all players takes E + 1 steps"
    citation = "Ahuja et al., Invariant Risk Minimization Games, ICML 2020"
    recorded = False  # players move in turn
    space: ClassVar[Space] = {**VISUAL, "epochs": setting(100)}

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        super().__init__(task, runs, network)
        self.players = Heads("player", task.n_environments, self.network.n_features, self.network.n_classes)

    def init(self, train: Samples) -> Params:
        body = {n: v for n, v in super().init(train).items() if n not in self.network.head}
        return {**body, **self.players.init(self.runs.seeds)}

    def ensemble(self, params: Params, x: Tensor) -> Tensor:
        """z(x): (R, N, C)."""
        return self.players(params, self.network.features(params, x)).mean(1)

    def losses(self, params: Params, batch: Batch) -> Tensor:
        return objectives.sample_cross_entropy(self.ensemble(params, batch.features), batch.labels)

    def loss(self, params: Params, batch: Batch) -> Terms:
        """What the player whose turn it is minimises."""
        losses = self.losses(params, batch)
        risks, present = self.environment_losses(losses, batch)
        player = self.turn(batch.step)
        total = masked_mean(risks, present) if player is None else risks[:, player]
        return {"ce": losses.mean(1), "total": total}

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
        leaves = {n: v.detach().requires_grad_() for n, v in self.moves(params, batch.step).items()}
        terms = self.loss({**params, **leaves}, batch)
        grads = torch.autograd.grad(terms["total"].sum(), list(leaves.values()))
        return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}

    def logits(self, prepared: Params, features: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.known_classes(self.ensemble(prepared, features))[:, None]
