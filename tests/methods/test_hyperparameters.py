"""Hyper-parameters: draws are seeded by name, stay in their range, and unknown ones are refused."""

import math
import random

import pytest
from scipy import stats

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method, method_names
from bayescal.methods.hyperparameters import (
    Choice,
    Log10Uniform,
    Uniform,
    check_options,
    check_value,
    choice,
    default_config,
    draw_config,
    log10_uniform,
    number,
    searched,
    setting,
    settings_of,
    uniform,
)

SPACE = {
    "rate": number(lambda b: b.learning_rate, log10_uniform(-4, -1)),
    "share": number(0.5, uniform(0.2, 0.8)),
    "kind": setting("a", choice("a", "b", "c")),
    "epochs": setting(lambda b: b.epochs),
}
TRIALS = range(2000)


def drawn(name: str, space=SPACE, **given) -> list:
    return [draw_config(space, tiny.Defaults, trial, **given)[name] for trial in TRIALS]


def test_a_draw_depends_on_its_name_and_trial_alone():
    more = {"aardvark": number(1.0, uniform(0, 1)), **SPACE, "zebra": setting(True, choice(True, False))}
    fewer = {"share": SPACE["share"]}
    for trial in range(20):
        config = draw_config(SPACE, tiny.Defaults, trial)
        larger = draw_config(more, tiny.Defaults, trial)
        assert {name: larger[name] for name in config} == config
        assert draw_config(fewer, tiny.Defaults, trial)["share"] == config["share"]
        assert draw_config(SPACE, tiny.Defaults, trial) == config  # and does not change from call to call
    twins = {"one": number(0.0, uniform(0, 1)), "two": number(0.0, uniform(0, 1))}
    pairs = [draw_config(twins, tiny.Defaults, trial) for trial in TRIALS]
    correlation = stats.pearsonr([p["one"] for p in pairs], [p["two"] for p in pairs]).statistic
    assert abs(correlation) < 0.1  # other names, other numbers


def test_drawing_leaves_the_global_generator_alone():
    random.seed(7)
    expected = random.random()
    random.seed(7)
    draw_config(SPACE, tiny.Defaults, 1)
    assert random.random() == expected


def test_trials_differ():
    assert len(set(drawn("rate"))) == len(TRIALS)


def test_log10_uniform_is_uniform_in_the_exponent():
    rates = drawn("rate")
    assert 1e-4 <= min(rates) < 1.1e-4
    assert 0.9e-1 < max(rates) <= 1e-1
    assert stats.kstest([math.log10(rate) for rate in rates], "uniform", args=(-4, 3)).pvalue > 0.01
    assert stats.kstest(rates, "uniform", args=(1e-4, 0.1 - 1e-4)).pvalue < 1e-6  # and not in the number itself


def test_uniform_is_uniform():
    shares = drawn("share")
    assert 0.2 <= min(shares) < max(shares) <= 0.8
    assert stats.kstest(shares, "uniform", args=(0.2, 0.6)).pvalue > 0.01


def test_choices_are_equally_likely():
    kinds = drawn("kind")
    assert stats.chisquare([kinds.count(kind) for kind in ("a", "b", "c")]).pvalue > 0.01


def test_a_whole_number_is_a_draw_cut_down():
    """The same stream of random numbers as the draw it is cut from, and every value of the range can occur."""
    plain, whole = log10_uniform(0, 4), log10_uniform(0, 4, whole=True)
    for seed in range(200):
        value = whole(random.Random(seed))
        assert type(value) is int
        assert value == math.floor(plain(random.Random(seed)))
        assert 1 <= value <= 10_000


def test_draws_take_one_number_from_the_generator_and_use_it_plainly():
    """Draws of earlier versions keep their values: each is one call of the generator's own function."""
    made = lambda draw: draw(random.Random("3/rate"))  # noqa: E731
    r = lambda: random.Random("3/rate")  # noqa: E731
    assert made(uniform(0.2, 0.8)) == r().uniform(0.2, 0.8)
    assert made(log10_uniform(-4, -1)) == 10 ** r().uniform(-4, -1)
    assert made(log10_uniform(0, 4, whole=True)) == int(10 ** r().uniform(0, 4))
    assert made(choice("a", "b", "c")) == r().choice(("a", "b", "c"))


def test_draws_are_plain_values():
    """They can be compared and printed, so that a study can say what it searched."""
    assert uniform(0, 1) == Uniform(0, 1) != Uniform(0, 2)
    assert log10_uniform(0, 4, whole=True) == Log10Uniform(0, 4, whole=True) != log10_uniform(0, 4)
    assert choice("a", "b") == Choice(("a", "b"))
    assert repr(choice(True, False)) == "Choice(options=(True, False))"


def test_optuna_searches_the_same_ranges():
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    assert uniform(0.2, 0.8).distribution() == FloatDistribution(0.2, 0.8)
    assert log10_uniform(-4, -1).distribution() == FloatDistribution(1e-4, 1e-1, log=True)
    assert log10_uniform(0, 4, whole=True).distribution() == IntDistribution(1, 10_000, log=True)
    assert choice("end", "middle").distribution() == CategoricalDistribution(("end", "middle"))


