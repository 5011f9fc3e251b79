"""What to label next: uncertain images first, and not the same one again."""

from types import SimpleNamespace

import torch

from bayescal.serving.queue import next_to_label


def predictor(entropy: list[float]):
    return SimpleNamespace(details=lambda features: SimpleNamespace(entropy=torch.tensor(entropy).numpy()))


def test_the_most_uncertain_first_and_copies_of_it_last():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1e-3], [0.0, 3.0]])
    assert next_to_label(predictor([0.9, 0.5, 0.89, 0.4]), features)[:2] == [0, 1]
    assert sorted(next_to_label(predictor([0.9, 0.5, 0.89, 0.4]), features)) == [0, 1, 2, 3]
    assert next_to_label(predictor([]), features[:0]) == []


def test_of_images_that_are_equally_far_the_order_is_that_of_the_entropy():
    entropy = [0.1, 0.7, 0.3, 0.6]
    assert next_to_label(predictor(entropy), torch.eye(4)) == [1, 3, 2, 0]
