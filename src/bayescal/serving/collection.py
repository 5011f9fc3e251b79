"""The images that a user has added, with what the model says of them, what the user says, and what they look like.

    file ─► LabelStore.keep_file ─► features (one forward pass for all that wait) ─► LabelStore.add ─► answers

Features depend on the image and the backbone alone: they are kept beside the images and outlive models and restarts.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescal.errors import DataError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.prediction import Prediction
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.serving.labels import AddedImage, LabelStore, is_as_added
from bayescal.serving.teaching import digests_of
from bayescal.util.jsonable import finite, jsonable

TOP = 5  # classes that are shown of an answer at once
NEIGHBOURS = 8
ANSWERS_AT_ONCE = 512
_log = logging.getLogger("bayescal")


@dataclass(frozen=True)
class Waiting:
    """A file on its way to be one of the images."""

    image: AddedImage
    ready: "Future[None]"


class Collection:
    """Images, answers and labels under one model, which may be replaced by another on the same backbone."""

    def __init__(self, predictor: BasePredictor, store: LabelStore):
        self.store = store
        self.bank = FeatureBank(predictor.backbone, folder=store.folder)
        self._features: dict[str, Tensor] = {}  # (D,) each, by the image's id
        self._answers: dict[str, dict[str, Any]] = {}
        self._waiting: list[Waiting] = []
        self._lost: set[str] = set()  # images whose file is gone or damaged, by id
        self._mutex, self._encoding = threading.RLock(), threading.Lock()
        self._since_model = 0  # number of the last change that touched every answer
        self._take(predictor)

    def _take(self, predictor: BasePredictor) -> None:
        self.predictor, training = predictor, predictor.training
        self._taught: dict[str, str] = {}  # the class under which it learned an image, by the image's id
        if training is not None:
            names = [str(name) for name in predictor.classes]
            self._taught = {
                h.tobytes().hex(): names[c] for h, c in zip(training.hashes, training.class_ids, strict=True)
            }

    def use(self, predictor: BasePredictor) -> None:
        """Another model answers from now on."""
        if predictor.backbone.fingerprint != self.predictor.backbone.fingerprint:
            raise DataError("the model has another backbone than the one the images were read with")
        with self._mutex:
            self._take(predictor)
            self._answers.clear()
            self._since_model = self.store.refresh()

    # ---- adding ---------------------------------------------------------------------------------------------------

    def add(self, content: bytes, name: str) -> str:
        """Keep an image; its id. One that cannot be read is an error and leaves nothing behind.

        Called by several threads: whoever is first computes the features of all that wait.
        """
        if not content:
            raise DataError(f"{name}: the file is empty (0 bytes)")
        image = self.store.keep_file(content, name)
        known = self.store.get(image.id)
        if known is not None and not known.removed and image.id in self._features:
            return image.id
        mine = Waiting(image, Future())
        with self._mutex:
            self._waiting.append(mine)
        with self._encoding:
            if not mine.ready.done():
                self._take_in_all()
        mine.ready.result()
        return image.id

    def _take_in_all(self) -> None:
        with self._mutex:
            batch, self._waiting = self._waiting, []
        try:
            reasons = self._encode([waiting.image for waiting in batch])
            good = {w.image.id: w.image for w in batch if w.image.id not in reasons}
            self.store.add(good.values())
        except Exception as error:
            for waiting in batch:
                waiting.ready.set_exception(error)
            return
        for waiting in batch:
            if reason := reasons.get(waiting.image.id):
                self.store.forget_file(waiting.image)
                said = reason.removeprefix(f"{self.store.path(waiting.image)}: ")
                waiting.ready.set_exception(DataError(f"{waiting.image.name}: {said}"))
            else:
                waiting.ready.set_result(None)

    def _encode(self, images: Sequence[AddedImage]) -> dict[str, str]:
        """Features of images whose files are there; of those that cannot be read, the reason by id."""
        contents = ContentIndex.known(digests_of([image.id for image in images]), {})
        encoded = self.bank.encode([self.store.path(image) for image in images], contents=contents)
        reasons = {images[failure.index].id: failure.reason for failure in encoded.failures}
        with self._mutex:
            for image, row in zip(images, encoded.features, strict=True):
                if image.id not in reasons:
                    self._features[image.id] = row
        return reasons

    # ---- what is known --------------------------------------------------------------------------------------------

    def present(self) -> list[AddedImage]:
        """Images that are not removed and can be read, with features."""
        self.store.refresh()
        images = [image for image in self.store.images() if not image.removed]
        known = self._features.keys() | self._lost
        if missing := [image for image in images if image.id not in known]:
            with self._encoding:  # after a restart, or added by another process
                self._encode_again([image for image in missing if image.id not in self._features])
        return [image for image in images if image.id in self._features]

    def _encode_again(self, images: Sequence[AddedImage]) -> None:
        """Features of images that were added earlier, if their files are what they were then."""
        whole = {image.id: image for image in images if is_as_added(self.store.path(image), image.id)}
        reasons = self._encode(list(whole.values())) if whole else {}
        if lost := [image for image in images if image.id not in whole or image.id in reasons]:
            self._lost.update(image.id for image in lost)
            files = ", ".join(str(self.store.path(image)) for image in lost[:3])
            more = f" and {len(lost) - 3:,} more" if len(lost) > 3 else ""
            _log.warning("added images whose files are gone or damaged are left out: %s%s. Add them again", files, more)

    def features(self, images: Sequence[AddedImage]) -> Tensor:
        """(n, D)"""
        width = self.predictor.backbone.dim
        return torch.stack([self._features[i.id] for i in images]) if images else torch.empty(0, width)

    def entries(self, since: int = 0) -> list[dict[str, Any]]:
        """Images that something was said of after the change `since`, as the page reads them."""
        present = self.present()
        every = self._since_model > since  # another model answers since then; what was removed stays removed
        wanted = [image for image in present if every or image.change > since]
        self._answer(wanted)
        learned = self.learned(wanted)
        gone = [image for image in self.store.images(since) if image.removed] if since else []
        return [
            {**_entry(image), "answer": self._answers[image.id], "learned": own}
            for image, own in zip(wanted, learned, strict=True)
        ] + [_entry(image) for image in gone]

    def learned(self, images: Sequence[AddedImage]) -> list[bool]:
        """Whether the model has learned from each image, under the label it has now if it has one."""
        names = [self._taught.get(image.id) for image in images]
        return [
            name is not None and (image.label is None or image.label.class_name == name)
            for image, name in zip(images, names, strict=True)
        ]

    def _answer(self, images: Sequence[AddedImage]) -> None:
        with self._mutex:
            new = [image for image in images if image.id not in self._answers]
            for start in range(0, len(new), ANSWERS_AT_ONCE):
                part = new[start : start + ANSWERS_AT_ONCE]
                details = self.predictor.details(self.features(part))
                for row, image in enumerate(part):
                    self._answers[image.id] = short_answer(details, row, self.predictor.classes)

    def details(self, image: AddedImage) -> dict[str, Any]:
        """Everything about one image: every class's probability, the parts of the uncertainty, its neighbours."""
        if image not in self.present():
            raise DataError(f"{image.name} is not among the images any more")
        features = self.features([image])
        details = self.predictor.details(features)
        order = np.argsort(-details.probabilities[0])
        names = [str(name) for name in self.predictor.classes]
        return jsonable(
            {
                "id": image.id,
                "name": image.name,
                "probabilities": [
                    {"class": names[i], "probability": float(details.probabilities[0, i])} for i in order
                ],
                "entropy": float(details.entropy[0]),
                "mutual_information": float(details.mutual_information[0]),
                "disagreement": float(details.disagreement[0]),
                "neighbours": self.neighbours(features, bytes.fromhex(image.id)),
            }
        )

    def neighbours(self, features: Tensor, content: bytes) -> list[dict[str, Any]]:
        """The training images that look most like one image (1, D), best first; never itself, once it is taught."""
        training = self.predictor.training
        if training is None:
            return []
        numbers, cosines = training.nearest(features, NEIGHBOURS + 1)
        predictor = self.predictor
        found = zip(numbers[0].tolist(), cosines[0].tolist(), strict=True)
        others = [pair for pair in found if training.hashes[pair[0]].tobytes() != content]
        return [
            {
                "number": int(n),
                "class": str(predictor.classes[training.class_ids[n]]),
                "environment": str(predictor.environments[training.environment_ids[n]]),
                "similarity": finite(cosine),
            }
            for n, cosine in others[:NEIGHBOURS]
        ]


def short_answer(details: Prediction, row: int, classes: Sequence[Any]) -> dict[str, Any]:
    """What the page shows of an answer at once."""
    probabilities = details.probabilities[row]
    top = np.argsort(-probabilities)[:TOP]
    return {
        "class": str(details.labels[row]),
        "confidence": finite(details.confidence[row]),
        "unsure": bool(details.unsure[row]),
        "unfamiliar": bool(details.unfamiliar[row]),
        "environment": str(details.environment[row]),
        "entropy": finite(details.entropy[row]),
        "familiarity": finite(details.familiarity[row]),
        "top": [{"class": str(classes[i]), "probability": finite(probabilities[i])} for i in top],
    }


def _entry(image: AddedImage) -> dict[str, Any]:
    label = image.label
    return {
        "id": image.id,
        "name": image.name,
        "added": image.added,
        "change": image.change,
        "removed": image.removed,
        "label": None if label is None else {"class": label.class_name, "environment": label.environment},
    }
