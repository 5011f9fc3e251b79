"""W2V: CAL and Bayes-CAL with word vectors in the place of the text tower.

    f_T(name k) = φ_k,   E φ_k = W2·a(W1·x_k + b1) + b2,   x_k = word vector of the name      L as in (Bayes-)CAL

x is the mean over the words of the name (300 numbers in word2vec, GloVe and fastText), brought to length √dim so that
one learning rate suits every file. The MLP, 300 → 600 → D, gives the mean of φ; in the Bayesian form every output
has a scale of its own, K·D numbers, and the prior mean is the MLP's answer at its initial weights (He et al. 2015).
About 0.5 M weights per branch at D = 512. a is a ReLU, or with `activation=sigmoid` what the authors' code has.

The word vectors come from a file (`word_vectors`, see word_vectors.py). Those of the names in training are
kept with the parameters, so that a saved model predicts without the file; new names need the file, and their φ has
the prior's scale. Cost: one pass of the MLP over the names; no text tower.
"""

import os
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine import rng
from bayescal.errors import MethodError
from bayescal.methods.activations import Activation, get_activation
from bayescal.methods.contract import COMMON, Params
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.text.cal import CAL, CAL_TERMS
from bayescal.methods.text.lv import NamedBayesCAL, NamedNetwork
from bayescal.methods.text.word_vectors import load_word_vectors

HIDDEN = 600
VARIABLE = "BAYESCAL_WORD_VECTORS"


class WordNetwork(NamedNetwork):
    """W2V: φ is the output of an MLP on the names' word vectors."""

    space: ClassVar[Space] = {
        "word_vectors": setting(lambda b: os.environ.get(VARIABLE, "")),  # path of the file
        "oov": setting("error"),  # or "zero": unknown words count as zero vectors
        "activation": setting("relu"),  # or "sigmoid", as in the authors' code
    }

    @property
    def activation(self) -> Activation:
        return get_activation(self.runs.settings.get("activation", "relu"))  # ReLU: models from before the choice

    def read(self) -> Tensor:
        """Word vectors of the names, from the file: (R, K, dim)."""
        path = self.runs["word_vectors"]
        if not path:
            raise MethodError(
                "this method needs word vectors: pass word_vectors=PATH (word2vec, GloVe, fastText or .npz), "
                f"or set the environment variable {VARIABLE}"
            )
        k = len(self.names[0])
        flat = load_word_vectors(path).vectors_of([name for names in self.names for name in names], self.runs["oov"])
        x = F.normalize(flat, dim=-1) * flat.shape[-1] ** 0.5
        return x.to(self.task.text.positions).view(-1, k, x.shape[-1]).expand(len(self.runs), -1, -1).clone()

    def init(self) -> Params:
        seeds, words = self.runs.seeds, self.read()
        dim, d = words.shape[-1], self.task.dim
        hidden = rng.normal(seeds, f"{self.stream}/hidden", 0, (dim, HIDDEN)).to(words.dtype)
        out = rng.normal(seeds, f"{self.stream}/out", 0, (HIDDEN, d)).to(words.dtype)
        return {
            "hidden.weight": hidden * (self.activation.gain / dim) ** 0.5,
            "hidden.bias": words.new_zeros(len(seeds), HIDDEN),
            "out.weight": out * HIDDEN**-0.5,
            "out.bias": words.new_zeros(len(seeds), d),
            "words": words,
            "names": self.keys.clone(),
        }

    def mean(self, params: Params) -> Tensor:
        words = self.take(params, "words")
        if self.unknown(params):
            words = torch.where(self.find(params)[1][..., None], words, self.read().to(words))
        hidden = self.activation.function(words @ params["hidden.weight"] + params["hidden.bias"][:, None])
        return hidden @ params["out.weight"] + params["out.bias"][:, None]


class CALW2V(CAL):
    name = "cal-w2v"
    title = "CAL (W2V)"
    learns = "an MLP from word vectors to text features, for classes and for environments"
    cost = "no text tower"
    uses_text = False
    reads_environment_names = False
    file_options = ("word_vectors",)
    network = WordNetwork
    frozen = tuple(f"{branch}.{name}" for branch in ("class", "environment") for name in ("words", "names"))
    space: ClassVar[Space] = {
        **COMMON,
        "learning_rate": number(0.002),
        **WordNetwork.space,
        **CAL_TERMS,
    }


class BayesCALW2V(NamedBayesCAL):
    name = "bayes-cal-w2v"
    title = "Bayes-CAL (W2V)"
    learns = "an MLP from word vectors to the mean of text features, and their scales"
    cost = "no text tower"
    uses_text = False
    reads_environment_names = False
    file_options = ("word_vectors",)
    network = WordNetwork
    frozen = CALW2V.frozen
    space: ClassVar[Space] = {
        **CALW2V.space,
        "beta": number(1.0),
        "prior_scale": number(2.0),
        "initial_scale": number(0.1),
        "train_samples": setting(1),
    }
