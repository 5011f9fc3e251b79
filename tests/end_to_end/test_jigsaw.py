"""Jigsaw: the permutations, the puzzles made with them, and the loss."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from whole_models import bound, some_batch

from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import Batch, Runs
from bayescal.methods.domain_generalization.jigsaw import Jigsaw, distant_permutations, shuffle_tiles


def test_permutations_are_fixed_different_and_far_apart():
    orders = distant_permutations(30)
    assert orders.shape == (31, 9)
    assert orders[0].tolist() == list(range(9))
    assert all(sorted(order) == list(range(9)) for order in orders.tolist())
    distance = (orders[:, None] != orders[None]).sum(-1)[np.triu_indices(31, 1)]
    assert distance.min() >= 7  # at random, two orders of nine tiles agree somewhere in two cases of three
    assert distance.mean() > 8
    distant_permutations.cache_clear()
    assert np.array_equal(distant_permutations(30), orders)


def test_greedy_choice_against_the_definition():
    """Each one has the largest distance to the nearest of those before it, over all 9! permutations."""
    from itertools import permutations

    every = np.array(list(permutations(range(9))), dtype=np.uint8)
    orders = distant_permutations(12)
    for k in (1, 5, 12):
        nearest = np.min([(every != order).sum(1) for order in orders[:k]], axis=0)
        assert min((orders[k] != order).sum() for order in orders[:k]) == nearest.max()


def test_a_tile_lands_where_the_order_says_and_putting_it_back_gives_the_image():
    images = torch.randn(2, 4, 3, 15, 18)
    orders = torch.tensor(distant_permutations(30))[torch.tensor([[0, 3, 7, 30], [1, 2, 0, 11]])]
    puzzles = shuffle_tiles(images, orders)
    for r, b, position in ((0, 1, 0), (0, 3, 5), (1, 0, 8)):
        source = int(orders[r, b, position])
        assert torch.equal(tile(puzzles[r, b], position), tile(images[r, b], source))
    assert torch.equal(puzzles[0, 0], images[0, 0])
    assert not torch.equal(puzzles[0, 1], images[0, 1])
    assert torch.equal(shuffle_tiles(puzzles, orders.argsort(-1)), images)


def tile(image: torch.Tensor, number: int) -> torch.Tensor:
    """Tile `number` of (3, 15, 18), row by row."""
    row, column = divmod(number, 3)
    return image[:, 5 * row : 5 * row + 5, 6 * column : 6 * column + 6]


def test_sizes_that_are_no_multiple_of_three_keep_their_edge():
    image = torch.randn(1, 3, 32, 32)
    order = torch.tensor(distant_permutations(3))[2:3]
    puzzle = shuffle_tiles(image, order)
    assert torch.equal(puzzle[..., 30:, :], image[..., 30:, :])
    assert torch.equal(puzzle[..., 30:], image[..., 30:])
    assert torch.equal(shuffle_tiles(puzzle, order.argsort(-1)), image)


def test_loss_is_the_classes_of_ordered_images_and_the_order_of_all():
    method = bound("jigsaw", lambda_puzzle=0.3, ordered_share=0.5, permutations=6)
    params, batch = method.init(None), some_batch(step=2)
    which = method.draw(2, 12)[0]
    assert 0 < int((which == 0).sum()) < 12
    assert int(which.max()) <= 6
    terms = method.loss({n: v.clone() for n, v in params.items()}, batch)
    x = torch.stack([shuffle_tiles(batch.features[0, i], method.orders[k]) for i, k in enumerate(which)])
    h = method.network.features(params, x)[0]
    labels = batch.labels[0]
    ordered = which == 0
    ce = F.cross_entropy((h @ params["head.weight"][0] + params["head.bias"][0])[ordered], labels[ordered])
    puzzle = F.cross_entropy(h @ params["puzzle.0.weight"][0] + params["puzzle.0.bias"][0], which)
    assert torch.allclose(terms["ce"][0], ce, atol=1e-5)
    assert torch.allclose(terms["puzzle"][0], puzzle, atol=1e-5)
    assert torch.allclose(terms["total"][0], ce + 0.3 * puzzle, atol=1e-5)


def test_share_of_ordered_images_and_fresh_puzzles_in_every_step():
    method = bound("jigsaw")
    drawn = torch.cat([method.draw(step, 100)[0] for step in range(20)])
    assert 0.87 < float((drawn == 0).float().mean()) < 0.93
    assert drawn.unique().numel() == 31
    assert not torch.equal(method.draw(0, 100), method.draw(1, 100))


def test_it_learns_to_solve_puzzles():
    """Images whose tiles are told apart by their brightness: the order can be read off."""
    method = bound("jigsaw", ordered_share=0.4, permutations=3)
    ramp = torch.arange(9.0).view(1, 1, 3, 3).repeat_interleave(10, 2).repeat_interleave(10, 3) / 4 - 1
    images = F.pad(ramp, (0, 2, 0, 2)).expand(24, 3, 32, 32)[None]
    params, losses = method.init(None), []
    labels = torch.zeros(1, 24, dtype=torch.int64)
    for step in range(12):
        grads, terms = method.gradients(params, Batch(images, labels, labels, 24, step))
        losses.append(float(terms["puzzle"]))
        for name, grad in grads.items():
            params[name] -= 0.05 * grad
    assert losses[-1] < 0.5 * losses[0]


def test_without_pixels_it_is_refused_with_the_way_to_get_them():
    with pytest.raises(MethodError, match="--end-to-end --vision"):
        get_method("jigsaw")
    with pytest.raises(MethodError, match="--end-to-end"):
        Jigsaw(None, Runs(torch.tensor([1]), {}, {}))
    with pytest.raises(MethodError, match="permutations"):
        bound("jigsaw", permutations=0)
