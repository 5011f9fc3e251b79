"""Rows of the paper's tables: a method, what is fixed in it, and what is searched."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bayescal.benchmark.search_ranges import search_ranges
from bayescal.data.datasets.base import Dataset
from bayescal.methods import get_method, method_names, method_reference, outside_names
from bayescal.methods.contract import Method
from bayescal.methods.hyperparameters import Space, choice, log10_uniform, number, setting


@dataclass(frozen=True)
class MethodVariant:
    """A method under a name of its own; variants of the same method differ in what they fix or search."""

    key: str
    method: str  # a reference (`method_reference`), so that a variant can travel to another process
    title: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)  # stands above the data set's and the method's own
    searched: bool = True  # False: one trial, the defaults and what is fixed

    def search_space(self, dataset: Dataset) -> Space:
        """The method's space with the data set's ranges, the variant's own, and without what is fixed.

        A data set's ranges are for the CAL family: CoOp and CoCoOp search all forms of the prompt on every data set.
        """
        method = get_method(self.method)
        own = method.space
        given = {**(search_ranges(dataset.name) if method.alignment_terms else {}), **self.space}
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
# The paper's way to train the posterior, for backbones whose own default is another: like CAL, by the exact bound.
PAPER: Space = {
    "optimizer": setting("sgd"),
    "learning_rate": number(lambda b: b.learning_rate),
    "epochs": setting(lambda b: b.epochs),
    "batch_size": setting(lambda b: b.batch_size),
    "class_specific": setting(False, choice(True, False)),
    "beta": number(1.0),
    "initial_scale": number(0.3),
}
# CoOp's classes share one context at first, whatever suits a backbone; the CAL family's do by the data sets' ranges.
SHARED: Space = {"class_specific": PAPER["class_specific"]}
# The paper's prompt, for backbones whose own default is another: 16 random vectors and the step that suits them.
SIXTEEN = {"n_context": 16, "context_init": "", "learning_rate": 0.002}
# One context for all classes, or one for each: a search may draw either, and a data set's ranges may leave one out.
CONTEXTS = {"shared": ("one context", False), "class": ("class-specific", True)}
ABLATIONS = {"env": "L_E", "irm": "L_IRM", "orth": "L_orth"}


def _own_variants() -> dict[str, MethodVariant]:
    """Variants that are no method of their own: search spaces, prompts, and what is left without a term."""
    found = [
        MethodVariant("bayes-cal-paper", "bayes-cal", "Bayes-CAL (as the paper trains it)", space=PAPER),
        MethodVariant("bayes-cal-scaled", "bayes-cal", "Bayes-CAL (scaled λ)", space=SCALED),
        *(
            MethodVariant(
                f"{method}-16",
                method,
                f"{get_method(method).title} (16 random vectors)",
                SIXTEEN,
                {"bayes-cal": PAPER, "coop": SHARED}.get(method, {}),
            )
            for method in ("coop", "cal", "bayes-cal")
        ),
        *(
            MethodVariant(
                f"{method}-{end}", method, f"{get_method(method).title} ({words})", {"class_specific": class_specific}
            )
            for method in ("coop", "cal", "bayes-cal")
            for end, (words, class_specific) in CONTEXTS.items()
        ),
    ]
    kinds = (("", "", {}, {}), ("scaled-", " (scaled λ)", {}, SCALED), ("16-", " (16 random vectors)", SIXTEEN, PAPER))
    for start, words, fixed, space in kinds:
        for term, symbol in ABLATIONS.items():
            title = f"without {symbol}{words}"
            found.append(
                MethodVariant(f"{start}without-{term}", "bayes-cal", title, {**fixed, f"lambda_{term}": 0.0}, space)
            )
    return {variant.key: variant for variant in found}


def variant_names() -> list[str]:
    """Every method that has a name, and the variants that are no method of their own."""
    return [*method_names(), *outside_names(), *_own_variants()]


def get_variant(key: str | type[Method]) -> MethodVariant:
    """The variant of this name; or a method as it is, by its name, its class or module:Class."""
    own = _own_variants().get(key) if isinstance(key, str) else None
    if own is not None:
        return own
    method = get_method(key)  # an unknown name is answered with the nearest one
    reference = method_reference(method)
    return MethodVariant(reference, reference, method.title, space=SHARED if reference == "coop" else {})
