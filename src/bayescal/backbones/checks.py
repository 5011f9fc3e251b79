"""Can a text tower read these names, and tell them apart?"""

import warnings
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayescal.backbones import mini
from bayescal.data.names import to_words
from bayescal.errors import BayescalWarning, DataError

if TYPE_CHECKING:
    from bayescal.backbones import Backbone

_UNKNOWN = -1  # stands for every token that was never seen in training: they all look alike
_SHOWN = 20  # names of one message


@dataclass(frozen=True)
class Findings:
    """Sentences about names, if there is anything to say."""

    alike: str | None  # which of them the text tower cannot tell apart: nothing could be learned
    strange: str | None  # which of them it never learned to read


def check_prompts(
    backbone: "Backbone",
    words: Sequence[str],
    n_context: int | None = None,
    kind: str = "class",
    names: Sequence[str] | None = None,
) -> None:
    """Refuse words that the text tower cannot read or tell apart; warn, once, about those it never learned to read.

    `kind`: of what these are words, "class" or "environment". `names`: what the user calls each of them.
    """
    n_context = backbone.defaults.n_context if n_context is None else n_context
    overhead = n_context + 3  # start token, context, "." and end token
    tokens = [backbone.tokenize(word) for word in words]
    for word, ids in zip(words, tokens, strict=True):
        if len(ids) + overhead > backbone.text.context_length:
            raise DataError(
                f"the name {word[:60]!r} takes {len(ids)} tokens; with {n_context} context vectors the text tower has "
                f"room for {backbone.text.context_length - overhead}: give it shorter words"
            )
    shown = _shown(words, names)
    found = Findings(
        _alike(backbone.label, shown, tokens, backbone.known_tokens, kind),
        _strange(backbone.label, shown, words, tokens, backbone.known_tokens, kind),
    )
    if found.strange:
        _warn(found.strange)
    long = [name for name, ids in zip(shown, tokens, strict=True) if len(ids) + overhead > backbone.trained_context]
    if long:
        _warn(f"longer than any text that backbone {backbone.label!r} was trained on: {_listed(long)}")
    if found.alike:
        raise DataError(found.alike)


def name_notes(
    backbone: str, words: Sequence[str], kind: str = "class", names: Sequence[str] | None = None
) -> Findings:
    """What `check_prompts` would say about words, without loading a tower.

    Only mini has words that it does not know: the others were trained on the whole vocabulary.
    """
    label, shown = mini.label(backbone), _shown(words, names)
    if not mini.is_mini(backbone):
        return Findings(None, _strange(label, shown, words, [()] * len(words), None, kind))
    from bayescal.backbones.loading import LazyTokenizer

    tokenizer, known = LazyTokenizer(mini.config()), mini.known_tokens()
    tokens = [tokenizer.encode(word) for word in words]
    return Findings(_alike(label, shown, tokens, known, kind), _strange(label, shown, words, tokens, known, kind))


def _shown(words: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Names as `--class-words` would have to be given them, with their words where these are others."""
    if names is None:
        return [repr(word[:60]) for word in words]
    return [
        repr(name[:60]) if to_words(name) == word else f'{name[:60]!r} ("{word[:60]}")'
        for name, word in zip(names, words, strict=True)
    ]


def _as_read(ids: Sequence[int], known: Container[int] | None) -> tuple[int, ...]:
    """What a tower sees of a name's tokens."""
    return tuple(i if known is None or i in known else _UNKNOWN for i in ids)


def _strange(
    label: str,
    shown: Sequence[str],
    words: Sequence[str],
    tokens: Sequence[Sequence[int]],
    known: Container[int] | None,
    kind: str,
) -> str | None:
    """One sentence about all that the tower has never seen, or that is not English, and what to do."""
    unseen = [set(_as_read(ids, known)) == {_UNKNOWN} for ids in tokens]
    unknown = [name for name, never in zip(shown, unseen, strict=True) if never]
    foreign = [n for n, word, never in zip(shown, words, unseen, strict=True) if not never and not _is_plain(word)]
    said = []
    if unknown:
        said.append(f"has never seen the words of {_these(unknown)}: {_listed(unknown)}")
    if foreign:
        are = "is" if len(foreign) == 1 else "are"
        said.append(f"was trained on English, and {_these(foreign)} {are} not plain English: {_listed(foreign)}")
    return f"backbone {label!r} {'; it '.join(said)}. {_what_to_do(kind)}" if said else None


def _alike(
    label: str, shown: Sequence[str], tokens: Sequence[Sequence[int]], known: Container[int] | None, kind: str
) -> str | None:
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name, ids in zip(shown, tokens, strict=True):
        groups[_as_read(ids, known)].append(name)
    same = [" and ".join(group[:_SHOWN]) for group in groups.values() if len(group) > 1]
    if not same:
        return None
    more = f", and so {len(same) - _SHOWN} more times" if len(same) > _SHOWN else ""
    return (
        f"backbone {label!r} cannot tell the names {', nor '.join(same[:_SHOWN])} apart{more}: to it, their words are "
        f"the same. {_what_to_do(kind)}"
    )


def _is_plain(text: str) -> bool:
    return text.isascii() and any(letter.isalnum() for letter in text)


def _these(names: Sequence[str]) -> str:
    return "this name" if len(names) == 1 else f"these {len(names)} names"


def _what_to_do(kind: str) -> str:
    return (
        f"Describe them in plain English words: --{kind}-words FILE.json, or {kind}_words= in Python, with "
        '{"NAME": "plain words"}'
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
