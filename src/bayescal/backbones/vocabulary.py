"""The words that a backbone has, whatever the classes are called: what else an image might show."""

import itertools
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.engine.threads import threads_for

MOST = 10_000  # the commonest: CLIP's vocabulary is in the order in which its pieces were joined, the frequent first
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
        words = vocabulary(backbone)
        found = _read(backbone, words) if words else torch.empty(0, backbone.dim)
        _kept.clear()
        _kept[backbone.fingerprint] = found
    return found.to(backbone.device)


def _read(backbone: Backbone, words: Mapping[str, int]) -> Tensor:
    """A word is one token, so the sentence is taken apart once, and what stands before the word is read once."""
    before, *_, after = backbone.defaults.template.partition("{}")
    start, end = backbone.tokenize(before.strip()), backbone.tokenize(after.strip())
    prompts = [[token, *end] for token in words.values()]
    with threads_for(backbone.text.operations(AT_ONCE * (1 + len(end))), backbone.device):
        return backbone.text.encode(prompts, AT_ONCE, start).float().cpu()
