"""Random or TPE search through Optuna's ask/tell: which configs to train, kept in a database that can be shared.

A study belongs to one variant on one data set, backbone and protocol. A random trial is a function of its number and
the parameters' names, not of a generator's state: the twentieth trial is the same in every process, after every kill,
and when another parameter is added to the space.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from bayescal.benchmark.database import in_words, prepare, search_in_words
from bayescal.benchmark.store import made_together
from bayescal.errors import BayescalError
from bayescal.methods.hyperparameters import Config, Space, default_config, numbered_draw, searched

if TYPE_CHECKING:
    import optuna

    from bayescal.backbones.defaults import TrainingDefaults

SAMPLERS = ("random", "tpe")
SETTLE_SECONDS = 5.0  # another process that has not written all parameters of its trial by then has died
TPE_BATCH = 5  # trials asked for together: enough for a stack, few enough for TPE to learn from the ones before


@dataclass(frozen=True)
class Trial:
    """One setting of the hyper-parameters: its number in the study and the whole config that follows from it."""

    number: int
    config: Config


class Study:
    """The trials of one variant. Without anything to search there is one trial, the defaults, and no database."""

    def __init__(
        self,
        url: str,
        name: str,
        space: Space,
        defaults: "TrainingDefaults",
        fixed: Mapping[str, Any],
        sampler: str = "random",
    ):
        if sampler not in SAMPLERS:
            raise BayescalError(f"there is no sampler {sampler!r}; choose one of {', '.join(SAMPLERS)}")
        self.space, self.defaults, self.fixed, self.sampler = space, defaults, dict(fixed), sampler
        self.searched = searched(space)
        # A renamed parameter keeps the name that the database has for it.
        self.stored_as = {key: space[key].drawn_as or key for key in self.searched}
        self.url = url
        with search_in_words(url):
            self.optuna = _open(url, f"{name} · {sampler}", space, sampler) if self.searched else None

    def ask(self, count: int) -> list[Trial]:
        """The first `count` trials, of which as many are asked for as the study does not have yet."""
        if self.optuna is None:
            return [Trial(0, self._config({}))]
        distributions = {self.stored_as[name]: draw.distribution() for name, draw in self.searched.items()}
        with search_in_words(self.url):
            for _ in range(count - len(self.optuna.get_trials(deepcopy=False))):
                self.optuna.ask(distributions)
        return self.look(count)

    def look(self, count: int) -> list[Trial]:
        """Those of the first `count` trials that are certain without asking: random ones are, whoever drew them."""
        if self.optuna is None:
            return [Trial(0, self._config({}))]
        if self.sampler == "random":
            return [Trial(number, self._config(self._numbered(number))) for number in range(count)]
        # Two processes may have asked at once: the first `count` numbers are the study.
        drawn = lambda t: {name: t.params[key] for name, key in self.stored_as.items() if key in t.params}  # noqa: E731
        with search_in_words(self.url):
            return [Trial(t.number, self._config(self._numbered(t.number) | drawn(t))) for t in self._settled(count)]

    def tell(self, number: int, value: float) -> None:
        """The score of a trial (mean validation accuracy), for the sampler and for Optuna's dashboard."""
        if self.optuna is None:
            return
        from optuna.exceptions import UpdateFinishedTrialError

        with search_in_words(self.url), suppress(UpdateFinishedTrialError):  # another process said so a moment ago
            self.optuna.tell(number, value, skip_if_finished=True)

    @property
    def batch(self) -> int | None:
        """How many trials to ask for before telling; None: all at once."""
        return TPE_BATCH if self.sampler == "tpe" and self.searched else None

    def _settled(self, count: int) -> "list[optuna.trial.FrozenTrial]":
        """The first trials there are. Parameters are written one by one: a trial that is half there is waited for."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            trials = self.optuna.get_trials(deepcopy=False)[:count] if self.optuna else []
            if time.monotonic() > end or all(set(self.stored_as.values()) <= trial.params.keys() for trial in trials):
                return trials
            time.sleep(0.05)

    def _numbered(self, number: int) -> Config:
        return {name: numbered_draw(self.space, name, number) for name in self.searched}

    def _config(self, drawn: Mapping[str, Any]) -> Config:
        return default_config(self.space, self.defaults, **drawn) | self.fixed


def different(trials: Sequence[Trial]) -> list[Trial]:
    """Each config once, under its first number: with four choices in a space, twenty trials repeat some."""
    first: dict[str, Trial] = {}
    for trial in trials:
        first.setdefault(repr(sorted(trial.config.items())), trial)
    return list(first.values())


def _open(url: str, name: str, space: Space, sampler: str) -> "optuna.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    wait = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    try:
        storage = made_together(lambda: optuna.storages.RDBStorage(url, engine_kwargs=wait))
    except SQLAlchemyError as error:
        raise (in_words(url, error) or error) from error
    prepare(storage.engine, url)
    chosen = optuna.samplers.TPESampler(seed=0, constant_liar=True) if sampler == "tpe" else _numbered_sampler(space)
    return optuna.create_study(
        storage=storage, study_name=name, sampler=chosen, direction="maximize", load_if_exists=True
    )


def _numbered_sampler(space: Space) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import BaseSampler

    names = {param.drawn_as or name: name for name, param in space.items()}

    class Numbered(BaseSampler):
        def infer_relative_search_space(self, study, trial):
            return {}

        def sample_relative(self, study, trial, search_space):
            return {}

        def sample_independent(self, study, trial, param_name, param_distribution):
            return numbered_draw(space, names[param_name], trial.number)

    return Numbered()
