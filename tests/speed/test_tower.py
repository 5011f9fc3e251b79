"""What mini's speed is compared with is what came before, and it can be measured where little is installed."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from open_clip.modified_resnet import ModifiedResNet
from speed.first_mini import BLOCKS, DIM, HEADS, SIDE, WIDTH, FirstMini
from torch import nn

from bayescal.backbones.inference import fast_for_inference

ROOT = Path(__file__).parents[2]
NOT_NEEDED = ("open_clip", "torchvision", "timm", "PIL", "rich", "sklearn", "scipy", "typer", "optuna", "matplotlib")


def test_the_first_minis_tower_is_clips() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = ModifiedResNet(list(BLOCKS), DIM, HEADS, image_size=SIDE, width=WIDTH).eval()
        for module in plain.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.1)
        pixels = torch.randn(3, 3, SIDE, SIDE)
    with torch.inference_mode():
        expected = plain(pixels)
        ours = FirstMini()
        ours.load_state_dict(fast_for_inference(plain).state_dict())
        found = ours(pixels)
    assert expected.std() > 0.01  # images are told apart
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_towers_alone_are_measured_with_little_installed(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED})); "
        "import runpy; runpy.run_module('speed.tower', run_name='__main__')"
    )
    options = ["--alone", "--json", "--images", "16", "--threads", "1", "--repeats", "1"]
    command = [sys.executable, "-c", program, *options, "--output", str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == json.loads((tmp_path / "found.json").read_text())
    rates = {result["what"].removeprefix("tower alone, 1 thread: "): result["ours"] for result in record["results"]}
    assert {"first mini", "mini 2"} <= set(rates) <= {"first mini", "mini 2", "mini 2, bfloat16"}
    assert min(rates.values()) > 0
