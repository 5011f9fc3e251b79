"""The pictures of an evaluation: a page in itself, and a sheet of the most confident mistakes.

The page is made by Jinja2 with autoescaping, as the report's; all images are inside it, small. It needs no script to be
read: a cell of the confusion matrix is a link to its images.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayescal.data import ImageError, content_hash
from bayescal.report.page import environment, own_file
from bayescal.report.thumbnails import RIGHT, WRONG, Tile, contact_sheet, data_uri, thumbnail
from bayescal.util.atomic import replacing, write_text

if TYPE_CHECKING:
    from PIL import Image

    from bayescal.estimator.evaluating import Evaluated

PAGE, SHEET = "pictures.html", "mistakes.png"
GENERATOR = "bayescal evaluate"
OVERALL, EACH, MOST = 40, 8, 240  # mistakes shown: of all, of every class and every environment, at most
LEAST_SURE = 24
MATRIX = 40  # classes: those with the most mistakes
PER_CELL, IN_CELLS = 12, 600  # images behind a cell of the matrix, and behind all together
ON_SHEET = 12
SIDE, SMALL = 160, 88  # pixels


@dataclass(frozen=True)
class Neighbour:
    """A training image beside one that was answered."""

    uri: str  # "": its file is gone, or another one by now
    name: str
    class_name: str
    environment: str


@dataclass(frozen=True)
class Card:
    """One image, what it is, what was said, and the training images most like it."""

    uri: str
    name: str
    truth: str
    said: str
    right: bool
    confidence: float
    environment: str
    marks: tuple[str, ...]
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One cell of the confusion matrix; the anchor is "" where there are no images."""

    count: int
    share: float
    right: bool
    anchor: str


@dataclass(frozen=True)
class Behind:
    """The images behind a cell: some of `count`."""

    anchor: str
    truth: str
    said: str
    count: int
    cards: tuple[Card, ...]


class Gallery:
    """Cards of an evaluation's images, each read once."""

    def __init__(self, evaluated: "Evaluated"):
        self.evaluated, self.answered = evaluated, evaluated.images
        self._training: dict[int, Image.Image | None] = {}

    def card(self, i: int, side: int = SIDE, neighbours: bool = True) -> Card:
        answered, said = self.answered, self.answered.prediction
        marks = {
            "learned from": answered.learned_from[i],
            "unfamiliar": said.unfamiliar[i],
            "unsure": said.unsure[i],
        }
        names = self.evaluated.class_names
        return Card(
            uri=data_uri(thumbnail(answered.sources[i], side)),
            name=answered.names[i],
            truth=names[answered.labels[i]],
            said=names[answered.said[i]],
            right=bool(answered.right[i]),
            confidence=float(said.confidence[i]),
            environment=answered.environments[i],
            marks=tuple(name for name, holds in marks.items() if holds),
            neighbours=tuple(map(self.neighbour, answered.neighbours[i].tolist())) if neighbours else (),
        )

    def neighbour(self, number: int) -> Neighbour:
        kept = self.answered.training
        assert kept is not None
        return Neighbour(
            uri=data_uri(self.training_image(number)),
            name=kept.names[number],
            class_name=self.evaluated.class_names[kept.class_ids[number]],
            environment=self.answered.training_environments[kept.environment_ids[number]],
        )

    def training_image(self, number: int) -> "Image.Image | None":
        """None where the file is gone, or is another one by now."""
        if number not in self._training:
            self._training[number] = self._read(number)
        return self._training[number]

    def _read(self, number: int) -> "Image.Image | None":
        kept = self.answered.training
        assert kept is not None
        try:
            same = content_hash(kept.names[number]) == kept.hashes[number].tobytes().hex()
        except (ImageError, OSError):
            return None
        return thumbnail(kept.names[number], SMALL) if same else None


