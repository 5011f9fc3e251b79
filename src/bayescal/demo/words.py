"""What came out of each question, and one sentence on what to take from it, both worded by the numbers."""

from collections.abc import Mapping

from bayescal.demo.compare import Outcome, Outcomes
from bayescal.demo.scenes import AS_TRAINED, FIT, REVERSED
from bayescal.evaluation.statistics import mean_and_error, student_t

FALL = 0.1  # a method that loses more than this to the colour has fallen for it
GAIN = 0.1  # labels that add less than this to zero-shot teach little


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def gain(ours: Outcome, theirs: Outcome) -> tuple[float, float, bool]:
    """Mean difference of accuracies, its standard error, and whether it is clear at 95 %; seeds are paired."""
    differences = [a - b for a, b in zip(ours.accuracy, theirs.accuracy, strict=True)]
    mean, error = (float(number) for number in mean_and_error(differences))
    return mean, error, len(differences) > 1 and abs(mean) > student_t(len(differences)) * error


def against(ours: Outcome, theirs: Outcome) -> str:
    """ "clearly ahead of CoOp (+5.0 ± 1.2 points)", by Student's t over the seeds; within one error: "level with" """
    mean, error, clear = gain(ours, theirs)
    where = "ahead of" if mean > 0 else "behind"
    if len(ours.accuracy) < 2:  # one seed has no error to compare with
        return f"{where} {theirs.title} on this one seed ({100 * mean:+.1f} points)".replace("-", "−")
    where = f"clearly {where}" if clear else f"not clearly {where}" if abs(mean) > error else "level with"
    return f"{where} {theirs.title} ({100 * mean:+.1f} ± {100 * error:.1f} points)".replace("-", "−")


def new_place(outcomes: Outcomes, chance: float, labelled: int) -> str:
    """What labels teach where there are no words, and what declining to answer adds."""
    ((test, by_method),) = outcomes.items()
    ours, zero, fitted = by_method["bayes-cal"], by_method["clip"], by_method[FIT]
    best = max((own for name, own in by_method.items() if name != "clip"), key=lambda own: own.mean()[0])
    style = test.partition(",")[0]
    says = (
        f"{_words(zero, chance)} After {labelled} labelled images of each in three styles, {best.title} reads "
        f"{percent(best.mean()[0])} of those in a style that nobody has shown it ({style})"
    )
    if best is not ours:
        says += f"; Bayes-CAL reads {percent(ours.mean()[0])}, {against(ours, best)}"
    coverage, right = fitted.mean("coverage")[0], fitted.mean("selective")[0]
    lesson = (
        "a few labels in several styles teach what no word says"
        if best.mean()[0] > zero.mean()[0] + GAIN
        else "these labels teach little that the words do not say"
    )
    return f"{says}. {_abstaining(fitted, coverage, right)} To take from it: {lesson}."


def _words(zero: Outcome, chance: float) -> str:
    share = zero.mean()[0]
    if share > chance + 0.1:
        return f"Without a label, the backbone already reads {percent(share)} of the symbols."
    return f"No word tells these symbols apart (zero-shot {percent(share)}, chance {percent(chance)})."


def _abstaining(fitted: Outcome, coverage: float, right: float) -> str:
    plain = fitted.mean()[0]
    if right != right:
        return "`fit` was unsure about every image."
    verb = "raises" if right > plain + 0.005 else "does not raise"
    return (
        f"Letting `fit` say “unsure” {verb} its accuracy: {percent(plain)} of all, {percent(right)} of the "
        f"{percent(coverage)} that it answers."
    )


def lying_cue(outcomes: Outcomes) -> str:
    """Who falls for the colour, who does not, and where Bayes-CAL stands."""
    before, after = outcomes[AS_TRAINED], outcomes[REVERSED]
    falls = {name: before[name].mean()[0] - after[name].mean()[0] for name in after}
    fallen = {name: fall for name, fall in falls.items() if fall > FALL}
    held = [name for name in falls if name not in fallen]
    parts = []
    if fallen:
        who = _listed(fallen, before, after)
        parts.append(f"With the paints exchanged, {who} {_verb(fallen, 'fall')} for the colour")
    if held:
        start = "; " if parts else "With the paints exchanged, "
        parts.append(f"{start}{_listed(held, before, after)} {_verb(held, 'hold')}")
    ours, rivals = after["bayes-cal"], [after[name] for name in ("erm", "coop", "cal")]
    best = max(rivals, key=lambda own: own.mean()[0])
    worst = min(rivals, key=lambda own: own.mean()[0])
    compared = [against(ours, worst)] + ([against(ours, best)] if best is not worst else [])
    return f"{''.join(parts)}. Bayes-CAL is {' and '.join(compared)}. To take from it: {_lesson(set(fallen))}."


def _lesson(fallen: set[str]) -> str:
    if not fallen:
        return "a cue of this strength misleads none of them"
    if fallen == {"erm"}:  # the one that does not know the classes' names
        return "what starts from the class names holds where a network that sees the images alone follows the cue"
    return "where a cue may lie, try the model on images without it before you trust it"


def _verb(names: Mapping[str, float] | list[str], verb: str) -> str:
    return f"{verb}s" if len(names) == 1 else verb


def _listed(names: Mapping[str, float] | list[str], before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> str:
    parts = [f"{after[n].title} ({percent(before[n].mean()[0])} → {percent(after[n].mean()[0])})" for n in names]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
