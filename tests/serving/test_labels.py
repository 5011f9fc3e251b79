"""The store of images and labels: what was acknowledged is there after a kill, for every process that looks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bayescal.errors import DataError
from bayescal.serving.labels import IMAGES, JOURNAL, Label, LabelStore

DOG, CAT = Label("dog", "here"), Label("cat", "garden")


def added(store: LabelStore, *contents: bytes) -> list[str]:
    images = [store.keep_file(content, f"{i}.png") for i, content in enumerate(contents)]
    store.add(images)
    return [image.id for image in images]


def test_another_process_reads_what_was_written(tmp_path):
    store, other = LabelStore(tmp_path), LabelStore(tmp_path)
    one, two = added(store, b"one", b"two")
    store.label([(one, DOG), (two, CAT)])
    other.refresh()
    assert [image.label for image in other.images()] == [DOG, CAT]
    other.label([(one, None)])
    before = store.changes
    store.refresh()
    assert [image.id for image in store.images(since=before)] == [one]
    assert store.get(one).label is None
    assert LabelStore(tmp_path).images() == store.images() == other.images()


def test_the_same_image_twice_is_one_with_its_first_name(tmp_path):
    store = LabelStore(tmp_path)
    (one,) = added(store, b"one")
    store.label([(one, DOG)])
    store.add([store.keep_file(b"one", "copy.jpg")])
    assert [(image.name, image.label) for image in store.images()] == [("0.png", DOG)]
    assert [path.name for path in (tmp_path / IMAGES).iterdir()] == [f"{one}.png"]


def test_removed_images_come_back_with_their_label(tmp_path):
    store = LabelStore(tmp_path)
    (one,) = added(store, b"one")
    store.label([(one, DOG)])
    store.remove([one])
    assert store.get(one).removed
    store.remove([one], removed=False)
    assert not LabelStore(tmp_path).get(one).removed
    assert LabelStore(tmp_path).get(one).label == DOG


def test_a_line_that_was_cut_short_spoils_itself_alone(tmp_path):
    store = LabelStore(tmp_path)
    (one,) = added(store, b"one")
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'\n{"v": 1, "what": "label", "image": "' + one.encode())  # killed here
    again = LabelStore(tmp_path)
    assert again.get(one).label is None
    again.label([(one, CAT)])
    assert LabelStore(tmp_path).get(one).label == CAT
    assert LabelStore(tmp_path).damaged == 1


@pytest.mark.parametrize(
    "old", ['"class": "dog"', '"environment": "here"', '"v": 2', '"image": "', '"checksum"', '"time": ']
)
def test_a_flipped_bit_spoils_a_line_and_nothing_is_believed_of_it(tmp_path, caplog, old):
    store = LabelStore(tmp_path)
    (one,) = added(store, b"one")
    store.label([(one, CAT)])
    store.label([(one, DOG)])
    journal = tmp_path / JOURNAL
    before, last = journal.read_bytes().rsplit(b"\n{", 1)
    at = last.index(old.encode()) + len(old) - 2  # the last letter but one
    for bit in range(8):
        flipped = bytearray(last)
        flipped[at] ^= 1 << bit
        journal.write_bytes(before + b"\n{" + flipped)
        assert LabelStore(tmp_path).get(one).label == CAT
        assert f"{journal}: lines that are not as they were written: " in caplog.text


@pytest.mark.parametrize(
    "line",
    ["[]", "3", "[" * 100_000, "9" * 6000, '{"v": 1}', '{"v": 1, "what": "label", "image": [], "class": 3}']
    + [
        json.dumps({"v": 1, "time": 0, "what": "image", "name": "x", "image": "0" * 64, "ending": ".png"} | wrong)
        for wrong in ({"ending": "/../../x"}, {"image": "../x"}, {"name": {}}, {"time": "now"}, {"image": 7})
    ],
    ids=range(11),
)
def test_lines_of_anything_else_are_left_out(tmp_path, line):
    LabelStore(tmp_path)
    (tmp_path / JOURNAL).write_text(f"\n{line}\n")
    store = LabelStore(tmp_path)
    assert (store.images(), store.damaged) == ([], 1)


def test_lines_of_before_there_were_checksums_count(tmp_path):
    LabelStore(tmp_path)
    about = {"v": 1, "time": 1.5, "what": "image", "image": "0" * 64, "name": "a.png", "ending": ".png"}
    (tmp_path / JOURNAL).write_text(f"\n{json.dumps(about)}\n")
    assert [image.name for image in LabelStore(tmp_path).images()] == ["a.png"]


def test_a_file_that_was_damaged_is_mended_when_the_image_comes_again(tmp_path):
    store = LabelStore(tmp_path)
    (one,) = added(store, b"one")
    store.path(store.get(one)).write_bytes(b"0ne")
    store.keep_file(b"one", "a.png")
    assert store.path(store.get(one)).read_bytes() == b"one"


WRITER = """
import sys
from pathlib import Path
from bayescal.serving.labels import Label, LabelStore
store = LabelStore(Path(sys.argv[1]))
for number in range(10_000):
    image = store.keep_file(f"{sys.argv[2]} {number}".encode(), f"{number}.png")
    store.add([image])
    store.label([(image.id, Label(str(number), "here"))])
    print(image.id, number, flush=True)
