"""Draws: the same in every process, after every kill, and never more than asked for."""

import pytest

from bayescal.benchmark import study as module
from bayescal.benchmark.store import sqlite_url
from bayescal.benchmark.study import Study, Trial, different
from bayescal.errors import BayescalError
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import draw_config
from tiny import Defaults


def open_study(tmp_path, sampler="random", method="bayes-cal", **fixed) -> Study:
    space = {name: param for name, param in get_method(method).space.items() if name not in fixed}
    return Study(sqlite_url(tmp_path), method, space, Defaults(), fixed, sampler)


def test_random_draws_are_those_of_the_space(tmp_path):
    draws = open_study(tmp_path).ask(5)
    assert [d.number for d in draws] == [0, 1, 2, 3, 4]
    space = get_method("bayes-cal").space
    assert [d.config for d in draws] == [draw_config(space, Defaults(), trial) for trial in range(5)]


def test_asking_again_gives_the_same_draws_and_more_only_adds(tmp_path):
    first = open_study(tmp_path).ask(3)
    assert open_study(tmp_path).ask(3) == first
    assert open_study(tmp_path).ask(5)[:3] == first
    assert open_study(tmp_path).ask(2) == first[:2]


def test_what_is_fixed_leaves_the_other_draws_as_they_were(tmp_path):
    whole = open_study(tmp_path).ask(4)
    without = Study(
        sqlite_url(tmp_path),
        "without",
        {n: p for n, p in get_method("bayes-cal").space.items() if n != "lambda_irm"},
        Defaults(),
        {"lambda_irm": 0.0},
    ).ask(4)
    for a, b in zip(whole, without, strict=True):
        assert b.config == {**a.config, "lambda_irm": 0.0}


def test_nothing_to_search_is_one_draw_and_no_database(tmp_path):
    study = open_study(tmp_path, method="clip")
    assert [d.number for d in study.ask(20)] == [0]
    study.tell(0, 0.5)
    assert not list(tmp_path.iterdir())


def test_equal_draws_are_trained_once(tmp_path):
    draws = open_study(tmp_path, method="coop").ask(20)  # two choices of two: four configs
    assert len(draws) == 20
    kept = different(draws)
    assert len(kept) == 4
    assert all(kept[i].number < kept[i + 1].number for i in range(3))


def test_tpe_learns_from_what_it_is_told_and_continues(tmp_path):
    study = open_study(tmp_path, "tpe")
    assert study.batch is not None
    for upto in (10, 30):
        for draw in study.ask(upto):
            study.tell(draw.number, -abs(draw.config["lambda_irm"] - 0.5))  # the best λ2 is 0.5
    assert len(study.ask(30)) == 30
    again = open_study(tmp_path, "tpe").ask(40)
    early = [abs(d.config["lambda_irm"] - 0.5) for d in again[:10]]
    late = [abs(d.config["lambda_irm"] - 0.5) for d in again[30:]]
    assert sum(late) / 10 < sum(early) / 10


def test_telling_twice_is_harmless(tmp_path):
    study = open_study(tmp_path)
    study.ask(1)
    study.tell(0, 0.5)
    study.tell(0, 0.7)
    assert study.optuna.trials[0].value == 0.5


def test_an_unknown_sampler_is_refused(tmp_path):
    with pytest.raises(BayescalError, match="random, tpe"):
        open_study(tmp_path, "grid")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_draw_that_another_process_has_not_written_to_the_end_is_whole_all_the_same(tmp_path, monkeypatch, sampler):
    """Optuna writes a trial first and its parameters one by one: a kill, or a look, may fall in between."""
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.1)
    study = open_study(tmp_path, sampler)
    study.optuna.ask({"lambda_env": study.searched["lambda_env"].distribution()})
    draws = study.ask(2)
    assert [d.number for d in draws] == [0, 1]
    expected = draw_config(get_method("bayes-cal").space, Defaults(), 0)
    written = study.optuna.trials[0].params
    assert list(written) == ["lambda_env"]
    assert draws[0].config == {**expected, **written}
    assert open_study(tmp_path, sampler).ask(2) == draws


def test_looking_asks_for_nothing(tmp_path):
    random, tpe = open_study(tmp_path), open_study(tmp_path, "tpe")
    assert random.look(3) == [Trial(k, draw_config(random.space, Defaults(), k)) for k in range(3)]
    assert tpe.look(3) == []
    assert not random.optuna.trials
    assert not tpe.optuna.trials


def test_a_renamed_parameter_is_known_to_the_database_by_its_first_name(tmp_path):
    """A study that was begun before the renaming is continued: by its draws, and by what TPE has learned from them."""
    for sampler in ("random", "tpe"):
        draws = open_study(tmp_path, sampler, "irm").ask(2)
        trials = open_study(tmp_path, sampler, "irm").optuna.get_trials()
        for draw, trial in zip(draws, trials, strict=True):
            assert trial.params["irm_lambda"] == draw.config["lambda_irm"]
            assert "lambda_irm" not in trial.params
        assert open_study(tmp_path, sampler, "irm").look(2) == draws
