"""The paper's own numbers (CLIP RN50; accuracy in percent, standard error), printed beside ours for that backbone.

Source: Zhu et al., Bayesian Cross-Modal Alignment Learning for Few-Shot Out-of-Distribution Generalization, AAAI 2023.
"""

from bayescal.benchmark.results import Value

Numbers = dict[str, tuple[float, float | None]]

MAIN: dict[str, Numbers] = {
    "bayes-cal": {
        "nico": (98.33, 0.6), "ccd": (69.00, 0.8), "pacs": (91.82, 0.9), "vlcs": (78.06, 1.5),
        "colored-mnist": (47.88, 0.62), "office-home": (74.20, 0.02),
    },
    "clip": {
        "nico": (96.75, None), "ccd": (65.00, None), "pacs": (90.76, None), "vlcs": (75.07, None),
        "colored-mnist": (47.10, None), "office-home": (69.00, None),
    },
    "coop": {
        "nico": (95.92, 0.7), "ccd": (55.21, 10.6), "pacs": (91.47, 0.6), "vlcs": (72.79, 5.4),
        "colored-mnist": (9.50, 2.51), "office-home": (62.39, 0.69),
    },
    "cocoop": {
        "nico": (98.00, 0.8), "ccd": (56.25, 6.8), "pacs": (91.81, 0.6), "vlcs": (76.25, 1.0),
        "colored-mnist": (17.44, 4.91), "office-home": (72.27, 0.54),
    },
    "dplclip": {"nico": (97.42, 1.4), "ccd": (57.29, 10.3), "pacs": (89.58, 0.7), "vlcs": (74.25, 6.1)},
    "tip-adapter-f": {"nico": (97.91, None), "ccd": (62.33, None), "pacs": (92.12, None), "vlcs": (77.22, None)},
    "without-env": {
        "nico": (96.58, None), "ccd": (68.67, None), "pacs": (91.56, None), "vlcs": (75.43, None),
        "colored-mnist": (42.56, 6.41), "office-home": (73.75, 0.12),
    },
    "without-irm": {
        "nico": (98.00, None), "ccd": (61.33, None), "pacs": (91.77, None), "vlcs": (73.05, None),
        "colored-mnist": (6.71, 2.39), "office-home": (73.72, 0.21),
    },
    "without-orth": {
        "nico": (98.25, None), "ccd": (64.33, None), "pacs": (91.20, None), "vlcs": (75.90, None),
        "colored-mnist": (34.88, 10.89), "office-home": (73.68, 0.25),
    },
}  # fmt: skip

# The paper's row "OoD-Bench top 3": networks trained end to end on all training images, not few-shot learners on frozen
# features. Rows of their own, never beside a method of the same name that saw 16 images per class. Where a standard
# error is None, the source at hand (the paper's main table) gives none.
OOD_BENCH: dict[str, Numbers] = {
    "andmask": {"nico": (72.20, None), "vlcs": (77.13, None)},
    "groupdro": {"nico": (71.83, None)},
    "erm": {"nico": (71.44, None)},
    "irm": {"ccd": (51.72, None)},
    "erdg": {"ccd": (51.71, None)},
    "sagnet": {"ccd": (44.41, None)},
    "rsc": {"pacs": (82.82, None), "vlcs": (77.14, None)},
    "vrex": {"pacs": (81.78, None)},
    "mmd": {"pacs": (81.72, None)},
    "mldg": {"vlcs": (76.25, None)},
}

# Base-to-new: data set → method → OoD accuracy, OoD Acc*, I.I.D. accuracy, I.I.D. Acc*.
BASE_TO_NEW: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "nico-sub": {
        "coop": (72.10, 88.30, 90.55, 96.41),
        "cocoop": (75.15, 88.41, 93.64, 96.93),
        "dplclip": (46.06, 77.21, 66.83, 86.02),
        "cal": (72.12, 89.05, 83.29, 95.13),
        "bayes-cal": (76.36, 93.26, 89.45, 96.27),
    },
    "pacs": {
        "coop": (55.18, 87.78, 72.39, 89.83),
        "cocoop": (58.16, 83.87, 59.51, 75.97),
        "dplclip": (35.96, 53.67, 47.98, 70.06),
        "cal": (57.30, 90.73, 71.50, 91.19),
        "bayes-cal": (60.40, 89.85, 72.97, 92.54),
    },
}

# Convergence on NICO_SUB: variant → final loss, target loss, test accuracy (%).
INSTANCES: dict[str, tuple[float, float, float]] = {
    "instance-coop": (0.24, 0.23, 95.58),
    "instance-pl": (0.28, 0.26, 96.08),
    "instance-lv": (0.18, 0.15, 91.42),
    "instance-w2v": (0.21, 0.08, 89.33),
    "instance-visual": (0.74, 0.29, 92.92),
}


def is_papers(backbone: str) -> bool:
    """Whether a backbone is the one of the paper: CLIP's RN50, wherever its weights came from."""
    return backbone.partition(":")[0] == "RN50"


def accuracy(variant: str, dataset: str, end_to_end: bool = False) -> Value | None:
    """A published accuracy, as a fraction: of a few-shot method, or of a network trained end to end on all images."""
    found = (OOD_BENCH if end_to_end else MAIN).get(variant, {}).get(dataset)
    if found is None:
        return None
    mean, error = found
    return Value(mean / 100, None if error is None else error / 100)
