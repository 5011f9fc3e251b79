"""NICO_SUB: the images and parts of NICO (see nico.py) with its 19 subclasses as classes.

Used for the study of convergence and for base-to-new; the order of the classes below is that of Zhu et al. Not every
subclass occurs in every context, so some class × environment cells are empty: shots then come from the others.
"""

from bayescal.data.datasets.nico import nico_dataset
from bayescal.data.datasets.trees import as_words

BASE = "bear cow dog horse rat bicycle bus car helicopter motorcycle train truck elephant".split()
NEW = "monkey sheep airplane bird boat cat".split()

NICO_SUB = nico_dataset(
    "subclass",
    name="nico-sub",
    title="NICO_SUB",
    class_words=as_words(BASE + NEW),
    base_classes=tuple(BASE),
    new_classes=tuple(NEW),
)
