"""The colouring follows ColoredMNIST's rule: the rates, the independence and the pixels."""

import numpy as np
import pytest

from bayescal.data.synthetic.coloring import CLASS_NAMES, binary_labels, color_images, draw_colours, paint
from bayescal.errors import DataError

N = 40_000


def within_binomial_bounds(hits, rate):
    """Five standard deviations: a right implementation fails about once in two million."""
    return abs(np.mean(hits) - rate) < 5 * np.sqrt(rate * (1 - rate) / len(hits))


def colored(flip, seed=0, **options):
    digits = np.arange(N) % 10
    grey = np.full((N, 2, 2), 200, dtype=np.uint8)
    return color_images(grey, digits, flip=flip, generator=np.random.default_rng(seed), **options)


def test_labels_come_from_the_digit():
    assert binary_labels(np.arange(10)).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert CLASS_NAMES == ("less than five", "greater than four")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("flip", [0.1, 0.2, 0.9])
def test_the_rates_are_those_of_the_rule(flip, exact):
    made = colored(flip, exact=exact)
    assert within_binomial_bounds(made.labels != made.true_labels, 0.25)
    assert within_binomial_bounds(made.colours != made.labels, flip)
    # colour against the true label: wrong when exactly one of the two was flipped
    assert within_binomial_bounds(made.colours != made.true_labels, 0.25 * (1 - flip) + 0.75 * flip)
    # the two flips are independent, and independent of the digit
    assert within_binomial_bounds(made.colour_flipped[made.label_flipped], flip)
    for digit in range(10):
        assert within_binomial_bounds(made.label_flipped[digit::10], 0.25)
        assert within_binomial_bounds(made.colour_flipped[digit::10], flip)


@pytest.mark.parametrize("n", [7, 40, 199, 1000])
@pytest.mark.parametrize("flip", [0.1, 0.2, 0.9])
def test_counts_are_the_rounded_rates_of_each_class(n, flip):
    truth = np.arange(n) % 3 == 0  # classes of different sizes
    for seed in range(5):
        generator = np.random.default_rng(seed)
        made = draw_colours(truth.astype(int), flip=flip, label_noise=0.25, generator=generator)
        for label in (0, 1):
            of_class, of_label = truth == label, made.labels == label
            assert made.label_flipped[of_class].sum() == round(0.25 * of_class.sum())
            assert made.colour_flipped[of_label].sum() == round(flip * of_label.sum())
            for wrong in (True, False):  # a wrong label says nothing about the colour
                cell = of_label & (made.label_flipped == wrong)
                assert abs(made.colour_flipped[cell].sum() - flip * cell.sum()) <= 1.5


def test_with_exact_counts_every_image_is_as_likely_as_any_other():
    truth = np.repeat([0, 1], 20)
    generator = np.random.default_rng(0)
    draws = [draw_colours(truth, flip=0.2, label_noise=0.25, generator=generator) for _ in range(2000)]
    for flips, rate in (([d.label_flipped for d in draws], 0.25), ([d.colour_flipped for d in draws], 0.2)):
        assert all(within_binomial_bounds(image, rate) for image in np.array(flips).T)
    # neighbours are not drawn together
    pairs = np.array([d.label_flipped[:2] for d in draws])
    assert within_binomial_bounds(pairs.all(axis=1), 5 / 20 * 4 / 19)


def test_by_chance_counts_vary():
    truth = np.zeros(1000, dtype=int)
    generator = np.random.default_rng(0)
    made = [draw_colours(truth, flip=0.2, label_noise=0, generator=generator, exact=False) for _ in range(5)]
    assert len({int(d.colour_flipped.sum()) for d in made}) > 1


def test_the_flags_say_what_was_done():
    made = colored(0.2)
    assert np.array_equal(made.label_flipped, made.labels != made.true_labels)
    assert np.array_equal(made.colour_flipped, made.colours != made.labels)


def test_the_extremes():
    never, always = colored(0.0, label_noise=0.0), colored(1.0, label_noise=0.0)
    assert np.array_equal(never.colours, never.true_labels)
    assert np.array_equal(always.colours, 1 - always.true_labels)


def test_the_digit_is_painted_red_or_green_on_black():
    grey = np.random.default_rng(0).integers(0, 256, (2, 5, 4), dtype=np.uint8)
    painted = paint(grey, np.array([0, 1]))
    assert painted.shape == (2, 5, 4, 3)
    assert painted.dtype == np.uint8
    assert np.array_equal(painted[0, ..., 0], grey[0])
    assert np.array_equal(painted[1, ..., 1], grey[1])
    assert painted[0, ..., 1:].sum() == painted[1, ..., 0].sum() == painted[..., 2].sum() == 0


def test_the_same_seed_repeats_and_the_generator_runs_on():
    assert np.array_equal(colored(0.2, seed=3).colours, colored(0.2, seed=3).colours)
    generator = np.random.default_rng(0)
    grey, digits = np.zeros((100, 2, 2), np.uint8), np.zeros(100, int)
    first, second = (color_images(grey, digits, flip=0.5, generator=generator) for _ in range(2))
    assert not np.array_equal(first.colour_flipped, second.colour_flipped)


def test_bad_arguments_are_refused():
    grey = np.zeros((3, 2, 2), np.uint8)
    generator = np.random.default_rng(0)
    with pytest.raises(DataError, match="probability"):
        color_images(grey, np.zeros(3), flip=1.5, generator=generator)
    with pytest.raises(DataError, match="Expected"):
        color_images(grey, np.zeros(4), flip=0.5, generator=generator)
