"""NICO_SUB: the images and parts of NICO (see nico.py) with its 19 subclasses as classes.

Used for the study of convergence and for base-to-new; the order of the classes below is that of Zhu et al. Not every
subclass occurs in every context, so some class × environment cells are empty. Shots are drawn as NICO's are.
"""

from bayescal.data.datasets.nico import nico_dataset
from bayescal.data.datasets.trees import as_words

BASE = "bear cow dog horse rat bicycle bus car helicopter motorcycle train truck elephant"
NEW = "monkey sheep airplane bird boat cat"

NICO_SUB = nico_dataset(
    "subclass",
    name="nico-sub",
    title="NICO_SUB",
    class_words=as_words(f"{BASE} {NEW}"),
    base_classes=tuple(BASE.split()),
    new_classes=tuple(NEW.split()),
)
