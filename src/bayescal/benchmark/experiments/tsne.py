"""Figure: image features in two dimensions (t-SNE), by class and by environment, with the images on hover.

Only test images are shown, those that some fold is measured on; classes that base-to-new keeps for new names have a
marker of their own.
"""

import base64
import io
import warnings

import numpy as np

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments.experiment import Experiment, make_section
from bayescal.benchmark.prepared import PreparedDataset
from bayescal.benchmark.results import Figure, Section
from bayescal.benchmark.searches import Search
from bayescal.data.images import read_image

IMAGES, QUICK_IMAGES = 800, 200
THUMBNAIL = 40  # pixels; 800 of them add about a megabyte to the page


def searches(bench: Bench) -> list[Search]:
    return []


def section(bench: Bench) -> Section:
    figures = [_figure(bench, bench.sources.prepared(name)) for name in bench.options.datasets]
    return make_section(
        bench,
        "tsne",
        "Where the images lie",
        "Frozen image features, before anything is learned. Where points group by environment rather than by class, "
        "the shift between environments is larger than the difference between classes. Test images only; crosses are "
        "classes that base-to-new keeps for new names, where the data set has any.",
        figures=figures,
        limits="t-SNE keeps neighbours together; distances between groups and their sizes mean nothing.",
    )


def sample(prepared: PreparedDataset, count: int, seed: int = 0) -> np.ndarray:
    """Rows of test images, as many from every class × environment cell as there are, up to a share of `count`."""
    manifest, generator = prepared.manifest, np.random.default_rng(seed)
    tested = np.logical_or.reduce([fold.test for fold in prepared.folds])
    have = tested & (prepared.rows >= 0)
    cells = [
        np.flatnonzero(have & (manifest.class_ids == c) & (manifest.environment_ids == e))
        for c in range(len(manifest.classes))
        for e in range(len(manifest.environments))
    ]
    cells = [cell for cell in cells if cell.size]
    share = max(1, count // len(cells))
    return np.sort(np.concatenate([generator.permutation(cell)[:share] for cell in cells]))


def _figure(bench: Bench, prepared: PreparedDataset) -> Figure:
    from sklearn.manifold import TSNE

    rows = sample(prepared, QUICK_IMAGES if bench.options.quick else IMAGES)
    features = prepared.problem.features[prepared.feature_rows(rows)]
    unit = (features / features.norm(dim=-1, keepdim=True)).cpu().numpy()
    points = TSNE(init="pca", random_state=0, perplexity=min(30, max(2, len(rows) // 4))).fit_transform(unit)
    manifest = prepared.manifest
    data = {
        "x": np.round(points[:, 0], 3).tolist(),
        "y": np.round(points[:, 1], 3).tolist(),
        "class": manifest.class_ids[rows].tolist(),
        "environment": manifest.environment_ids[rows].tolist(),
        "classes": list(manifest.class_words),
        "environments": list(manifest.environment_words),
        "new": [manifest.classes.index(name) for name in prepared.dataset.new_classes if name in manifest.classes],
        "thumbnails": [thumbnail(manifest.paths[i]) for i in rows],
    }
    if not any(data["thumbnails"]):
        data["thumbnails"] = []
        bench.notes.append(f"{prepared.dataset.title}: no thumbnails, the images are not here")
    title = f"{prepared.dataset.title}: image features of {len(rows)} test images"
    return Figure(f"tsne/{prepared.dataset.name}", title, "points", data)


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
