"""The scaling benchmark measures a point in a process of its own and writes its table and picture."""

import json
from pathlib import Path

from speed import scaling


def test_scaling_measures_and_writes(tmp_path: Path):
    row = scaling.in_fresh_process(scaling.Point("classes", classes=4, context=2, images=6, repeats=1))
    assert row["classes"] == 4
    assert row["blocks"] == 1
    assert row["seconds"] > 0.0
    assert row["peak GB"] > 0.1
    scaling.write([row], tmp_path, "python -m speed.scaling")
    assert json.loads((tmp_path / "scaling-cpu.json").read_text())["points"] == [row]
    assert "| mini | 4 | 1 | 2 | 6 | end |" in (tmp_path / "scaling-cpu.md").read_text()
    assert (tmp_path / "scaling-cpu.png").stat().st_size > 1000
    assert {point.sweep for point in scaling.points()} == set(scaling.SWEEPS)
