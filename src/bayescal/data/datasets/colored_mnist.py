"""ColoredMNIST (Arjovsky et al. 2019): digits whose colour goes with their label in training and against it at test.

Made here from MNIST, by `bayescal data make-coloredmnist`; data/synthetic/colored_mnist.py says how.
"""

from functools import partial

from bayescal.data.datasets.base import Dataset, part_folds
from bayescal.data.datasets.made import read_made
from bayescal.data.datasets.trees import Expected
from bayescal.data.synthetic.colored_mnist import CLASS_FOLDERS
from bayescal.data.synthetic.coloring import CLASS_NAMES
from bayescal.data.synthetic.mnist import SOURCE
from bayescal.data.synthetic.shift import ENVIRONMENT_WORDS

_SHARED = {
    "title": "ColoredMNIST",
    "class_words": dict(zip(CLASS_FOLDERS, CLASS_NAMES, strict=True)),
    "environment_words": ENVIRONMENT_WORDS,
    "images": None,  # 60,000 unless fewer were asked for
    "layout": """
    colored-mnist/
        train_1/
            less_than_five/
                00002.png
            greater_than_four/
        train_2/
        test/
        manifest.csv            path, class, environment, split (train, val, test), digit, colour, flips""",
    "source": f"made from MNIST: bayescal data make-coloredmnist --from mnist.npz -o colored-mnist. {SOURCE}",
}

COLORED_MNIST = Dataset(
    name="colored-mnist",
    shift="correlation",
    citation="Arjovsky et al., Invariant Risk Minimization, 2019; digits: LeCun et al. 1998",
    read=partial(read_made, Expected(**_SHARED)),
    folds=partial(part_folds, validation="test-domain"),
    selection="test-domain",
    **_SHARED,
)
