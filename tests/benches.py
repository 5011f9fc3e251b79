"""What the tests of the benchmark, the experiments and `bayescal bench` share: a tiny data set of image files.

Dogs are discs; houses and guitars are the same square, so that some answers are wrong and no metric is trivial.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from bayescal.backbones import Backbone, load_backbone
from bayescal.benchmark.bench import Bench, Options
from bayescal.benchmark.bundle import save_bundle
from bayescal.benchmark.prepared import PreparedDataset, prepare_dataset
from bayescal.benchmark.records import Record, RecordedBackbone, Scores, SplitInfo
from bayescal.benchmark.results import Section
from bayescal.benchmark.runner import PlannedRun, plan
from bayescal.benchmark.searches import Search
from bayescal.benchmark.sources import Sources
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import get_variant
from bayescal.data.datasets import open_dataset
from bayescal.data.datasets.base import Dataset, describe
from bayescal.data.manifest import Manifest
from bayescal.methods.hyperparameters import default_config
from command_line import Result, make_shapes, run

CLASSES, ENVIRONMENTS = ("dog", "guitar", "house"), ("cartoon", "photo", "sketch")
IMAGES, SHOTS, VAL_SHOTS, SEEDS, EPOCHS = 7, 3, 2, (1, 2), 3
VARYING = ("made", "seconds", "versions", "checksum")  # fields of a record that differ between equal runs


@lru_cache(maxsize=1)
def short_mini() -> Backbone:
    """The embedded backbone, with a short training as its default."""
    mini = load_backbone("mini")
    posterior = replace(mini.defaults.posterior, epochs=EPOCHS)
    return replace(mini, defaults=replace(mini.defaults, epochs=EPOCHS, posterior=posterior))


def once(folder: Path, make: Callable[[], None]) -> None:
    """Make what is in a folder once for all workers of a test run: the first one makes it, the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not (folder / ".done").exists():
            make()
            (folder / ".done").touch()


@lru_cache(maxsize=1)
def _session(base: Path) -> tuple[Path, PreparedDataset, Path]:
    folder, bundle = base / "pictures", base / "packed" / "pictures.bundle"
    once(base / "images", lambda: make_shapes(folder, IMAGES, CLASSES, ENVIRONMENTS))
    prepared = open_folder(folder)
    once(bundle.parent, lambda: save_bundle(prepared, bundle))
    return folder, prepared, bundle


def open_folder(folder: Path, name: str = "pictures", seeds: Sequence[int] = SEEDS, **options: Any) -> PreparedDataset:
    dataset, manifest = open_dataset(str(folder))
    shots = {"shots": SHOTS, "val_shots": VAL_SHOTS, **options}
    return prepare_dataset(replace(dataset, name=name, title=name), manifest, short_mini(), seeds, **shots)


