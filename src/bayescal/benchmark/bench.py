"""The bench that experiments run on: it trains what their searches lack, and gives them the records of what is there.

experiment ─► searches (variant × data set) ─► train: trials × seeds × folds ─► records ─► selection ─► tables
"""

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.backbones.base import usable_device
from bayescal.benchmark.command import bench_command
from bayescal.benchmark.end_to_end import PURPOSE, EndToEnd, EndToEndRun, plan_end_to_end, run_end_to_end
from bayescal.benchmark.experiments import get_experiment
from bayescal.benchmark.options import QUICK_SEEDS, QUICK_TRIALS, SEEDS, TRIALS, Options
from bayescal.benchmark.prepared import PreparedDataset, portable_name
from bayescal.benchmark.progress import SearchProgress
from bayescal.benchmark.records import Record
from bayescal.benchmark.remote import ClusterTrainer
from bayescal.benchmark.results import ExperimentResult
from bayescal.benchmark.runner import (
    LEAVE_ONE_OUT,
    LocalTrainer,
    PlannedRun,
    Trainer,
    clear_checkpoints,
    plan,
    portable,
    run_all,
    run_epochs,
    versions,
)
from bayescal.benchmark.searches import Search, remarks
from bayescal.benchmark.sources import DataPath, Sources, data_paths, known_name
from bayescal.benchmark.store import Store, shown, sqlite_url
from bayescal.benchmark.study import Study, Trial, different
from bayescal.benchmark.variants import MethodVariant, get_variant
from bayescal.data.datasets.base import Dataset
from bayescal.data.manifest import FOUND_OUT, Reading
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import get_rule
from bayescal.methods import get_method
from bayescal.methods.contract import Method
from bayescal.util.progress import progress_bar

if TYPE_CHECKING:
    import torch

    from bayescal.benchmark.experiments.experiment import Experiment
    from bayescal.distributed.ray_cluster import Cluster

CHECKPOINTS = "checkpoints"  # in the folder of results
CORE = ("clip", "coop", "cal", "bayes-cal")  # what --quick compares


class MissingRecordsError(BayescalError):
    """Runs that were never trained: selection and tables read records and train nothing."""


@dataclass(frozen=True, eq=False)
class ExperimentPlan:
    """An experiment and the searches it needs."""

    experiment: "Experiment"
    searches: list[Search]


