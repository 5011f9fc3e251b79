"""Which methods `auto` should mix, and how far their weights should shrink: by environments left out, never by test.

    python -m speed.members measure pacs.bundle … --seeds 1 2 3 -o FOLDER      # on a GPU: some minutes
    python -m speed.members compare FOLDER                                     # → results/members-mini2.json

`measure` trains every candidate as `fit` would: for every held-out environment and seed, without each of the remaining
environments in turn (bundles: `bayescal data pack`), and keeps what it says of the images left out. The held-out
environment itself is never looked at. `compare` mixes these answers for any set of members: each environment is
answered with weights found on the other ones. A set's score is the mean negative log-likelihood; across data sets, the
mean of what it loses against the best set on each. In rotation: for each data set, the set that the others choose.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayescal.benchmark.bundle import load_bundle
from bayescal.benchmark.prepared import PreparedDataset
from bayescal.estimator.members import MEMBERS, Member, bayes_cal, bayes_taskres, tip_adapter
from bayescal.estimator.stacked_training import PRIOR_PER_IMAGE, Case, train_stacked
from bayescal.evaluation.stacking import mixture, stacking_weights, true_class_densities
from bayescal.util.atomic import write_text

RESULTS = Path(__file__).parent / "results" / "members-mini2.json"
SAMPLES = 20
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
ADAPTERS = ("tip-adapter-f-3-2", "clip-adapter")  # the best of the others, together
OTHERS = (
    tip_adapter(3.0, 2.0, learns_keys=True),
    Member("clip-adapter", "CLIP-Adapter", "clip-adapter"),
    bayes_cal(0.3, class_specific=False),
    bayes_cal(0.03),
    bayes_taskres(1.0),
    Member("taskres", "TaskRes", "taskres"),
    Member("coop", "CoOp", "coop", {"class_specific": False}),
    Member("coop-class", "CoOp, class-specific", "coop", {"class_specific": True}),
    Member("cal-class", "CAL, class-specific", "cal", {"class_specific": True}),
    tip_adapter(3.0, 2.0),
    Member("regression-1", "logistic regression around zero-shot, C = 1", "logistic-regression", {"strength": 1.0}),
)
CANDIDATES = (*MEMBERS, *OTHERS)


@dataclass(frozen=True)
class Answers:
    """What every candidate (K) says of the images left out in a case (m)."""

    probs: torch.Tensor  # (K, m, C)
    labels: torch.Tensor  # (m,)
    folds: torch.Tensor  # (m,): with equal numbers they were left out together

    def score(self, members: Sequence[int], strength: float) -> tuple[float, float]:
        """Negative log-likelihood and accuracy of a mixture; every fold is answered with weights of the others."""
        probs = self.probs[list(members)]
        densities = true_class_densities(probs, self.labels)
        answers = torch.zeros_like(probs[0])
        for fold in self.folds.unique():
            own = self.folds == fold
            weights = stacking_weights(densities[~own], strength * int((~own).sum()))
            answers[own] = mixture(weights, probs[:, own])
        density = answers.gather(1, self.labels[:, None]).clamp(min=1e-12)
        return float(-density.log().mean()), float((answers.argmax(1) == self.labels).float().mean())


def measure(prepared: PreparedDataset, seeds: Sequence[int], name: str) -> list[Answers]:
    """Every case of a data set."""
    defaults = prepared.backbone_info.defaults
    cases = []
    for fold in prepared.folds:
        for seed in seeds:
            split = prepared.splits(fold, seed)
            cases.append(Case(prepared.feature_rows(np.concatenate([split.train, split.eval_sets["val"]])), seed))
    stacks = train_stacked(prepared.problem, defaults, cases, SAMPLES, progress=name, members=CANDIDATES)
    return [
        Answers(stacked.left_out.cpu(), stacked.labels.cpu(), stacked.folds.numbers[stacked.folds.used].cpu())
        for stacked in stacks
    ]


def member_sets() -> dict[str, list[str]]:
    """The sets that are compared: today's, with one more or less, with both adapters, each alone, and all."""
    present = [member.name for member in MEMBERS]
    sets = {"members": present, "all": [member.name for member in CANDIDATES]}
    sets |= {"members + both adapters": [*present, *ADAPTERS]}
    sets |= {f"members + {member.name}": [*present, member.name] for member in OTHERS}
    sets |= {f"members - {name}": [other for other in present if other != name] for name in present}
    return sets | {f"only {member.name}": [member.name] for member in CANDIDATES}


