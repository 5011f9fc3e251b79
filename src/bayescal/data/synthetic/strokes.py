"""Drawings as strokes: five families of made-up symbols that no language has a word for, and two things that have one.

A family is what a letter is to its handwritings: its members differ in number of turns, prongs or teeth, in slant and
proportion, in where lines meet, and in how steady the hand was. Strokes are lists of points in the square [−1, 1]²;
`styles.py` makes pictures of them.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

Stroke = np.ndarray  # (n, 2) float64: points along a line, x to the right and y down
Random = np.random.Generator


def _line(*points: tuple[float, float], n: int = 24) -> Stroke:
    """Straight from point to point, with n points on each part."""
    corners = np.array(points, dtype=np.float64)
    parts = [np.linspace(a, b, n) for a, b in pairwise(corners)]
    return np.concatenate(parts)


def _arc(centre: tuple[float, float], radii: tuple[float, float], start: float, stop: float, n: int = 60) -> Stroke:
    """Part of an ellipse, from angle to angle in degrees (clockwise, 0 is to the right)."""
    angle = np.radians(np.linspace(start, stop, n))
    return np.stack([centre[0] + radii[0] * np.cos(angle), centre[1] + radii[1] * np.sin(angle)], axis=1)


def hook(random: Random) -> list[Stroke]:
    """Zelk: most of a ring, left by a straight tail that a short bar crosses."""
    radii = (random.uniform(0.38, 0.5), random.uniform(0.38, 0.5))
    start = random.uniform(-60, -10)
    curve = _arc((0.0, -0.3), radii, start, start + random.uniform(-310, -260))
    down = random.uniform(0.75, 0.95)
    tail = _line(tuple(curve[-1]), (random.uniform(-0.2, 0.2), down))
    at = tail[int(len(tail) * random.uniform(0.45, 0.8))]
    half = random.uniform(0.2, 0.35)
    return [np.concatenate([curve, tail]), _line((at[0] - half, at[1]), (at[0] + half, at[1]))]


def branches(random: Random) -> list[Stroke]:
    """Orm: a stem with two bent branches on one side and one on the other, and now and then a foot."""
    side, top, bottom = random.choice([-1, 1]), random.uniform(-0.9, -0.75), random.uniform(0.75, 0.9)
    strokes = [_line((0.0, top), (0.0, bottom))]
    places = ((side, (-0.45, -0.2)), (side, (0.2, 0.5)), (-side, (-0.2, 0.3)))
    for way, at in ((way, random.uniform(*between)) for way, between in places):
        reach, rise = random.uniform(0.4, 0.6), random.uniform(0.3, 0.5)
        strokes.append(_arc((0.0, at - rise), (way * reach, rise), 90, random.uniform(0, 25), n=40))
    if random.random() < 0.4:
        width = random.uniform(0.15, 0.3)
        strokes.append(_line((-width, bottom), (width, bottom)))
    return strokes


def hourglass(random: Random) -> list[Stroke]:
    """Vith: two arcs back to back, closed above and below or not, with a small ring where they come near."""
    gap, depth = random.uniform(0.08, 0.2), random.uniform(0.4, 0.6)
    height = random.uniform(0.65, 0.85)
    strokes = [_arc((side * (gap + depth), 0.0), (-side * depth, height), -80, 80) for side in (-1, 1)]
    ring = random.uniform(0.07, 0.13)
    strokes.append(_arc((0.0, random.uniform(-0.1, 0.1)), (ring, ring), 0, 360))
    if random.random() < 0.5:
        end = random.choice([-1, 1])
        strokes.append(_line((-gap - 0.35, end * height), (gap + 0.35, end * height)))
    return strokes


def barred_ring(random: Random) -> list[Stroke]:
    """Quab: a ring, open or closed, cut by a slanting bar that goes beyond it, and a dot beside the bar's end."""
    radii = (random.uniform(0.4, 0.55), random.uniform(0.4, 0.55))
    open_at = random.uniform(0, 360)
    strokes = [_arc((0.0, 0.0), radii, open_at, open_at + random.uniform(300, 360))]
    slant = np.radians(random.uniform(25, 65))
    reach = random.uniform(0.75, 0.95)
    end = (reach * np.cos(slant), -reach * np.sin(slant))
    strokes.append(_line((-end[0], -end[1]), end))
    dot = random.uniform(0.03, 0.06)
    strokes.append(_arc((end[0] - 0.35, end[1] - random.uniform(-0.05, 0.1)), (dot, dot), 0, 360, n=16))
    return strokes


