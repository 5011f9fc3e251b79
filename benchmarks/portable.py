"""A problem (features, words, text tower) as one file, for machines that have torch but neither images nor open_clip.

python -m benchmarks.portable DATA problem.pt [--backbone mini]
"""

import argparse
from pathlib import Path

import torch

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.backbones.text_tower import TextTower
from bayescal.stacks import Problem

CONTEXTS = ("", ".", "a photo of a", "a photo of a {}.", "a photo of")


def save_problem(problem: Problem, defaults: TrainingDefaults, hashes, splits, path: Path) -> None:
    tower = problem.text
    words = {*problem.class_words, *problem.environment_words, *CONTEXTS}
    words |= {f"a photo of a {name}." for name in problem.class_words}
    shape = {
        name: getattr(tower, name)
        for name in ("width", "heads", "layers", "dim", "context_length", "activation", "start_token", "end_token")
    }
    tokens = {text: problem.tokenize(text) for text in words}
    # Only the rows of the token table that the words use travel; the others stay zero and are never read.
    used = sorted({i for ids in tokens.values() for i in ids} | {0, tower.start_token, tower.end_token})
    state = tower.state_dict()
    table = state.pop("token_embedding.weight")
    content = {
        "shape": {**shape, "vocab_size": table.shape[0]},
        "state": {name: compact(value) for name, value in state.items()},
        "table": (used, table[used].clone()),
        "tokens": tokens,
        "logit_scale": problem.logit_scale,
        "features": problem.features,
        "labels": problem.labels,
        "environments": problem.environments,
        "class_words": problem.class_words,
        "environment_words": problem.environment_words,
        "hashes": list(hashes),
        "splits": list(splits),
        "defaults": vars(defaults),
    }
    torch.save(content, path)


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """Half precision where it holds the same numbers."""
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def load_problem(path: Path, device: str = "cpu") -> tuple[Problem, TrainingDefaults, list, list]:
    """Problem, training defaults, content hashes and manifest splits, as they were saved."""
    content = torch.load(path, weights_only=True)
    tower = TextTower(**content["shape"])
    used, rows = content["table"]
    table = torch.zeros_like(tower.token_embedding.weight)
    table[used] = rows
    state = {name: value.float() for name, value in content["state"].items()}
    tower.load_state_dict({**state, "token_embedding.weight": table})
    problem = Problem(
        text=tower.to(device),
        tokenize=content["tokens"].__getitem__,
        logit_scale=content["logit_scale"],
        features=content["features"].to(device),
        labels=content["labels"].to(device),
        environments=content["environments"].to(device),
        class_words=tuple(content["class_words"]),
        environment_words=tuple(content["environment_words"]),
    )
    return problem, TrainingDefaults(**content["defaults"]), content["hashes"], content["splits"]


def build_problem(data: Path, backbone_name: str) -> tuple[Problem, TrainingDefaults, tuple, list]:
    """The same, from images."""
    from bayescal import load_backbone
    from bayescal.data import read_manifest
    from bayescal.features import FeatureBank

    backbone = load_backbone(backbone_name)
    manifest = read_manifest(data)
    encoded = FeatureBank(backbone).encode(manifest.paths, progress=True)
    problem = Problem.of(
        backbone, encoded.features, manifest.class_ids, manifest.environment_ids,
        manifest.class_words, manifest.environment_words,
    )  # fmt: skip
    return problem, backbone.defaults, encoded.hashes, manifest.splits.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--backbone", default="mini")
    arguments = parser.parse_args()
    save_problem(*build_problem(arguments.data, arguments.backbone), arguments.output)


if __name__ == "__main__":
    main()
