"""How long a new interpreter takes to import the package, to show the command line's help, and to load mini.

python -m speed.imports
"""

import json
import statistics
import subprocess
import sys
import time

from speed.measure import Result, print_results

TARGET = 0.5
UNWANTED = ("torch", "torchvision", "open_clip", "optuna", "plotly", "matplotlib", "sklearn")
CODE = f"""
import json, sys, time
started = time.perf_counter()
import bayescal
seconds = time.perf_counter() - started
print(json.dumps([seconds, [name for name in {UNWANTED!r} if name in sys.modules]]))
"""
LOAD = """
import time, warnings
warnings.simplefilter("ignore")
import open_clip, safetensors.torch, torch
import bayescal.backbones.loading
started, busy = time.perf_counter(), time.process_time()
bayescal.backbones.loading.load_backbone("mini")
print(time.perf_counter() - started, time.process_time() - busy)
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


def load_once() -> tuple[float, float]:
    """Seconds that mini takes to load, everything being imported: on the clock, and of the processor."""
    done = subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True)
    wall, busy = map(float, done.stdout.split())
    return wall, busy


def run(repeats: int = 5) -> list[Result]:
    imports = [import_once() for _ in range(repeats)]
    loaded = sorted({name for _, names in imports for name in names})
    if loaded:
        raise AssertionError(f"import bayescal also imports {', '.join(loaded)}")
    seconds = [value for value, _ in imports]
    helps = [help_once() for _ in range(repeats)]
    loads = [load_once() for _ in range(repeats)]
    wall, busy = (statistics.median(values) for values in zip(*loads, strict=True))
    return [
        Result("import bayescal", statistics.median(seconds), target=TARGET, notes={"not imported": UNWANTED}),
        Result("bayescal --help", statistics.median(helps)),
        Result("load mini, after the imports", wall, target=TARGET, notes={"processor time": busy}),
    ]


if __name__ == "__main__":
    print_results(run())
