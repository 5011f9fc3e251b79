"""bayescal-mini 2: the small vision-language model that comes with the package (docs/mini.md is its card)."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from bayescal.errors import BackboneError

ARCHITECTURE = "bayescal-mini"
NAME, LABEL = "mini", "mini 2"  # what users write, and what records, bundles and models say
CONFIG = Path(__file__).with_name("bayescal-mini.json")
WEIGHTS = Path(__file__).with_name("bayescal-mini.safetensors")
PARAMETERS = 37_700_865  # of both towers, with the full token table
TRAINED_CONTEXT = 34  # text positions 0–33 were trained; the others still hold their random start
FIRST_FINGERPRINT = "51ae2cf3ce023ff0e617"
FIRST_IS_GONE = "was made with the first mini, which is no longer part of the package"


def is_mini(name: str) -> bool:
    """Whether a backbone's name means this one, in any precision."""
    return name.partition("@")[0] in (NAME, LABEL)


def label(name: str) -> str:
    """A backbone's name with mini's version in it: "mini" → "mini 2"; other names say which weights they mean."""
    _, at, precision = name.partition("@")
    return f"{LABEL}{at}{precision}" if is_mini(name) else name


def config() -> dict[str, Any]:
    """open_clip's configuration of the architecture."""
    return json.loads(CONFIG.read_text())


def read() -> tuple[dict[str, Tensor], frozenset[int]]:
    """The state dict under open_clip's names, and the ids of the tokens that were seen in training."""
    stored = _stored()
    try:
        state = _read_rows(stored)
        ids, mean, rows = (state.pop(f"token_embedding{part}") for part in (".ids", ".mean", ""))
    except KeyError as error:
        raise BackboneError(_damaged(error)) from error
    # Tokens that never occurred in training share one row, so the file stores 15,287 rows instead of 49,408.
    table = mean.repeat(config()["text_cfg"]["vocab_size"], 1)
    table[ids.long()] = rows
    state["token_embedding.weight"] = table
    return state, frozenset(ids.tolist())


def known_tokens() -> frozenset[int]:
    """The ids of the tokens that were seen in training, without reading anything else."""
    return frozenset(_stored("token_embedding.ids")["token_embedding.ids"].tolist())


def _stored(*names: str) -> dict[str, Tensor]:
    """The tensors of the file as they stand there: those named, or all."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(WEIGHTS, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except (OSError, SafetensorError) as error:
        raise BackboneError(_damaged(error)) from error


def _damaged(error: Exception) -> str:
    return f"{WEIGHTS} is damaged or missing ({error}); install bayescal again"


def _read_rows(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices from int8 rows with one scale each (`NAME.rows_int8`, `NAME.rows_scale`), and all else as float32.

    The token table is stored like the matrices of the image tower. Ids stay whole numbers.
    """
    state = {}
    for name, value in stored.items():
        matrix, _, part = name.rpartition(".rows_")
        if part == "scale":
            continue
        if part == "int8":
            state[matrix] = value.float().mul_(stored[f"{matrix}.rows_scale"].float())  # in place: half the time
        else:
            state[name] = value.float() if value.is_floating_point() else value
    return state
