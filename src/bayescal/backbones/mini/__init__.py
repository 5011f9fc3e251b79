"""bayescal-mini 2: the small vision-language model that comes with the package (MODEL_CARD.md says what it is)."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from bayescal.data.preprocess import Preprocess
from bayescal.errors import BackboneError

ARCHITECTURE = "bayescal-mini"
NAME, LABEL = "mini", "mini 2"  # what users write, and what records, bundles and models say
CONFIG = Path(__file__).with_name("bayescal-mini.json")
WEIGHTS = Path(__file__).with_name("bayescal-mini.safetensors")
CARD = Path(__file__).with_name("MODEL_CARD.md")  # made from what, trained on what, under which licence
PARAMETERS = 37_700_865  # of both towers, with the full token table
IMAGES = "visual."  # what begins the names of the image tower's tensors
PREPROCESS = Preprocess(
    size=112,
    mean=(0.48145466, 0.4578275, 0.40821073),  # CLIP's
    std=(0.26862954, 0.26130258, 0.27577711),
    interpolation="bicubic",
    resize_mode="shortest",
)
# Of these weights, and of their file: whoever has hashed the file knows the fingerprint (`backbones/fingerprint.py`)
# without reading what both towers are made of.
FINGERPRINT = "01c0693ea44d2735201d"
WEIGHTS_SHA256 = "bf4d02b017301d5ce302d12fba3e6cee75a2ec0e34893fa3d0e9dbfec35b141c"
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


def read() -> dict[str, Tensor]:
    """The state dict under open_clip's names: both towers and the logit scale."""
    return read_images() | read_texts()


def read_images() -> dict[str, Tensor]:
    """Of the image tower, "visual." before its names, and the logit scale."""
    return _read_rows(_stored(lambda name: name.startswith(IMAGES) or name == "logit_scale"))


def read_texts() -> dict[str, Tensor]:
    """Of the text tower."""
    state = _read_rows(_stored(lambda name: not name.startswith(IMAGES) and name != "logit_scale"))
    try:
        ids, mean, rows = (state.pop(f"token_embedding{part}") for part in (".ids", ".mean", ""))
    except KeyError as error:
        raise BackboneError(damaged(error)) from error
    # Tokens that never occurred in training share one row, so the file stores 15,287 rows instead of 49,408.
    table = mean.repeat(config()["text_cfg"]["vocab_size"], 1)
    table[ids.long()] = rows
    return state | {"token_embedding.weight": table}


def is_unchanged() -> bool:
    """Whether the weights are those that `FINGERPRINT` is of: hashed as they lie there, which is soon done."""
    try:
        with open(WEIGHTS, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == WEIGHTS_SHA256
    except OSError as error:
        raise BackboneError(damaged(error)) from error


def known_tokens() -> frozenset[int]:
    """The ids of the tokens that were seen in training, without reading anything else."""
    return frozenset(_stored(lambda name: name == "token_embedding.ids")["token_embedding.ids"].tolist())


def _stored(wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Tensors of the file as they stand there, and nothing else read of it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(WEIGHTS, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise BackboneError(damaged(error)) from error


def damaged(error: object) -> str:
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
