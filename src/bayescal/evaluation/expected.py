"""What accuracy to expect in an environment that nobody has looked at, with an interval that admits what is unknown.

    x_e = log odds of being right in environment e, by models trained without it
    x_new − mean(x) ~ t_ν · s · √(1 + 1/E),      s² = (ν₀·s₀² + (E − 1)·s_E²) / ν,      ν = ν₀ + E − 1

A prediction interval for one more environment: E of them were left out in turn and their log odds scatter by s_E. A few
environments say little about their own scatter, so s_E² is pooled with s₀², the scatter seen on other data sets, which
counts as ν₀ environments. The models that answer have seen one environment more than those measured here, so the
estimate errs on the low side. The interval cannot know of an environment unlike any of these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The scatter of log odds between environments, s₀, and how many environments it counts for, ν₀.
PRIOR_SCATTER, PRIOR_ENVIRONMENTS = 1.1, 4.0
LEVEL = 0.9
NAMED = 5  # the most classes that the sentence names


@dataclass(frozen=True)
class ExpectedAccuracy:
    """Accuracy to expect: in an environment never seen, with an interval, and in those that were seen.

    Attributes
    ----------
    unseen, low, high : the estimate for an unseen environment and its interval; None where nothing can be known.
    level : the share of environments that the interval is meant to cover.
    seen : accuracy on left-out images of the training environments; None if it was not measured.
    worst : name of the environment that was hardest when left out, and `worst_accuracy` there.
    not_known : classes that one environment alone has, of which a left-out environment tells nothing.
    """

    unseen: float | None
    low: float | None
    high: float | None
    level: float
    seen: float | None
    worst: str | None = None
    worst_accuracy: float | None = None
    not_known: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The estimate as a person reads it."""
        seen = "" if self.seen is None else f"in those it has seen, {self.seen:.0%}"
        if self.unseen is None or self.low is None or self.high is None:
            known = f" On images left out of training, it is right {self.seen:.0%} of the time." if seen else ""
            why = (
                "no class has images from two environments"
                if self.not_known
                else "all images come from one environment"
            )
            return (
                f"How it will do in an environment it has not seen cannot be known: {why}, and nothing shows how "
                f"another one differs.{known}"
            )
        text = f"In an environment it has not seen, expect about {self.unseen:.0%} ({self.low:.0%}–{self.high:.0%})"
        text += f"; {seen}." if seen else "."
        if self.worst is not None and self.worst_accuracy is not None:
            text += f" Hardest when left out: {self.worst} ({self.worst_accuracy:.0%})."
        if self.not_known:
            named, more = ", ".join(self.not_known[:NAMED]), len(self.not_known) - NAMED
            named += f" and {more} more" if more > 0 else ""
            text += f" This says nothing of classes that were seen in one environment alone: {named}."
        return text


def expected_accuracy(
    right: Sequence[int],
    count: Sequence[int],
    names: Sequence[str],
    seen: float | None = None,
    not_known: Sequence[str] = (),
    *,
    scatter: float = PRIOR_SCATTER,
    worth: float = PRIOR_ENVIRONMENTS,
    level: float = LEVEL,
) -> ExpectedAccuracy:
    """From the hits and images of each left-out environment, (E,) each; with none of them, nothing can be known."""
    from scipy.stats import t as student  # takes half a second to import, and only a fit needs it

    if not len(right):
        return ExpectedAccuracy(None, None, None, level, seen, not_known=tuple(not_known))
    hits, images = np.asarray(right, dtype=float), np.asarray(count, dtype=float)
    odds = np.log((hits + 0.5) / (images - hits + 0.5))  # a half more on either side: finite at 0 and 100 %
    n = len(odds)
    between = float(odds.var(ddof=1)) if n > 1 else 0.0
    freedom = worth + n - 1
    spread = math.sqrt((worth * scatter**2 + (n - 1) * between) / freedom * (1 + 1 / n))
    half = float(student.ppf(0.5 + level / 2, freedom)) * spread
    accuracy = hits / images
    worst = int(accuracy.argmin())
    unseen = float(accuracy.mean())
    low, high = (1 / (1 + math.exp(-(float(odds.mean()) + side))) for side in (-half, half))
    return ExpectedAccuracy(
        unseen=unseen, low=min(low, unseen), high=max(high, unseen), level=level, seen=seen,
        worst=names[worst], worst_accuracy=float(accuracy[worst]), not_known=tuple(not_known),
    )  # fmt: skip