Scores = dict[str, dict[str, tuple[float, float]]]  # by data set, by name of what is compared: NLL, accuracy


def scores(
    found: Mapping[str, Sequence[Answers]], order: Sequence[str], sets: Mapping[str, Sequence[str]], strength: float
) -> Scores:
    """Of every set; `order`: of the candidates, as they were measured."""
    numbers = {name: k for k, name in enumerate(order)}
    table: Scores = {}
    for data, cases in found.items():
        table[data] = {}
        for title, members in sets.items():
            each = [case.score([numbers[name] for name in members], strength) for case in cases]
            nll, accuracy = np.mean(each, axis=0)
            table[data][title] = (float(nll), float(accuracy))
    return table


def regret(table: Scores) -> dict[str, float]:
    """What each loses against the best on every data set, on average."""
    titles = list(next(iter(table.values())))
    best = {data: min(nll for nll, _ in own.values()) for data, own in table.items()}
    return {title: float(np.mean([own[title][0] - best[data] for data, own in table.items()])) for title in titles}


def compare(found: Mapping[str, Sequence[Answers]], order: Sequence[str]) -> dict[str, Any]:
    """Scores of every set; the set that the other data sets choose, for each; and every strength of the prior."""
    sets = member_sets()
    table = scores(found, order, sets, PRIOR_PER_IMAGE)
    rotation = {}
    for data in found if len(found) > 1 else ():
        lost = regret({other: own for other, own in table.items() if other != data})
        chosen = min(lost, key=lambda title: lost[title])
        rotation[data] = {"set": chosen, "score": table[data][chosen]}
    compared = {title: sets[title] for title in ("members", "members + both adapters")}
    strengths = {f"{strength:g}": scores(found, order, compared, strength) for strength in STRENGTHS}
    return {"sets": table, "regret": regret(table), "chosen by the other sets": rotation, "strengths": strengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("measure")
    train.add_argument("bundles", type=Path, nargs="+")
    train.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    train.add_argument("--device", default="cuda")
    train.add_argument("-o", "--output", type=Path, required=True)
    read = commands.add_parser("compare")
    read.add_argument("folder", type=Path)
    read.add_argument("-o", "--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        arguments.output.mkdir(parents=True, exist_ok=True)
        for bundle in arguments.bundles:
            prepared = load_bundle(bundle, arguments.device)
            cases = measure(prepared, arguments.seeds, bundle.stem)
            about = {"candidates": [member.name for member in CANDIDATES], "seeds": arguments.seeds}
            about |= {"fingerprint": prepared.backbone_info.fingerprint, "torch": str(torch.__version__)}
            saved = {"about": about, "cases": [vars(case) for case in cases]}
            torch.save(saved, arguments.output / f"{bundle.stem}.pt")
        return
    files = sorted(arguments.folder.glob("*.pt"))
    saved = {path.stem: torch.load(path, weights_only=True) for path in files}
    about = next(iter(saved.values()))["about"]
    order = about["candidates"]
    names = {member.name for member in CANDIDATES}
    if any(own["about"]["candidates"] != order or set(order) != names for own in saved.values()):
        raise SystemExit(f"{arguments.folder} was measured with other candidates: measure again")
    found = {data: [Answers(**case) for case in own["cases"]] for data, own in saved.items()}
    compared = compare(found, order)
    command = f"python -m speed.members measure {' '.join(f'{data}.bundle' for data in found)}; compare"
    defined = {member.name: asdict(member) for member in CANDIDATES}
    written = {"command": command, **about, "members": defined, **compared}
    write_text(arguments.output, json.dumps(written, indent=1, default=str) + "\n")
    report(compared)


def report(compared: dict[str, Any]) -> None:
    table, lost = compared["sets"], compared["regret"]
    for title in sorted(lost, key=lambda title: lost[title]):
        own = "  ".join(f"{data} {table[data][title][0]:.3f} / {100 * table[data][title][1]:.1f}" for data in table)
        print(f"regret {lost[title]:.4f}  {own}  {title}")
    for strength, own in compared["strengths"].items():
        for title in ("members", "members + both adapters"):
            nll, accuracy = np.mean([scores[title] for scores in own.values()], axis=0)
            print(f"strength {strength}, {title}: {nll:.4f} / {100 * accuracy:.2f}")
    for data, own in compared["chosen by the other sets"].items():
        print(f"on {data}, by the others: {own['score'][0]:.3f} / {100 * own['score'][1]:.1f}  {own['set']}")


if __name__ == "__main__":
    main()
