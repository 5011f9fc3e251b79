"""Familiarity: nearest neighbours and texts as they are defined, and thresholds that keep what they promise."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch.nn import functional as F

from bayescal.evaluation import familiarity
from bayescal.evaluation.familiarity import Familiarity, closest, nearest


@pytest.fixture
def world():
    """Images of three classes in three environments around their texts, more of them, and strangers."""
    g = torch.Generator().manual_seed(0)
    texts, styles = torch.randn(3, 32, generator=g), 0.5 * torch.randn(4, 32, generator=g)

    def draw(n, environments):
        labels, style = (
            torch.randint(3, (n,), generator=g),
            torch.tensor(environments)[torch.arange(n) % len(environments)],
        )
        return texts[labels] + styles[style] + 0.4 * torch.randn(n, 32, generator=g), style

    return texts, draw, torch.randn(200, 32, generator=g)


def test_nearest_neighbours_rank_as_openoods_knn_does(world, monkeypatch):
    """OpenOOD's KNN: minus the distance to the k-th neighbour among normalised features. With k = 1 the order is the
    same, because ‖a − b‖² = 2 − 2 cos(a, b)."""
    _, draw, strangers = world
    images, queries = F.normalize(draw(60, [0, 1])[0], dim=-1), F.normalize(strangers, dim=-1)
    monkeypatch.setattr(familiarity, "NEIGHBOURS", 1)
    distance, _ = NearestNeighbors(n_neighbors=1).fit(images.numpy()).kneighbors(queries.numpy())
    assert np.array_equal(np.argsort(-distance[:, 0]), np.argsort(nearest(queries, images).numpy()))


def test_the_mean_of_the_nearest_cosines():
    images = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    leave_out = torch.eye(9, dtype=torch.bool)
    cosines = (images @ images.T).numpy().copy()
    np.fill_diagonal(cosines, -np.inf)
    by_hand = np.sort(cosines, axis=1)[:, -5:].mean(1)
    assert nearest(images, images, leave_out).numpy() == pytest.approx(by_hand, abs=1e-6)
    assert closest(images, images[:3]).numpy() == pytest.approx((images @ images[:3].T).numpy().max(1), abs=1e-6)


def test_fewer_than_five_to_compare_with_are_averaged_alone():
    """What must not count, because it is of the same environment, must not count as unlike either."""
    images = F.normalize(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    same = torch.ones(8, 8, dtype=torch.bool)
    same[:, 5:7] = False
    expected = (images @ images[5:7].T).mean(1).numpy()
    assert nearest(images, images, same).numpy() == pytest.approx(expected, abs=1e-6)


def test_a_small_second_environment_does_not_make_everything_familiar(world):
    texts, draw, strangers = world
    known, _ = draw(60, [0])
    few, _ = draw(3, [1])
    environments = torch.tensor([0] * 60 + [1] * 3)
    judge = Familiarity.of(torch.cat([known, few]), environments, texts)
    assert float((judge(strangers) < judge.threshold).float().mean()) > 0.5


def test_strangers_are_flagged_and_a_new_environment_is_not(world):
    texts, draw, strangers = world
    known, environments = draw(300, [0, 1, 2])
    judge = Familiarity.of(known, environments, texts)
    familiar, elsewhere = judge(draw(300, [0, 1, 2])[0]), judge(draw(300, [3])[0])
    assert float((familiar < judge.threshold).float().mean()) < 0.07
    assert float((elsewhere < judge.threshold).float().mean()) < 0.15
    assert float((judge(strangers) < judge.threshold).float().mean()) > 0.9
    truth = np.r_[np.zeros(len(strangers)), np.ones(len(familiar))]
    assert roc_auc_score(truth, torch.cat([judge(strangers), familiar]).numpy()) > 0.97


def test_false_alarms_on_training_images_are_as_promised(world):
    """Each training image against all others but itself, and against other environments alone."""
    texts, draw, _ = world
    known, environments = draw(300, [0, 1, 2])
    judge = Familiarity.of(known, environments, texts)
    images = F.normalize(known, dim=-1)
    b = closest(images, F.normalize(texts, dim=-1))
    for leave_out, share in (
        (torch.eye(300, dtype=torch.bool), familiarity.FALSE_ALARMS),
        (environments[:, None] == environments[None, :], familiarity.FALSE_ALARMS_ELSEWHERE),
    ):
        scores = torch.stack([nearest(images, images, leave_out), b], -1)
        assert judge.scores(images, leave_out).equal(scores)
        flagged = familiarity.combine(scores, judge.mean, judge.deviation) < judge.threshold
        assert float(flagged.float().mean()) <= share + 1e-6


def test_like_noise_counts_beyond_two_deviations_only(world):
    """Noise that training images lie apart from makes nothing more familiar; what looks like it is unfamiliar."""
    texts, draw, _ = world
    known, environments = draw(300, [0, 1, 2])
    noise = torch.randn(10, 32, generator=torch.Generator().manual_seed(3))
    plain, judge = Familiarity.of(known, environments, texts), Familiarity.of(known, environments, texts, noise)
    queries = torch.cat([draw(300, [0, 1, 2])[0], noise + 0.1])
    z = (closest(F.normalize(queries, dim=-1), F.normalize(noise, dim=-1)) - judge.mean[2]) / judge.deviation[2]
    assert judge(queries).numpy() == pytest.approx((plain(queries) - (z - 2).clamp(min=0)).numpy(), abs=1e-5)
    assert float((judge(queries)[:300] == plain(queries)[:300]).float().mean()) > 0.9
    assert bool((judge(queries)[300:] < judge.threshold).all())
    assert bool((judge(queries)[300:] < plain(queries)[300:] - 5).all())


def test_an_image_with_a_better_name_is_unfamiliar_however_near_it_is(world):
    """min of both parts: another word counts by its lead over every class text, in deviations of training images."""
    texts, draw, _ = world
    known, environments = draw(300, [0, 1, 2])
    g = torch.Generator().manual_seed(5)
    noise, words = torch.randn(10, 32, generator=g), torch.randn(50, 32, generator=g)
    plain, judge = (Familiarity.of(known, environments, texts, noise, own) for own in (None, words))
    assert judge.words is not None
    named = F.normalize(known[:50], dim=-1) + 3 * F.normalize(
        words, dim=-1
    )  # beside a training image, called by a word
    queries = torch.cat([draw(300, [0, 1, 2])[0], named])
    directions = F.normalize(queries, dim=-1).numpy()
    cosines = lambda others: directions @ F.normalize(others, dim=-1).numpy().T  # noqa: E731
    lead = np.maximum(cosines(words).max(1) - cosines(texts).max(1), 0)
    z = (lead - float(judge.mean[3])) / float(judge.deviation[3])
    like_noise = np.maximum((cosines(noise).max(1) - float(judge.mean[2])) / float(judge.deviation[2]) - 2, 0)
    expected = np.minimum(plain(queries).numpy() + like_noise, -z) - like_noise
    assert judge(queries).numpy() == pytest.approx(expected, abs=1e-4)
    assert float((judge(queries)[300:] < judge.threshold).float().mean()) > 0.95
    assert float((judge(queries)[:300] < judge.threshold).float().mean()) < 0.07


def test_where_no_training_image_has_a_better_name_a_trace_of_one_is_no_alarm(world):
    texts, draw, _ = world
    known, environments = draw(300, [0, 1, 2])
    noise, far = torch.randn(2, 10, 32, generator=torch.Generator().manual_seed(5)).unbind()
    judge = Familiarity.of(known, environments, texts, noise, -texts + 0.1 * far[:3])
    assert float(judge.mean[3]) == 0
    assert float(judge.deviation[3]) == pytest.approx(familiarity.SMALLEST_GAP)


def test_of_all_words_the_nearest_to_a_class_are_kept(world, monkeypatch):
    texts, _, _ = world
    monkeypatch.setattr(familiarity, "WORDS", 4)
    words = F.normalize(torch.randn(20, 32, generator=torch.Generator().manual_seed(6)), dim=-1)
    kept = familiarity.nearest_words(words, F.normalize(texts, dim=-1))
    nearest_to_any = (words @ F.normalize(texts, dim=-1).T).numpy().max(1)
    assert torch.equal(kept, words[np.sort(np.argsort(-nearest_to_any)[:4])])


def test_with_one_environment_fewer_of_its_images_are_unfamiliar(world):
    """Nothing shows how another environment differs, so that the bar is lower."""
    texts, draw, _ = world
    known, _ = draw(300, [0])
    judge = Familiarity.of(known, torch.zeros(300, dtype=torch.int64), texts)
    alone = judge.scores(judge.images, torch.eye(300, dtype=torch.bool))
    flagged = familiarity.combine(alone, judge.mean, judge.deviation) < judge.threshold
    assert float(flagged.float().mean()) == pytest.approx(familiarity.FALSE_ALARMS_ALONE, abs=1 / 300)


def test_of_few_images_none_is_unfamiliar(world):
    """Five percent of twelve images are none."""
    texts, draw, _ = world
    known, environments = draw(12, [0, 1])
    judge = Familiarity.of(known, environments, texts)
    alone = judge.scores(judge.images, torch.eye(12, dtype=torch.bool))
    assert bool((familiarity.combine(alone, judge.mean, judge.deviation) >= judge.threshold).all())


def test_many_images_are_sampled_for_what_is_usual(world, monkeypatch):
    texts, draw, _ = world
    known, environments = draw(300, [0, 1, 2])
    whole = Familiarity.of(known, environments, texts)
    monkeypatch.setattr(familiarity, "CALIBRATION", 150)
    sample = Familiarity.of(known, environments, texts)
    assert len(sample.images) == 300
    assert sample.threshold == pytest.approx(whole.threshold, abs=0.5)
