"""A command that answers for one image loads torch and what decodes images, and reads no texts."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from bayescal.backbones import mini
from bayescal.cli import main

mini.read_texts = lambda: sys.exit("the text tower was read")
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
HEAVY = {
    "open_clip", "timm", "torchvision", "sklearn", "scipy", "matplotlib", "plotly", "optuna", "pandas", "sympy",
    "transformers", "ray", "fastapi",
}  # fmt: skip


def test_predict_imports_nothing_that_it_does_not_need(model, shapes):
    image = next(shapes.rglob("*.png"))
    command = [sys.executable, "-c", PROGRAM, "predict", str(model), str(image), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)
    assert answer["status"] == "ok"
    modules = json.loads(done.stderr.splitlines()[-1])
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    unneeded = ("bayescal.report.", "bayescal.training.loop", "torch._dynamo")
    assert not [name for name in modules if name.startswith(unneeded)]
    trainers = {"bayescal.end_to_end.train", "bayescal.estimator.fitting", "bayescal.estimator.classifier"}
    assert not trainers & set(modules)
