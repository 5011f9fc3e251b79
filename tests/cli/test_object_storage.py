"""s3:// through the commands, from a store on loopback that speaks S3 as far as reading needs."""

import csv
import io
import json
import zipfile
from pathlib import Path

import pytest

from bayescal.estimator.artifact import CONFIG
from command_line import make_shapes, refused, run, shape
from object_store import Store

pytest.importorskip("s3fs", reason="s3:// needs s3fs: pip install 'bayescal[s3]'")
pytestmark = pytest.mark.xdist_group("command-line")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    return make_shapes(tmp_path_factory.mktemp("objects") / "pets", 3)


@pytest.fixture(scope="module")
def model(files) -> Path:
    """Learned from the files, as they lie on the disk."""
    made = run("fit", files, "-o", files.parent / "model", "--method", "clip", "--quiet")
    assert made.code == 0, made.err
    return files.parent / "model"


@pytest.fixture
def store(files, monkeypatch):
    """bucket/pets/environment/class/image, the same as an archive, a list and an archive's list."""
    import s3fs

    names = sorted(file.relative_to(files).as_posix() for file in files.rglob("*.png"))
    objects = {f"pets/{name}": (files / name).read_bytes() for name in names}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, objects[f"pets/{name}"])
    rows = [f"pets\\{name.replace('/', chr(92))};{name.split('/')[1]};{name.split('/')[0]}" for name in names]
    objects["pets.zip"] = content.getvalue()
    objects["list.csv"] = "\n".join(["path;class;environment", *rows]).encode()
    store = Store("bucket", objects)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()  # one of another test has its store's address and listings
    yield store
    s3fs.S3FileSystem.clear_instance_cache()
    store.shutdown()
    store.server_close()


def fit(data: object, tmp_path: Path, *more: object):
    model, cache = tmp_path / "model", tmp_path / "cache"
    return run("fit", data, "-o", model, "--method", "clip", "--force", "--cache", cache, *more)


def test_a_bucket_is_learned_from_and_every_image_is_fetched_once(store, tmp_path):
    images = sorted(name for name in store.objects if name.endswith(".png"))
    made = fit("s3://bucket/pets", tmp_path)
    assert made.code == 0, made.err
    assert "Read as layout environment/class/image: 2 classes (dog, house), 2 environments" in made.out
    assert store.fetched() == images
    store.asked.clear()
    again = fit("s3://bucket/pets", tmp_path)
    assert again.code == 0, again.err
    assert store.fetched() == [], "its hashes and its features are in the cache"
    store.objects["pets/photo/dog/0.png"] = store.objects["pets/sketch/dog/0.png"] + b" "
    assert fit("s3://bucket/pets", tmp_path).code == 0
    assert store.fetched() == ["pets/photo/dog/0.png"], "what has changed is fetched again"


def test_a_list_and_an_archive_there_say_the_same_as_the_folder(store, tmp_path):
    found = []
    for data in ("s3://bucket/pets", "s3://bucket/list.csv", "s3://bucket/pets.zip"):
        store.asked.clear()
        made = fit(data, tmp_path)
        assert made.code == 0, made.err
        about = json.loads((tmp_path / "model" / CONFIG).read_text())
        found.append((about["classes"], about["environments"], about["training"]["train_images"]))
    assert found[0] == found[1] == found[2]
    assert len(store.asked) < 8, "the archive is asked about once, not for every member"


def test_a_bucket_is_checked_and_every_image_is_fetched_once(store):
    checked = run("data", "check", "s3://bucket/pets", "--shots", 1, "--val-shots", 1)
    assert checked.code == 0, checked.err
    assert "12 images, 2 classes, 2 environments" in checked.out
    assert store.fetched() == sorted(name for name in store.objects if name.endswith(".png"))


def test_predictions_of_a_bucket_and_of_what_is_not_there(store, files, model, tmp_path):
    store.objects["new/a dog.png"] = (files / "photo" / "dog" / "0.png").read_bytes()
    store.objects["new/höhe.png"] = b"no image"
    local = run("predict", model, files / "photo" / "dog" / "0.png", "--json").json[0]
    said = run("predict", model, "s3://bucket/new", "--json")
    assert said.code == 0, said.err
    right, wrong = said.json
    assert right["image"] == "s3://bucket/new/a dog.png"
    assert right["probabilities"] == pytest.approx(local["probabilities"], abs=1e-5)
    assert (wrong["image"], wrong["status"]) == ("s3://bucket/new/höhe.png", "unreadable")
    assert store.fetched() == ["new/a dog.png", "new/höhe.png"]
    refused(run("predict", model, "s3://bucket/none.png"), "s3://bucket/none.png: there is no such file")
    refused(fit("s3://bucket/none", tmp_path), "s3://bucket/none: nothing lies there")


def test_suggestions_name_objects_by_their_addresses(store, model, tmp_path):
    for number in range(3):
        content = io.BytesIO()
        shape("dog", "photo", 90 + number).save(content, "PNG")
        store.objects[f"new/{number}.png"] = content.getvalue()
    table, cache = tmp_path / "a.csv", tmp_path / "cache"
    said = run("suggest", model, "s3://bucket/new", "s3://bucket/pets", "-n", 2, "-o", table, "--cache", cache)
    assert said.code == 0, said.err
    assert "12 of 15 images were left out" in said.err
    rows = list(csv.DictReader(table.open()))
    assert {row["path"] for row in rows} < {f"s3://bucket/new/{number}.png" for number in range(3)}
    assert len(store.fetched()) == 15
