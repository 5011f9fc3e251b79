"""What reading a long list and a large folder takes: a table of a million rows, a folder of 100,000 files.

    python -m speed.manifests [--rows 1000000] [--files 100000]

The rows name images behind addresses, which are not asked for one by one; the files are empty. Each part runs in a
process of its own; memory is its peak above what Python and the imports take, and what is kept of it. Needs Linux.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed.bank import Watch, status
from speed.measure import ROOT, Result, print_results, write_json

RESULTS = Path(__file__).parent / "results" / "manifests-cpu.json"
MB = 1e6


def write_table(path: Path, rows: int) -> None:
    """rows images in 50 folders, of 1,000 classes in 4 environments."""
    with path.open("w", encoding="utf-8") as file:
        file.write("path,class,environment,split\n")
        for n in range(rows):
            file.write(f"s3://bucket/images/part-{n % 50:03}/{n:07}.jpg,class {n % 1000},place {n % 4},\n")


def write_folder(path: Path, files: int) -> None:
    """files empty images of 100 classes in 4 environments."""
    for environment in range(4):
        for name in range(100):
            (path / f"place {environment}" / f"class {name}").mkdir(parents=True)
    for n in range(files):
        (path / f"place {n % 4}" / f"class {n // 4 % 100}" / f"{n:07}.jpg").touch()


def read(path: Path) -> dict[str, Any]:
    """In this process: seconds of processor time, peak and kept memory (MB), images."""
    from bayescal.data.manifest import read_manifest

    with tempfile.TemporaryDirectory() as small:  # what is loaded late is loaded by now
        write_table(Path(small) / "small.csv", 10)
        read_manifest(Path(small) / "small.csv")
    with Watch() as watch:
        before = status("VmRSS")
        found = read_manifest(path)
        kept = status("VmRSS") - before
    return {**watch.found, "kept MB": kept / MB, "images": len(found)}


def _in_process(path: Path) -> dict[str, Any]:
    code = f"import json; from pathlib import Path; from speed.manifests import read; print(json.dumps(read(Path({str(path)!r}))))"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(rows: int, files: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        table, tree = Path(folder) / "table.csv", Path(folder) / "images"
        write_table(table, rows)
        write_folder(tree, files)
        results = []
        for what, path, count in (("rows", table, rows), ("files", tree, files)):
            found = _in_process(path)
            assert found["images"] == count
            busy = found["processor seconds"]
            results += [
                Result(f"read {count:,} {what}", busy, notes=found),
                Result("    memory, at the peak", found["memory MB"], target=256, unit="MB"),
                Result("    memory, kept", found["kept MB"], unit="MB"),
            ]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    given = parser.parse_args()
    results = measure(given.rows, given.files)
    print_results(results)
    write_json(results, RESULTS, "python -m speed.manifests")


if __name__ == "__main__":
    main()
