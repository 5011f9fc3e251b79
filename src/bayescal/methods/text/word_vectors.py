"""Word vectors from a file: word2vec, GloVe and fastText in the formats that gensim reads, or a compact `.npz`.

| file | read as |
|---|---|
| `.npz` | `words` (n,), `rows` (n,) and `table` (m, dim): the vector of `words[i]` is `table[rows[i]]` |
| `.kv` | gensim's own format, memory-mapped: nothing but the rows asked for is read |
| fastText `.bin` | with its character n-grams, so that words outside the vocabulary have vectors too |
| anything else | word2vec binary, word2vec or fastText text, GloVe text; also `.gz`; told apart by their first bytes |

All but `.npz` need gensim, which is imported when such a file is opened.
"""

import gzip
import re
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.errors import BayescalWarning, MethodError

_FASTTEXT_MAGIC = struct.pack("<i", 793712314)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")  # letters and digits, with hyphens and apostrophes inside


@dataclass(frozen=True)
class WordVectors:
    """An open file of word vectors; only the rows that are asked for become tensors."""

    path: Path
    dim: int
    lookup: Callable[[str], np.ndarray | None]  # exact spelling → vector, None if the file has none

    def word(self, word: str) -> np.ndarray | None:
        """The vector of a word as it is spelled, else in lower case or capitalised, else the mean of its parts."""
        for form in dict.fromkeys((word, word.lower(), word.capitalize(), word.upper())):
            vector = self.lookup(form)
            if vector is not None:
                return np.asarray(vector, dtype=np.float32)
        parts = re.split(r"['’-]", word)
        vectors = [v for part in parts if (v := self.word(part)) is not None] if len(parts) > 1 else []
        return np.mean(vectors, axis=0) if vectors and len(vectors) == len(parts) else None

    def vector_of(self, name: str) -> Tensor:
        """The vector of a name, (dim,): the mean over its words."""
        return self.vectors_of([name])[0]

    def vectors_of(self, names: Sequence[str], oov: str = "error") -> Tensor:
        """Vectors of names (K, dim). Words the file does not have are an error that lists them, or zero (`oov`)."""
        if oov not in ("error", "zero"):
            raise MethodError(f"oov is {oov!r}, expected 'error' or 'zero'")
        found = {word: self.word(word) for name in names for word in words_of(name)}
        unknown = [word for word, vector in found.items() if vector is None]
        if unknown and oov == "error":
            raise MethodError(
                f"{self.path} has no vector for {', '.join(map(repr, unknown))}: use other words for these names, "
                "another file (word_vectors), or oov='zero' to take zero for unknown words"
            )
        if unknown:
            warnings.warn(f"unknown words count as zero: {', '.join(unknown)}", BayescalWarning, stacklevel=2)
        zero = np.zeros(self.dim, dtype=np.float32)
        known = {word: zero if vector is None else vector for word, vector in found.items()}
        each = [[known[word] for word in words_of(name)] for name in names]
        return torch.from_numpy(np.stack([np.mean(vectors, axis=0) for vectors in each]))


def words_of(name: str) -> list[str]:
    """The words of a name: "alarm clock", "alarm_clock" → alarm, clock. A name without any is one (unknown) word."""
    return _WORD.findall(name) or [name]


def load_word_vectors(path: str | Path) -> WordVectors:
    """Open a file of word vectors; the last one opened is kept, because the branches of a method share it."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise MethodError(f"there is no file of word vectors at {path}")
    return _load(path.resolve(), path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: Path, changed: int) -> WordVectors:  # `changed` makes a rewritten file a new one
    try:
        return _load_npz(path) if path.suffix == ".npz" else _load_with_gensim(path)
    except (OSError, EOFError, ValueError, KeyError, struct.error) as error:
        if isinstance(error, MethodError):
            raise
        raise MethodError(f"{path} cannot be read as word vectors: {error}") from error


def _load_npz(path: Path) -> WordVectors:
    with np.load(path, allow_pickle=False) as file:
        missing = {"words", "rows", "table"} - set(file)
        if missing:
            raise MethodError(f"{path} has no {', '.join(sorted(missing))}: expected the arrays words, rows and table")
        row_of = dict(zip(file["words"].tolist(), file["rows"].tolist(), strict=True))
        table = file["table"]
    return WordVectors(path, table.shape[1], lambda word: table[row_of[word]] if word in row_of else None)


def _load_with_gensim(path: Path) -> WordVectors:
    models = _gensim(path)
    head = _head(path)
    if path.suffix == ".kv":
        vectors = models.KeyedVectors.load(str(path), mmap="r")
    elif head.startswith(_FASTTEXT_MAGIC):
        vectors = models.fasttext.load_facebook_vectors(str(path))
    else:
        header = re.match(rb"\d+ \d+\s*\n", head)
        binary = header is not None and not _is_text(head[header.end() :])
        # Half precision: a file of a million words is held in memory, and its last digits carry nothing.
        vectors = models.KeyedVectors.load_word2vec_format(
            str(path), binary=binary, no_header=header is None, datatype=np.float16, unicode_errors="replace"
        )

    def lookup(word: str) -> np.ndarray | None:
        return vectors[word] if word in vectors.key_to_index else None

    def lookup_with_ngrams(word: str) -> np.ndarray | None:
        # n-grams answer for any spelling: the vocabulary goes first, and the lower-case form stands for the rest.
        if word in vectors.key_to_index or (word == word.lower() and word in vectors):
            return vectors[word]
        return None

    return WordVectors(path, vectors.vector_size, lookup_with_ngrams if hasattr(vectors, "vectors_ngrams") else lookup)


def _head(path: Path) -> bytes:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        return file.read(65536)


def _is_text(rest: bytes) -> bool:
    """Whether the first entry is a word and numbers in writing, and not a word and raw bytes."""
    fields = rest.split(b"\n", 1)[0].split()
    try:
        return len(fields) > 1 and all(np.isfinite(float(field)) for field in fields[1:3])
    except ValueError:
        return False


def _gensim(path: Path) -> ModuleType:
    try:
        from gensim import models
    except ImportError as error:
        raise MethodError(
            f"reading {path} needs gensim: install it (pip install gensim), or convert the file to .npz with the "
            "arrays words, rows and table"
        ) from error
    return models
