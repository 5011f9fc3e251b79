"""All CPU benchmarks as one table:  python -m speed [--pacs FOLDER] [--only step stack] [--clock processor]

The result is also appended to speed/results/cpu.jsonl, with the commit; speed/compare.py shows two commits
side by side. PACS is measured where its images are found beside the repository, or where --pacs says they are.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch

from speed import imports, pacs, stack, step
from speed.measure import CLOCKS, RECORDS, ROOT, Result, print_results, processors_used, write_record

PACS_FOLDER = ROOT.parent / "shared" / "data" / "pacs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["step", "stack", "imports", "pacs"])
    parser.add_argument("--pacs", type=Path, help="folder with the environments of PACS")
    parser.add_argument("--repeats", type=int, default=5, help="timed repetitions of a step")
    parser.add_argument("--full", action="store_true", help="train all 60 single runs and not a sample")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="processor: for a busy machine, with one thread"
    )
    parser.add_argument("--output", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    folder = arguments.pacs or PACS_FOLDER
    if arguments.pacs and not folder.is_dir():
        parser.error(f"there is no folder {folder}")
    clock = CLOCKS[arguments.clock]
    singles = stack.TRIALS * len(stack.SEEDS) if arguments.full else 6
    parts: dict[str, Callable[[], list[Result]]] = {
        "imports": imports.run,
        "step": lambda: step.run(arguments.repeats, clock),
        "stack": lambda: stack.run(None, singles, clock),
    }
    if folder.is_dir():
        parts["pacs"] = lambda: pacs.run(folder)
    used, threads = processors_used(), torch.get_num_threads()
    if used < 0.8 * threads and arguments.clock == "wall":
        print(f"torch's {threads} threads get {used:.1f} processors: times are wrong, and ratios may be.")
    results = []
    for name in arguments.only or parts:
        if name in parts:
            print(f"{name} …", flush=True)
            results += parts[name]()
    print_results(results, title=f"bayescal on {os.cpu_count()} CPU cores, {arguments.clock} time")
    write_record(results, arguments.output, clock=arguments.clock, processors_used=round(used, 2))


if __name__ == "__main__":
    main()
