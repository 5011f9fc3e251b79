"""What to label next: images the model is uncertain of, and that are not like one another.

Greedy: the next image is the one with the largest  entropy(x) · (1 − max cosine(x, those before it)).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescal.estimator.base_predictor import BasePredictor

SPREAD = 200  # images that are chosen so; behind them, by entropy alone


def next_to_label(predictor: BasePredictor, features: Tensor) -> list[int]:
    """The numbers of images (N, D), those first from whose label the model would learn most."""
    if not len(features):
        return []
    entropy = torch.from_numpy(predictor.details(features).entropy).double()
    directions = F.normalize(features.double(), dim=-1)
    distance = torch.ones_like(entropy)  # to the nearest of those chosen
    left = torch.ones_like(entropy, dtype=torch.bool)
    chosen: list[int] = []
    for _ in range(min(SPREAD, len(features))):
        image = int((entropy * distance).masked_fill(~left, -1.0).argmax())
        chosen.append(image)
        left[image] = False
        distance = torch.minimum(distance, 1 - directions @ directions[image]).clamp(min=0)
    rest = [image for image in entropy.argsort(descending=True).tolist() if left[image]]
    return chosen + rest