@dataclass
class Bench:
    """The paper's experiments on given data: trains what they lack, and reads what is recorded.

    Made with `Bench.open`. Everything that is trained is kept in a database below `output`; the same bench opened
    again continues there, and so does the command `bayescal bench`.

    Attributes
    ----------
    options : Options
        What was asked for: data sets, backbone, methods, trials, seeds.
    sources : Sources
        The data sets, prepared when they are needed.
    store : Store
        The records of all finished runs.
    output : Path
        The folder of results.
    notes : list of str
        What a reader of the next result has to know, such as runs that stopped.

    Examples
    --------
    Two methods on the images in a folder ``environment/class/image``, and the table of their accuracies:

    >>> from bayescal import Bench
    >>> bench = Bench.open({"shapes": "shapes"}, output="results", methods=["coop", "bayes-cal"], quick=True)
    >>> result = bench.run("main")
    >>> [row["label"] for row in result.tables["accuracy"].to_records()]
    ['CoOp', 'Bayes-CAL']
    """

    options: Options
    sources: Sources
    store: Store
    output: Path
    show: bool = False  # progress bars
    notes: list[str] = field(default_factory=list)
    _records: dict[tuple[str, str, str], list[Record]] = field(default_factory=dict, repr=False)
    _parts: dict[tuple[str, tuple[str, ...]], PreparedDataset] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls, data: Mapping[str, DataPath] | Sequence[str], *, output: str | Path = "bayescal-results",
        datasets: Sequence[str] | None = None, methods: Sequence[str | type[Method]] | None = None,
        backbone: str = "mini", quick: bool = False, trials: int | None = None, seeds: Sequence[int] | None = None,
        sampler: str = "random",
        shots: int | None = None, val_shots: int | None = None, balanced: bool = False,
        word_vectors: str | Path | None = None, reading: Reading = FOUND_OUT,
        storage: str | None = None, cache: Path | None = None, device: str = "auto",
        precision: "torch.dtype | None" = None, cluster: "Cluster | None" = None, max_runs: int = 256,
        progress: bool = False, end_to_end: EndToEnd | None = None, command: str = "",
    ) -> "Bench":  # fmt: skip
        """Open a bench on these data; nothing is trained or encoded yet.

        Parameters
        ----------
        data : mapping of str to path, or sequence of str
            Name → folder, archive, list, URL or packed data set; or values of ``--data``: ``"NAME=PATH"``, a folder …
        output : path
            The folder of results, where they are also continued.
        datasets, methods : sequence of str, optional
            Only these data sets; only these methods (names, classes) or variants. Default: the experiment's own choice.
        backbone : str
            The frozen model, as ``load_backbone`` takes it.
        quick : bool
            A first look: 3 trials, seed 1, the core methods. It is the beginning of the whole.
        trials, seeds, sampler : int, sequence of int, {"random", "tpe"}
            Hyper-parameter trials (default 20), seeds (default 1, 2, 3), and how trials are drawn.
        shots, val_shots : int, optional
            Training and validation images per class. Default: the data set's.
        balanced : bool
            Spread shots evenly over environments, also of data sets that keep the correlation of the two (NICO).
        word_vectors, reading : path and Reading, optional
            Word vectors, for the W2V methods; how data sets under names of your own are read (layout, columns).
        storage, cache : str and path, optional
            Database as SQLAlchemy address (default ``output/study.db``), and folder of the feature cache.
        device, precision, cluster : str, torch.dtype and Cluster, optional
            Where to compute, precision of the text tower's layers in training, a Ray cluster that encodes and trains.
        max_runs, progress : int and bool
            Most runs in one stack; whether to show progress bars.
        end_to_end : EndToEnd, optional
            Which image model ``main`` also trains from pixels, by the domain-generalisation algorithms.
        command : str
            What results say about how to repeat them. Default: the command that does the same.
        """
        paths = data_paths(data)
        options = Options(
            datasets=tuple(paths) if datasets is None else tuple(map(known_name, datasets)), backbone=backbone,
            methods=_known_variants(methods), trials=trials or (QUICK_TRIALS if quick else TRIALS),
            seeds=tuple(seeds or (QUICK_SEEDS if quick else SEEDS)), sampler=sampler, quick=quick, max_runs=max_runs,
            word_vectors=str(word_vectors or ""), end_to_end=end_to_end, command=command,
        )  # fmt: skip
        sources = Sources(
            paths, backbone, options.seeds, device=str(usable_device(device)), cache=cache, shots=shots,
            val_shots=val_shots, progress=progress, cluster=cluster, precision=precision, balanced=balanced,
            reading=reading,
        )  # fmt: skip
        sources.check_reading()
        for name in options.datasets:
            sources.path(name)  # a data set that is nowhere is said before the work begins
        return cls(options, sources, Store(storage or sqlite_url(Path(output))), Path(output), progress)

    # --- experiments -------------------------------------------------------------------------------------------------

    def run(self, experiment: "str | Experiment") -> ExperimentResult:
        """Train what an experiment lacks, and build its tables and figures.

        Parameters
        ----------
        experiment : str or Experiment
            Its name, as on the command line: "main", "ablation" …

        Returns
        -------
        ExperimentResult
            ``result.tables[key].to_records()`` is a list of rows, as ``pandas.DataFrame`` takes them. The result is
            also kept in ``output/sections``, where ``bayescal report`` finds it.
        """
        return self.finish(self.plan(experiment))

    def plan(self, experiment: "str | Experiment") -> ExperimentPlan:
        """What an experiment needs; one that these data or methods do not allow is refused."""
        found = get_experiment(experiment) if isinstance(experiment, str) else experiment
        return ExperimentPlan(found, found.searches(self))

    def finish(self, plan: ExperimentPlan) -> ExperimentResult:
        """Train what a plan lacks, then read its section off the records."""
        self.notes.clear()
        self.train(plan.searches)
        if plan.experiment.train is not None:
            plan.experiment.train(self)
        section = plan.experiment.section(self)
        return ExperimentResult(section, section.save(self.output / "sections"))

    # --- what experiments ask for ------------------------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset:
        """Title, selection rule and classes of a data set; its features are not needed."""
        return self.sources.dataset(name)

    def prepared(self, search: Search) -> PreparedDataset:
        """The data set of a search with its features, and with its classes alone where it has any."""
        prepared, key = self.sources.prepared(search.dataset), (search.dataset, search.classes)
        if not search.classes:
            return prepared
        if key not in self._parts:
            self._parts[key] = prepared.with_classes(search.classes)
        return self._parts[key]

    def records(self, search: Search) -> list[Record]:
        """The records of a search. Nothing is trained: where some are missing, the error names the command."""
        if search.key not in self._records:
            planned, later = self._look(search)
            keys = list(planned)
            records = _as_planned(search, planned.values(), self.store.records(keys))
            if missing := len(keys) + later - len(records):
                raise MissingRecordsError(
                    f"{search.variant.title} on {search.dataset}: {missing} of {len(keys) + later} runs have no record "
                    f"yet. Train them first, with `{self._training_command(search)}`, or with bench.train([search])"
                )
            self._records[search.key] = records
        return self._records[search.key]

    def chosen(self, search: Search, rule: str | None = None) -> list[Record]:
        """The records that a selection rule (by default the data set's own) chooses."""
        found = get_rule(rule or self.dataset(search.dataset).selection)
        inner = self.records(search.inner()) if found.inner_metric else []
        return found.choose(self.records(search), inner)

    def lacks_file(self, method: str) -> bool:
        """Whether a method has an option that is a file, and none was given."""
        return any(option not in self.options.files for option in get_method(method).file_options)

    def versions(self) -> dict[str, str]:
        """Those that the records at hand were made with, perhaps elsewhere; without any, those of this process."""
        about = versions(self.sources.device)
        records = [record for (*_, purpose), found in self._records.items() if purpose != PURPOSE for record in found]
        made = [record.versions for record in records] or [about]
        found = {name: ", ".join(sorted({one[name] for one in made})) for name in about}
        layers = sorted({record.backbone.precision for record in records})
        return found | {"backbone": portable_name(self.options.backbone), "text layers": ", ".join(layers)}

    def made(self) -> str:
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def command(self, experiment: str) -> str:
        """The command that runs an experiment as this bench does: as it was typed, where it was."""
        options = self.options
        return options.command or bench_command(
            experiment, options, self.sources, self.output, options.datasets, options.methods or (), self._storage
        )

    @property
    def _storage(self) -> str | None:
        """The address of a database that is not the one in the output folder, without its password."""
        return None if self.store.url == sqlite_url(self.output) else shown(self.store.url)

    # --- training ----------------------------------------------------------------------------------------------------

    def train(self, searches: Sequence[Search]) -> None:
        """Train what these searches lack, all under one progress bar with the time left."""
        wanted = {search.key: search for search in searches}
        lacking = [search for key, search in wanted.items() if key not in self._records]
        for search in lacking:
            self.prepared(search)  # features first: they have a bar of their own
        with progress_bar("training" if self.show else None, None, amount="percent") as bar:
            progress = SearchProgress(bar, len(lacking))
            for search in lacking:
                self._records[search.key] = self._train(search, progress)
        clear_checkpoints(self.output / CHECKPOINTS, self.store)
        for search in wanted.values():
            self.notes += remarks(search, self._records[search.key])

    def missing(self, search: Search) -> tuple[int, int]:
        """Runs of this search, and how many of them have no record yet. Trials are drawn, nothing is trained."""
        planned, later = self._look(search)
        return len(planned) + later, len(planned) + later - len(self.store.finished(list(planned)))

    def study(self, search: Search) -> Study:
        """The trials of a search."""
        prepared, how = self.prepared(search), search.end_to_end
        if how is not None:
            parts = [prepared.dataset.name, search.variant.key, *how.identity]
            space = how.search_space(search.variant)
            return Study(
                self.store.url, " · ".join(parts), space, how.defaults, search.variant.fixed, self.options.sampler
            )
        options, files = get_method(search.variant.method).file_options, self.options.files
        fixed = {**search.variant.fixed, **{name: files[name] for name in options if name in files}}
        space = search.variant.search_space(prepared.dataset)
        purpose = "" if search.purpose == LEAVE_ONE_OUT else search.purpose  # inner runs have the trials of the others
        parts = [prepared.dataset.name, search.variant.key, purpose, prepared.backbone_info.fingerprint[:12]]
        if self.options.sampler == "tpe":  # what it draws depends on what came out: of these images and these shots
            parts.append(_protocol(prepared))
        space = {key: param for key, param in space.items() if key not in fixed}
        name = " · ".join(filter(None, parts))
        return Study(self.store.url, name, space, prepared.backbone_info.defaults, fixed, self.options.sampler)

    @property
    def trainer(self) -> Trainer:
        if self.sources.cluster is not None:
            return ClusterTrainer(self.sources.cluster)
        return LocalTrainer(self.output / CHECKPOINTS)

    def _look(self, search: Search) -> "tuple[dict[str, PlannedRun | EndToEndRun], int]":
        """The runs that are certain already, by key, and how many more there will be."""
        study, prepared = self.study(search), self.prepared(search)
        trials = study.look(self.options.trials)
        later = 0
        if study.batch:  # what TPE will draw depends on what comes out, so nothing is asked for
            later = (self.options.trials - len(trials)) * len(prepared.folds) * len(self.options.seeds)
        return {run.key: run for run in self._plan(search, trials)}, later

    def _training_command(self, search: Search) -> str:
        """The command that trains one search: an experiment's own where it has a purpose, else `main`."""
        experiment, method = search.purpose.partition("/")[0] or "main", _asked_as(search.variant)
        data = [search.dataset]
        return bench_command(experiment, self.options, self.sources, self.output, data, [method], self._storage)

    def _plan(self, search: Search, trials: Sequence[Trial]) -> "list[PlannedRun] | list[EndToEndRun]":
        if search.end_to_end is not None:
            seeds = self.options.seeds
            return plan_end_to_end(search.end_to_end, self.prepared(search), search.variant, different(trials), seeds)
        return plan(self.prepared(search), search.variant, different(trials), self.options.seeds, search.purpose)

    def _train(self, search: Search, progress: SearchProgress) -> list[Record]:
        study, trials = self.study(search), self.options.trials
        batch = study.batch or trials
        records: list[Record] = []
        for upto in range(batch, trials + batch, batch):
            drawn = study.ask(min(upto, trials))
            planned = self._plan(search, drawn)
            finished = self.store.finished([run.key for run in planned])
            left = run_epochs([run for run in planned if run.key not in finished])
            progress.begin(search.key, f"{search.dataset}: {search.variant.title}", left)
            records = _as_planned(search, planned, self._run(search, planned, progress))
            self._tell(study, search, drawn, records)
        return records

    def _run(
        self, search: Search, planned: "list[PlannedRun] | list[EndToEndRun]", progress: SearchProgress
    ) -> list[Record]:
        whole = [run for run in planned if isinstance(run, EndToEndRun)]
        if whole:
            return run_end_to_end(self.store, whole, self.sources.device, progress.advance, progress.wait)
        few = [run for run in planned if isinstance(run, PlannedRun)]
        return run_all(
            self.store, few, trainer=self.trainer, max_runs=self.options.max_runs, advance=progress.advance,
            trajectory=search.trajectory, add_to_record=search.add_to_record, wait=progress.wait,
        )  # fmt: skip

    def _tell(self, study: Study, search: Search, trials: Sequence[Trial], records: Sequence[Record]) -> None:
        """Mean validation accuracy of each trial, by the data set's own rule; inner runs have no say in it."""
        if search.purpose == LEAVE_ONE_OUT:
            return
        rule = get_rule(self.prepared(search).dataset.selection)
        for trial in trials:
            config = trial.config if search.end_to_end else portable(search.variant.method, trial.config)
            values = [rule.value(record) for record in records if record.config == config]
            values = [value for value in values if value is not None]
            if values:
                study.tell(trial.number, sum(values) / len(values))


def _protocol(prepared: PreparedDataset) -> str:
    """What stands for the images of a search and how many are drawn of them, whatever its seeds are."""
    digests = [prepared.splits(fold, SEEDS[0]).digest for fold in prepared.folds]
    content = [prepared.shots, prepared.val_shots, digests]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _as_planned(
    search: Search, planned: "Iterable[PlannedRun | EndToEndRun]", records: Sequence[Record]
) -> list[Record]:
    """Records under this search's name and trial numbers: the same run may be another search's, too."""
    trials = {run.key: run.trial.number for run in planned}
    return [replace(record, variant=search.variant.key, trial=trials[record.key]) for record in records]


def _asked_as(variant: MethodVariant) -> str:
    """What `--methods` calls a variant; one that is an experiment's own goes by its method."""
    try:
        return get_variant(variant.key).key
    except BayescalError:
        return variant.method


def _known_variants(methods: Sequence[str | type[Method]] | None) -> tuple[str, ...] | None:
    """Each one once, by its key; an unknown name is answered with the nearest."""
    return None if methods is None else tuple(dict.fromkeys(get_variant(method).key for method in methods))
