"""Random or TPE search through Optuna's ask/tell: which configs to train, kept in a database that can be shared.

A study belongs to one entry on one data set, backbone and protocol. Random draws are a function of the trial's number
and the parameter's name, not of a generator's state: the twentieth draw is the same in every process, after every
kill, and when another parameter is added to the space.
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayescal.errors import BayescalError
from bayescal.protocol.store import made_together
from bayescal.space import Config, Draw, Space, default_config, searched

if TYPE_CHECKING:
    import optuna

    from bayescal.backbones.defaults import TrainingDefaults

SAMPLERS = ("random", "tpe")
SETTLE_SECONDS = 5.0  # another process that has not written all parameters of its draw by then has died
TPE_BATCH = 5  # draws asked for together: enough for a stack, few enough for TPE to learn from the ones before


@dataclass(frozen=True)
class Drawn:
    """A hyper-parameter draw: its number in the study and the whole config that follows from it."""

    number: int
    config: Config


class Study:
    """The draws of one entry. Without anything to search there is one draw, the defaults, and no database."""

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
        self.optuna = _open(url, f"{name} · {sampler}", space, sampler) if self.searched else None

    def ask(self, count: int) -> list[Drawn]:
        """The first `count` draws, of which as many are asked for as the study does not have yet."""
        if self.optuna is None:
            return [Drawn(0, self._config({}))]
        distributions = {name: draw.distribution() for name, draw in self.searched.items()}
        for _ in range(count - len(self.optuna.get_trials(deepcopy=False))):
            self.optuna.ask(distributions)
        return self.look(count)

    def look(self, count: int) -> list[Drawn]:
        """Those of the first `count` draws that are certain without asking: random ones are, whoever drew them."""
        if self.optuna is None:
            return [Drawn(0, self._config({}))]
        if self.sampler == "random":
            return [Drawn(number, self._config(self._numbered(number))) for number in range(count)]
        # Two processes may have asked at once: the first `count` numbers are the study.
        return [Drawn(t.number, self._config(self._numbered(t.number) | t.params)) for t in self._settled(count)]

    def tell(self, number: int, value: float) -> None:
        """The score of a draw (mean validation accuracy), for the sampler and for Optuna's dashboard."""
        if self.optuna is None:
            return
        from optuna.exceptions import UpdateFinishedTrialError

        with suppress(UpdateFinishedTrialError):  # another process said the same a moment ago
            self.optuna.tell(number, value, skip_if_finished=True)

    @property
    def batch(self) -> int | None:
        """How many draws to ask for before telling; None: all at once."""
        return TPE_BATCH if self.sampler == "tpe" and self.searched else None

    def _settled(self, count: int) -> "list[optuna.trial.FrozenTrial]":
        """The first trials there are. Parameters are written one by one: a trial that is half there is waited for."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            trials = self.optuna.get_trials(deepcopy=False)[:count]
            if time.monotonic() > end or all(self.searched.keys() <= trial.params.keys() for trial in trials):
                return trials
            time.sleep(0.05)

    def _numbered(self, number: int) -> Config:
        return {name: numbered_draw(draw, number, name) for name, draw in self.searched.items()}

    def _config(self, drawn: Mapping[str, Any]) -> Config:
        return default_config(self.space, self.defaults, **drawn) | self.fixed


def different(draws: Sequence[Drawn]) -> list[Drawn]:
    """Each config once, under its first number: a space of four choices has no twenty draws."""
    first: dict[str, Drawn] = {}
    for draw in draws:
        first.setdefault(repr(sorted(draw.config.items())), draw)
    return list(first.values())


def numbered_draw(draw: Draw, number: int, name: str) -> Any:
    """Draw k of a parameter is a function of k and the parameter's name."""
    return draw(random.Random(f"{number}/{name}"))


def _open(url: str, name: str, space: Space, sampler: str) -> "optuna.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    wait = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    storage = made_together(lambda: optuna.storages.RDBStorage(url, engine_kwargs=wait))
    chosen = optuna.samplers.TPESampler(seed=0, constant_liar=True) if sampler == "tpe" else _numbered_sampler(space)
    return optuna.create_study(
        storage=storage, study_name=name, sampler=chosen, direction="maximize", load_if_exists=True
    )


def _numbered_sampler(space: Space) -> "optuna.samplers.BaseSampler":
    from optuna.samplers import BaseSampler

    class Numbered(BaseSampler):
        def infer_relative_search_space(self, study, trial):
            return {}

        def sample_relative(self, study, trial, search_space):
            return {}

        def sample_independent(self, study, trial, param_name, param_distribution):
            return numbered_draw(space[param_name].draw, trial.number, param_name)

    return Numbered()
