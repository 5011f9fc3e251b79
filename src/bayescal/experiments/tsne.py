"""Figure: image features in two dimensions (t-SNE), by class and by environment, with the images on hover."""

import base64
import io
import warnings

import numpy as np

from bayescal.data.images import read_image
from bayescal.experiments.bench import Bench, Search
from bayescal.experiments.experiment import Experiment, make_section
from bayescal.experiments.findings import Figure, Section
from bayescal.protocol.arena import Arena

IMAGES, QUICK_IMAGES = 800, 200
THUMBNAIL = 40  # pixels; 800 of them add about a megabyte to the page


def searches(bench: Bench) -> list[Search]:
    return []


def section(bench: Bench) -> Section:
    figures = [_figure(bench, bench.sources.arena(name)) for name in bench.options.datasets]
    return make_section(
        bench,
        "tsne",
        "Where the images lie",
        "Frozen image features, before anything is learned. Where points group by environment rather than by class, "
        "the shift between environments is larger than the difference between classes.",
        figures=figures,
        limits="t-SNE keeps neighbours together; distances between groups and their sizes mean nothing.",
    )


def sample(arena: Arena, count: int, seed: int = 0) -> np.ndarray:
    """Manifest rows, as many from every class × environment cell as there are, up to an equal share of `count`."""
    manifest, generator = arena.manifest, np.random.default_rng(seed)
    have = arena.rows >= 0
    cells = [
        np.flatnonzero(have & (manifest.class_ids == c) & (manifest.environment_ids == e))
        for c in range(len(manifest.classes))
        for e in range(len(manifest.environments))
    ]
    cells = [cell for cell in cells if cell.size]
    share = max(1, count // len(cells))
    return np.sort(np.concatenate([generator.permutation(cell)[:share] for cell in cells]))


def _figure(bench: Bench, arena: Arena) -> Figure:
    from sklearn.manifold import TSNE

    rows = sample(arena, QUICK_IMAGES if bench.options.quick else IMAGES)
    features = arena.problem.features[arena.feature_rows(rows)]
    unit = (features / features.norm(dim=-1, keepdim=True)).cpu().numpy()
    places = TSNE(init="pca", random_state=0, perplexity=min(30, max(2, len(rows) // 4))).fit_transform(unit)
    manifest = arena.manifest
    data = {
        "x": np.round(places[:, 0], 3).tolist(),
        "y": np.round(places[:, 1], 3).tolist(),
        "class": manifest.class_ids[rows].tolist(),
        "environment": manifest.environment_ids[rows].tolist(),
        "classes": list(manifest.class_words),
        "environments": list(manifest.environment_words),
        "thumbnails": [thumbnail(manifest.paths[i]) for i in rows],
    }
    if not any(data["thumbnails"]):
        data["thumbnails"] = []
        bench.notes.append(f"{arena.dataset.title}: no thumbnails, the images are not here")
    title = f"{arena.dataset.title}: image features of {len(rows)} images"
    return Figure(f"tsne/{arena.dataset.name}", title, "points", data)


def thumbnail(path: str) -> str:
    """A small picture as a data URI; "" where the image is not here."""
    if not path:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = read_image(path).convert("RGB")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


EXPERIMENT = Experiment("tsne", "image features by class and environment", searches, section)