"""


def test_nothing_that_was_acknowledged_is_lost_by_a_kill(tmp_path):
    """Two processes write at once and are killed at some moment."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(k)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for k in range(2)
    ]
    said = {k: [writer.stdout.readline().split() for _ in range(25)] for k, writer in enumerate(writers)}
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
    for k, writer in enumerate(writers):
        rest = writer.stdout.read()
        said[k] += [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        writer.wait()
    store = LabelStore(tmp_path)
    for lines in said.values():
        for image, number in lines:
            assert store.get(image).label == Label(number, "here")
            assert store.path(store.get(image)).read_bytes().endswith(number.encode())
    assert store.damaged <= 2


def test_names_are_words_and_never_paths(tmp_path):
    store = LabelStore(tmp_path)
    for name in ("../../evil.png", "/etc/passwd", "a\nb.jpg", "x.png/../../y", "<img src=x>.svg"):
        image = store.keep_file(name.encode(), name)
        store.add([image])
        assert store.get(image.id).name == name
        assert store.path(image).resolve().parent == (tmp_path / IMAGES).resolve()
    assert len(list((tmp_path / IMAGES).iterdir())) == 5
    assert {path.suffix for path in (tmp_path / IMAGES).iterdir()} == {".png", ".image", ".jpg"}


def test_what_is_not_there_cannot_be_labelled(tmp_path):
    store = LabelStore(tmp_path)
    with pytest.raises(DataError, match="there is no image"):
        store.label([("0" * 64, DOG)])
    assert (tmp_path / JOURNAL).read_bytes() == b""


def test_a_file_that_was_refused_goes_and_one_that_was_added_stays(tmp_path):
    store, other = LabelStore(tmp_path), LabelStore(tmp_path)
    bad, good = store.keep_file(b"bad", "bad.png"), store.keep_file(b"good", "good.png")
    other.add([other.keep_file(b"good", "good.png")])
    store.forget_file(bad)
    store.forget_file(good)
    assert [path.name for path in (tmp_path / IMAGES).iterdir()] == [f"{good.id}.png"]


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path):
    Path(tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="--labels"):
        LabelStore(tmp_path / "file")


def test_models_are_numbered_and_the_one_before_is_known(tmp_path):
    store = LabelStore(tmp_path)
    assert (store.model.number, store.previous.number) == (0, 0)
    store.use_model(1, {"previous": 0})
    store.use_model(2, {"previous": 1})
    assert (store.model.number, store.previous.number) == (2, 1)
    store.use_model(1, store.previous.about)
    again = LabelStore(tmp_path)
    assert (again.model.number, again.previous.number) == (1, 0)
