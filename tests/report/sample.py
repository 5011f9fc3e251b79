"""A made-up report with every kind of table and figure, and with names that would break a careless page."""

import base64
import io
from functools import lru_cache
from math import cos, exp, log10, sin

import numpy as np
from PIL import Image, ImageDraw

from bayescal.benchmark.results import Column, Figure, Row, Section, Table, Value

METHODS = (
    "Bayes-CAL",
    "CAL",
    "CoOp",
    "CoCoOp",
    "DPLCLIP",
    "CLIP-Adapter",
    "Tip-Adapter-F",
    "ERM",
    "IRM",
    "CLIP zero-shot",
)
DATASETS = ("PACS", "VLCS", "Office-Home", "ColoredMNIST")
AWKWARD = '</script><img src=x onerror="alert(1)"> & $x_1$ {{css}} %{y} | *a* \\ #1'
VERSIONS = {
    "bayescal": "0.1.0",
    "torch": "2.11.0",
    "python": "3.12.4",
    "backbone": "RN50:openai",
    "device": "NVIDIA A100 <40 GB>",
}


def value(random: np.random.Generator, mean: float, n: int = 3) -> Value:
    return Value(float(mean + random.normal(0, 0.01)), float(abs(random.normal(0.006, 0.002))), n)


def section(experiment: str, title: str, **more) -> Section:
    about = {
        "lead": "Every method learns from the same 16 images per class and is tested where it has never been.\n\n"
        "Hyper-parameters are chosen on validation images of the test environment, `--select test-domain`.",
        "command": f"bayescal bench {experiment} --backbone RN50:openai --trials 20 --seeds 1,2,3 --data ~/data",
        "versions": VERSIONS,
        "made": "2026-03-14T09:26:53",
        "limits": "Three seeds are few: a difference of less than two standard errors may be chance. The split into "
        "training and validation images is not the paper's, so single numbers need not agree with it.",
    }
    return Section(experiment, title, **about | more)


def main_table() -> Table:
    random = np.random.default_rng(1)
    columns, rows = [], []
    for dataset in DATASETS:
        columns += [
            Column(f"{dataset}-acc", "Accuracy", "high", group=dataset),
            Column(f"{dataset}-star", "Acc*", "high", group=dataset),
            Column(f"{dataset}-paper", "Accuracy", "high", published=True, group=dataset),
        ]
    columns.append(Column("ece", "ECE", "low", digits=2))
    for i, method in enumerate(METHODS):
        cells: dict[str, Value | str] = {}
        for j, dataset in enumerate(DATASETS):
            mean = 0.93 - 0.03 * j - 0.012 * i
            cells[f"{dataset}-acc"] = value(random, mean)
            cells[f"{dataset}-star"] = value(random, min(mean + 0.04, 0.99))
            cells[f"{dataset}-paper"] = Value(round(mean + 0.01, 3), 0.004 if j % 2 else None)
        cells["ece"] = value(random, 0.02 + 0.01 * i)
        if method == "CoCoOp":
            cells["Office-Home-acc"] = Value(None, why="one fit would take nine hours here")
            cells["Office-Home-star"] = Value(None, why="one fit would take nine hours here")
            del cells["ColoredMNIST-paper"]
        if method == "IRM":
            cells["VLCS-paper"] = Value(float("nan"), why="not in the paper")
        group = (
            "on image features"
            if method in ("ERM", "IRM")
            else "no training"
            if "zero" in method
            else "prompts and adapters"
        )
        rows.append(Row(method, cells, group, ranked="zero" not in method))
    note = "± is one standard error over 3 seeds. Acc* counts the answers that were not “unsure”."
    return Table("accuracy", "Accuracy in an unseen environment", tuple(columns), tuple(rows), note)


def curves(
    key: str = "curves", title: str = "Test accuracy against epoch", methods=METHODS[:5], percent: bool = True
) -> Figure:
    random = np.random.default_rng(2)
    epochs = list(range(1, 31))
    panels = []
    for j, dataset in enumerate(DATASETS[:3]):
        series = [
            {
                "name": method,
                "x": epochs,
                "y": [0.9 - 0.04 * j - 0.03 * i - 0.4 * exp(-x / (3 + i)) + random.normal(0, 0.004) for x in epochs],
                "error": None if method == "CoOp" else [0.02 * exp(-x / 20) for x in epochs],
            }
            for i, method in enumerate(methods)
        ]
        series.append({"name": "CLIP zero-shot", "x": [1, 30], "y": [0.6, 0.6], "error": None})
        panels.append({"title": dataset, "chance": 1 / 7, "series": series})
    panels[0]["series"][0]["y"][5] = float("nan")
    data = {"x": "epoch", "y": "accuracy", "percent": True, "log_y": False, "panels": panels}
    return Figure(key, title, "lines", data, "Lines are means over 3 seeds, bands one standard error.")


