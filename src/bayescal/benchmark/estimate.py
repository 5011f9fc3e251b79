"""How long a search will take: from records of the same variant where there are some, else from a short training."""

import math
import time
from dataclasses import replace
from statistics import median

import torch

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.prepared import portable_name
from bayescal.benchmark.runner import plan, versions
from bayescal.benchmark.searches import Search
from bayescal.methods import get_method
from bayescal.training.stack import train_runs

SAMPLE_RUNS = 4


def estimate(bench: Bench, search: Search, runs: int) -> float:
    """Seconds for so many runs of this search on this machine, NaN: unknown; features are not counted."""
    if not runs:
        return 0.0
    on = versions(bench.sources.device)["device"]
    how = search.end_to_end
    backbone = portable_name(bench.options.backbone) if how is None else how.vision
    known = [
        record.seconds
        for record in bench.store.find(dataset=search.dataset, variant=search.variant.key)
        if record.versions["device"] == on and record.backbone.name == backbone
    ]
    if search.end_to_end is not None and not known:
        return math.nan  # nothing short says how long a GPU takes for a whole model
    return runs * (median(known) if known else _sample(bench, search))


def _sample(bench: Bench, search: Search) -> float:
    """Seconds per run, from one epoch of a small stack: a large one is quicker per run, so this errs upwards."""
    study = bench.study(search)
    (trial,) = study.look(1) or study.ask(1)
    planned = plan(bench.prepared(search), search.variant, [trial], bench.options.seeds, search.purpose)[:SAMPLE_RUNS]
    method = get_method(search.variant.method)
    epochs = max(1, method.epochs_of(trial.config))
    runs = [run.run() for run in planned]
    if method.trained_by_gradient:
        runs = [replace(run, config={**run.config, "epochs": 1}) for run in runs]
    problem = bench.prepared(search).problem
    train_runs(method, problem, runs)  # the first call loads kernels and caches
    started = time.perf_counter()
    train_runs(method, problem, runs)
    if problem.features.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / len(runs) * epochs
