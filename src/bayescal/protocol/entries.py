"""Rows of the paper's tables: a method, what is fixed in it, and what is searched."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bayescal.data.datasets.base import Dataset
from bayescal.methods import get_method, method_names
from bayescal.methods.cal import CAL
from bayescal.space import Space, log10_uniform, number


@dataclass(frozen=True)
class Entry:
    """A method under a name of its own; entries of the same method differ in what they fix or search."""

    key: str
    method: str
    title: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)  # stands above the data set's and the method's own
    searched: bool = True  # False: one draw, the defaults and what is fixed

    def search_space(self, dataset: Dataset) -> Space:
        """The method's space with the data set's ranges, the entry's own, and without what is fixed.

        A data set's ranges are for the CAL family: CoOp and CoCoOp search all forms of the prompt on every data set.
        """
        method = get_method(self.method)
        own = method.space
        given = {**(dataset.space if issubclass(method, CAL) else {}), **self.space}
        ranges = {name: param for name, param in given.items() if name in own}
        merged = {name: param for name, param in {**own, **ranges}.items() if name not in self.fixed}
        return merged if self.searched else {name: replace(param, draw=None) for name, param in merged.items()}


# Ranges in which the terms can matter: what a term adds to the gradient on φ_C is λ times its own gradient, and the
# recorded norms (docs/results) put L_orth's some hundred times below cross-entropy's.
SCALED: Space = {
    "lambda_env": number(1.0, log10_uniform(-2, 1)),
    "lambda_irm": number(1.0, log10_uniform(-2, 2)),
    "lambda_orth": number(10.0, log10_uniform(0, 3)),
}
# The paper's prompt, for backbones whose own default is another: 16 random vectors and the step that suits them.
SIXTEEN = {"n_context": 16, "context_init": "", "learning_rate": 0.002}
ABLATIONS = {"env": "L_E", "irm": "L_IRM", "orth": "L_orth"}


def _own_entries() -> dict[str, Entry]:
    """Entries that are no method of their own: search spaces, prompts, and what is left when a term is."""
    found = [
        Entry("bayes-cal-scaled", "bayes-cal", "Bayes-CAL (scaled λ)", space=SCALED),
        *(
            Entry(f"{method}-16", method, f"{get_method(method).title} (16 random vectors)", SIXTEEN)
            for method in ("coop", "cal", "bayes-cal")
        ),
    ]
    variants = (("", "", {}, {}), ("scaled-", " (scaled λ)", {}, SCALED), ("16-", " (16 random vectors)", SIXTEEN, {}))
    for start, words, fixed, space in variants:
        for term, symbol in ABLATIONS.items():
            title = f"without {symbol}{words}"
            found.append(Entry(f"{start}without-{term}", "bayes-cal", title, {**fixed, f"lambda_{term}": 0.0}, space))
    return {entry.key: entry for entry in found}


def entry_names() -> list[str]:
    """Every method, and the entries that are none of their own."""
    return [*method_names(), *_own_entries()]


def get_entry(key: str) -> Entry:
    if (own := _own_entries().get(key)) is not None:
        return own
    method = get_method(key)  # an unknown name is answered with the nearest one
    return Entry(key, key, method.title)
