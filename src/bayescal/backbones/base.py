"""What the rest of the package sees of a vision-language model: two frozen towers and how to feed them."""

import copy
import hashlib
import itertools
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.data.preprocess import Preprocess
from bayescal.errors import BackboneError, DataError
from bayescal.text.tower import LazyTower, TextTower

log = logging.getLogger(__name__)

AUTO_DEVICE = "auto"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
PRECISIONS = (FLOAT32, BFLOAT16)
_RECIPES = {FLOAT32: FLOAT32, BFLOAT16: "bfloat16, residual in float32"}  # goes into fingerprints: what is computed


class Tokenizer(Protocol):
    """The part of open_clip's byte-pair tokenizer that is used here."""

    @property
    def sot_token_id(self) -> int: ...

    @property
    def eot_token_id(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class ImageEncoder(Protocol):
    """A model that turns images into features: a backbone, or an image model that was trained end to end."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str:
        """The name with its version."""
        ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def dim(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def preprocess(self) -> Preprocess: ...

    def encode_images(self, pixels: Tensor) -> Tensor: ...


class Frozen(nn.Module):
    """An image tower that nobody sets to training by accident: statistics and weights stay as loaded."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner.requires_grad_(False).eval()
        self.training = False

    def train(self, mode: bool = True) -> "Frozen":
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        return self.inner(pixels)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen vision-language model. Safe to share: nothing in it changes after loading."""

    name: str  # as the user wrote it: "mini", "RN50:openai", "RN50:/path/RN50.pt", "mini@bfloat16"
    architecture: str  # open_clip's name of the architecture
    visual: nn.Module  # pixels (B, 3, size, size) → (B, D)
    tower: LazyTower  # of texts; `text` opens it
    tokenizer: Tokenizer
    preprocess: Preprocess
    logit_scale: float  # s in s·cos(image, text): the exponential of the stored parameter
    fingerprint: str  # of weights + architecture + preprocessing, see fingerprint.py
    defaults: TrainingDefaults
    trained_context: int  # text positions that training reached; prompts should not be longer
    known_tokens: frozenset[int] | None = None  # tokens seen in training; None: the whole vocabulary
    label: str = ""  # the name with its version, where the name alone does not say which weights: "mini 2"
    precision: str = FLOAT32  # of the image tower's products; see `in_precision`

    @property
    def text(self) -> TextTower:
        """The text tower, made when it is first asked for: images are encoded without it."""
        return self.tower.open()

    @property
    def dim(self) -> int:
        """D, the width of the joint image–text space."""
        return self.tower.dim

    @property
    def device(self) -> torch.device:
        return self.tower.device

    @property
    def sot(self) -> int:
        return self.tokenizer.sot_token_id

    @property
    def eot(self) -> int:
        return self.tokenizer.eot_token_id

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Image features, not normalised: (B, 3, size, size) → (B, D) float32 on the backbone's device."""
        return encode_pixels(self.visual, pixels, self.preprocess.size, self.device, self.precision)

    def tokenize(self, text: str) -> list[int]:
        """Token ids without start, end and padding."""
        ids = [int(i) for i in self.tokenizer.encode(text)]
        if self.sot in ids or self.eot in ids:
            raise DataError(f"{text!r} contains a marker that the text tower reserves for the start or end of a text")
        return ids

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Text features, not normalised: N sentences → (N, D) float32 on the backbone's device.

        A sentence longer than the tower's context is cut before its end-of-text token, as CLIP does.
        """

        room = self.text.context_length - 2
        prompts = [self.tokenize(text)[:room] for text in texts]
        if not prompts:
            return torch.empty(0, self.dim, device=self.device)
        return self.text.encode(prompts).float()

    def unknown_tokens(self, text: str) -> list[str]:
        """The pieces of a text that the text tower never saw in training: all of them look alike to it."""
        known = self.known_tokens
        if known is None:
            return []
        runs = itertools.groupby(self.tokenize(text), key=lambda i: i in known)
        # neighbours are decoded together: one character outside the Latin script is several tokens
        return [piece for seen, ids in runs if not seen for piece in self.tokenizer.decode(list(ids)).split()]

    def to(self, device: str | torch.device) -> "Backbone":
        """The same backbone on another device; this one stays where it is, because others may share it."""
        device = usable_device(device)
        if device == self.device:
            return self
        return replace(self, visual=copy.deepcopy(self.visual).to(device), tower=self.tower.to(device))

    def in_precision(self, precision: str) -> "Backbone":
        """The same backbone whose image tower multiplies in another precision; it shares the tensors of this one.

        Its features are others, if only slightly, so it has a fingerprint of its own: features, models and records of
        the two are never mixed.
        """
        return replace(
            self,
            name=f"{self.name}@{precision}",
            label=f"{self.label}@{precision}",
            fingerprint=hashlib.sha256(f"{self.fingerprint} {_RECIPES[precision]}".encode()).hexdigest()[
                : len(self.fingerprint)
            ],
            precision=precision,
        )


def encode_pixels(
    visual: nn.Module, pixels: Tensor, size: int, device: torch.device, precision: str = FLOAT32
) -> Tensor:
    """Features of an image tower: (B, 3, size, size) → (B, D) float32; `precision` is that of its products."""
    expected = (3, size, size)
    if pixels.ndim != 4 or tuple(pixels.shape[1:]) != expected:
        raise BackboneError(
            f"expected pixels of shape (B, {', '.join(map(str, expected))}), found {tuple(pixels.shape)}"
        )
    with torch.inference_mode(), _arithmetic(device, precision):
        features = visual(pixels.to(device, torch.float32)).float()
    return features.clone()  # outside inference mode: an ordinary tensor, usable in autograd


def usable_device(device: str | torch.device) -> torch.device:
    """Check that a device exists here, with its index written out so that equal devices compare equal; "auto" finds
    one."""
    if device == AUTO_DEVICE:
        found = _best_device()
        log.info("device auto: %s", found)
        return found
    try:
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        kind = str(device).partition(":")[0]
        missing = {"cuda": "PyTorch finds no such GPU", "mps": "PyTorch has no such GPU"}
        reason = missing.get(kind, "expected auto, cpu, cuda, cuda:1 … or mps")
        raise BackboneError(f"device {str(device)!r} cannot be used here: {reason}") from error


def _best_device() -> torch.device:
    """CUDA, then Apple's GPU where it computes, else the CPU."""
    for kind in ("cuda", "mps"):
        try:
            one = torch.ones(1, device=kind)
            if float((one + one).cpu()) == 2.0:
                return one.device
        except (RuntimeError, AssertionError, NotImplementedError):
            continue  # there is none, or it is there and does not work
    return torch.device("cpu")


def _arithmetic(device: torch.device, precision: str):
    """How products are computed. float32 means it: without TF32 in convolutions on CUDA, because features are computed
    once and compared with those made elsewhere."""
    if precision != FLOAT32:
        return torch.autocast(device.type, getattr(torch, precision))
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
