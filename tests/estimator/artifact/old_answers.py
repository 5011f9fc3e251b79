"""What today's code says of the nine new images with each model of version 0.1.0, as JSON: python old_answers.py FOLDER

A program of its own, because a processor's instructions are chosen when torch is imported (`test_old_artifacts.py`).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bayescal import FewShotClassifier
from old_files import OLD, expected, makers


def main(folder: Path) -> None:
    backbone = makers().backbone_name(folder / "backbone")
    said = {}
    for name, then in expected()["models"].items():
        classifier = FewShotClassifier.load(OLD / "models" / name, backbone=backbone, cache=None)
        answers = classifier.details(makers().new_images())
        said[name] = {field: value.tolist() for field, value in vars(answers).items() if field in then}
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
