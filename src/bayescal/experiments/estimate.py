"""How long a search will take: from records of the same method where there are some, else from a short trial."""

import time
from dataclasses import replace
from statistics import median

import torch

from bayescal.experiments.bench import Bench, Search
from bayescal.protocol.arena import portable_name
from bayescal.protocol.runner import plan, versions
from bayescal.protocol.study import different
from bayescal.stacks import train_runs

TRIAL_ROWS = 4


def estimate(bench: Bench, search: Search, runs: int) -> float:
    """Seconds for so many runs of this search on this machine; features are not counted."""
    if not runs:
        return 0.0
    on = versions(bench.sources.device)["device"]
    known = [
        record["seconds"]
        for record in bench.store.find(dataset=search.dataset, entry=search.entry.key)
        if record["versions"]["device"] == on and record["backbone"]["name"] == portable_name(bench.options.backbone)
    ]
    return runs * (median(known) if known else _trial(bench, search))


def _trial(bench: Bench, search: Search) -> float:
    """Seconds per run, from one epoch of a small stack: a large one is quicker per run, so this errs upwards."""
    study = bench._study(search)
    draws = different(study.look(1) or study.ask(1))
    planned = plan(bench.arena(search), search.entry, draws[:1], bench.options.seeds, search.purpose)[:TRIAL_ROWS]
    epochs = draws[0].config.get("epochs", 1)
    runs = [run.run() for run in planned]
    if "epochs" in draws[0].config:
        runs = [replace(run, config={**run.config, "epochs": 1}) for run in runs]
    problem = bench.arena(search).problem
    train_runs(search.entry.method, problem, runs)  # the first call loads kernels and caches
    started = time.perf_counter()
    train_runs(search.entry.method, problem, runs)
    if problem.features.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / len(runs) * epochs