def test_searched_is_what_has_a_draw():
    assert searched(SPACE) == {
        "rate": Log10Uniform(-4, -1),
        "share": Uniform(0.2, 0.8),
        "kind": Choice(("a", "b", "c")),
    }


@pytest.mark.parametrize("name", method_names())
def test_optuna_accepts_what_a_method_draws(name):
    for draw in searched(get_method(name).space).values():
        distribution = draw.distribution()
        for seed in range(20):
            value = draw(random.Random(seed))
            assert distribution._contains(distribution.to_internal_repr(value))


def test_what_has_no_draw_or_is_given_is_not_searched():
    assert set(drawn("epochs")) == {tiny.Defaults.epochs}
    assert set(drawn("rate", rate=0.3)) == {0.3}
    assert drawn("share", rate=0.3) == drawn("share")


def test_defaults_come_from_the_backbone_and_the_user_has_the_last_word():
    config = default_config(SPACE, tiny.Defaults, share=0.9)
    assert config == {"rate": tiny.Defaults.learning_rate, "share": 0.9, "kind": "a", "epochs": tiny.Defaults.epochs}


def test_settings_are_what_decides_the_stack():
    assert settings_of(SPACE, default_config(SPACE, tiny.Defaults)) == {"kind": "a", "epochs": tiny.Defaults.epochs}


def test_unknown_options_are_refused_by_name():
    with pytest.raises(
        MethodError, match=r"^this method has no option 'shaer'; did you mean 'share'\? It has: epochs, "
    ):
        check_options(SPACE, {"rate": 1.0, "shaer": 0.5})
    with pytest.raises(MethodError, match=r"^method 'x' has no option 'qqq'\. It has: epochs, kind, rate, share$"):
        check_options(SPACE, {"qqq": 1}, who="method 'x'")
    for make in (default_config, lambda *given, **more: draw_config(*given, 3, **more)):
        with pytest.raises(MethodError, match="did you mean 'epochs'"):
            make(SPACE, tiny.Defaults, epoch=3)
    check_options(SPACE, {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rate": "0.1"}, "a number, found '0.1'"),
        ({"rate": None}, "a number"),
        ({"rate": True}, "a number"),
        ({"rate": math.nan}, "a number"),
        ({"epochs": 2.5}, "a whole number, found 2.5"),
        ({"epochs": True}, "a whole number"),
        ({"kind": 3}, "text, found 3"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(given, expected):
    (name,) = given
    for make in (default_config, lambda *more, **options: draw_config(*more, 3, **options)):
        with pytest.raises(MethodError, match=f"{name}.*expected {expected}"):
            make(SPACE, tiny.Defaults, **given)


def test_a_whole_number_is_a_number():
    assert default_config(SPACE, tiny.Defaults, rate=1)["rate"] == 1


@pytest.mark.parametrize("name", ["cal", "bayes-cal"])
def test_the_weights_of_the_objective_are_searched_in_the_stated_ranges(name):
    space = get_method(name).space
    for weight, low in (("lambda_env", 1e-3), ("lambda_irm", 1e-2), ("lambda_orth", 1e-3)):
        values = drawn(weight, space)
        assert low <= min(values) < 1.2 * low
        assert 0.8 < max(values) <= 1


@pytest.mark.parametrize("name", method_names())
def test_every_method_can_be_configured(name):
    space = get_method(name).space
    config = default_config(space, tiny.Defaults)
    assert set(config) == set(space)
    assert all(isinstance(config[key], int | float) for key, param in space.items() if param.is_number)
    for trial in range(5):
        assert set(draw_config(space, tiny.Defaults, trial)) == set(space)


@pytest.mark.parametrize("value", [None, "20", True, math.nan, math.inf, -1.0, 1 << 63, []])
def test_a_setting_that_is_a_number_with_a_point_takes_nothing_else(value):
    """`alpha_max=None` ended in an error of Python."""
    param, defaults = get_method("tip-adapter").space["alpha_max"], tiny.Defaults()
    check_value(param, 20, defaults, "alpha_max")
    with pytest.raises(MethodError, match=r"^alpha_max: .*expected"):
        check_value(param, value, defaults, "alpha_max")


def test_a_setting_that_counts_is_not_negative():
    with pytest.raises(MethodError, match="beta_steps: expected a number that is not negative, found -1"):
        check_value(get_method("tip-adapter").space["beta_steps"], -1, tiny.Defaults(), "beta_steps")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("dplclip", "mlp_width"),
        ("clip-adapter", "reduction"),
        ("stable", "sampled_features"),
        ("stable", "fourier_functions"),
    ],
)
def test_there_is_one_at_least_of_what_a_method_divides_by_or_draws(method, name):
    """Zero of them ended in an error of torch."""
    param = get_method(method).space[name]
    check_value(param, 1, tiny.Defaults(), name)
    with pytest.raises(MethodError, match=f"{name}: expected at least 1, found 0"):
        check_value(param, 0, tiny.Defaults(), name)
