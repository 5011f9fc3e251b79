"""The bench that experiments run on: which searches they need, training what is missing, reading what is recorded."""

import datetime
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescal.console import training_bar
from bayescal.data.datasets.base import Dataset
from bayescal.experiments.sources import Sources
from bayescal.protocol.arena import Arena, portable_name
from bayescal.protocol.entries import Entry
from bayescal.protocol.runner import Extra, Planned, plan, portable, row_epochs, run_all, versions
from bayescal.protocol.selection import get_rule
from bayescal.protocol.store import Record, Store
from bayescal.protocol.study import Drawn, Study, different

if TYPE_CHECKING:
    from collections.abc import Iterator

CORE = ("clip", "coop", "cal", "bayes-cal")  # what --quick compares
QUICK_TRIALS, QUICK_SEEDS = 3, (1,)


@dataclass(frozen=True)
class Options:
    """What the user asked for, the same for every experiment."""

    datasets: tuple[str, ...]
    backbone: str = "mini"
    methods: tuple[str, ...] | None = None  # None: the experiment's own choice
    trials: int = 20
    seeds: tuple[int, ...] = (1, 2, 3)
    sampler: str = "random"
    quick: bool = False
    max_rows: int = 256
    word_vectors: str = ""
    command: str = ""


@dataclass(frozen=True, eq=False)
class Search:
    """Draws × seeds × folds of one entry on one data set: what a row of a table needs."""

    dataset: str
    entry: Entry
    purpose: str = ""
    classes: tuple[str, ...] = ()  # only these; empty: all
    trajectory: bool = False
    extra: Extra | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dataset, self.entry.key, self.purpose


@dataclass
class Bench:
    """Runs searches and remembers their records. `note` receives what a reader of the result has to know."""

    options: Options
    sources: Sources
    store: Store
    output: Path
    show: bool = False  # progress bars
    notes: list[str] = field(default_factory=list)
    _records: dict[tuple[str, str, str], list[Record]] = field(default_factory=dict, repr=False)

    def arena(self, search: Search) -> Arena:
        arena = self.sources.arena(search.dataset)
        return arena.with_classes(search.classes) if search.classes else arena

    def dataset(self, name: str) -> Dataset:
        return self.sources.arena(name).dataset

    def run(self, searches: Sequence[Search]) -> None:
        """Train what these searches lack, all under one progress bar with the time left."""
        wanted = {search.key: search for search in searches}
        lacking = [search for key, search in wanted.items() if key not in self._records]
        for search in lacking:
            self.arena(search)  # features first: they have a bar of their own
        with self._bar(lacking) as bar:
            for search in lacking:
                self._records[search.key] = self._run(search, bar)
        for search in wanted.values():
            self.notes += _remarks(search, self._records[search.key])

    def records(self, search: Search) -> list[Record]:
        if search.key not in self._records:
            self.run([search])
        return self._records[search.key]

    def chosen(self, search: Search, rule: str | None = None) -> list[Record]:
        """The records that a selection rule (by default the data set's own) chooses."""
        return get_rule(rule or self.dataset(search.dataset).selection).choose(self.records(search))

    def missing(self, search: Search) -> tuple[int, int]:
        """Runs of this search, and how many of them have no record yet. Draws are made, nothing is trained."""
        study, arena = self._study(search), self.arena(search)
        draws = study.look(self.options.trials)
        keys = list({run.key for run in self._plan(search, arena, draws)})
        later = 0
        if study.batch:  # what TPE will draw depends on what comes out, so nothing is asked for
            later = (self.options.trials - len(draws)) * len(arena.folds) * len(self.options.seeds)
        return len(keys) + later, len(keys) + later - len(self.store.finished(keys))

    def versions(self) -> dict[str, str]:
        """Those that the records at hand were made with, perhaps elsewhere; without any, those of this process."""
        about = versions(self.sources.device)
        records = [record for records in self._records.values() for record in records]
        made = [record["versions"] for record in records] or [about]
        found = {name: ", ".join(sorted({one[name] for one in made})) for name in about}
        layers = sorted({record["backbone"].get("precision", "float32") for record in records})
        return found | {"backbone": portable_name(self.options.backbone), "text layers": ", ".join(layers)}

    def made(self) -> str:
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def _study(self, search: Search) -> Study:
        arena = self.arena(search)
        fixed = dict(search.entry.fixed)
        if "w2v" in search.entry.method and self.options.word_vectors:
            fixed["word_vectors"] = self.options.word_vectors
        space = search.entry.search_space(arena.dataset)
        name = " · ".join(
            filter(None, [arena.dataset.name, search.entry.key, search.purpose, arena.facts.fingerprint[:12]])
        )
        space = {key: param for key, param in space.items() if key not in fixed}
        return Study(self.store.url, name, space, arena.facts.defaults, fixed, self.options.sampler)

    def _plan(self, search: Search, arena: Arena, draws: Sequence[Drawn]) -> list[Planned]:
        return plan(arena, search.entry, different(draws), self.options.seeds, search.purpose)

    def _run(self, search: Search, bar: "_Bar") -> list[Record]:
        study, arena, trials = self._study(search), self.arena(search), self.options.trials
        batch = study.batch or trials
        records: list[Record] = []
        for upto in range(batch, trials + batch, batch):
            draws = study.ask(min(upto, trials))
            planned = self._plan(search, arena, draws)
            bar.begin(search, planned, self.store)
            records = run_all(
                self.store, planned, max_rows=self.options.max_rows, checkpoints=self.output / "checkpoints",
                advance=bar.advance, trajectory=search.trajectory, extra=search.extra, wait=bar.wait,
                cluster=self.sources.cluster,
            )  # fmt: skip
            self._tell(study, search, draws, records)
        return records

    def _tell(self, study: Study, search: Search, draws: Sequence[Drawn], records: Sequence[Record]) -> None:
        """Mean validation accuracy of each draw, by the data set's own rule."""
        rule = get_rule(self.arena(search).dataset.selection)
        for draw in draws:
            values = [rule.value(r) for r in records if r["config"] == portable(draw.config)]
            values = [value for value in values if value is not None]
            if values:
                study.tell(draw.number, sum(values) / len(values))

    @contextmanager
    def _bar(self, searches: Sequence[Search]) -> "Iterator[_Bar]":
        if not self.show:
            yield _Bar()
            return
        with training_bar() as progress:
            # Searches that have not been looked at yet count as one of average size, so that the time left is fair.
            yield _RichBar(progress, len(searches), self.options)


