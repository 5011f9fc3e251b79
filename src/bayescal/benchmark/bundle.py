"""A prepared data set as one file, for machines that have torch but neither the images nor open_clip (a borrowed GPU).

The file holds features, content hashes, names and the text tower. A tokenizer does not travel: the texts that
methods ask for (names, templates, starting words) are stored with their tokens, and any other text is refused.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayescal.backbones import mini
from bayescal.backbones.defaults import TrainingDefaults
from bayescal.benchmark.prepared import BackboneInfo, PreparedDataset, portable_name
from bayescal.data.datasets import find_name, get_dataset
from bayescal.data.datasets.base import Dataset, describe
from bayescal.data.manifest import Manifest
from bayescal.engine.digest import digest
from bayescal.errors import DataError
from bayescal.text.tower import TextTower
from bayescal.training.problem import Problem
from bayescal.util.tensor_file import write_tensors

SUFFIX = ".bundle"
FORMAT = "bayescal bundle 1"
TOWER = ("width", "heads", "layers", "dim", "context_length", "activation", "start_token", "end_token")
# What methods start from besides names (methods/*: context_init, template, the full stop behind a name).
CONTEXTS = ("", ".", "a photo of a", "a photo of")


def save_bundle(prepared: PreparedDataset, path: Path, texts: Iterable[str] = ()) -> None:
    """Write a prepared data set with the tokens of `texts` besides those that methods use; all or nothing."""
    problem, manifest, tower = prepared.problem, prepared.manifest, prepared.problem.text
    _refuse_other_towers(tower, prepared.backbone_info.name)
    templates = [part for text in (prepared.backbone_info.defaults.template, *texts) for part in text.split("|")]
    names = {*manifest.class_words, *manifest.environment_words}
    words = {*names, *CONTEXTS, prepared.backbone_info.defaults.context_init, *(t for t in templates if "{}" not in t)}
    words |= {t.replace("{}", name) for t in templates if "{}" in t for name in names}
    tokens = {text: problem.tokenize(text) for text in sorted(words)}
    # Only the rows of the token table that the words use travel; the others stay zero and are never read.
    used = sorted({i for ids in tokens.values() for i in ids} | {0, tower.start_token, tower.end_token})
    state = {f"tower/{name}": _compact(value) for name, value in tower.state_dict().items()}
    table = state.pop("tower/token_embedding.weight")
    tensors = {
        **state,
        "token_rows": torch.tensor(used),
        "token_table": table[used].clone(),
        "features": problem.features,
        "rows": torch.from_numpy(prepared.rows),
        "class_ids": torch.from_numpy(manifest.class_ids.copy()),
        "environment_ids": torch.from_numpy(manifest.environment_ids.copy()),
        "hashes": torch.from_numpy(_hash_bytes(prepared.hashes)),
    }
    if problem.views is not None and problem.view_rows is not None:
        tensors |= {"views": problem.views, "view_rows": problem.view_rows}
    about = {
        "dataset": prepared.dataset.name,
        "classes": dict(zip(manifest.classes, manifest.class_words, strict=True)),
        "environments": dict(zip(manifest.environments, manifest.environment_words, strict=True)),
        "splits": manifest.splits.tolist(),
        "backbone": [prepared.backbone_info.name, prepared.backbone_info.fingerprint, prepared.backbone_info.views],
        "defaults": asdict(prepared.backbone_info.defaults),
        "shots": [prepared.shots, prepared.val_shots],
        "balanced": prepared.dataset.balanced,
        "logit_scale": problem.logit_scale,
        "tower": _shape(tower),
        "tokens": tokens,
    }
    flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    written = json.dumps(about)
    write_tensors(path, flat, {"format": FORMAT, "about": written, "digest": digest(written, flat)})


def bundled_name(path: Path) -> str:
    """Name of the data set that was packed, without reading its features."""
    about, _ = _read(path, ())
    if not isinstance(name := about.get("dataset"), str):
        raise _damaged(path)
    return name


def bundled_dataset(path: Path) -> Dataset:
    """The data set that was packed, without reading its features, and so without comparing them with their digest."""
    about, tensors = _read(path, ("class_ids", "environment_ids"))
    try:
        return _described(about, tensors)[0]
    except DataError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path) from error


def load_bundle(path: Path, device: str | torch.device = "cpu") -> PreparedDataset:
    """Read what `save_bundle` wrote."""
    about, tensors = _read(path)
    dataset, manifest = _described(about, tensors)
    rows = tensors["rows"].numpy()
    have = np.flatnonzero(rows >= 0)[np.argsort(rows[rows >= 0])]  # manifest rows in the order of the features
    here = {name: tensors[name].to(device) for name in ("features", "views", "view_rows") if name in tensors}
    problem = Problem(
        text=_tower(about["tower"], tensors).to(device),
        tokenize=_Tokens(about["tokens"], path),
        logit_scale=about["logit_scale"],
        features=here["features"],
        labels=torch.from_numpy(manifest.class_ids[have]).to(device),
        environments=torch.from_numpy(manifest.environment_ids[have]).to(device),
        class_words=manifest.class_words,
        environment_words=manifest.environment_words,
        views=here.get("views"),
        view_rows=here.get("view_rows"),
    )
    backbone, fingerprint, views = about["backbone"]
    if fingerprint == mini.FIRST_FINGERPRINT:
        raise DataError(f"{path} {mini.FIRST_IS_GONE}: pack it again")
    backbone_info = BackboneInfo(
        portable_name(backbone), fingerprint, TrainingDefaults.restore(about["defaults"]), views
    )
    hashes = tuple(row.numpy().tobytes().hex() for row in tensors["hashes"])
    return PreparedDataset(dataset, manifest, hashes, backbone_info, problem, rows, *about["shots"])


def _described(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Dataset, Manifest]:
    """The data set and its list of images, which are elsewhere."""
    manifest = Manifest(
        paths=("",) * len(tensors["class_ids"]),
        class_ids=tensors["class_ids"].numpy(),
        environment_ids=tensors["environment_ids"].numpy(),
        splits=np.array(about["splits"], dtype=np.str_),
        classes=tuple(about["classes"]),
        environments=tuple(about["environments"]),
        class_words=tuple(about["classes"].values()),
        environment_words=tuple(about["environments"].values()),
    )
    name = about["dataset"]
    known = find_name(name) == name
    dataset = get_dataset(name) if known else replace(describe(Path(name), manifest), name=name, title=name)
    # The images that a draw needs are those that were packed; before there was a choice, all draws were balanced.
    return replace(dataset, balanced=about.get("balanced", True)), manifest


def _read(path: Path, names: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file that was packed here says about itself, and its tensors; anything else is refused.

    `names`: of the tensors that are read; None: all, which are then compared with their digest.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a packed data set ({error}). Copy or pack it again.") from error
    if metadata.get("format") != FORMAT or "about" not in metadata:
        raise DataError(f"{path}: is not a data set that `bayescal data pack` of this version wrote. Pack it again.")
    about = metadata["about"]
    whole = names is not None or metadata.get("digest", "") in ("", digest(about, tensors))
    try:
        described = json.loads(about) if whole else None
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise _damaged(path)
    return described, tensors


def _damaged(path: Path) -> DataError:
    return DataError(f"{path}: is damaged, its content is not what was packed. Copy or pack it again.")


def _shape(tower: TextTower) -> dict[str, Any]:
    """What a tower of the same form is made from."""
    sizes = {"vocab_size": len(tower.token_embedding.weight), "hidden": tower.blocks[0].up.out_features}
    return {name: getattr(tower, name) for name in TOWER} | sizes


def _refuse_other_towers(tower: TextTower, name: str) -> None:
    """A tower with parts that a plain one lacks (LayerScale, a bias after the projection) cannot be packed."""
    with torch.device("meta"):
        plain = TextTower(**_shape(tower))
    steps = lambda module: [part.eps for part in module.modules() if isinstance(part, nn.LayerNorm)]  # noqa: E731
    if plain.state_dict().keys() != tower.state_dict().keys() or steps(plain) != steps(tower):
        raise DataError(f"{name}: its text tower has parts that a packed data set cannot hold. Use the images there.")


def _tower(shape: dict, tensors: dict[str, Tensor]) -> TextTower:
    tower = TextTower(**shape)
    table = torch.zeros_like(tower.token_embedding.weight)
    table[tensors["token_rows"]] = tensors["token_table"].float()
    state = {name.removeprefix("tower/"): t.float() for name, t in tensors.items() if name.startswith("tower/")}
    tower.load_state_dict({**state, "token_embedding.weight": table})
    return tower


class _Tokens:
    """The texts that were packed, with their tokens."""

    def __init__(self, known: dict[str, list[int]], path: Path):
        self.known, self.path = known, path

    def __call__(self, text: str) -> list[int]:
        if text not in self.known:
            raise DataError(
                f"{self.path}: the text {text!r} was not packed with this data set, and a packed data set has no "
                f"tokenizer. Pack it again with --text {text!r}."
            )
        return self.known[text]


def _compact(tensor: Tensor) -> Tensor:
    """Half precision where it holds the same numbers."""
    half = tensor.half()
    return half if torch.equal(half.float(), tensor) else tensor


def _hash_bytes(hashes: Iterable[str | None]) -> np.ndarray:
    """Content hashes as (N, 32) bytes."""
    return np.stack([np.frombuffer(bytes.fromhex(value or "0" * 64), dtype=np.uint8) for value in hashes])
