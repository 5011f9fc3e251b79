"""bayescal-mini: the small vision-language model that comes with the package."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescal.errors import BackboneError

ARCHITECTURE = "bayescal-mini"
CONFIG = Path(__file__).with_name("bayescal-mini.json")
WEIGHTS = Path(__file__).with_name("bayescal-mini.safetensors")
PARAMETERS = 25_545_137  # of both towers, with the full token table
TRAINED_CONTEXT = 34  # text positions 0–33 were trained; the others still hold their random start

_TABLE = ("ids", "rows_int8", "rows_scale", "mean")


def config() -> dict[str, Any]:
    """open_clip's configuration of the architecture."""
    return json.loads(CONFIG.read_text())


def read() -> tuple[dict[str, Tensor], frozenset[int]]:
    """The state dict under open_clip's names, and the ids of the tokens that were seen in training."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(WEIGHTS)
        ids, rows, scale, mean = (stored.pop(f"token_embedding.{part}") for part in _TABLE)
    except (OSError, SafetensorError, KeyError) as error:
        raise BackboneError(f"{WEIGHTS} is damaged or missing ({error}); install bayescal again") from error
    # Tokens that never occurred in training share one row, so the file stores 15,287 rows instead of 49,408.
    table = mean.float().repeat(config()["text_cfg"]["vocab_size"], 1)
    table[ids.long()] = rows.float() * scale.float()
    state = {name: value.float() for name, value in stored.items()}
    state["token_embedding.weight"] = table
    return state, frozenset(torch.unique(ids).tolist())
