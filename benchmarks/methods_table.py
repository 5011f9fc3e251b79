"""Every method on one data set: leave one environment out, K shots, default hyper-parameters, a table in Markdown.

    python -m benchmarks.methods_table DATA -o docs/results/pacs-mini.md [--backbone mini] [--word-vectors FILE.npz]

Protocol: for each held-out environment and seed, `--shots` training and as many validation images per class from the
other environments; the epoch is the one that validates best; the held-out environment is looked at once, at the end
(20 posterior draws). All held-out environments × seeds of a method are one stack. Results are kept in a JSON file
beside the table, so a killed command continues and `--methods` adds to what is there.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch

from bayescal import __version__, metrics
from bayescal.data import few_shot_split
from bayescal.methods import get_method, method_names
from bayescal.space import default_config
from bayescal.stacks import Problem, Run, train_runs
from benchmarks.portable import build_problem, load_problem

DRAWS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a data folder, or a file made by benchmarks.portable")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--methods", nargs="+", default=method_names())
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--word-vectors", default=os.environ.get("BAYESCAL_WORD_VECTORS", ""))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.data.suffix == ".pt":
        problem, defaults, hashes, _ = load_problem(arguments.data, arguments.device)
    else:
        problem, defaults, hashes, _ = build_problem(arguments.data, arguments.backbone)
    record = arguments.output.with_suffix(".json")
    results = json.loads(record.read_text()) if record.exists() else {}
    about = {
        "environments": problem.environment_words,
        "backbone": arguments.backbone,
        "output": arguments.output.name,
        "shots": arguments.shots,
        "seeds": arguments.seeds,
        "versions": f"bayescal {__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads, {arguments.device}",
        "features_seconds": results.get("about", {}).get("features_seconds", round(time.perf_counter() - started, 1)),
    }
    results["about"] = about
    for name in arguments.methods:
        if name in results:
            continue
        options = {"word_vectors": arguments.word_vectors} if "w2v" in name else {}
        results[name] = run_method(name, problem, defaults, hashes, arguments.seeds, arguments.shots, options)
        write(record, json.dumps(results, indent=1))
        write(arguments.output, table(results))
        print(f"{name}: {results[name]['seconds']:.0f} s, {100 * np.mean(results[name]['accuracy']):.1f} %", flush=True)
    write(arguments.output, table(results))


def run_method(name: str, problem: Problem, defaults, hashes, seeds, shots: int, options: dict) -> dict:
    """Accuracy and calibration error [held-out environment][seed], seconds of training and of prediction."""
    labels, environments = problem.labels.cpu().numpy(), problem.environments.cpu().numpy()
    config = default_config(get_method(name).space, defaults, **options)
    n_env, device = len(problem.environment_words), problem.features.device
    runs, tests = [], []
    for held_out in range(n_env):
        seen = [e for e in range(n_env) if e != held_out]
        test = np.flatnonzero(environments == held_out)
        for seed in seeds:
            split = few_shot_split(
                labels, environments, train_environments=seen, shots=shots, val_shots=shots, seed=seed, hashes=hashes,
                forbidden={hashes[i] for i in test}, class_names=problem.class_words,
                environment_names=problem.environment_words,
            )  # fmt: skip
            train, val = (torch.from_numpy(rows).to(device) for rows in (split.train, split.val))
            runs.append(Run(config, seed, train, {"val": val}))
            tests.append(torch.from_numpy(test).to(device))
    started = time.perf_counter()
    results = train_runs(name, problem, runs, progress=name)
    seconds = time.perf_counter() - started
    accuracy, ece = [], []
    for result, test in zip(results, tests, strict=True):
        probs = result.predict(problem, problem.features[test], draws=DRAWS, checkpoint="val").probs
        accuracy.append(float(metrics.accuracy(probs, problem.labels[test])))
        ece.append(float(metrics.ece(probs, problem.labels[test])))
    method = results[0].bind(problem)
    return {
        "accuracy": np.reshape(accuracy, (n_env, len(seeds))).tolist(),
        "ece": np.reshape(ece, (n_env, len(seeds))).tolist(),
        "validation": float(np.mean([max(r.curves["val"]) for r in results])),
        "parameters": method.parameter_count(results[0].params),
        "seconds": seconds,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "",
        "predict_seconds": time.perf_counter() - started - seconds,
        "stopped": [r.stopped for r in results if r.stopped],
        "config": config if not options else {**config, "word_vectors": Path(config["word_vectors"]).name},
    }


def table(results: dict) -> str:
    """Markdown: accuracy per held-out environment, mean ± standard error over seeds; best in bold."""
    about = results["about"]
    names = [name for name in method_names() if name in results]
    mean = {name: 100 * np.mean(results[name]["accuracy"]) for name in names}
    best = max(mean.values(), default=0.0)
    lines = [
        f"| method | {' | '.join(about['environments'])} | mean | ECE | parameters | training, s |",
        "|---|" + "---|" * (len(about["environments"]) + 4),
    ]
    for name in names:
        entry = results[name]
        cells = [_mean_se(np.array(row)) for row in entry["accuracy"]]
        average = _mean_se(np.mean(entry["accuracy"], axis=0))  # over environments first: seeds are the sample
        average = f"**{average}**" if mean[name] == best else average
        ece = f"{100 * np.mean(entry['ece']):.1f}"
        title = get_method(name).title
        seconds = f"{entry['seconds']:.1f}" + (f" ({entry['device']})" if entry.get("device") else "")
        row = [title, *cells, average, ece, f"{entry['parameters']:,}", seconds]
        lines.append(f"| {' | '.join(row)} |")
    total = sum(results[name]["seconds"] + results[name]["predict_seconds"] for name in names)
    head = [
        "# Every method, default hyper-parameters",
        "",
        f"Accuracy (%) in the environment of the column, which was held out; mean ± standard error over "
        f"{len(about['seeds'])} seeds. {about['shots']} training and {about['shots']} validation images per class from "
        f"the other environments; epochs chosen on those validation images. Backbone `{about['backbone']}`. "
        "ECE: expected calibration error (%), mean. Training: seconds for all held-out environments × seeds together.",
        "",
        f"Made by `python -m benchmarks.methods_table DATA -o {about['output']}` "
        f"({about['versions']}); features {about['features_seconds']} s, training and prediction {total / 60:.1f} min.",
        "",
    ]
    tail = [
        "",
        "What this does not show: each method has its default hyper-parameters, which were set on validation images of",
        "this data set with few seeds; three seeds tell differences of one or two points from chance only where the",
        "standard errors are small; and a weak backbone favours methods that adapt a lot. Seconds depend on what else",
        "the machine was doing.",
    ]
    return "\n".join([*head, *lines, *tail, ""])


def _mean_se(values: np.ndarray) -> str:
    mean, error = metrics.mean_and_standard_error(torch.from_numpy(100 * values), dim=0)
    return f"{mean:.1f} ± {error:.1f}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
