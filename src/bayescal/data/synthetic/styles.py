"""Five ways to make a picture of strokes: ink on paper, chalk on a blackboard, neon, stencil on brick, embroidery.

Each is a rendering with a ground of its own (fibres, smears, mortar, weave), a line that is made as the material makes
it (bleeding, broken by grain, glowing, sprayed through a stencil with bridges, stitched), and a camera (blur, noise,
uneven light). Everything is drawn from one random generator; pictures are (SIZE, SIZE, 3) uint8.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from bayescal.data.synthetic.strokes import Random, Stroke

SIZE = 112
_FINE = 3  # lines are drawn at three times the size and reduced: smooth edges

Picture = np.ndarray  # (SIZE, SIZE, 3) float64 in [0, 1]


def coverage(strokes: Sequence[Stroke], width: float) -> np.ndarray:
    """How much of each pixel the lines cover, (SIZE, SIZE) in [0, 1]; width in pixels."""
    size = SIZE * _FINE
    canvas = Image.new("L", (size, size))
    pen = ImageDraw.Draw(canvas)
    thick = max(1, round(width * _FINE))
    for stroke in strokes:
        points = [(float(x), float(y)) for x, y in (stroke + 1) * size / 2]
        pen.line(points, fill=255, width=thick, joint="curve")
        for x, y in (points[0], points[-1]):
            pen.ellipse((x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2), fill=255)
    return np.asarray(canvas.resize((SIZE, SIZE), Image.Resampling.LANCZOS), dtype=np.float64) / 255


def clouds(random: Random, grain: float) -> np.ndarray:
    """Smooth noise (SIZE, SIZE) of mean 0 and deviation 1; grain is the size of its spots in pixels."""
    noise = ndimage.gaussian_filter(random.normal(size=(SIZE, SIZE)), grain, mode="wrap")
    return noise / noise.std()


def _mix(ground: Picture, colour: Sequence[float] | np.ndarray, amount: np.ndarray) -> Picture:
    """Colour laid over the ground, by an amount (SIZE, SIZE) in [0, 1]."""
    amount = np.clip(amount, 0, 1)[..., None]
    return ground * (1 - amount) + np.asarray(colour) * amount


def _plain(colour: Sequence[float] | np.ndarray, shade: np.ndarray) -> Picture:
    return np.asarray(colour, dtype=np.float64) * (1 + shade[..., None])


def _pick(random: Random, colours: Sequence[Sequence[float]], spread: float = 0.05) -> np.ndarray:
    """One of these colours, not quite."""
    return np.clip(np.array(colours[int(random.integers(len(colours)))]) + random.normal(0, spread, 3), 0, 1)


INKS = ((0.08, 0.10, 0.30), (0.08, 0.08, 0.09), (0.30, 0.10, 0.10), (0.05, 0.22, 0.20))


def ink_on_paper(strokes: Sequence[Stroke], random: Random, colour: Sequence[float] | None = None) -> Picture:
    paper = _plain(
        _pick(random, ((0.95, 0.92, 0.84), (0.93, 0.93, 0.92), (0.90, 0.85, 0.72)), 0.02),
        0.02 * clouds(random, 12) + 0.012 * clouds(random, 0.7),
    )
    if random.random() < 0.4:  # ruled
        step, at = random.uniform(13, 20), random.uniform(0, 13)
        rows = np.abs((np.arange(SIZE) - at) % step) < 1.1
        paper = _mix(paper, (0.55, 0.65, 0.85), np.broadcast_to(rows[:, None] * 0.55, (SIZE, SIZE)))
    line = coverage(strokes, random.uniform(3.0, 5.5))
    pressure = 1 + 0.35 * clouds(random, 9)
    bleed = ndimage.gaussian_filter(line, random.uniform(0.5, 1.1)) + 0.12 * clouds(random, 0.8) * line
    amount = 1 / (1 + np.exp(-10 * (bleed * pressure - 0.42)))
    dark = _pick(random, INKS) if colour is None else np.asarray(colour) * 0.75
    return _mix(paper, dark, amount * random.uniform(0.82, 1.0))


def chalk_on_blackboard(strokes: Sequence[Stroke], random: Random, colour: Sequence[float] | None = None) -> Picture:
    board = _plain(
        _pick(random, ((0.12, 0.20, 0.16), (0.13, 0.14, 0.15), (0.10, 0.17, 0.20)), 0.02),
        0.10 * clouds(random, 14) + 0.05 * clouds(random, 1.0),
    )
    smear = np.clip(ndimage.gaussian_filter(clouds(random, 2), (2, 9)), 0, None)  # an old wipe of the sponge
    board = _mix(board, (0.75, 0.78, 0.75), 0.12 * smear)
    line = coverage(strokes, random.uniform(4.0, 7.0))
    grain = clouds(random, 0.6) + 0.5 * clouds(random, 1.6)
    kept = line * (grain > random.uniform(-0.9, -0.4)) * np.clip(0.8 + 0.25 * clouds(random, 6), 0.3, 1)
    dust = 0.18 * ndimage.gaussian_filter(line, 3) * np.clip(1 + clouds(random, 1), 0, 2)
    chalks = ((0.95, 0.95, 0.92), (0.95, 0.88, 0.55), (0.80, 0.90, 0.97), (0.96, 0.75, 0.78))
    tone = _pick(random, chalks, 0.02) if colour is None else 0.35 + 0.65 * np.asarray(colour)
    return _mix(board, tone, ndimage.gaussian_filter(kept, 0.4) + dust)


def neon(strokes: Sequence[Stroke], random: Random, colour: Sequence[float] | None = None) -> Picture:
    wall = _plain(
        _pick(random, ((0.10, 0.09, 0.13), (0.07, 0.09, 0.12), (0.14, 0.10, 0.09)), 0.02),
        0.18 * clouds(random, 10) + 0.08 * clouds(random, 1.2),
    )
    glows = ((1.0, 0.15, 0.45), (0.1, 0.85, 1.0), (1.0, 0.55, 0.1), (0.35, 1.0, 0.35), (0.75, 0.3, 1.0))
    tone = _pick(random, glows, 0.03) if colour is None else np.asarray(colour)
    width = random.uniform(2.6, 3.8)
    tube, core = coverage(strokes, width), coverage(strokes, width * 0.45)
    tube = tube * np.clip(1.05 + 0.12 * clouds(random, 5), 0.5, 1.2)  # older parts are dimmer
    near, far = ndimage.gaussian_filter(tube, 3.5), ndimage.gaussian_filter(tube, 13)
    light = wall * (1 + 3.0 * far[..., None]) + tone * (0.9 * near + 0.9 * far)[..., None]
    light = light + tone * tube[..., None] * 0.9
    return _mix(np.clip(light, 0, 1), (1.0, 0.98, 0.95), ndimage.gaussian_filter(core, 0.5) * 0.9)


def stencil_on_brick(strokes: Sequence[Stroke], random: Random, colour: Sequence[float] | None = None) -> Picture:
    high, long = random.uniform(11, 16), random.uniform(26, 38)
    y, x = np.mgrid[0:SIZE, 0:SIZE] + random.uniform(0, 30, 2)[:, None, None]
    y = y + 0.6 * clouds(random, 8)
    course = np.floor(y / high)
    along = x + (course % 2) * long / 2
    bricks = (course * 31 + np.floor(along / long)).astype(np.int64)
    tones = random.normal(0, 0.13, 997)[bricks % 997]
    red = _pick(random, ((0.60, 0.27, 0.20), (0.68, 0.42, 0.30), (0.50, 0.33, 0.28)), 0.03)
    wall = _plain(red, tones + 0.08 * clouds(random, 0.8) + 0.07 * clouds(random, 5))
    edge = np.minimum(np.minimum(y % high, high - y % high), np.minimum(along % long, long - along % long))
    joint = np.clip(1.6 - edge + 0.3 * clouds(random, 0.9), 0, 1)
    wall = _mix(wall, _pick(random, ((0.72, 0.69, 0.64), (0.55, 0.52, 0.49)), 0.03), joint)
    line = coverage(strokes, random.uniform(6.0, 8.5))
    for _ in range(int(random.integers(2, 4))):  # the bridges that hold a stencil together
        angle, at = random.uniform(0, np.pi), random.normal(0, 0.3, 2)
        u, v = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
        across = np.abs((u - at[0]) * np.cos(angle) + (v - at[1]) * np.sin(angle)) * SIZE / 2
        line = line * np.clip(across - 1.2, 0, 1)
    spray = line * np.clip(0.95 + 0.18 * clouds(random, 1.0) + 0.1 * clouds(random, 7), 0, 1) * (1 - 0.45 * joint)
    mist = ndimage.gaussian_filter(line, 5) * (random.random((SIZE, SIZE)) < 0.12) * 0.8
    paints = ((0.06, 0.06, 0.07), (0.93, 0.92, 0.88), (0.10, 0.22, 0.45), (0.92, 0.75, 0.15))
    tone = _pick(random, paints, 0.02) if colour is None else np.asarray(colour)
    return _mix(wall, tone, 0.93 * ndimage.gaussian_filter(spray, 0.5) + 0.5 * mist)


def embroidery(strokes: Sequence[Stroke], random: Random, colour: Sequence[float] | None = None) -> Picture:
    cloths = ((0.88, 0.84, 0.75), (0.75, 0.80, 0.84), (0.30, 0.33, 0.42), (0.80, 0.66, 0.62), (0.42, 0.47, 0.36))
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    pitch = random.uniform(2.6, 3.6)
    weave = np.sin(2 * np.pi * x / pitch) * np.sin(np.pi * y / pitch) + 0.5 * np.sin(2 * np.pi * y / pitch)
    cloth = _plain(_pick(random, cloths, 0.03), 0.06 * weave + 0.04 * clouds(random, 9) + 0.03 * clouds(random, 0.7))
    threads = ((0.75, 0.12, 0.15), (0.12, 0.30, 0.60), (0.95, 0.80, 0.30), (0.15, 0.45, 0.30), (0.95, 0.94, 0.90))
    tone = _pick(random, threads, 0.03) if colour is None else np.asarray(colour)
    if np.abs(tone - cloth.mean((0, 1))).max() < 0.25:  # thread that nobody could see on this cloth
        cloth = 1.05 - cloth
    reach, size = random.uniform(2.6, 3.8), SIZE * _FINE
    shadow = ndimage.gaussian_filter(np.roll(coverage(strokes, 2 * reach), (1, 1), (0, 1)), 1.0)
    sewn = Image.fromarray((_mix(np.clip(cloth, 0, 1), (0.1, 0.08, 0.08), 0.4 * shadow) * 255).astype(np.uint8))
    sewn = sewn.resize((size, size), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(sewn)
    lean = random.uniform(0.3, 0.9)
    for stroke in strokes:
        for point, way in _stitches((stroke + 1) * SIZE / 2, random.uniform(1.1, 1.5)):
            across = np.array([-way[1], way[0]]) + lean * way
            half = across / np.linalg.norm(across) * reach * random.uniform(0.85, 1.1)
            shade = np.clip(tone * random.normal(1.0, 0.13), 0, 1)
            ends = [tuple((point + sign * half) * _FINE) for sign in (-1, 1)]
            pen.line(ends, fill=tuple((shade * 255).astype(int).tolist()), width=4)
            middle = [tuple((point + sign * half * 0.4) * _FINE) for sign in (-1, 1)]
            gloss = np.clip(shade * 1.25 + 0.06, 0, 1)
            pen.line(middle, fill=tuple((gloss * 255).astype(int).tolist()), width=2)
    return np.asarray(sewn.resize((SIZE, SIZE), Image.Resampling.LANCZOS), dtype=np.float64) / 255


def _stitches(points: np.ndarray, every: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places along a line, `every` so many pixels, and the way it goes there."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    length = np.concatenate([[0.0], np.cumsum(steps)])
    at = np.arange(0, length[-1], every)
    points_at = np.stack([np.interp(at, length, points[:, i]) for i in (0, 1)], axis=1)
    way = np.gradient(points_at, axis=0) if len(points_at) > 1 else np.array([[1.0, 0.0]] * len(points_at))
    return list(zip(points_at, way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9), strict=True))


STYLES: dict[str, Callable[..., Picture]] = {
    "ink_on_paper": ink_on_paper,
    "chalk_on_blackboard": chalk_on_blackboard,
    "neon": neon,
    "stencil_on_brick": stencil_on_brick,
    "embroidery": embroidery,
}


def render(strokes: Sequence[Stroke], style: str, random: Random, colour: Sequence[float] | None = None) -> np.ndarray:
    """The picture of strokes in a style, as a camera takes it: (SIZE, SIZE, 3) uint8. `colour`: of the line."""
    picture = STYLES[style](strokes, random, colour)
    u, v = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    light = 1 + random.normal(0, 0.08) * u + random.normal(0, 0.08) * v - random.uniform(0, 0.15) * (u**2 + v**2)
    blurred = ndimage.gaussian_filter(np.clip(picture, 0, 1), (*(random.uniform(0.2, 0.7),) * 2, 0))
    noisy = blurred * light[..., None] * random.uniform(0.88, 1.08) + random.normal(0, 0.018, blurred.shape)
    return (np.clip(noisy, 0, 1) * 255).round().astype(np.uint8)
