"""How long a new interpreter takes to import the package and to show the command line's help.

python -m benchmarks.imports
"""

import json
import statistics
import subprocess
import sys
import time

from benchmarks.measure import Result, print_results

TARGET = 0.5
UNWANTED = ("torch", "torchvision", "open_clip", "optuna", "plotly", "matplotlib", "sklearn")
CODE = f"""
import json, sys, time
started = time.perf_counter()
import bayescal
seconds = time.perf_counter() - started
print(json.dumps([seconds, [name for name in {UNWANTED!r} if name in sys.modules]]))
"""


def import_once() -> tuple[float, list[str]]:
    """Seconds of the import statement in a fresh interpreter, and the heavy packages it pulled in."""
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    seconds, loaded = json.loads(done.stdout)
    return seconds, loaded


def help_once() -> float:
    """Seconds from typing `bayescal --help` to having read it, start of the interpreter included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bayescal", "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


def run(repeats: int = 5) -> list[Result]:
    imports = [import_once() for _ in range(repeats)]
    loaded = sorted({name for _, names in imports for name in names})
    if loaded:
        raise AssertionError(f"import bayescal also imports {', '.join(loaded)}")
    seconds = [value for value, _ in imports]
    helps = [help_once() for _ in range(repeats)]
    return [
        Result("import bayescal", statistics.median(seconds), target=TARGET, notes={"not imported": UNWANTED}),
        Result("bayescal --help", statistics.median(helps)),
    ]


if __name__ == "__main__":
    print_results(run())
