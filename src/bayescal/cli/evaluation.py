"""The numbers of `bayescal evaluate`, and how they are shown."""

import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayescal import __version__, metrics
from bayescal.data import Manifest
from bayescal.errors import BayescalWarning, DataError

if TYPE_CHECKING:
    from rich.console import Console

    from bayescal.features import Encoded
    from bayescal.predictor import Predictor

Evaluation = dict[str, Any]  # what metrics.json holds

_MEANING = (
    ("accuracy", "accuracy", "share of images answered correctly"),
    ("worst_environment_accuracy", "worst environment", "accuracy in the environment where it is lowest"),
    ("acc_star", "Acc*", 'share of correct answers among those that are not "unsure"'),
    ("acc_star_code", "Acc*(code)", "as the published code counts it; for comparison with papers only"),
    ("coverage", "coverage", 'share of images that are not "unsure"'),
    ("ece", "ECE", "how far confidence and accuracy differ on average; 0 is best"),
    ("brier", "Brier score", "squared error of the probabilities; 0 is best, 2 is worst"),
    ("nll", "NLL", "negative log-likelihood; 0 is best"),
)
_PERCENTAGES = ("accuracy", "worst_environment_accuracy", "acc_star", "acc_star_code", "coverage")


def class_numbers(manifest: Manifest, predictor: "Predictor") -> Tensor:
    """The model's number of each image's class; classes that the model does not know are an error."""
    number = {str(label): index for index, label in enumerate(predictor.classes)}
    present = [manifest.classes[i] for i in np.unique(manifest.class_ids)]
    if unknown := [name for name in present if name not in number]:
        raise DataError(
            f"the model does not know {len(unknown)} of the {len(present)} classes in the data: "
            f"{', '.join(unknown[:10])}{' …' if len(unknown) > 10 else ''}. "
            f"It knows: {', '.join(list(number)[:20])}{' …' if len(number) > 20 else ''}"
        )
    return torch.tensor([number[row.class_name] for row in manifest.rows()])


def measure(
    predictor: "Predictor", manifest: Manifest, labels: Tensor, encoded: "Encoded", about: dict[str, str]
) -> Evaluation:
    """Every number, as one flat record; images that cannot be read are listed and left out."""
    failed = {failure.index for failure in encoded.failures}
    kept = np.array([i for i in range(len(manifest)) if i not in failed], dtype=np.int64)
    unreadable = [{"image": failure.name, "reason": failure.reason} for failure in encoded.failures]
    if failed:
        if not len(kept):
            raise DataError(encoded.describe_failures("could not be read"))
        _warn(encoded.describe_failures())
    labels, environments = labels[kept], torch.from_numpy(manifest.environment_ids[kept])
    probs = predictor.posterior(encoded.features[kept], environments)[0].cpu()
    groups = _environments(predictor, manifest, probs, labels, environments)
    if about["split"] in ("all", "train") and any(group["seen"] for group in groups):
        _warn(
            "images of seen environments may be the ones that the model learned from; how good it is, only test images "
            "and unseen environments tell"
        )
    worst = min(groups, key=lambda group: group["accuracy"])
    chosen = metrics.selective_accuracy(probs, labels, predictor.threshold)
    return {
        **about,
        "version": __version__,
        "method": predictor.method,
        "backbone": predictor.backbone.name,
        "images": len(kept),
        "accuracy": float(metrics.accuracy(probs, labels)),
        "worst_environment": worst["name"],
        "worst_environment_accuracy": worst["accuracy"],
        "threshold": predictor.threshold,
        "acc_star": float(chosen.accuracy),
        "acc_star_code": float(chosen.accuracy_code),
        "coverage": float(chosen.coverage),
        "ece": float(metrics.ece(probs, labels)),
        "brier": float(metrics.brier(probs, labels)),
        "nll": float(metrics.nll(probs, labels)),
        "environments": groups,
        "classes": _classes(predictor, probs, labels),
        "confusion_matrix": {
            "classes": [str(label) for label in predictor.classes],
            "counts": metrics.confusion_matrix(probs, labels).tolist(),
        },
        "unreadable": unreadable,
    }


def _environments(
    predictor: "Predictor", manifest: Manifest, probs: Tensor, labels: Tensor, environments: Tensor
) -> list[dict[str, Any]]:
    seen = {str(name) for name in predictor.environments}
    groups = []
    for number in environments.unique().tolist():
        mine = environments == number
        chosen = metrics.selective_accuracy(probs[mine], labels[mine], predictor.threshold)
        groups.append(
            {
                "name": manifest.environments[number],
                "seen": manifest.environments[number] in seen,
                "images": int(mine.sum()),
                "accuracy": float(metrics.accuracy(probs[mine], labels[mine])),
                "acc_star": float(chosen.accuracy),
                "coverage": float(chosen.coverage),
            }
        )
    return groups


def _classes(predictor: "Predictor", probs: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    right = metrics.accuracy_per_class(probs, labels).tolist()
    images = labels.bincount(minlength=len(predictor.classes)).tolist()
    return [
        {"name": str(name), "images": n, "accuracy": share}
        for name, n, share in zip(predictor.classes, images, right, strict=True)
        if n
    ]


def to_json(evaluation: Evaluation) -> str:
    """JSON has no NaN and no infinity: both become null."""
    return json.dumps(_finite(evaluation), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def print_evaluation(screen: "Console", evaluation: Evaluation) -> None:
    from bayescal.cli.screen import count, percent, plain_table

    screen.print(f"{count(evaluation['images'], 'image')} (split: {evaluation['split']})")
    table = plain_table("metric", "value", "meaning", numbers=("value",))
    for key, name, meaning in _MEANING:
        value = evaluation[key]
        if key == "worst_environment_accuracy":
            meaning = f"{meaning}: {evaluation['worst_environment']}"
        table.add_row(name, percent(value) if key in _PERCENTAGES else f"{value:.3f}", meaning)
    screen.print(table)

    columns = ("images", "accuracy", "Acc*", "coverage")
    table = plain_table("environment", "in training", *columns, numbers=columns)
    for group in evaluation["environments"]:
        shares = (percent(group[key]) for key in ("accuracy", "acc_star", "coverage"))
        table.add_row(group["name"], "seen" if group["seen"] else "unseen", f"{group['images']:,}", *shares)
    screen.print(table)

    table = plain_table("class", "images", "accuracy", numbers=("images", "accuracy"))
    for group in evaluation["classes"]:
        table.add_row(group["name"], f"{group['images']:,}", percent(group["accuracy"]))
    screen.print(table)


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=3)
