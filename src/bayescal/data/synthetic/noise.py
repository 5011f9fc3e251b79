"""Pictures of nothing: noise of every grain and contrast, from a plain colour over clouds to a screen without signal.

z = noise with the power spectrum |frequency|^(−2α),  α in 0 … 3         (0: white, 2 and more: clouds)
picture = colour + contrast · z,  contrast in 0 … 128                    (0: plain)
"""

import numpy as np

STEEPEST, STRONGEST = 3.0, 128.0


def noise_pictures(count: int, side: int, seed: int = 0) -> list[np.ndarray]:
    """`count` pictures (side, side, 3) uint8."""
    random, found = np.random.default_rng(seed), []
    axis = np.fft.fftfreq(side)
    frequency = np.hypot(axis[:, None], axis)
    frequency[0, 0] = 1.0  # the mean, which is taken away below
    for _ in range(count):
        slope, contrast, grey = random.uniform(0, STEEPEST), STRONGEST * random.random() ** 2, random.random()
        noise = np.fft.fft2(random.normal(size=(side, side, 3)), axes=(0, 1)) / frequency[..., None] ** slope
        waves = np.fft.ifft2(noise, axes=(0, 1)).real
        waves = (waves - waves.mean((0, 1))) / max(float(waves.std()), 1e-9)
        # Between grey, where the channels agree, and coloured, where they do not.
        waves = grey * waves.mean(2, keepdims=True) * 3**0.5 + (1 - grey) * waves
        colour = grey * random.uniform(0, 255) + (1 - grey) * random.uniform(0, 255, 3)
        found.append((colour + contrast * waves).clip(0, 255).astype(np.uint8))
    return found
