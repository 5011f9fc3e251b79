"""Which score tells images that a model can say nothing about from others (docs/auto.md, "Unfamiliar images").

    python -m speed.familiarity ../shared/data/pacs ../shared/data/multienv/{produce,digits,waste} [--seeds 1 2]

Each argument is a folder ENVIRONMENT/CLASS/image. For every held-out environment and seed, every third class is taken
away and 32 images of each class that is left are drawn from the other environments, as `fit --shots 32` would. Familiar
are other images of the same classes and environments, and images of the held-out environment, which is new but no
reason for alarm. Unfamiliar are the classes taken away, images of the other sets, blank images and noise, and familiar
photos spoilt beyond use. AUROC and FPR@95 as in OpenOOD: familiar images are the positives, and FPR is the share of
unfamiliar ones above the score that 95 % of the familiar ones reach. The lines below are what `familiarity` does at
its own threshold, which comes from the training images alone, and how many spoilt photos it lets pass that the mean of
the four methods gets wrong: a photo that is still answered as its original is not spoilt beyond use for the model.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor
from torch.nn import functional as F

from bayescal.backbones import Backbone, load_backbone
from bayescal.backbones.vocabulary import word_features
from bayescal.data import Manifest, few_shot_split, read_image, read_manifest
from bayescal.estimator.fitting import noise_features, zero_shot_features
from bayescal.evaluation import metrics
from bayescal.evaluation.familiarity import Familiarity, closest, nearest
from bayescal.features import FeatureBank
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import train_runs
from bayescal.util.atomic import write_text

RESULTS = Path(__file__).parent / "results"
SHOTS, SHOWN, SPOILT, SAMPLES = 32, 200, 60, 20
# What a model says of an image comes from these, none of which needs the text tower in training.
METHODS = ("clip", "logistic-regression", "bayes-taskres", "tip-adapter")
POSTERIOR = METHODS.index("bayes-taskres")
KINDS = ("unseen classes", "another set", "noise and blanks", "spoilt photos")
SPOILT_KIND = KINDS[-1]
TITLES = {
    "familiarity": "min(neighbours + text, − other word) − noise beyond 2 (familiarity)",
    "without words": "neighbours + text − noise beyond 2",
    "word": "− another word's lead over all class texts",
    "negative labels": "share of the classes in a softmax over classes and 10,000 words",
    "neighbours+text": "neighbours + text",
    "neighbours": "mean cosine to 5 nearest",
    "neighbour": "cosine to the 5th nearest",
    "text": "largest cosine to a class text",
    "noise": "− largest cosine to noise",
    "length": "length of the feature",
    "mahalanobis": "Mahalanobis, shrunk covariance",
    "energy": "energy of zero-shot logits",
    "confidence": "confidence of the mean of four methods",
    "information": "mutual information (Bayes-TaskRes)",
    "disagreement": "disagreement of four methods",
    "mahalanobis+text": "Mahalanobis + text",
    "neighbours+text+length": "neighbours + text + length of the feature",
    "neighbours+text+noise": "neighbours + text − noise",
    "same class": "5 nearest of a class + twice its text, best class",
    "all": "neighbours + text + mutual information + disagreement",
}


@dataclass(frozen=True)
class Case:
    """Images drawn to learn from, as rows of the manifest, and what to ask about."""

    train: np.ndarray
    known: np.ndarray  # class ids
    seen: np.ndarray  # familiar images of the training environments
    elsewhere: np.ndarray  # familiar images of the held-out one
    strangers: np.ndarray  # of the classes taken away


def draw(manifest: Manifest, held_out: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    gone = np.arange(seed % 3, len(manifest.classes), 3)
    known = np.setdiff1d(np.arange(len(manifest.classes)), gone)
    inside, here = np.isin(manifest.class_ids, known), manifest.environment_ids == held_out
    pool = np.flatnonzero(inside & ~here)
    _, ids = np.unique(manifest.class_ids[pool], return_inverse=True)
    environments = manifest.environment_ids[pool]
    split = few_shot_split(
        ids, environments, train_environments=np.unique(environments).tolist(), shots=SHOTS, val_shots=0, seed=seed
    )
    train = pool[split.train]
    few = lambda mask: rng.permutation(np.flatnonzero(mask))[:SHOWN]  # noqa: E731
    drawn = np.isin(np.arange(len(manifest)), train)
    return Case(train, known, few(inside & ~here & ~drawn), few(inside & here), few(~inside))


def blanks(count: int, seed: int) -> list[np.ndarray]:
    """Grey levels, colours, ramps, and noise of several grains: (160, 160, 3) uint8 each."""
    rng, found = np.random.default_rng(seed), []
    for i in range(count):
        kind = i % 4
        if kind == 0:
            image = np.broadcast_to(rng.integers(0, 256, 3) if i % 8 else np.full(3, 255 * (i % 16 > 0)), (160, 160, 3))
        elif kind == 1:
            image = np.linspace(0, 255, 160)[None, :, None] * rng.random(3) + np.zeros((160, 160, 3))
        else:
            grain = (1, 4, 16)[i % 3]
            small = rng.integers(0, 256, (160 // grain, 160 // grain, 3))
            image = np.kron(small, np.ones((grain, grain, 1)))
        found.append(np.asarray(image, dtype=np.uint8))
    return found


def spoil(paths: Sequence[str], seed: int) -> list[np.ndarray]:
    """Photos blurred, drowned in noise, faded or coarsened until nobody would name what they show."""
    rng, found = np.random.default_rng(seed), []
    for i, path in enumerate(paths):
        image = read_image(path).convert("RGB").resize((160, 160))
        if i % 4 == 0:
            image = image.filter(ImageFilter.GaussianBlur(16))
        elif i % 4 == 1:
            image = image.resize((5, 5), Image.Resampling.BOX).resize((160, 160), Image.Resampling.NEAREST)
        pixels = np.asarray(image, dtype=float)
        if i % 4 == 2:
            pixels = pixels + rng.normal(0, 300, pixels.shape)
        elif i % 4 == 3:
            pixels = 250 + 0.02 * (pixels - pixels.mean())
        found.append(pixels.clip(0, 255).astype(np.uint8))
    return found


def said(problem: Problem, train: Tensor, sets: Sequence[Tensor], backbone: Backbone) -> Callable[[int, Tensor], Any]:
    """(run, features) → what the four methods say (4, N, C) and the posterior's mutual information (N,).

    Run 0 learned from all training images, run i from those of `sets[i − 1]`.
    """
    results = []
    for name in METHODS:
        config = default_config(get_method(name).space, backbone.defaults)
        if name == "tip-adapter":  # its two numbers as they are
            config |= {"alpha_steps": 0, "beta_steps": 0}
        results.append(train_runs(name, problem, [Run(config, 1, own) for own in (train, *sets)]))

    def ask(run: int, features: Tensor) -> tuple[Tensor, Tensor]:
        answers = [own[run].predict(problem, features, samples=SAMPLES) for own in results]
        probs, expected = answers[POSTERIOR].probs[0], answers[POSTERIOR].expected_entropy[0]
        return torch.stack([own.probs[0] for own in answers]), metrics.mutual_information(probs, expected)

    return ask


def log_odds(known: Tensor, other: Tensor) -> Tensor:
    """Of the classes (N, C) against the words (N, W), by their logits: NegLabel before its logistic function."""
    return known.logsumexp(1) - other.logsumexp(1)


def model_scores(probs: Tensor, information: Tensor) -> dict[str, Tensor]:
    """From what methods say (M, N, C): the larger, the more familiar."""
    mean = probs.mean(0)
    disagreement = metrics.predictive_entropy(mean) - metrics.predictive_entropy(probs).mean(0)
    return {"confidence": mean.amax(1), "information": -information, "disagreement": -disagreement}


@torch.no_grad()
def scorer(problem: Problem, train: Tensor, texts: Tensor, backbone: Backbone) -> Callable[[Tensor], dict[str, Tensor]]:
    """Every score of images (N, D), learned from the training rows; and "right": the class that four methods say."""
    noise, vocabulary = noise_features(backbone), word_features(backbone)
    features, labels, environments = problem.features[train], problem.labels[train], problem.environments[train]
    images, texts = F.normalize(features, dim=-1), F.normalize(texts, dim=-1)
    ours = Familiarity.of(features, environments, texts, noise, vocabulary)
    without = Familiarity.of(features, environments, texts, noise)
    words, vocabulary = ours.words, F.normalize(vocabulary, dim=-1)
    assert words is not None
    noise = F.normalize(noise, dim=-1)
    centres = torch.stack([images[labels == c].mean(0) for c in labels.unique()])
    precision = torch.from_numpy(LedoitWolf().fit((images - centres[labels]).numpy()).precision_).float()

    def mahalanobis(queries: Tensor) -> Tensor:
        gaps = queries[:, None] - centres[None]
        return -torch.einsum("ncd,de,nce->nc", gaps, precision, gaps).amin(1)

    def of_one_class(queries: Tensor, leave_out: Tensor | None) -> Tensor:
        own = [labels == c for c in range(len(texts))]
        each = [nearest(queries, images[at], None if leave_out is None else leave_out[:, at]) for at in own]
        return (torch.stack(each, 1).nan_to_num(-1.0) + 2 * queries @ texts.T).amax(1)

    # One environment: ordinary folds in its place.
    groups = environments if len(environments.unique()) > 1 else torch.arange(len(train)) % 5
    present = groups.unique()
    with torch.enable_grad():
        ask = said(problem, train, [train[groups != e] for e in present], backbone)

    def plain(features: Tensor, leave_out: Tensor | None = None) -> dict[str, Tensor]:
        queries = F.normalize(features, dim=-1)
        cosines = queries @ images.T
        if leave_out is not None:
            cosines = cosines.masked_fill(leave_out, -1.0)
        return {
            "neighbours": nearest(queries, images, leave_out),
            "neighbour": cosines.topk(5, dim=1).values[:, -1],
            "text": closest(queries, texts),
            "noise": -closest(queries, noise),
            "word": -(closest(queries, words) - closest(queries, texts)).clamp(min=0),
            "negative labels": log_odds(
                problem.logit_scale * queries @ texts.T, problem.logit_scale * queries @ vocabulary.T
            ),
            "length": features.norm(dim=-1),
            "same class": of_one_class(queries, leave_out),
            "mahalanobis": mahalanobis(queries),
            "energy": (problem.logit_scale * queries @ texts.T).logsumexp(1),
        }

    # What is usual, for sums of scores: training images, each asked of what did not see its environment.
    usual = plain(features, groups[:, None] == groups[None, :])
    apart = {name: torch.zeros(len(train)) for name in ("confidence", "information", "disagreement")}
    for i, e in enumerate(present, start=1):
        own = groups == e
        for name, scores in model_scores(*ask(i, features[own])).items():
            apart[name][own] = scores.float()
    usual |= apart

    def summed(scores: dict[str, Tensor], names: Sequence[str]) -> Tensor:
        return sum((scores[n] - usual[n].mean()) / usual[n].std().clamp(min=1e-6) for n in names)

    def score(queries: Tensor) -> dict[str, Tensor]:
        probs, information = ask(0, queries)
        found = plain(queries) | model_scores(probs, information)
        return found | {
            "says": probs.mean(0).argmax(1),
            "familiarity": ours(queries) - ours.threshold,  # below 0: called unfamiliar
            "without words": without(queries),
            **{name: summed(found, name.split("+")) for name in TITLES if "+" in name},
            "all": summed(found, ("neighbours", "text", "information", "disagreement")),
        }

    return score


def measure(
    path: str, others: Sequence[str], seeds: Sequence[int], backbone: Backbone, bank: FeatureBank
) -> list[dict]:
    """Every held-out environment and seed: per score, AUROC and FPR@95 for each kind; and our threshold's alarms."""
    manifest, rng = read_manifest(path), np.random.default_rng(0)
    foreign = [p for other in others for p in rng.permutation(np.array(read_manifest(other).paths))[:SPOILT].tolist()]
    encode = lambda images: bank.encode(images, progress=True).features  # noqa: E731
    found = []
    for held_out, environment in enumerate(manifest.environments):
        for seed in seeds:
            case = draw(manifest, held_out, seed)
            at = lambda rows: encode([manifest.paths[i] for i in rows])  # noqa: E731
            words = tuple(manifest.class_words[c] for c in case.known)
            problem = Problem.of(
                backbone, at(case.train), np.searchsorted(case.known, manifest.class_ids[case.train]),
                manifest.environment_ids[case.train], words, manifest.environment_words,
            )  # fmt: skip
            score = scorer(problem, torch.arange(len(case.train)), zero_shot_features(backbone, words), backbone)
            spoilt = spoil([manifest.paths[i] for i in case.seen[:SPOILT]], seed)
            familiar = {"seen": score(at(case.seen)), "elsewhere": score(at(case.elsewhere))}
            kinds = (at(case.strangers), encode(foreign), encode(blanks(SPOILT, seed)), encode(spoilt))
            strange = {kind: score(features) for kind, features in zip(KINDS, kinds, strict=True)}
            truth = torch.from_numpy(np.searchsorted(case.known, manifest.class_ids[case.seen[:SPOILT]]))
            passed = strange[SPOILT_KIND]["familiarity"] >= 0
            wrong = passed & (strange[SPOILT_KIND]["says"] != truth)
            numbers = {"spoilt and wrong": float(wrong.float().mean()), **compare(familiar, strange)}
            found.append({"held out": environment, "seed": seed, **numbers})
    return found


