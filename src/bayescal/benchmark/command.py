"""The command that does what a bench does, for results and messages."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayescal.benchmark.options import Options
from bayescal.benchmark.sources import Sources


def bench_command(
    experiment: str,
    options: Options,
    sources: Sources,
    output: Path,
    datasets: Sequence[str],
    methods: Sequence[str],
    storage: str | None = None,
) -> str:
    """`bayescal bench EXPERIMENT …` with these data sets and methods, and everything else as given.

    `storage`: the database, where it is not the one in the output folder.
    """
    whole = options.end_to_end
    given: dict[str, list[Any]] = {
        "--data": [f"{name}={sources.path(name)}" for name in datasets],
        "--methods": [",".join(methods)] if methods else [],
        "--backbone": [options.backbone],
        "--trials": [options.trials],
        "--seeds": [",".join(map(str, options.seeds))],
        "--sampler": [options.sampler] if options.sampler != "random" else [],
        "--shots": [sources.shots] if sources.shots else [],
        "--val-shots": [sources.val_shots] if sources.val_shots else [],
        "--word-vectors": [options.word_vectors] if options.word_vectors else [],
        **({"--vision": [whole.vision], "--vision-weights": [whole.weights] if whole.weights else []} if whole else {}),
        "--set": [f"{name}={json.dumps(value)}" for name, value in (whole.options if whole else {}).items()],
        "--output": [output],
        "--storage": [storage] if storage else [],
    }
    flags = [
        *sources.reading.options,
        *(["--balanced"] if sources.balanced else []),
        *(["--end-to-end"] if whole else []),
        *(["--quick"] if options.quick else []),
    ]
    words = [str(word) for option, values in given.items() for value in values for word in (option, value)]
    return shlex.join(["bayescal", "bench", experiment, *words, *flags])
