"""What is given to others: small enough, and with the licences of what it is made from."""

import tomllib
from pathlib import Path

from bayescal.backbones import mini
from command_line import run

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 40e6  # bytes of the wheel; compressed, it is smaller than the files


def test_the_package_is_small():
    files = [path for path in (ROOT / "src" / "bayescal").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < LARGEST
    assert [path.name for path in files if path.suffix == ".safetensors"] == ["bayescal-mini.safetensors"]


def test_the_wheel_says_where_the_weights_come_from():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shipped = {path.name: path.read_text() for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert {"LICENSE", "NOTICE", "Apache-2.0.txt"} == set(shipped)
    assert "Apache License" in shipped["Apache-2.0.txt"]
    for words in ("DINOv2", "Meta", "Apache License, Version 2.0", "Changes:"):
        assert words in shipped["NOTICE"]


def test_the_card_of_the_weights_is_in_the_package():
    """Where they come from, what they were trained on and never saw, the licence, weaknesses; one text, not two."""
    card = mini.CARD.read_text(encoding="utf-8")
    assert mini.CARD.parent == mini.WEIGHTS.parent
    for said in ("DINOv2-S/14 (Meta, Apache-2.0)", "**Trained on**", "**Never trained on**", "licence", "Weaknesses"):
        assert said in card
    page = (ROOT / "docs" / "mini.md").read_text(encoding="utf-8")
    assert "mini/MODEL_CARD.md" in page
    assert not {line for line in card.splitlines() if line} & {line for line in page.splitlines() if line}
    shown = run("backbones", "mini")
    assert shown.code == 0, shown.err
    assert shown.out.strip() == card.strip()