def compare(familiar: dict[str, dict[str, Tensor]], strange: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    rows = {}
    for name in TITLES:
        inside = torch.cat([own[name] for own in familiar.values()]).numpy()
        rows[name] = {kind: detection(inside, own[name].numpy()) for kind, own in strange.items()}
    alarms = {kind: float((own["familiarity"] < 0).float().mean()) for kind, own in (familiar | strange).items()}
    return {"scores": rows, "alarms": alarms}


def detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """AUROC, and the share of strangers above the score that 95 % of the familiar images reach."""
    truth, scores = np.r_[np.ones(len(inside)), np.zeros(len(outside))], np.r_[inside, outside]
    false_alarms, found, _ = roc_curve(truth, scores)
    return {"auroc": float(roc_auc_score(truth, scores)), "fpr95": float(false_alarms[np.argmax(found >= 0.95)])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--cache", type=Path, help="of features; by default the usual one")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    backbone = load_backbone(arguments.backbone, "cpu")
    bank = FeatureBank(backbone, arguments.cache or "auto")
    cases = {
        Path(path).name: measure(path, [p for p in arguments.data if p != path], arguments.seeds, backbone, bank)
        for path in arguments.data
    }
    summary: dict[str, Any] = {"scores": {}, "alarms": {}}
    for name, title in TITLES.items():
        row: dict[str, Any] = {"title": title}
        for kind in KINDS:
            for number in ("auroc", "fpr95"):
                sets = [np.mean([case["scores"][name][kind][number] for case in own]) for own in cases.values()]
                row[f"{kind}/{number}"] = float(np.mean(sets))  # every set counts the same
        summary["scores"][name] = row
        each = "  ".join(f"{kind} {row[f'{kind}/auroc']:.3f} / {100 * row[f'{kind}/fpr95']:.0f} %" for kind in KINDS)
        print(f"{title:54} {each}")
    for kind in ("seen", "elsewhere", *KINDS):
        shares = {name: float(np.mean([case["alarms"][kind] for case in own])) for name, own in cases.items()}
        summary["alarms"][kind] = shares | {"mean": float(np.mean(list(shares.values())))}
        print(f"called unfamiliar, {kind}: {100 * summary['alarms'][kind]['mean']:.1f} %")
    shares = {name: float(np.mean([case["spoilt and wrong"] for case in own])) for name, own in cases.items()}
    summary["spoilt and wrong"] = shares | {"mean": float(np.mean(list(shares.values())))}
    print(f"spoilt photos that pass and are answered wrongly: {100 * summary['spoilt and wrong']['mean']:.1f} %")
    command = f"python -m speed.familiarity {' '.join(cases)} --seeds {' '.join(map(str, arguments.seeds))}"
    about = {"command": command, "fingerprint": backbone.fingerprint, "torch": torch.__version__}
    output = arguments.output or RESULTS / f"familiarity-{backbone.label.replace(' ', '')}.json"
    write_text(output, json.dumps({**about, **summary, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
