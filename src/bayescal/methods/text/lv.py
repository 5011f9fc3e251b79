"""LV, learnable vectors: CAL and Bayes-CAL without a text tower.

    f_T(name k) = φ_k,   φ_k ∈ ℝ^D        L as in CAL / Bayes-CAL

Each class and each training environment has one raw vector of the joint space, compared with image features by the
cosine. In the Bayesian form every coordinate is a Gaussian: 2·K·D numbers per branch, 0.04 M for 19 classes and
D = 1024. The vectors start as random directions, N(0, 1/D) per coordinate and hence of length about 1; or, with
`vector_init` a template such as "a photo of a {}.", as the text features of the names, normalised: the zero-shot
classifier, which then is the prior mean as well.

A vector belongs to its name and nothing else is learned, so names that were not in training cannot be predicted; a
selection of those that were, can. Cost: K dot products per image, no tower (with a template: once, at the start).
"""

import hashlib
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.params import per_run
from bayescal.errors import MethodError
from bayescal.methods.contract import COMMON, Params, Runs, Step, Task
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.text.bayes_cal import BayesCAL, softplus_inverse
from bayescal.methods.text.cal import CAL, CAL_TERMS
from bayescal.methods.text.networks import TaskNetwork
from bayescal.text.tower import normalized


class NamedNetwork(TaskNetwork):
    """A network whose φ has one vector per name, (R, K, D), and whose parameters remember which names these are."""

    def __init__(self, task: Task, runs: Runs, names: Sequence[Sequence[str]], stream: str):
        super().__init__(task, runs, names, stream)
        self.keys = name_keys(names, task.device).expand(len(runs), -1)  # (R, K)
        self._compared: tuple[Tensor | None, bool] = (None, False)

    def has_own_names(self, params: Params) -> bool:
        """Whether the stored parameters belong to this network's names, in their order."""
        names = params["names"]
        if names is not self._compared[0]:  # looked at once: in training they stay the same
            self._compared = names, torch.equal(self.keys, names)
        return self._compared[1]

    def find(self, params: Params) -> tuple[Tensor, Tensor]:
        """Where the stored parameters have this network's names: index (R, K) and whether it is there (R, K)."""
        same = self.keys[:, :, None] == params["names"][:, None, :]
        return same.int().argmax(-1), same.any(-1)

    def unknown(self, params: Params) -> list[str]:
        """Names of this network that the stored parameters do not have."""
        if self.has_own_names(params):
            return []
        there = self.find(params)[1].tolist()
        names = self.names if len(self.names) > 1 else [*self.names] * len(there)
        pairs = [pair for run in zip(names, there, strict=True) for pair in zip(*run, strict=True)]
        return list(dict.fromkeys(name for name, known in pairs if not known))

    def take(self, params: Params, name: str) -> Tensor:
        """A stored parameter (R, K', …) in the order of this network's names; unknown names get any of them."""
        if self.has_own_names(params):
            return params[name]
        runs = torch.arange(len(self.runs), device=self.keys.device)[:, None]
        return params[name][runs, self.find(params)[0]]

    def features(self, phi: Tensor) -> Tensor:
        return phi


class VectorNetwork(NamedNetwork):
    """LV: φ is the text feature itself."""

    space: ClassVar[Space] = {
        "vector_init": setting(""),  # a template with {} for the name, or "" for random directions
    }

    def init(self) -> Params:
        r, k, d = len(self.runs), len(self.names[0]), self.task.dim
        template = self.runs["vector_init"]
        if not template:
            vectors = rng.normal(self.runs.seeds, f"{self.stream}/vectors", 0, (k, d)) * d**-0.5
        elif "{}" in template:
            prompts = [self.task.tokenize(template.replace("{}", name)) for names in self.names for name in names]
            text = normalized(self.task.text.encode(prompts))
            vectors = text.view(-1, k, d).expand(r, k, d).clone()
        else:
            raise MethodError(f"vector_init {template!r} needs a {{}} where the name goes, or must be empty")
        return {"vectors": vectors.to(self.task.text.positions.dtype), "names": self.keys.clone()}

    def mean(self, params: Params) -> Tensor:
        unknown = self.unknown(params)
        if unknown:
            raise MethodError(
                f"no vector was learned for {', '.join(map(repr, unknown))}: train with these names, or use a method "
                "that can read new ones (bayes-cal, bayes-cal-w2v, coop, clip)"
            )
        return self.take(params, "vectors")


class NamedBayesCAL(BayesCAL):
    """Bayes-CAL whose Gaussian is over one vector per name, so that its scales belong to names too."""

    def sample(self, params: Params, branch: str, stream: str, step: Step, samples: int) -> Tensor:
        network, own = cast(NamedNetwork, self.branches[branch]), self.branch(params, branch)
        rho = network.take(own, "rho")
        if rho is not own["rho"]:
            # Nothing was learned about a name that was not in training: it keeps the prior's scale.
            prior = per_run(softplus_inverse(self.runs["prior_scale"]), rho)
            rho = torch.where(network.find(own)[1][..., None], rho, prior)
        return super().sample({**params, f"{branch}.rho": rho}, branch, stream, step, samples)


class CALLV(CAL):
    name = "cal-lv"
    title = "CAL (LV)"
    learns = "one vector per class and per environment"
    cost = "no text tower"
    uses_text = False  # unless `vector_init` asks it once, at the start
    reads_environment_names = False
    reads_new_names = False
    network = VectorNetwork
    frozen = ("class.names", "environment.names")
    space: ClassVar[Space] = {
        **COMMON,
        "learning_rate": number(0.002),
        **VectorNetwork.space,
        **CAL_TERMS,
    }


class BayesCALLV(NamedBayesCAL):
    name = "bayes-cal-lv"
    title = "Bayes-CAL (LV)"
    learns = "mean and scale of one vector per class and per environment"
    cost = "no text tower"
    uses_text = False  # unless `vector_init` asks it once, at the start
    reads_environment_names = False
    reads_new_names = False
    network = VectorNetwork
    frozen = CALLV.frozen
    space: ClassVar[Space] = {
        **CALLV.space,
        "beta": number(1.0),
        "prior_scale": number(0.2),
        "initial_scale": number(0.1),
        "train_samples": setting(1),
    }


def name_keys(names: Sequence[Sequence[str]], device: torch.device) -> Tensor:
    """A 64-bit number for each name: (G, K). Parameters that belong to names carry it, to be found by name again."""
    number_of = lambda name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)  # noqa: E731
    return torch.tensor([[number_of(name) for name in own] for own in names], device=device)
