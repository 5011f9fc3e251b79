"""A frozen linear layer by MKL and by oneDNN: which is faster on this processor, from how many rows on.

    python -m speed.linear [--threads 1 2] [--repeats 20] [--output speed/results/linear-cpu.json]

Layers of `mini`'s towers and of CLIP's text tower, forwards and backwards (the gradient of the input: weights are not
trained). `engine/linear.py` takes its rule from the table.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.engine.linear import one_dnn_is_faster
from speed.measure import Result, interleaved, medians, print_results, write_json

RESULTS = Path(__file__).parent / "results"
LAYERS = ((384, 1536), (256, 1024), (512, 2048))  # inputs × outputs
ROWS = (1, 4, 16, 64, 1024)
IN_A_TURN = 2e8  # operations: more than what a clock cannot see


def rivals(x: Tensor, weight: Tensor, bias: Tensor | None, times: int) -> dict[str, Callable[[], None]]:
    one_dnn = torch.ops.mkldnn._linear_pointwise

    def repeated(product: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(times):
                product()

        return work

    return {
        "oneDNN": repeated(lambda: one_dnn(x, weight, bias, "none", [], "")),
        "MKL": repeated(lambda: F.linear(x, weight, bias)),
    }


def measure(rows: int, inputs: int, outputs: int, backwards: bool, threads: int, repeats: int) -> Result:
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
    x = torch.randn(rows, outputs if backwards else inputs)
    times = max(1, round(IN_A_TURN / (2 * rows * inputs * outputs)))
    torch.set_num_threads(threads)
    layer = (weight.t(), None) if backwards else (weight, bias)
    with torch.inference_mode():
        taken = medians(interleaved(rivals(x, *layer, times), repeats, warmup=2))
    way, plural = "backwards" if backwards else "forwards", "s" * (threads > 1)
    what = f"{rows} rows, {inputs} → {outputs}, {way}, {threads} thread{plural}"
    return Result(what, taken["oneDNN"] / times, plain=taken["MKL"] / times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS / "linear-cpu.json")
    arguments = parser.parse_args()
    results = [
        measure(rows, *layer, backwards, threads, arguments.repeats)
        for threads in arguments.threads
        for layer in LAYERS
        for rows in ROWS
        for backwards in (False, True)
    ]
    print_results(results, title=f"ours: oneDNN; plain: MKL. oneDNN is used here: {one_dnn_is_faster()}")
    capability = torch.backends.cpu.get_cpu_capability()
    write_json(results, arguments.output, "python -m speed.linear", capability=capability)


if __name__ == "__main__":
    main()
