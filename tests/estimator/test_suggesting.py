"""Which images to label next, on features drawn so that the answer is known."""

import numpy as np
import torch
from torch.nn import functional as F

from bayescal.estimator import suggesting
from bayescal.estimator.prediction import Prediction
from bayescal.estimator.suggesting import Sample, suggest, unknown


def clusters(sizes: list[int], spread: float = 0.05, dim: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around orthogonal directions, and which direction each is from."""
    g = torch.Generator().manual_seed(0)
    of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return F.normalize(torch.eye(dim)[of] + spread * torch.randn(len(of), dim, generator=g), dim=-1), of


def test_every_kind_is_suggested_once_the_largest_first_and_none_that_is_labelled():
    features, of = clusters([30, 5, 15, 10])
    found = suggest(features, torch.ones(60), torch.eye(16)[3:4], 3)
    assert of[found.images].tolist() == [0, 2, 1], "the fourth is labelled"
    assert found.stands_for.tolist() == [30, 15, 5]


def test_of_kinds_as_large_the_one_comes_first_that_the_model_is_unsure_of():
    features, of = clusters([10, 10, 10])
    uncertainty = torch.tensor([0.1, 1.0, 0.4])[of]
    assert of[suggest(features, uncertainty, features[:0], 3).images].tolist() == [1, 2, 0]


def test_two_images_alike_are_not_both_suggested_before_another_kind():
    features, of = clusters([20, 20], spread=0.01)
    uncertainty = torch.where(of == 0, 5.0, 0.5)
    assert sorted(of[suggest(features, uncertainty, features[:0], 2).images].tolist()) == [0, 1]


def test_environments_that_were_not_seen_come_first():
    features, of = clusters([30, 4, 4])
    first = (of > 0).numpy()
    found = suggest(features, torch.ones(38), features[:0], 12, first)
    assert set(of[found.images[:8]].tolist()) == {1, 2}
    assert set(of[found.images[8:]].tolist()) == {0}, "when no other is left"


def test_no_image_twice_and_no_more_than_there_are():
    features, _ = clusters([3, 3])
    found = suggest(features, torch.zeros(6), features[:0], 20)
    assert sorted(found.images.tolist()) == list(range(6))


def test_of_very_many_images_a_sample_stands_for_all(monkeypatch):
    monkeypatch.setattr(suggesting, "CANDIDATES", 64)
    monkeypatch.setattr(suggesting, "TARGETS", 50)
    features, of = clusters([300, 100, 200])
    found = suggest(features, torch.ones(600), features[:0], 3)
    assert of[found.images].tolist() == [0, 2, 1]
    assert abs(found.stands_for - [300, 200, 100]).max() <= 24


def test_a_sample_in_which_images_are_missing_suggests_the_others_and_stands_for_all(monkeypatch):
    monkeypatch.setattr(suggesting, "CANDIDATES", 64)
    monkeypatch.setattr(suggesting, "TARGETS", 50)
    features, of = clusters([300, 100, 200])
    first = (of == 1).numpy()
    sample = Sample.of(first, 3)
    assert len(sample.images) <= 64 + 50
    assert first[sample.candidates].sum() == 32, "half of the candidates are images to be suggested first"
    there = sample.images[::2]  # every second one cannot be read
    found = suggest(features[there], torch.ones(len(there)), features[:0], 3, first[there], sample.within(there))
    assert of[there[found.images]].tolist() == [1, 1, 1]
    one = suggest(features[there], torch.ones(len(there)), features[:0], 3, None, sample.within(there))
    assert of[there[one.images]].tolist() == [0, 2, 1]
    assert abs(one.stands_for - [150, 100, 50]).max() <= 20, "half of all can be read"


def test_what_is_not_known_is_of_parameters_and_members_and_else_the_entropy():
    def said(information: float) -> Prediction:
        n = np.zeros(2)
        fields = {name: n for name in Prediction.__dataclass_fields__}
        return Prediction(
            **fields | {"entropy": n + 0.7, "mutual_information": n + information, "disagreement": n + 0.0}
        )

    assert unknown(said(0.2)).tolist() == torch.tensor([0.2, 0.2]).tolist()
    assert unknown(said(0.0)).tolist() == torch.tensor([0.7, 0.7]).tolist()
