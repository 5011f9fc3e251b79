"""What all benchmarks share: fair timing, one kind of result, the table and the record of a run."""

import datetime
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path(__file__).parent / "results" / "cpu.jsonl"

Clock = Callable[[], float]
# Processor time says less (waiting for memory counts, waiting for another thread may not), but it is what can be
# compared on a machine that others use at the same time.
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True)
class Result:
    """One line of the table. With `plain` the target is a ratio (at least), without it a value of `ours` (at most)."""

    what: str
    ours: float
    plain: float | None = None
    target: float | None = None
    unit: str = "s"
    notes: dict[str, Any] = field(default_factory=dict)  # what else was found: spread, largest difference, …
    tokens: int | None = None  # that the text tower reads
    operations: float | None = None  # of the products: a multiplication and an addition are two
    memory: float | None = None  # peak, in GB

    @property
    def ratio(self) -> float | None:
        return None if self.plain is None else self.plain / self.ours

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours <= self.target if self.ratio is None else self.ratio >= self.target

    def cells(self) -> list[str]:
        ratio = "" if self.ratio is None else f"{self.ratio:.1f}×"
        target = ""
        if self.target is not None:
            target = f"≤ {show(self.target, self.unit)}" if self.ratio is None else f"≥ {self.target:g}×"
        plain = "" if self.plain is None else show(self.plain, self.unit)
        met = {None: "", True: "yes", False: "[bold red]no[/]"}[self.met]
        tokens = "" if self.tokens is None else f"{self.tokens:,}"
        operations = "" if self.operations is None else scientific(self.operations)
        memory = "" if self.memory is None else f"{self.memory:.3g} GB"
        return [
            self.what, show(self.ours, self.unit), plain, ratio, target, met, tokens, operations, memory,
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


COLUMNS = ("what", "ours", "plain", "ratio", "target", "met?", "tokens", "operations", "memory")


def show(value: float, unit: str) -> str:
    """A number with its unit, three digits or so."""
    if unit == "s" and value < 1.0:
        return f"{value * 1000:.3g} ms"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def scientific(operations: float) -> str:
    """2.4e12 → 2.4 T."""
    power = min(max(int(math.log10(max(operations, 1)) // 3), 0), 5)
    return f"{operations / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"


def count_operations(function: Callable[[], Any]) -> float:
    """Operations of all products that a call computes, forward and backward."""
    return sum(operations_by_kind(function).values())


def operations_by_kind(function: Callable[[], Any]) -> dict[str, float]:
    """Of "products" and of "attention"."""
    import torch
    from torch.utils import flop_counter

    def addmm(_: Any, a: Any, b: Any, **kwargs: Any) -> int:  # in place, which torch's own count leaves out
        return 2 * a[0] * a[1] * b[1]

    def linear(x: Any, weight: Any, *args: Any, **kwargs: Any) -> int:  # oneDNN's, which `engine.linear` calls
        return 2 * math.prod(x) * weight[0]

    more = {torch.ops.aten.addmm_: addmm}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        more[torch.ops.mkldnn._linear_pointwise] = linear
    with flop_counter.FlopCounterMode(display=False, custom_mapping=more) as counter:
        function()
    found = {"products": 0.0, "attention": 0.0}
    for operation, count in counter.get_flop_counts().get("Global", {}).items():
        found["attention" if "attention" in str(operation) else "products"] += count
    return found


def interleaved(
    functions: dict[str, Callable[[], Any]], repeats: int, warmup: int = 1, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each call. Rivals take turns, so that a busy moment of the machine does not hit one of them alone."""
    for _ in range(warmup):
        for function in functions.values():
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = clock()
            function()
            times[name].append(clock() - started)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def spread(times: dict[str, list[float]]) -> dict[str, str]:
    """Fastest and slowest call, for the record."""
    return {f"{name} (min, max)": f"{min(values):.4g}, {max(values):.4g}" for name, values in times.items()}


def peak_memory() -> float:
    """Largest resident memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # where getrusage also counts what the parent held when it started this process
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def processors_used(seconds: float = 0.5) -> float:
    """How many processors torch's threads really get: fewer than it has threads, where others use them or where all
    threads were put on one. Threads that wait for each other on one processor make small steps many times slower."""
    import torch
    from torch.nn import functional as F

    x, weight = torch.ones(512, 512), torch.ones(2048, 512)
    F.linear(x, weight)
    started, busy = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        F.linear(x, weight)
    return (time.process_time() - busy) / (time.perf_counter() - started)


def processor() -> str:
    """Its name and which instructions for short numbers it has."""
    about = Path("/proc/cpuinfo")
    text = about.read_text() if about.exists() else ""
    name = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
    return f"{name}; " + ", ".join(word for word in ("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16") if word in text)


def commit() -> str | None:
    """The checked-out commit, with a + when files differ from it; None outside a repository.

    A copy of the files without their history says which commit it is in BENCHMARK_COMMIT.
    """
    if "BENCHMARK_COMMIT" in os.environ:
        return os.environ["BENCHMARK_COMMIT"]
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_record(results: Sequence[Result], command: str, **about: Any) -> dict[str, Any]:
    """The results with what is needed to repeat and to evaluate them."""
    import torch

    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": command,
        **about,
        "results": [result.to_json() for result in results],
    }


def write_record(results: Sequence[Result], path: Path = RECORDS, program: str = "speed", **about: Any) -> None:
    """Append the results to the records."""
    # Where files lie on this machine is nobody's business, and no help elsewhere.
    typed = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    record = make_record(results, " ".join([f"python -m {program}", *typed]), **about)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_json(results: Sequence[Result], path: Path, command: str, **about: Any) -> None:
    """One run as a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(make_record(results, command, **about), ensure_ascii=False, indent=1) + "\n")


def read_records(path: Path = RECORDS) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


def print_results(results: Sequence[Result], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("what", "met?") else "right", no_wrap=column != "what")
    for result in results:
        table.add_row(*result.cells())
    console = Console()
    Console(width=max(console.width, 150)).print(table)  # a narrow window breaks lines, a narrow table breaks words
