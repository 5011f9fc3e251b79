"""What the page works on: the model in use, the images beside it, what is being learned.

    nothing yet ──fit──► a model with its collection ──teach──► a taught model ──undo──► the one before

The model that the server was started with is never changed. Taught models are numbered folders beside the labels;
which one is in use stands in the journal, so that a restart and other processes find the same.
"""

import hashlib
import logging
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bayescal.data.images import content_hash
from bayescal.errors import BayescalError, DataError
from bayescal.estimator.artifact import CONFIG
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.suggesting import suggest, unknown
from bayescal.export.reading import LABELS
from bayescal.serving import quality, start
from bayescal.serving.collection import Collection
from bayescal.serving.exported_predictor import ExportedPredictor
from bayescal.serving.job import Jobs
from bayescal.serving.labels import NONE_TAUGHT, AddedImage, Label, LabelStore, TaughtModel
from bayescal.serving.service import Service
from bayescal.serving.teaching import MODELS, teach
from bayescal.serving.torch_engine import TorchEngine
from bayescal.util.jsonable import jsonable

CHECKPOINTS = ".checkpoints"  # where teaching that was interrupted continues
QUEUE = 200  # images that are put in order; the page puts the others behind them, the least confident first
HERE = "here"  # the environment of images whose user says nothing about where they come from
LoadModel = Callable[[Path], BasePredictor]


