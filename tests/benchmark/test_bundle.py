"""A prepared data set as one file: nothing that decides a result is lost on the way, and a damaged file is noticed."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bayescal.benchmark.bundle import bundled_name, load_bundle, save_bundle
from bayescal.benchmark.runner import run_all
from bayescal.benchmark.sources import Sources, find_paths
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.errors import DataError
from bayescal.text.tower import TextTower
from benches import SEEDS, open_folder, planned_runs, same

pytestmark = pytest.mark.xdist_group("bench")
METHODS = ("clip", "coop", "bayes-cal", "bayes-cal-lv", "cocoop", "dplclip", "clip-adapter", "tip-adapter-f", "erm")


@pytest.fixture(scope="module")
def unpacked(prepared, tmp_path_factory):
    """This worker's data set there and back: `bundle` may be another worker's, with other last bits in its features."""
    path = tmp_path_factory.mktemp("packed") / "pictures.bundle"
    save_bundle(prepared, path)
    return load_bundle(path)


def test_what_was_packed_is_what_is_unpacked(prepared, unpacked):
    assert unpacked.problem.features.equal(prepared.problem.features)
    assert unpacked.problem.labels.equal(prepared.problem.labels)
    assert unpacked.problem.environments.equal(prepared.problem.environments)
    assert unpacked.problem.logit_scale == prepared.problem.logit_scale
    assert unpacked.hashes == prepared.hashes
    assert (unpacked.shots, unpacked.val_shots, unpacked.backbone_info) == (
        prepared.shots,
        prepared.val_shots,
        prepared.backbone_info,
    )
    assert (unpacked.dataset.name, unpacked.dataset.title) == ("pictures", "pictures")
    assert [fold.name for fold in unpacked.folds] == [fold.name for fold in prepared.folds]
    for ours, theirs in zip(prepared.folds, unpacked.folds, strict=True):
        for seed in SEEDS:
            assert unpacked.splits(theirs, seed).digest == prepared.splits(ours, seed).digest
            assert unpacked.splits(theirs, seed).train.tolist() == prepared.splits(ours, seed).train.tolist()


@pytest.mark.parametrize("balanced", [True, False])
def test_how_shots_were_drawn_is_packed_too(prepared, tmp_path, balanced):
    save_bundle(replace(prepared, dataset=replace(prepared.dataset, balanced=balanced)), tmp_path / "a.bundle")
    assert load_bundle(tmp_path / "a.bundle").dataset.balanced is balanced


@pytest.mark.parametrize("method", METHODS)
def test_runs_have_the_same_keys_and_the_same_results(prepared, unpacked, method, tmp_path):
    found = []
    for name, data in (("images", prepared), ("bundle", unpacked)):
        planned = planned_runs(data, method, seeds=(1,))[:2]
        found.append(run_all(Store(sqlite_url(tmp_path / name)), planned))
    assert [record.key for record in found[0]] == [record.key for record in found[1]]
    for ours, theirs in zip(*found, strict=True):
        for name in ("curves", "scores", "chosen", "gradient_norms", "split", "backbone", "parameters"):
            assert getattr(ours, name) == getattr(theirs, name)


def test_views_and_the_variants_of_other_prompts_travel(pictures, tmp_path):
    prepared = open_folder(pictures, seeds=(1,), views=2)
    save_bundle(prepared, tmp_path / "views.bundle")
    unpacked = load_bundle(tmp_path / "views.bundle")
    assert unpacked.problem.views.equal(prepared.problem.views)
    assert unpacked.problem.view_rows.equal(prepared.problem.view_rows)
    records = []
    for name, data in (("images", prepared), ("bundle", unpacked)):
        planned = planned_runs(data, "bayes-cal-16", seeds=(1,))[:1]
        records += run_all(Store(sqlite_url(tmp_path / name)), planned)
    assert same(records[:1]) == same(records[1:])


def test_a_text_that_was_not_packed_is_refused_with_what_to_do(prepared, unpacked, tmp_path):
    with pytest.raises(DataError, match=r"'a sketch of a zebra' was not packed.*--text 'a sketch of a zebra'"):
        unpacked.problem.tokenize("a sketch of a zebra")
    save_bundle(prepared, tmp_path / "more.bundle", ["a sketch of a zebra", "this is a {}.|that is a {}."])
    more = load_bundle(tmp_path / "more.bundle").problem
    for text in ("a sketch of a zebra", "this is a guitar.", "that is a sketch."):
        assert more.tokenize(text) == prepared.problem.tokenize(text)
        ids = torch.tensor(more.tokenize(text))
        assert more.text.embed(ids).equal(prepared.problem.text.embed(ids))


def damage(content: bytearray, how: str) -> bytes:
    header = 8 + int.from_bytes(content[:8], "little")
    if how == "cut":
        return bytes(content[: len(content) // 2])
    if how == "empty":
        return b""
    at = {"feature": len(content) - 100, "header": 40, "words": content.index(b"guitar")}[how]
    assert (at > header) == (how == "feature")
    content[at] ^= 1
    return bytes(content)


@pytest.mark.parametrize("how", ["cut", "empty", "feature", "header", "words"])
def test_a_damaged_file_is_refused_and_named(bundle, tmp_path, how):
    spoiled = tmp_path / "spoiled.bundle"
    spoiled.write_bytes(damage(bytearray(bundle.read_bytes()), how))
    with pytest.raises(DataError, match=r"spoiled\.bundle"):
        load_bundle(spoiled)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read as a packed data set"):
        load_bundle(tmp_path / "missing.bundle")
    save_file({"x": torch.zeros(2)}, tmp_path / "weights.bundle")
    for read in (load_bundle, bundled_name):
        with pytest.raises(DataError, match="is not a data set that `bayescal data pack`"):
            read(tmp_path / "weights.bundle")


def test_a_file_without_a_digest_is_read_as_it_is(prepared, bundle, tmp_path):
    """Files packed before digests were written stay usable."""
    with safe_open(bundle, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["digest"]
    save_file(tensors, tmp_path / "old.bundle", metadata=metadata)
    assert load_bundle(tmp_path / "old.bundle").hashes == prepared.hashes


def test_nothing_is_left_behind_when_writing_fails(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_bundle(prepared, tmp_path / "new.bundle")
    assert list(tmp_path.iterdir()) == []


def test_the_file_says_nothing_about_this_machine(bundle):
    with safe_open(bundle, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    assert about["backbone"][0] == "mini 2"
    assert str(bundle.parent) not in json.dumps(about)


def test_a_tower_that_would_not_arrive_whole_is_not_sent(prepared, tmp_path):
    text = prepared.problem.text
    shape = {name: getattr(text, name) for name in ("width", "heads", "layers", "dim", "context_length")}
    tower = TextTower(vocab_size=len(text.token_embedding.weight), **shape)
    tower.blocks[0].scale1 = torch.ones(text.width)
    with pytest.raises(DataError, match="text tower has parts"):
        save_bundle(replace(prepared, problem=replace(prepared.problem, text=tower)), tmp_path / "x.bundle")


# --- as a source of data ---------------------------------------------------------------------------------------------


def test_a_bundle_is_found_by_the_name_inside(bundle, tmp_path):
    assert find_paths([str(bundle)]) == {"pictures": bundle}
    assert Sources({"pictures": bundle}, "mini", SEEDS).prepared("pictures").dataset.name == "pictures"
    with pytest.raises(DataError, match="holds the data set pictures; say --data pictures="):
        Sources({"pacs": bundle}, "mini", SEEDS).prepared("pacs")
    with pytest.raises(DataError, match="packed with the backbone mini 2"):
        Sources({"pictures": bundle}, "RN50:openai", SEEDS).prepared("pictures")


def test_a_bundle_of_the_first_mini_is_refused(prepared, tmp_path):
    first = replace(prepared.backbone_info, name="mini", fingerprint="51ae2cf3ce023ff0e617")
    save_bundle(replace(prepared, backbone_info=first), tmp_path / "old.bundle")
    with pytest.raises(DataError, match="was made with the first mini, which is no longer part of the package"):
        load_bundle(tmp_path / "old.bundle")


def test_shots_of_a_bundle_may_be_changed_as_far_as_it_has_the_images(pictures, bundle, prepared):
    fewer = Sources({"pictures": bundle}, "mini", SEEDS, shots=2, val_shots=1).prepared("pictures")
    here = open_folder(pictures, shots=2, val_shots=1)
    fold = here.folds[0]
    assert fewer.splits(fewer.folds[0], 1).digest == here.splits(fold, 1).digest != prepared.splits(fold, 1).digest
