"""The words that a backbone has, whatever the classes are called: what else an image might show."""

import itertools
import re

import torch
from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.engine.threads import threads_for

MOST = 10_000  # the commonest: CLIP's vocabulary is in the order in which its pieces were joined, the frequent first
# Fewer of them for a large text tower: as many as it reads in about twenty seconds on two cores, but not below LEAST.
OPERATIONS, LEAST = 2e12, 3_000
WHOLE_WORD = re.compile(r"[a-z]{3,} ")  # as CLIP's tokenizer writes a token that ends a word
AT_ONCE = 1024  # prompts read together

_kept: dict[str, Tensor] = {}  # of the last backbone: a program that learns again and again asks for the same words


def vocabulary(backbone: Backbone) -> dict[str, int]:
    """Words that are a token of their own and that the text tower saw in training: word → token."""
    known = backbone.known_tokens
    ids = range(min(backbone.sot, backbone.eot)) if known is None else sorted(known)
    pieces = ((backbone.tokenizer.decode([token]), token) for token in ids)
    words = ((piece.strip(), token) for piece, token in pieces if WHOLE_WORD.fullmatch(piece))
    return dict(itertools.islice(words, MOST))


def word_features(backbone: Backbone) -> Tensor:
    """Text features (W, D) of these words in the backbone's own sentence."""
    if (found := _kept.get(backbone.fingerprint)) is None:
        found = _read(backbone)
        _kept.clear()
        _kept[backbone.fingerprint] = found
    return found.to(backbone.device)


def _read(backbone: Backbone) -> Tensor:
    """A word is one token, so the sentence is taken apart once, and what stands before the word is read once."""
    before, *_, after = backbone.defaults.template.partition("{}")
    start, end = backbone.tokenize(before.strip()), backbone.tokenize(after.strip())
    each = backbone.text.operations(1 + len(end) + 1)  # of the word, what follows and the end of the text
    tokens = list(vocabulary(backbone).values())[: max(LEAST, int(OPERATIONS / each))]
    if not tokens:
        return torch.empty(0, backbone.dim)
    with threads_for(AT_ONCE * each, backbone.device):
        return backbone.text.encode([[token, *end] for token in tokens], AT_ONCE, start).float().cpu()