def mast(random: Random) -> list[Stroke]:
    """Drune: a small ring on a stem that two or three slanting bars cross."""
    ring, top = random.uniform(0.2, 0.32), random.uniform(-0.9, -0.8)
    bottom = random.uniform(0.75, 0.9)
    strokes = [_arc((0.0, top + ring), (ring, ring * random.uniform(0.85, 1.15)), 0, 360)]
    strokes.append(_line((0.0, top + 2 * ring), (0.0, bottom)))
    slope = random.uniform(-0.25, 0.25)
    for at in np.linspace(0.0, random.uniform(0.45, 0.65), int(random.integers(2, 4))):
        half = random.uniform(0.28, 0.5)
        strokes.append(_line((-half, at + slope * half), (half, at - slope * half)))
    return strokes


def fish(random: Random) -> list[Stroke]:
    """A fat or a slim one, with tail and eye, that swims to the left or to the right."""
    half, long, fin = random.uniform(0.3, 0.45), random.uniform(0.55, 0.65), random.uniform(0.25, 0.4)
    end, notch = long * 0.9 - 0.12, half * 0.42
    strokes = [
        _arc((-0.12, 0.0), (long, half), 25, 335),
        _line((end, notch), (0.88, -fin), (0.8, 0.0), (0.88, fin), (end, -notch)),
        _arc((-0.12 - long * 0.55, -half * 0.25), (0.05, 0.05), 0, 360, n=16),
    ]
    return _faced(strokes, random)


def key(random: Random) -> list[Stroke]:
    """A bow, a shank and two or three bits, that point to the left or to the right."""
    bow, end = random.uniform(0.24, 0.34), random.uniform(0.75, 0.9)
    strokes = [_arc((-0.5, 0.0), (bow, bow * random.uniform(0.85, 1.1)), 0, 360), _line((bow - 0.5, 0.0), (end, 0.0))]
    for at in np.linspace(end, end - random.uniform(0.2, 0.35), int(random.integers(2, 4))):
        strokes.append(_line((at, 0.0), (at, random.uniform(0.18, 0.32))))
    return _faced(strokes, random)


def _faced(strokes: list[Stroke], random: Random) -> list[Stroke]:
    """To the left or to the right."""
    way = np.array([random.choice([-1.0, 1.0]), 1.0])
    return [stroke * way for stroke in strokes]


FAMILIES: dict[str, Callable[[Random], list[Stroke]]] = {
    "zelk": hook,
    "orm": branches,
    "vith": hourglass,
    "quab": barred_ring,
    "drune": mast,
}
THINGS: dict[str, Callable[[Random], list[Stroke]]] = {"fish": fish, "key": key}


def draw_strokes(name: str, random: Random) -> list[Stroke]:
    """A member of a family, or a thing, as a hand would draw it and a camera would see it: points in about [−1, 1]²."""
    strokes = (FAMILIES | THINGS)[name](random)
    turn, slant = np.radians(random.normal(0, 9)), random.normal(0, 0.12)
    scale = random.uniform(0.68, 0.92) * np.array([random.uniform(0.88, 1.12), 1.0])
    spin = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = spin @ np.array([[1.0, slant], [0.0, 1.0]]) @ np.diag(scale)
    depth, shift = random.normal(0, 0.1, 2), random.normal(0, 0.06, 2)
    waves = [(random.normal(0, 0.02, 2), random.uniform(1, 4, 2), random.uniform(0, 2 * np.pi, 2)) for _ in range(3)]
    found = []
    for stroke in strokes:
        moved = stroke @ matrix.T
        for size, period, phase in waves:  # the unsteady hand: smooth, and the same for lines that meet
            moved = moved + size * np.sin(period * moved[:, ::-1] * np.pi / 2 + phase)
        moved = moved / (1 + moved @ depth)[:, None]  # perspective
        found.append(moved + shift)
    return found
