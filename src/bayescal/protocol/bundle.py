"""An arena as one file, for machines that have torch but neither the images nor open_clip (a borrowed GPU).

The file holds features, content hashes, names and the text tower. A tokenizer does not travel: the texts that
methods ask for (names, templates, starting words) are stored with their tokens, and any other text is refused.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.backbones.text_tower import TextTower
from bayescal.data.datasets import dataset_names, get_dataset
from bayescal.data.datasets.base import describe
from bayescal.data.manifest import Manifest
from bayescal.errors import DataError
from bayescal.protocol.arena import Arena, Facts, portable_name
from bayescal.stacks import Problem

SUFFIX = ".bundle"
FORMAT = "bayescal bundle 1"
TOWER = ("width", "heads", "layers", "dim", "context_length", "activation", "start_token", "end_token")
# What methods start from besides names (methods/*: context_init, template, the full stop behind a name).
CONTEXTS = ("", ".", "a photo of a", "a photo of")


def save_bundle(arena: Arena, path: Path, texts: Iterable[str] = ()) -> None:
    """Write the arena with the tokens of `texts` besides those that methods use by default; all or nothing."""
    from safetensors.torch import save_file

    problem, manifest, tower = arena.problem, arena.manifest, arena.problem.text
    _refuse_other_towers(tower, arena.facts.name)
    templates = [part for text in (arena.facts.defaults.template, *texts) for part in text.split("|")]
    names = {*manifest.class_words, *manifest.environment_words}
    words = {*names, *CONTEXTS, arena.facts.defaults.context_init, *(t for t in templates if "{}" not in t)}
    words |= {t.format(name) for t in templates if "{}" in t for name in names}
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
        "rows": torch.from_numpy(arena.rows),
        "class_ids": torch.from_numpy(manifest.class_ids.copy()),
        "environment_ids": torch.from_numpy(manifest.environment_ids.copy()),
        "hashes": torch.from_numpy(_hash_bytes(arena.hashes)),
    }
    if problem.views is not None:
        tensors |= {"views": problem.views, "view_rows": problem.view_rows}
    about = {
        "dataset": arena.dataset.name,
        "classes": dict(zip(manifest.classes, manifest.class_words, strict=True)),
        "environments": dict(zip(manifest.environments, manifest.environment_words, strict=True)),
        "splits": manifest.splits.tolist(),
        "backbone": [arena.facts.name, arena.facts.fingerprint, arena.facts.views],
        "defaults": vars(arena.facts.defaults),
        "shots": [arena.shots, arena.val_shots],
        "logit_scale": problem.logit_scale,
        "tower": _shape(tower),
        "tokens": tokens,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        flat = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        written = json.dumps(about)
        save_file(flat, temporary, metadata={"format": FORMAT, "about": written, "digest": _digest(written, flat)})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def bundled_name(path: Path) -> str:
    """Name of the data set that was packed, without reading its features."""
    return _read(path, with_tensors=False)[0]["dataset"]


def load_bundle(path: Path, device: str | torch.device = "cpu") -> Arena:
    """Read what `save_bundle` wrote."""
    about, tensors = _read(path)
    manifest = Manifest(
        paths=("",) * len(tensors["class_ids"]),  # the images are elsewhere
        class_ids=tensors["class_ids"].numpy(),
        environment_ids=tensors["environment_ids"].numpy(),
        splits=np.array(about["splits"], dtype=np.str_),
        classes=tuple(about["classes"]),
        environments=tuple(about["environments"]),
        class_words=tuple(about["classes"].values()),
        environment_words=tuple(about["environments"].values()),
    )
    rows = tensors["rows"].numpy()
    have = np.flatnonzero(rows >= 0)[np.argsort(rows[rows >= 0])]  # manifest rows in the order of the features
    to = lambda name: tensors[name].to(device) if name in tensors else None  # noqa: E731
    problem = Problem(
        text=_tower(about["tower"], tensors).to(device),
        tokenize=_Tokens(about["tokens"], path),
        logit_scale=about["logit_scale"],
        features=to("features"),
        labels=torch.from_numpy(manifest.class_ids[have]).to(device),
        environments=torch.from_numpy(manifest.environment_ids[have]).to(device),
        class_words=manifest.class_words,
        environment_words=manifest.environment_words,
        views=to("views"),
        view_rows=to("view_rows"),
    )
    backbone, fingerprint, views = about["backbone"]
    facts = Facts(portable_name(backbone), fingerprint, TrainingDefaults(**about["defaults"]), views)
    hashes = tuple(row.numpy().tobytes().hex() for row in tensors["hashes"])
    name = about["dataset"]
    known = name in dataset_names()
    dataset = get_dataset(name) if known else replace(describe(Path(name), manifest), name=name, title=name)
    return Arena(dataset, manifest, hashes, facts, problem, rows, *about["shots"])


def _read(path: Path, with_tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file that was packed here says about itself, and its tensors; anything else is refused."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if with_tensors else {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a packed data set ({error}). Copy or pack it again.") from error
    if metadata.get("format") != FORMAT or "about" not in metadata:
        raise DataError(f"{path}: is not a data set that `bayescal data pack` of this version wrote. Pack it again.")
    about = metadata["about"]
    whole = not with_tensors or metadata.get("digest", "") in ("", _digest(about, tensors))
    try:
        if whole:
            return json.loads(about), tensors
    except ValueError:
        pass
    raise DataError(f"{path}: is damaged, its content is not what was packed. Copy or pack it again.")


def _digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _shape(tower: TextTower) -> dict[str, Any]:
    """What a tower of the same form is made from."""
    sizes = {"vocab_size": len(tower.token_embedding.weight), "hidden": tower.blocks[0].up.out_features}
    return {name: getattr(tower, name) for name in TOWER} | sizes


def _refuse_other_towers(tower: TextTower, name: str) -> None:
    """Towers with parts that a plain one has not (LayerScale, a bias after the projection) do not travel."""
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
    """The texts that travelled, with their tokens."""

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
