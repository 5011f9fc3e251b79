"""Can a text tower read these names, and tell them apart?"""

import warnings
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from bayescal.backbones import mini
from bayescal.errors import BayescalWarning, DataError

if TYPE_CHECKING:
    from bayescal.backbones import Backbone

_UNKNOWN = -1  # stands for every token that was never seen in training: they all look alike
_SHOWN = 20  # names of one message


def check_prompts(
    backbone: "Backbone", names: Sequence[str], n_context: int | None = None, kind: str = "class"
) -> None:
    """Refuse names that the text tower cannot read or tell apart; warn, once, about those it never learned to read.

    `kind`: of what these are names, "class" or "environment".
    """
    n_context = backbone.defaults.n_context if n_context is None else n_context
    overhead = n_context + 3  # start token, context, "." and end token
    seen: dict[tuple[int, ...], str] = {}
    long, unknown = [], []
    for name in names:
        ids = backbone.tokenize(name)
        if len(ids) + overhead > backbone.text.context_length:
            raise DataError(
                f"the name {name[:60]!r} takes {len(ids)} tokens; with {n_context} context vectors the text tower has "
                f"room for {backbone.text.context_length - overhead}: give it shorter words"
            )
        if len(ids) + overhead > backbone.trained_context:
            long.append(name)
        read = _as_read(ids, backbone.known_tokens)
        if read in seen:
            raise DataError(_alike(backbone.label, [seen[read], name], kind))
        seen[read] = name
        if _is_unknown(read):
            unknown.append(name)
    if unknown:
        _warn(_never_seen(backbone.label, unknown, kind))
    if long:
        _warn(f"longer than any text that backbone {backbone.label!r} was trained on: {_listed(long)}")


def name_notes(backbone: str, names: Sequence[str], kind: str = "class") -> list[str]:
    """What `check_prompts` would say about the words of names, without loading a tower.

    Only mini has words that it does not know: the others were trained on the whole vocabulary.
    """
    if not mini.is_mini(backbone):
        return []
    from bayescal.backbones.loading import LazyTokenizer

    label, tokenizer, known = mini.label(backbone), LazyTokenizer(mini.config()), mini.known_tokens()
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in names:
        groups[_as_read(tokenizer.encode(name), known)].append(name)
    unknown = [name for read, alike in groups.items() if _is_unknown(read) for name in alike]
    notes = [_never_seen(label, unknown, kind)] if unknown else []
    return notes + [_alike(label, alike, kind) for alike in groups.values() if len(alike) > 1]


def _as_read(ids: Sequence[int], known: Container[int] | None) -> tuple[int, ...]:
    """What a tower sees of a name's tokens."""
    return tuple(i if known is None or i in known else _UNKNOWN for i in ids)


def _is_unknown(read: tuple[int, ...]) -> bool:
    return set(read) == {_UNKNOWN}


def _never_seen(label: str, names: Sequence[str], kind: str) -> str:
    words = "this name" if len(names) == 1 else f"these {len(names)} names"
    return f"backbone {label!r} has never seen the words of {words}: {_listed(names)}. {_what_to_do(kind)}"


def _alike(label: str, names: Sequence[str], kind: str) -> str:
    return (
        f"backbone {label!r} cannot tell the names {' and '.join(map(repr, names))} apart: to it, their words are the "
        f"same. {_what_to_do(kind)}"
    )


def _what_to_do(kind: str) -> str:
    return (
        f"Describe them in plain English words: --{kind}-words FILE.json, or {kind}_words= in Python, with "
        '{"NAME": "plain words"}'
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name[:60]) for name in names[:_SHOWN]) + more


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
