"""`bayescal demo`: two questions about classifiers that leave home, on data and weights that come with the package.

*A new place*: five made-up symbols, learned from a few images in three styles, read in a fourth.
*A cue that lies*: fish and keys whose paint goes with the class in training and against it at test.

The symbols were designed on other images and on another held-out style. When the methods' settings were last
simplified, test accuracies of both questions were on the screen (docs/command-line.md says which); what is printed is
what came out.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescal.backbones import Backbone, load_backbone
from bayescal.data import read_image
from bayescal.demo import words
from bayescal.demo.compare import Outcomes, compare, configs
from bayescal.demo.scenes import FIT, LYING_CUE, NEW_PLACE, Question, Scene, prepare
from bayescal.errors import DataError
from bayescal.estimator.artifact import check_output
from bayescal.estimator.members import MEMBERS, STEPS
from bayescal.estimator.prediction import Prediction
from bayescal.methods import get_method
from bayescal.report.plots import BarPanel, ImageRow, demo_figure, save_figure
from bayescal.util.atomic import write_text
from bayescal.util.console import console as new_console

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

    from bayescal.estimator.predictor import StackedPredictor

SEEDS = (1, 2, 3, 4)
WRITTEN = ("demo.png", "results.json", "model", NEW_PLACE, f"{LYING_CUE}-0", f"{LYING_CUE}-1")


def run_demo(
    output: Path, *, seeds: Sequence[int] = SEEDS, force: bool = False, console: "Console | None" = None
) -> None:
    """Make the data, train the methods, print the tables, and leave a picture, the numbers and a model in `output`."""
    console = console or new_console(highlight=True, markup=True)
    started = time.perf_counter()
    _check_output(output, force)
    backbone = load_backbone("mini")
    questions = prepare(output, backbone)
    outcomes: dict[str, Outcomes] = {}
    fitted: dict[str, dict[int, StackedPredictor]] = {}
    sentences: dict[str, str] = {}
    for question in questions:
        say = lambda text: console.print(text, style="dim")  # noqa: E731
        outcomes[question.key], fitted[question.key] = compare(question, backbone, seeds, say)
        sentences[question.key] = sentence(question, outcomes[question.key])
        for shown in tables(question, outcomes[question.key], len(seeds)):
            console.print(shown)
        console.print(sentences[question.key], end="\n\n")
    model = fitted[NEW_PLACE][seeds[0]]
    answers = three_answers(questions[0].scene(seeds[0]), model, questions[0].headline)
    save_figure(picture(questions, outcomes, sentences, answers), output / "demo.png")
    model.save(output / "model", overwrite=force)
    seconds = round(time.perf_counter() - started)
    write_text(output / "results.json", results(questions, outcomes, sentences, seeds, backbone))
    scene = questions[0].scene(seeds[0])
    example = Path(scene.manifest.paths[int(scene.tests[questions[0].headline][0])]).parent
    console.print(f"Picture: {output / 'demo.png'}   ({seconds} s in all)\nPredict with the model that fit made:\n")
    console.print(f"  bayescal predict {output / 'model'} {_short(example)}", soft_wrap=True, highlight=False)


def sentence(question: Question, outcomes: Outcomes) -> str:
    if question.key == NEW_PLACE:
        return words.new_place(outcomes, question.chance, question.labelled)
    return words.lying_cue(outcomes)


def tables(question: Question, outcomes: Outcomes, n_seeds: int) -> "list[Table]":
    """Percent, mean ± standard error over seeds, one table for each test."""
    from rich.table import Table

    found = []
    for test, by_method in outcomes.items():
        table = Table(
            title=f"{question.title} — {test}: %, {question.labelled} labelled images per class, {n_seeds} seeds",
            title_justify="left",
            caption="Acc*: accuracy of the answers that were not “unsure”; coverage: their share",
            caption_justify="left",
        )
        table.add_column("method", no_wrap=True)
        for column in ("accuracy", "Acc*", "coverage"):
            table.add_column(column, justify="right", no_wrap=True)
        for own in by_method.values():
            table.add_row(own.title, *(_percent(own.mean(what)) for what in ("accuracy", "selective", "coverage")))
        found.append(table)
    return found


def _percent(pair: tuple[float, float]) -> str:
    mean, error = pair
    if np.isnan(mean):
        return "–"
    return f"{100 * mean:.1f}" if np.isnan(error) else f"{100 * mean:.1f} ± {100 * error:.1f}"


# --- the picture -----------------------------------------------------------------------------------------------------


def three_answers(scene: Scene, model: "StackedPredictor", test: str) -> ImageRow:
    """Three test images: one answered rightly, one that it is unsure about, one answered wrongly, where there are."""
    rows = scene.tests[test]
    details = model.details(scene.features(rows)[0])
    truth = np.array(scene.manifest.classes)[scene.manifest.class_ids[rows]]
    right = details.labels == truth
    kinds = (right & ~details.unsure, details.unsure, ~right & ~details.unsure)
    picked: list[int] = []
    for kind in (*kinds, *kinds):  # where one kind is missing, another gives a second image
        left = [i for i in np.flatnonzero(kind).tolist() if i not in picked]
        # Of a class that is not shown yet, where there is one.
        fresh = [i for i in left if truth[i] not in truth[picked]]
        if (fresh or left) and len(picked) < 3:
            picked.append((fresh or left)[0])
    images = [read_image(scene.manifest.paths[int(rows[i])]) for i in picked]
    return ImageRow("what fit's model says of three test images", images, [_said(details, i, truth[i]) for i in picked])


def _said(details: Prediction, i: int, truth: str) -> str:
    answer = "unsure" if details.unsure[i] else str(details.labels[i])
    environment = str(details.environment[i]).replace("_", " ")
    return f"{answer} ({100 * details.confidence[i]:.0f} %), most like {environment}; truth: {truth}"


def picture(
    questions: Sequence[Question],
    outcomes: Mapping[str, Outcomes],
    sentences: Mapping[str, str],
    answers: ImageRow,
) -> "Figure":
    panels = []
    for question in questions:
        found = outcomes[question.key]
        titles = [own.title for own in next(iter(found.values())).values()]
        series = {test: [own.mean() for own in by_method.values()] for test, by_method in found.items()}
        if len(series) == 1:  # one test: what the answers that were given are worth, beside all of them
            (by_method,) = found.values()
            series = {
                "all answers": next(iter(series.values())),
                "without the “unsure” ones": [own.mean("selective") for own in by_method.values()],
            }
        rows = samples(question)
        rows += [answers] if question.key == NEW_PLACE else []
        panels.append(
            BarPanel(question.title, rows, titles, series, question.chance, sentences[question.key].replace("`", ""))
        )
    return demo_figure(panels)


def samples(question: Question) -> list[ImageRow]:
    """What is learned from, and what is tested on."""
    scene = question.scenes[0]
    manifest, pool = scene.manifest, scene.manifest.splits == "train"
    learned = [(pool & (manifest.environment_ids == manifest.environments.index(name)), name) for name in scene.learned]
    classes = len(manifest.classes)
    if question.key == NEW_PLACE:
        train = [_some(scene, mask, [c], 1)[0] for (mask, _), c in zip(learned, (0, 1, 2), strict=True)]
        train += [_some(scene, learned[k][0], [c], 2)[1] for k, c in ((0, 3), (1, 4))]
    else:
        train = _some(scene, learned[0][0], range(classes), 3)
    tested = np.isin(np.arange(len(manifest)), scene.tests[question.headline])
    test = _some(scene, tested, range(classes), 1 if classes > 2 else 3)
    words_of = [to.replace("_", " ") for to in scene.learned]
    train_title = f"learned from: {', '.join(words_of)}" if classes > 2 else "learned from: paint goes with the class"
    test_title = f"tested on: {question.headline}" if classes > 2 else "tested on: paint goes against it"
    return [_row(scene, train_title, train), _row(scene, test_title, test)]


def _some(scene: Scene, mask: np.ndarray, classes: Sequence[int] | range, count: int) -> list[int]:
    return [int(i) for c in classes for i in np.flatnonzero(mask & (scene.manifest.class_ids == c))[:count]]


def _row(scene: Scene, title: str, rows: Sequence[int]) -> ImageRow:
    names = [scene.manifest.classes[scene.manifest.class_ids[i]] for i in rows]
    return ImageRow(title, [read_image(scene.manifest.paths[i]) for i in rows], names)


# --- what is left behind ---------------------------------------------------------------------------------------------


def results(
    questions: Sequence[Question],
    outcomes: Mapping[str, Outcomes],
    sentences: Mapping[str, str],
    seeds: Sequence[int],
    backbone: Backbone,
) -> str:
    """Every number of the demo, as JSON, and the settings that it was made with."""
    content: dict[str, Any] = {"seeds": list(seeds), "questions": {}}
    for question in questions:
        content["questions"][question.key] = {
            "title": question.title,
            "chance": question.chance,
            "labelled": question.labelled,
            "sentence": sentences[question.key],
            "settings": {method: settings(method, backbone) for method in question.methods},
            "tests": {
                test: {method: asdict(own) for method, own in by_method.items()}
                for test, by_method in outcomes[question.key].items()
            },
        }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def settings(method: str, backbone: Backbone) -> dict[str, Any]:
    """What a method is: numbers that were made with other settings are not those of today's demo."""
    if method == FIT:
        return {"steps": STEPS, "members": {own.name: [own.method, dict(own.options)] for own in MEMBERS}}
    return {"version": get_method(method).version, "tried": configs(method, backbone)}


def _check_output(output: Path, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file: choose another folder")
    if output.is_dir():
        strangers = [p.name for p in output.iterdir() if p.name not in WRITTEN]
        if strangers:
            raise DataError(f"{output} holds something else than a demo ({strangers[0]}): choose another folder")
        if any(output.iterdir()) and not force:
            raise DataError(f"{output} exists already: choose another folder, or run it again with --force")
    check_output(output / "model", overwrite=force)


def _short(path: Path) -> str:
    """Relative to where the user is, when that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
