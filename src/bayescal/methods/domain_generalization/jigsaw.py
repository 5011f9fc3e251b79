"""Jigsaw (JiGen): learn to solve jigsaw puzzles beside the classes. Spatial structure is the same in every style.

    L = mean over ordered images of CE(classify(h), y)  +  λ · CE(puzzle(h), order)

An image is cut into 3 × 3 tiles. Most images stay as they are (order 0); the others have their tiles rearranged by one
of 30 permutations that differ from each other in as many places as possible, and `puzzle`, a second linear head, says
which. Classes are learned from ordered images alone: the paper found that shuffled ones make the classes harder. The
defaults are those the authors give for ResNet-18 on PACS.
"""

from functools import lru_cache
from itertools import permutations
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Samples, Step, Task, Terms
from bayescal.methods.domain_generalization._environments import masked_mean, uniform
from bayescal.methods.domain_generalization.base import VISUAL, VisualMethod
from bayescal.methods.domain_generalization.network import Heads, Network
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.hyperparameters import uniform as between

GRID = 3  # tiles per side
# Every further permutation costs a pass over all 9! of them; the paper saw no gain beyond 100.
MOST_PERMUTATIONS = 1000


class Jigsaw(VisualMethod):
    name = "jigsaw"
    title = "Jigsaw"
    learns = "an image model and a head that solves jigsaw puzzles (end to end only)"
    cost = "one pass of the network, two heads"
    citation = "Carlucci et al., Domain Generalization by Solving Jigsaw Puzzles, CVPR 2019"
    on_features = False
    space: ClassVar[Space] = {
        **VISUAL,
        "lambda_puzzle": number(0.7, between(0.1, 1.0), drawn_as="jigsaw_weight"),
        "ordered_share": number(0.9, between(0.5, 0.95), drawn_as="jigsaw_ordered"),  # images that are not shuffled
        "permutations": setting(30),
    }

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        if network is None:
            raise MethodError(
                "jigsaw needs the images themselves: train it end to end (--end-to-end --vision resnet50)"
            )
        super().__init__(task, runs, network)
        count = runs["permutations"]
        if not 1 <= count <= MOST_PERMUTATIONS:
            raise MethodError(f"permutations must be 1 to {MOST_PERMUTATIONS}, found {count}")
        self.orders = torch.tensor(distant_permutations(count), device=runs.seeds.device)  # (P + 1, 9), the first as is
        self.puzzle = Heads("puzzle", 1, network.n_features, count + 1)

    def init(self, train: Samples) -> Params:
        return {**super().init(train), **self.puzzle.init(self.runs.seeds)}

    def loss(self, params: Params, batch: Batch) -> Terms:
        which = self.draw(batch.step, batch.labels.shape[1])  # (R, B)
        h = self.network.features(params, shuffle_tiles(batch.features, self.orders[which]))
        each = losses.sample_cross_entropy(self.network.classify(params, h), batch.labels)
        ce = masked_mean(each, (which == 0).to(each.dtype))
        puzzle = losses.cross_entropy(self.puzzle(params, h)[:, 0], which)
        return {"ce": ce, "puzzle": puzzle, "total": ce + self.runs["lambda_puzzle"] * puzzle}

    def draw(self, step: Step, size: int) -> Tensor:
        """The permutation of each image of a step, 0 for those that stay as they are: (R, B)."""
        seeds = self.runs.seeds
        shuffled = uniform(seeds, "jigsaw/shuffled", step, (size,)) >= self.runs["ordered_share"][:, None]
        which = 1 + rng.integers(seeds, "jigsaw/permutation", step, size, len(self.orders) - 1)
        return torch.where(shuffled, which, 0)


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """Put tile orders[i] in the place of tile i: images (…, 3, H, W), orders (…, 9) → images.

    Tiles are numbered row by row. What is left over at the right and lower edge, where the size is no multiple of
    three, stays where it is.
    """
    height, width = (side // GRID for side in images.shape[-2:])
    inner = images[..., : GRID * height, : GRID * width]
    tiles = inner.unflatten(-1, (GRID, width)).unflatten(-3, (GRID, height))  # (…, 3, row, height, column, width)
    tiles = tiles.movedim((-4, -2), (-5, -4)).flatten(-5, -4)  # (…, 9, 3, height, width)
    source = orders.view(*orders.shape, 1, 1, 1).expand_as(tiles)
    tiles = tiles.gather(-4, source).unflatten(-4, (GRID, GRID)).movedim((-5, -4), (-4, -2))
    out = images.clone()
    out[..., : GRID * height, : GRID * width] = tiles.flatten(-4, -3).flatten(-2, -1)
    return out


@lru_cache(maxsize=4)
def distant_permutations(count: int) -> np.ndarray:
    """The identity and `count` permutations of nine tiles, far apart in Hamming distance: (count + 1, 9).

    Greedy, as in Noroozi & Favaro (2016): each new one has the largest distance to the nearest chosen one; among equals
    the largest sum of distances decides, then the alphabet. Nothing is drawn, so the set is the same everywhere.
    """
    every = np.array(list(permutations(range(GRID * GRID))), dtype=np.uint8)  # in alphabetical order
    chosen = [0]
    nearest = np.full(len(every), GRID * GRID, dtype=np.int32)
    total = np.zeros(len(every), dtype=np.int32)
    for _ in range(count):
        distance = (every != every[chosen[-1]]).sum(1, dtype=np.int32)
        nearest, total = np.minimum(nearest, distance), total + distance
        # The first maximum: argmax takes the alphabetically first of equals, and a chosen one has nearest = 0.
        chosen.append(int((nearest * (GRID * GRID * (count + 1) + 1) + total).argmax()))
    return every[chosen].astype(np.int64)