def risk_coverage() -> Figure:
    coverage = [k / 20 for k in range(1, 21)]
    series = [
        {"name": name, "x": coverage, "y": [(0.05 + 0.03 * i) * c**2 for c in coverage], "error": None}
        for i, name in enumerate(("Bayes-CAL", "CAL", "CoOp"))
    ]
    panels = [{"title": "", "chance": None, "series": series}]
    data = {"x": "coverage", "y": "risk among the answers given", "percent": True, "log_y": False, "panels": panels}
    return Figure("risk-coverage", "Risk against coverage", "lines", data, "Lower is better: fewer wrong answers.")


def losses() -> Figure:
    steps = [1, 2, 4, 8, 16]
    series = [
        {"name": name, "x": steps, "y": [10 ** (-k * (1 + i / 4)) for k in range(5)], "error": None}
        for i, name in enumerate(("CAL", AWKWARD))
    ]
    panels = [{"title": AWKWARD, "chance": None, "series": series}]
    return Figure(
        "loss",
        "Loss against shots",
        "lines",
        {"x": "shots per class", "y": "loss", "percent": False, "log_y": True, "panels": panels},
    )


def landscape() -> Figure:
    grid = np.linspace(-2, 2, 25)
    panels = []
    for k, name in enumerate(("CoOp", "CAL", "Bayes-CAL")):
        z = [
            [
                float(0.05 + (1 + k) * (x - 0.5) ** 2 + 0.6 * (y + 0.3) ** 2 + 0.1 * sin(5 * x) * cos(4 * y))
                for x in grid
            ]
            for y in grid
        ]
        path = [[-1.6 + 2.1 * (1 - exp(-t / 6)), 1.5 - 1.8 * (1 - exp(-t / 9))] for t in range(30)]
        panels.append(
            {
                "title": name,
                "x": grid.tolist(),
                "y": grid.tolist(),
                "z": z,
                "path": path,
                "best": [0.5, -0.3],
                "explained": [0.71, 0.18],
            }
        )
    return Figure(
        "landscape",
        "Loss around the path of training",
        "landscape",
        {"panels": panels},
        "The two directions explain most of the path.",
    )


@lru_cache(maxsize=32)
def thumbnail(kind: int, style: int) -> str:
    image = Image.new("RGB", (48, 48), ((250, 246, 235), (30, 34, 60), (210, 235, 210), (240, 215, 215))[style % 4])
    draw = ImageDraw.Draw(image)
    draw.regular_polygon((24, 24, 17), 3 + kind, fill=((200, 60, 40), (40, 90, 200), (30, 150, 90))[kind % 3])
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def tsne(n: int = 280) -> Figure:
    random = np.random.default_rng(3)
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person <&>")
    environments = ("art painting", "cartoon", "photo", "sketch")
    kinds, styles = random.integers(0, 7, n), random.integers(0, 4, n)
    x = 9 * np.cos(kinds * 0.9) + 1.5 * np.cos(styles * 1.57) + random.normal(0, 1, n)
    y = 9 * np.sin(kinds * 0.9) + 1.5 * np.sin(styles * 1.57) + random.normal(0, 1, n)
    data = {
        "x": x.round(3).tolist(),
        "y": y.round(3).tolist(),
        "class": kinds.tolist(),
        "environment": styles.tolist(),
        "classes": list(classes),
        "environments": list(environments),
        "thumbnails": [thumbnail(int(kind), int(style)) for kind, style in zip(kinds, styles, strict=True)],
    }
    return Figure("features", "Image features by t-SNE", "points", data, "Point at a dot to see its image.")


def reliability() -> Figure:
    middles = [(k + 0.5) / 10 for k in range(10)]
    panels = []
    for dataset in DATASETS[:2]:
        series = [
            {
                "name": name,
                "confidence": [None if k < 1 else m for k, m in enumerate(middles)],
                "accuracy": [None if k < 1 else max(0.0, m - gap * m) for k, m in enumerate(middles)],
                "count": [None if k < 1 else int(4 + 3 * k**2) for k in range(10)],
                "ece": gap / 2,
            }
            for name, gap in (("Bayes-CAL", 0.04), ("CAL", 0.12), ("CoOp", 0.3))
        ]
        panels.append({"title": dataset, "series": series})
    return Figure(
        "reliability",
        "Reliability",
        "reliability",
        {"panels": panels},
        "On the dotted line confidence is right. A larger marker stands for more images.",
    )


