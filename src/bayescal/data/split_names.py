"""Names that say that a folder, or a row of a list, is for training, for validation or for the test."""

import re
import unicodedata
from collections.abc import Collection

# fmt: off
_WORDS = {
    "train": (
        "train", "training", "trainings", "trn", "entrainement", "apprentissage", "entrenamiento", "addestramento",
        "treino", "treinamento",
    ),
    "val": (
        "val", "vld", "valid", "validation", "validate", "dev", "development", "validierung", "validierungs",
        "validacion", "validazione", "validacao", "validatie",
    ),
    "test": (
        "test", "tst", "testing", "eval", "evaluation", "heldout", "holdout", "prueba", "pruebas", "teste",
    ),
}
# fmt: on
_SHORT = {"tr": "train", "va": "val", "vl": "val", "te": "test", "ts": "test"}  # splits only beside one another
_NAME = re.compile(r"(?P<word>[a-z]+?)(?:set|images?|imgs|bilder|data|daten|split)?\d*")
_FRONT = re.compile(r"^\d+[\s._-]+")  # "01_train"


def split_of(name: str) -> str | None:
    """ "training" → "train", "test2017" → "test", "02_val" → "val"; None for a name that is no split's."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name.lower()) if not unicodedata.combining(c))
    found = _NAME.fullmatch(re.sub(r"[\s_-]", "", _FRONT.sub("", plain.strip())))
    word = found["word"] if found else ""
    return next((split for split, words in _WORDS.items() if word in words), None)


def split_in(name: str) -> str | None:
    """As `split_of`, and "dogs_train" → "train", "te" → "test": for names that are known to say a split."""
    parts = {split_of(part) for part in re.split(r"[\s._-]+", name)} - {None}
    return split_of(name) or _SHORT.get(name.lower()) or (parts.pop() if len(parts) == 1 else None)


def are_splits(names: Collection[str]) -> bool:
    """Whether folders beside each other are splits: each by its own name, or "tr", "va" and "te" together."""
    if all(map(split_of, names)):
        return True
    short = {split_of(name) or _SHORT.get(name.lower()) for name in names}
    return None not in short and "train" in short and len(short) > 1


def may_be_splits(names: Collection[str]) -> bool:
    """Whether each of several names has the word for a split in it, and not all the same: "dogs_train", "dogs_test"."""
    found = {split_in(name) for name in names}
    return None not in found and "train" in found and len(found) > 1
