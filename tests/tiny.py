"""A tiny random text tower and synthetic features, for tests of methods and training."""

from pathlib import Path

import numpy as np
import torch

from bayescal.text.tower import TextTower
from bayescal.training.problem import Problem
from bayescal.training.runs import Run

WORDS = {".": 1, "dog": 2, "cat": 3, "house": 4, "photo": 5, "sketch": 6, "cartoon": 7, "a": 8, "of": 9}
CLASSES, ENVIRONMENTS = ("dog", "cat", "house"), ("photo", "sketch", "cartoon")


class Posterior:
    """Training defaults of Bayes-CAL."""

    learning_rate, epochs, batch_size, optimizer, class_specific = 0.05, 3, 8, "sgd", False
    prior_scale, initial_scale, beta = 0.05, 0.5, 0.1


class Defaults:
    """Training defaults for the tiny tower."""

    learning_rate, epochs, batch_size, n_context, context_init, class_specific = 0.05, 3, 8, 4, "", False
    posterior, views, template = Posterior, 0, "a photo of a {}."
    adapter_ratio, cache_alpha, cache_beta, cache_alpha_max, network_weight_decay = 0.2, 1.0, 5.0, 20.0, 0.0


def tokenize(text: str) -> list[int]:
    return [WORDS[word] for word in text.replace(".", " .").split()]


def tiny_tower(dtype: torch.dtype = torch.float32, gentle: bool = False) -> TextTower:
    """Lively: large gradients everywhere, which hide no mistake, and trainings that jump about. Gentle: to learn with.

    The gentle tower has CLIP's own scales, but for embeddings ten times as large: the tower normalises what it reads,
    so next to small embeddings every step of a context vector is a leap. Chosen by validation accuracy alone: 1.0 in
    every one of 24 trainings of CoOp, CAL and Bayes-CAL, where the lively tower has all values from 0 to 1.
    """
    torch.manual_seed(0)
    tower = TextTower(
        vocab_size=20, context_length=32, width=16, heads=2, layers=2, dim=12, start_token=18, end_token=19
    )  # fmt: skip
    if gentle:
        for embeddings in (tower.token_embedding.weight, tower.positions):
            embeddings.mul_(10.0)
    else:
        for parameter in tower.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return tower.to(dtype)


def tiny_problem(n: int = 120, dtype: torch.dtype = torch.float32, seed: int = 0, gentle: bool = False) -> Problem:
    """Features = class direction + environment direction + noise, for three classes in three environments."""
    g = torch.Generator().manual_seed(seed)
    tower = tiny_tower(dtype, gentle)
    labels = torch.arange(n) % 3
    environments = (torch.arange(n) // 3) % 3
    centres, styles = torch.randn(2, 3, tower.dim, generator=g)
    features = 2 * centres[labels] + styles[environments] + 0.3 * torch.randn(n, tower.dim, generator=g)
    return Problem(tower, tokenize, 10.0, features.to(dtype), labels, environments, CLASSES, ENVIRONMENTS)


def tiny_run(config: dict, seed: int, environments: tuple[int, ...] = (0, 1), n: int = 18, **changes) -> Run:
    """A run on n images of the given environments, drawn with its seed; validated and tested on others."""
    g = torch.Generator().manual_seed(seed)
    pool = torch.tensor([i for i in range(120) if (i // 3) % 3 in environments])
    order = pool[torch.randperm(len(pool), generator=g)]
    eval_sets = {"val": order[n : n + 15], "test": torch.tensor([i for i in range(120) if (i // 3) % 3 == 2])}
    return Run({**config, **changes}, seed, order[:n], eval_sets)


def tiny_word_vectors(folder: Path) -> str:
    """A file of random word vectors for the tiny names; where it is."""
    words = (*CLASSES, *ENVIRONMENTS)
    table = np.random.default_rng(0).normal(size=(len(words), 10)).astype(np.float32)
    np.savez(folder / "words.npz", words=np.array(words), rows=np.arange(len(words)), table=table)
    return str(folder / "words.npz")