@pytest.fixture(scope="session")
def _made(tmp_path_factory, _own_cache):
    base = tmp_path_factory.getbasetemp()
    return _session((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "benches")


@pytest.fixture(scope="session")
def pictures(_made) -> Path:
    """3 environments × 3 classes × 7 images; not to be changed."""
    return _made[0]


@pytest.fixture(scope="session")
def prepared(_made) -> PreparedDataset:
    """`pictures` under the embedded backbone, which trains for three epochs."""
    return _made[1]


@pytest.fixture(scope="session")
def bundle(_made) -> Path:
    """`prepared` as a file."""
    return _made[2]


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(sqlite_url(tmp_path / "results"))


def listed(rows: Sequence[Sequence[str]], folds: Any = None, **changes: Any) -> tuple[Dataset, Manifest, list[str]]:
    """A data set without files, from (path, class, environment, split, content) of each image, and its hashes."""
    paths, classes, environments, splits, contents = (list(column) for column in zip(*rows, strict=True))
    manifest = Manifest.from_columns(paths, classes, environments, splits)
    dataset = replace(describe(Path("listed"), manifest), **changes)
    return replace(dataset, folds=folds) if folds else dataset, manifest, contents


def grid(n: int, classes: Sequence[str] = CLASSES, environments: Sequence[str] = ENVIRONMENTS, split: str = "") -> list:
    """n images of each class in each environment, for `listed`; each with a content of its own."""
    cells = [(c, e, i) for e in environments for c in classes for i in range(n)]
    return [(f"{split}/{e}/{c}/{i}.png", c, e, split, f"{split} {e} {c} {i}") for c, e, i in cells]


def planned_runs(
    prepared: PreparedDataset, name: str, trials: int = 1, seeds: Sequence[int] = SEEDS, **options: Any
) -> list[PlannedRun]:
    """Runs of a variant on every fold and seed; trial k has its own λ2, where the method has one."""
    variant = get_variant(name)
    space = variant.search_space(prepared.dataset)
    defaults = prepared.backbone_info.defaults
    configs = [default_config(space, defaults, **options) | dict(variant.fixed) for _ in range(trials)]
    for k, config in enumerate(configs):
        if "lambda_irm" in config:
            config["lambda_irm"] = 0.1 * (k + 1)
    return plan(prepared, variant, [Trial(k, config) for k, config in enumerate(configs)], seeds)


def open_bench(datasets: dict[str, PreparedDataset], folder: Path, **options: Any) -> Bench:
    """A bench on prepared data sets that are open already."""
    chosen = {"datasets": tuple(datasets), "trials": 2, "seeds": SEEDS, "quick": True, **options}
    sources = Sources({name: folder for name in datasets}, "mini", chosen["seeds"], _open=dict(datasets))
    return Bench(Options(**chosen), sources, Store(sqlite_url(folder)), folder)


def trained(bench: Bench, search: Search) -> list[Record]:
    """The records of a search, trained where they are missing."""
    bench.train([search])
    return bench.records(search)


def finished(bench: Bench, experiment: Any) -> Section:
    """The section of an experiment (its module), trained where records are missing."""
    bench.train(experiment.searches(bench))
    return experiment.section(bench)


def exact(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as JSON, without what differs between equal runs; every digit of the rest."""
    return [{name: v for name, v in record.to_json().items() if name not in VARYING} for record in records]


def same(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as they must be equal between machines and days, by key; numbers to five digits."""
    return [rounded(record) for record in sorted(exact(records), key=lambda record: record["key"])]


def like(value: Any) -> Any:
    """To compare with: equal up to rounding; `rounded` numbers may fall on either side of a step."""
    if isinstance(value, dict):
        return {k: like(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(like(v) for v in value)
    return pytest.approx(value, rel=2e-4, abs=1e-6) if isinstance(value, float) else value


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def record(fold: str = "photo", seed: int = 1, trial: int = 0, **changes: Any) -> Record:
    """A record by hand: `curves`, `chosen` and `scores` (a metric's value by name) are for tests to fill in."""
    content = {
        "key": f"{fold}/{seed}/{trial}", "dataset": "pictures", "variant": "coop", "method": "coop", "purpose": "",
        "train_environments": ("art",), "config": {}, "settings": {}, "shots": 1, "val_shots": 1, "curves": {},
        "split": SplitInfo("digest", 1, {}), "backbone": RecordedBackbone("mini", "fingerprint"), "gradient_norms": {},
        "chosen": {}, "samples": 20, "parameters": 1, "stopped": None, "seconds": 1.0, "versions": {}, "made": "today",
    }  # fmt: skip
    scores = {name: Scores.from_json(own) for name, own in changes.pop("scores", {}).items()}
    return Record(**content | {"fold": fold, "seed": seed, "trial": trial, "scores": scores} | changes)


@pytest.fixture(scope="module")
def few_samples() -> Iterator[int]:
    """Predictions from four posterior samples: a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayescal.benchmark.runner.POSTERIOR_SAMPLES", 4)
        patch.setattr("bayescal.benchmark.experiments.base_to_new.POSTERIOR_SAMPLES", 4)
        yield 4


@contextlib.contextmanager
def short_trainings() -> Iterator[None]:
    """The command line with a backbone that trains for three epochs, few posterior samples, small loss landscapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayescal.backbones.load_backbone", lambda name, device="cpu": short_mini())
        patch.setattr("bayescal.benchmark.runner.POSTERIOR_SAMPLES", 4)
        patch.setattr("bayescal.benchmark.experiments.instances.QUICK_EPOCHS", 4)
        patch.setattr("bayescal.benchmark.experiments.instances.QUICK_GRID", 5)
        yield


def bench_command(experiment: str, pictures: Path, output: Path, *more: Any) -> list[Any]:
    options = ["--data", f"pictures={pictures}", "-o", output, "--shots", SHOTS, "--val-shots", VAL_SHOTS, "--quiet"]
    return ["bench", experiment, *options, "--trials", 2, "--seeds", "1,2", *more]


def _bench_all(pictures: Path, output: Path, ended: Path) -> None:
    command = [str(word) for word in bench_command("all", pictures, output, "--quick")]
    with short_trainings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["bayescal", *command])  # which the results quote
        result = run(*command)
    ended.write_text(json.dumps(asdict(result)), encoding="utf-8")


@pytest.fixture(scope="session")
def bench_all(_made) -> tuple[Path, Result]:
    """`bayescal bench all --quick` on `pictures`: the folder of results, not to be changed, and how it ended."""
    base = _made[0].parent / "all"
    output, ended = base / "results", base / "ended.json"
    once(base, lambda: _bench_all(_made[0], output, ended))
    return output, Result(**json.loads(ended.read_text(encoding="utf-8")))