def save_pictures(evaluated: "Evaluated", folder: str | Path, title: str = "Evaluation") -> tuple[Path, Path]:
    """Write the page and the sheet into a folder, each whole or not at all; where they are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    gallery = Gallery(evaluated)
    write_text(folder / PAGE, page(gallery, title))
    with replacing(folder / SHEET) as draft:
        sheet(gallery, title).save(draft, "PNG")
    return folder / PAGE, folder / SHEET


def page(gallery: Gallery, title: str) -> str:
    evaluated, answered = gallery.evaluated, gallery.answered
    mistakes = [gallery.card(i) for i in shown_mistakes(evaluated)]
    names, cells, behind = _matrix(gallery)
    return environment().get_template("pictures.html").render(
        generator=GENERATOR,
        css=own_file("colours.css") + own_file("pictures.css"),
        title=title,
        evaluated=evaluated,
        n_wrong=len(answered.mistakes),
        learned=int(answered.learned_from.sum()),
        mistakes=mistakes,
        least_sure=[gallery.card(i) for i in answered.least_sure[:LEAST_SURE].tolist()],
        names=names,
        cells=cells,
        behind=behind,
        classes=_counted(card.truth for card in mistakes),
        environments=_counted(card.environment for card in mistakes),
    )  # fmt: skip


def sheet(gallery: Gallery, title: str) -> "Image.Image":
    """The most confident mistakes, each in a row with the training images most like it."""
    answered = gallery.answered
    chosen = answered.mistakes[:ON_SHEET]
    what = "the most confident mistakes" if len(chosen) else "no mistakes; the least sure answers"
    if not len(chosen):
        chosen = answered.least_sure[:ON_SHEET]
    rows = [_strip(gallery, i) for i in chosen.tolist()]
    paired = [[tile for row in rows[at : at + 2] for tile in row] for at in range(0, len(rows), 2)]
    return contact_sheet(f"{title}: {what}, and the training images most like them", paired)


def _strip(gallery: Gallery, i: int) -> list[Tile]:
    card = gallery.card(i, neighbours=False)
    answered = gallery.answered
    said = f"{card.said}  {card.confidence:.0%}"
    tiles = [
        Tile(
            thumbnail(answered.sources[i], 128),
            (said, "right" if card.right else f"is {card.truth}", card.environment),
            RIGHT if card.right else WRONG,
        )
    ]
    for number in answered.neighbours[i].tolist():
        near = gallery.neighbour(number)
        tiles.append(Tile(gallery.training_image(number), (near.class_name, near.environment)))
    return tiles


def shown_mistakes(evaluated: "Evaluated") -> list[int]:
    """The most confident of all, of every class and of every environment, most confident first."""
    answered = evaluated.images
    wrong = answered.mistakes.tolist()
    chosen = set(wrong[:OVERALL])
    for groups in (answered.labels.tolist(), answered.environments):
        seen: Counter = Counter()
        for i in wrong:
            if len(chosen) >= MOST:
                break
            seen[groups[i]] += 1
            if seen[groups[i]] <= EACH:
                chosen.add(i)
    return [i for i in wrong if i in chosen]


def _matrix(gallery: Gallery) -> tuple[list[str], list[list[Cell]], list[Behind]]:
    """Names, rows of cells and the images behind them, of the classes with the most mistakes."""
    evaluated, answered = gallery.evaluated, gallery.answered
    n = len(evaluated.class_names)
    wrong = np.bincount(answered.labels[~answered.right], minlength=n) + np.bincount(
        answered.said[~answered.right], minlength=n
    )
    present = np.flatnonzero(np.bincount(answered.labels, minlength=n) + np.bincount(answered.said, minlength=n))
    shown = np.sort(present[np.argsort(-wrong[present], kind="stable")][:MATRIX])
    images: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in np.argsort(-answered.prediction.confidence, kind="stable").tolist():
        images[int(answered.labels[i]), int(answered.said[i])].append(i)
    totals = np.bincount(answered.labels, minlength=n)
    cells = [
        [
            Cell(
                count=len(images.get((i, j), ())),
                share=len(images.get((i, j), ())) / max(1, int(totals[i])),
                right=i == j,
                anchor=f"cell-{i}-{j}" if (i, j) in images else "",
            )
            for j in shown.tolist()
        ]
        for i in shown.tolist()
    ]
    behind, left = [], IN_CELLS
    pairs = [(i, j) for i in shown.tolist() for j in shown.tolist() if (i, j) in images]
    for i, j in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # mistakes first: room may run out
        own = images[i, j][: min(PER_CELL, left)]
        left -= len(own)
        cards = tuple(gallery.card(number, SMALL, neighbours=False) for number in own)
        names = evaluated.class_names
        behind.append(Behind(f"cell-{i}-{j}", names[i], names[j], len(images[i, j]), cards))
    return [evaluated.class_names[i] for i in shown.tolist()], cells, behind


def _counted(names: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(names).items())