def scatter() -> Figure:
    random = np.random.default_rng(4)
    panels = []
    for title, log in (("lambda_irm", True), ("lambda_orth", True), ("position", False), (AWKWARD, False)):
        points = []
        for name in ("Bayes-CAL", "CAL"):
            for k in range(20):
                x = (
                    10 ** random.uniform(-3, 1)
                    if log
                    else str(random.choice(["end", "middle"]))
                    if title == "position"
                    else k
                )
                y = 0.8 + (0.02 * log10(x) if log else 0) + random.normal(0, 0.01)
                points.append({"name": name, "x": x, "y": y, "text": f"draw {k}, {AWKWARD if k == 3 else 'seed 1'}"})
        panels.append({"title": title, "log_x": log, "points": points})
    return Figure(
        "search",
        "Validation accuracy of every draw",
        "scatter",
        {"y": "validation accuracy", "percent": True, "panels": panels},
    )


def ablation_table() -> Table:
    random = np.random.default_rng(5)
    terms = ("environment", "IRM", "orthogonality", "Bayes")
    columns = (
        *(Column(term, term, unit="") for term in terms),
        Column("acc", "Accuracy", "high"),
        Column("time", "Time", "low", "s", 0),
    )
    rows = []
    for k in range(5):
        cells: dict[str, Value | str] = {term: "✓" if i < k else "" for i, term in enumerate(terms)}
        rows.append(
            Row(
                ("CoOp", "+ environments", "+ IRM", "CAL", "Bayes-CAL")[k],
                cells | {"acc": value(random, 0.8 + 0.02 * k), "time": Value(12.0 + 3 * k)},
            )
        )
    return Table("terms", "What each term adds", columns, tuple(rows))


def wilcoxon_table() -> Table:
    columns = (
        Column("better", "Better on", unit="", digits=0),
        Column("p", "p value", unit="", digits=3),
        Column("diff", "Median difference", digits=1),
    )
    values = ((14, 0.00003, 0.031), (9, 0.21, 0.004), (3, 0.94, -0.012))
    rows = tuple(
        Row(name, {"better": Value(a), "p": Value(b), "diff": Value(c)})
        for name, (a, b, c) in zip(("CoOp", "CAL", AWKWARD), values, strict=True)
    )
    return Table(
        "wilcoxon",
        "Bayes-CAL against each method",
        columns,
        rows,
        "Wilcoxon's signed-rank test over 15 pairs, one-sided.",
    )


def base_to_new() -> Table:
    random = np.random.default_rng(6)
    columns = tuple(
        Column(f"{d}-{k}", t, "high", group=d)
        for d in DATASETS[:3]
        for k, t in (("base", "Base"), ("new", "New"), ("h", "H"))
    )
    rows = tuple(Row(m, {c.key: value(random, 0.8) for c in columns}) for m in METHODS[:6])
    return Table("classes", "From base to new classes", columns, rows, "H is the harmonic mean.")


def sections() -> list[Section]:
    """In no particular order: putting them in order is the report's work."""
    return [
        section("wilcoxon", "Are the differences more than chance?", tables=(wilcoxon_table(),)),
        section("tsne", "What the features look like", figures=(tsne(),)),
        section(
            "main",
            "Accuracy in unseen environments",
            tables=(main_table(),),
            figures=(risk_coverage(), reliability()),
            notes=("`terra-incognita` was skipped: its images are not in ~/data.", "CoCoOp ran with 1 seed."),
        ),
        section("ablation", "What each part contributes", tables=(ablation_table(),), figures=(scatter(),)),
        section("base-to-new", "Classes that were not trained", tables=(base_to_new(),)),
        section("epochs", "Training longer", figures=(curves(), curves("all-methods", "All methods", METHODS))),
        section("landscape", "The shape of the loss", figures=(landscape(),)),
        section(
            "zz-own",
            f"An experiment of one's own {AWKWARD}",
            figures=(losses(),),
            command=f"bayescal bench own {AWKWARD}",
            lead=AWKWARD,
            limits="",
        ),
    ]