class Desk:
    """One model, or none yet, and what a user does with it; called by several threads."""

    def __init__(self, load: LoadModel, *, local: bool, labels: Path | None = None, threads: int = 1):
        """`load` reads a model folder; `threads`: cores of one forward pass of the API's engine.

        `local`: nobody but this machine can ask, so that its folders may be looked at. `labels`: where images and
        labels are kept; None: beside the model.
        """
        self._load, self._labels, self._threads, self.local = load, labels, threads, local
        self._service: Service | None = None
        self.session = secrets.token_hex(8)  # by which a page notices that the server was started anew
        self.jobs = Jobs()
        self._mutex = threading.RLock()
        self.model: Path | None = None
        self.base: BasePredictor | None = None  # the model that the server was started with
        self._collection: Collection | None = None
        self._named = 0  # number of the model that the journal named last
        self._used = NONE_TAUGHT  # the model that answers here
        self._mark = ""  # of the model that the server was started with

    def open(self, model: Path, base: BasePredictor | None = None) -> None:
        """Work with this model from now on, and with what was taught to it before."""
        base = base or self._load(model)
        folder = self._labels or model.with_name(f"{model.name}-labels")
        with self._mutex:
            self.model, self.base, self._named, self._used = model, base, 0, NONE_TAUGHT
            about = model / (CONFIG if (model / CONFIG).is_file() else LABELS)
            self._mark = hashlib.sha256(about.read_bytes()).hexdigest()
            self._collection = Collection(base, LabelStore(folder))
            self.session = secrets.token_hex(8)
            self._follow()
            if self._named == 0:
                self._answer_with(base)

    def answers_by(self, service: Service) -> None:
        """The API's service, which is to answer from the same model as the page."""
        self._service = service

    def _answer_with(self, predictor: BasePredictor) -> None:
        if self._service is not None and not isinstance(predictor, ExportedPredictor):
            self._service.engine = TorchEngine(predictor, self._threads)

    @property
    def collection(self) -> Collection:
        """Of the model in use, also if another process has just taught it."""
        if self._collection is None:
            raise DataError("there is no model yet: choose a folder with images to learn from")
        self._follow()
        return self._collection

    @property
    def ready(self) -> bool:
        return self._collection is not None

    def _follow(self) -> None:
        """Use the model that the journal names, or the one that this server was started with where it cannot be.

        That says nothing to the others: to them the model may belong, and a disk that fails once is no undo.
        """
        with self._mutex:
            assert self._collection is not None
            assert self.base is not None
            store = self._collection.store
            store.refresh()
            model = store.model
            if model.number == self._named:
                return
            taught = self._taught(store, model) if model.number else None
            self._collection.use(taught or self.base)
            self._answer_with(taught or self.base)
            self._named, self._used = model.number, model if taught else NONE_TAUGHT

    def _taught(self, store: LabelStore, model: TaughtModel) -> BasePredictor | None:
        """A taught model; None if it cannot be read, or was taught to another model than this."""
        if model.about.get("base") != self._mark:
            return None
        try:
            return self._load(store.folder / MODELS / str(model.number))
        except (BayescalError, OSError) as error:
            logging.getLogger("bayescal").warning("the taught model is not used: %s", error)
            return None

    # ---- what the page asks for -----------------------------------------------------------------------------------

    def state(self, since: int = 0) -> dict[str, Any]:
        """All that the page shows, or what has changed since it asked last."""
        job = None if self.jobs.progress is None else jsonable(asdict(self.jobs.progress))
        if not self.ready:
            return {"session": self.session, "model": None, "local": self.local, "job": job}
        collection = self.collection
        changes = collection.store.changes
        entries = collection.entries(since)
        return {
            "session": self.session,
            "local": self.local,
            "changes": changes,
            "model": self._about(collection),
            "images": entries,
            "new_labels": sum(not learned for _, learned in self._labelled(collection)),
            "job": job,
        }

    def _about(self, collection: Collection) -> dict[str, Any]:
        p, store = collection.predictor, collection.store
        return {
            "name": self.model.name if self.model else "",
            "path": str(self.model),
            "labels": str(store.folder),
            "number": self._used.number,
            "about": dict(self._used.about),
            "can_undo": bool(self._used.number),
            "method": p.method_name,
            "classes": [str(name) for name in p.classes],
            "environments": [str(name) for name in p.environments],
            "unsure_below": min(p.threshold, 1.0),
            "cannot_learn": self._cannot_learn(),
        }

    def _cannot_learn(self) -> str | None:
        """Why the model cannot be taught here; None if it can."""
        if isinstance(self.base, ExportedPredictor):
            return (
                "An exported model cannot learn. Serve the model that it was made from with --labels "
                f"{self.collection.store.folder}, and teach it there."
            )
        if self.base is not None and self.base.training is None:
            return "This model keeps none of its training images, so it cannot be taught here: fit it again."
        return None

    def image(self, image: str) -> AddedImage:
        found = self.collection.store.get(image)
        if found is None or found.removed:
            raise DataError("there is no such image here")
        return found

    def training_image(self, number: int) -> str:
        """Where a training image is, if its file is still what the model learned from."""
        training = self.collection.predictor.training
        if training is None or not 0 <= number < len(training):
            raise DataError("the model keeps no such training image")
        path = training.names[number]
        if not Path(path).is_file() or content_hash(path) != training.hashes[number].tobytes().hex():
            raise DataError("the file of this training image is gone or has changed")
        return path

    @property
    def model_in_use(self) -> Path:
        """The folder of the model that answers."""
        store, model = self.collection.store, self.model
        assert model is not None
        return store.folder / MODELS / str(self._used.number) if self._used.number else model

    def queue(self) -> list[str]:
        """Images without a label, those first from which the model would learn most."""
        collection = self.collection
        predictor, training = collection.predictor, collection.predictor.training
        images, learned = _with_learned(collection)
        left = [i for i, known in zip(images, learned, strict=True) if i.label is None and not known]
        if not left:
            return []
        features = collection.features(left)
        labelled = collection.features([image for image in images if image.label is not None])
        if training is not None:
            labelled = torch.cat([training.directions, labelled])
        found = suggest(features, unknown(predictor.details(features)), labelled, QUEUE)
        return [left[n].id for n in found.images.tolist()]

    def label(self, given: list[tuple[str, str | None, str | None, float | None]]) -> None:
        """(image, class, environment, when) each; a class of None takes the label back.

        `when` not None: the label comes late, and counts if the image was not labelled since.
        """
        store = self.collection.store
        store.refresh()
        store.label(
            [
                (image, None if name is None else Label(name, environment or HERE))
                for image, name, environment, when in given
                if when is None or (known := store.get(image)) is None or known.labelled < when
            ]
        )

    def quality(self) -> dict[str, Any]:
        collection = self.collection
        labelled = self._labelled(collection)
        fresh = [image for image, learned in labelled if not learned]
        labels, taught = [image.label for image in fresh], len(labelled) - len(fresh)
        return quality.report(collection.predictor, collection.features(fresh), labels, taught)

    # ---- what it does in the background ---------------------------------------------------------------------------

    def teach(self) -> None:
        """Refit with the labels; answers come from the new model when it is done."""
        collection, base = self.collection, self.base
        assert base is not None
        if reason := self._cannot_learn():
            raise DataError(reason)
        labelled = self._labelled(collection)
        if not any(not learned for _, learned in labelled):
            raise DataError("there is nothing new to teach: label some images first")
        images = [image for image, _ in labelled]

        def work() -> dict[str, Any]:
            store = collection.store
            taught = teach(base, collection.bank, images, [store.path(i) for i in images], store.folder / CHECKPOINTS)
            number = max([0, *(int(p.name) for p in (store.folder / MODELS).glob("[0-9]*") if p.name.isdigit())]) + 1
            before = _answers(collection)
            taught.predictor.save(store.folder / MODELS / str(number))
            about = {**taught.about, "labels": len(images), "previous": store.model.number, "base": self._mark}
            store.use_model(number, about)
            self._follow()
            shutil.rmtree(store.folder / CHECKPOINTS, ignore_errors=True)
            after = _answers(collection)
            changed = sum(after[image] != answer for image, answer in before.items() if image in after)
            return {**about, "number": number, "changed": changed, "others": len(after)}

        self.jobs.start("teach", work)

    def undo(self) -> None:
        """Back to the model before the one in use."""
        if self.jobs.running:
            raise BayescalError("something is being learned: wait until it is done, or stop it")
        store = self.collection.store
        if not self._used.number:
            raise DataError("there is nothing to undo: this is the model that the server was started with")
        store.use_model(store.previous.number, store.previous.about)
        self._follow()

    def fit(self, path: str, output: str, reading: start.Reading | None = None) -> None:
        """Learn a model from a folder on this machine, and work with it."""

        def work() -> dict[str, Any]:
            model = start.fit(path, output, reading)
            self.open(model)
            return {"model": str(model)}

        self.jobs.start("fit", work)

    @staticmethod
    def _labelled(collection: Collection) -> list[tuple[AddedImage, bool]]:
        """Images with a label, and whether the model has learned from them as they are labelled now."""
        return [(i, learned) for i, learned in zip(*_with_learned(collection), strict=True) if i.label is not None]


def _with_learned(collection: Collection) -> tuple[list[AddedImage], list[bool]]:
    images = collection.present()
    return images, collection.learned(images)


def _answers(collection: Collection) -> dict[str, str]:
    """The answers to images without a label."""
    return {entry["id"]: entry["answer"]["class"] for entry in collection.entries() if entry["label"] is None}