def _remarks(search: Search, records: Sequence[Record]) -> list[str]:
    """What a reader of these records has to know: runs that stopped, and too few images."""
    found = []
    if stopped := [record for record in records if record["stopped"]]:
        first = stopped[0]
        found.append(
            f"{search.entry.title} on {search.dataset}: {len(stopped)} of {len(records)} runs stopped, the first "
            f"({first['fold']}, seed {first['seed']}): {first['stopped']}"
        )
    short = sorted({(r["fold"], r["seed"], text) for r in records for text in r["split"]["notes"]})
    if short:
        fold, seed, text = short[0]
        more = f" (and {len(short) - 1} more like this)" if len(short) > 1 else ""
        found.append(f"{search.dataset}, {fold}, seed {seed}: {text}{more}")
    return found


class _Bar:
    """No progress bar."""

    def begin(self, search: Search, planned: Sequence[Planned], store: Store) -> None: ...

    def advance(self, epochs: int) -> None: ...

    def wait(self, runs: int) -> None:
        time.sleep(2.0)


class _RichBar(_Bar):
    """Epochs of all searches; those not begun yet are counted as large as the mean of the begun ones."""

    def __init__(self, progress: Any, searches: int, options: Options):
        self.progress, self.searches, self.options = progress, searches, options
        self.task = progress.add_task("training", total=None)
        self.sizes: dict[tuple[str, str, str], int] = {}

    def begin(self, search: Search, planned: Sequence[Planned], store: Store) -> None:
        finished = store.finished([run.key for run in planned])
        left = row_epochs([run for run in planned if run.key not in finished])
        self.sizes[search.key] = self.sizes.get(search.key, 0) + left
        begun = len(self.sizes)
        total = sum(self.sizes.values()) * self.searches / begun
        title = f"{search.dataset}: {search.entry.title} ({begun} of {self.searches})"
        self.progress.update(self.task, description=title, total=max(total, 1))

    def advance(self, epochs: int) -> None:
        self.progress.advance(self.task, epochs)

    def wait(self, runs: int) -> None:
        self.progress.update(self.task, description=f"waiting for {runs} runs of another process")
        time.sleep(2.0)
