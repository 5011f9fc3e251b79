"""What the user asks of a bench, the same for every experiment."""

from dataclasses import dataclass

from bayescal.benchmark.end_to_end import EndToEnd

TRIALS, SEEDS = 20, (1, 2, 3)
QUICK_TRIALS, QUICK_SEEDS = 3, (1,)


@dataclass(frozen=True)
class Options:
    """What the user asked for, the same for every experiment."""

    datasets: tuple[str, ...]
    backbone: str = "mini"
    methods: tuple[str, ...] | None = None  # None: the experiment's own choice
    trials: int = TRIALS
    seeds: tuple[int, ...] = SEEDS
    sampler: str = "random"
    quick: bool = False
    max_runs: int = 256
    word_vectors: str = ""
    end_to_end: EndToEnd | None = None  # also train whole image models, as rows of their own in `main`
    command: str = ""  # as it was typed; empty: from Python

    @property
    def files(self) -> dict[str, str]:
        """Files for the options of methods that are files (`Method.file_options`), by option."""
        return {"word_vectors": self.word_vectors} if self.word_vectors else {}
