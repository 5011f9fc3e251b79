"""Unreadable images and copies are found, and each copy is rated by the worst it does."""

from bayescal.data import Manifest
from bayescal.data.inspection import find_copies, read_contents
from layouts import tiny_png


def manifest_of(tmp_path, *rows):
    """Rows of content, class, environment, split."""
    paths = []
    for number, (content, *_) in enumerate(rows):
        path = tmp_path / f"{number}.png"
        path.write_bytes(tiny_png(content) if isinstance(content, int) else content)
        paths.append(path)
    return Manifest.from_columns(paths, [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows])


def test_images_that_cannot_be_read_are_named(tmp_path):
    manifest = manifest_of(
        tmp_path, (1, "dog", "a", ""), (tiny_png()[:40], "dog", "a", ""), (b"", "dog", "a", ""), (2, "dog", "a", "")
    )
    contents = read_contents(manifest)
    assert [digest is None for digest in contents.hashes] == [False, True, True, False]
    assert [message.split(":")[0] for message in contents.unreadable] == [manifest.paths[1], manifest.paths[2]]


def test_copies_are_sorted_by_what_they_spoil(tmp_path):
    manifest = manifest_of(
        tmp_path,
        (1, "dog", "a", "train"),
        (1, "cat", "b", "test"),  # 0, 1: two classes (and two splits)
        (2, "dog", "a", "train"),
        (2, "dog", "b", "test"),  # 2, 3: two splits
        (3, "dog", "a", "train"),
        (3, "dog", "b", "train"),  # 4, 5: two environments
        (4, "dog", "a", "train"),
        (4, "dog", "a", "train"),
        (4, "dog", "a", ""),  # 6, 7, 8: the same cell; no split is no other split
        (5, "dog", "a", "train"),
    )
    copies = find_copies(manifest, read_contents(manifest).hashes)
    assert copies.across_classes == [[0, 1]]
    assert copies.across_splits == [[2, 3]]
    assert copies.across_environments == [[4, 5]]
    assert copies.within == [[6, 7, 8]]


def test_images_without_a_hash_are_copies_of_nothing(tmp_path):
    manifest = manifest_of(tmp_path, (b"x", "dog", "a", ""), (b"x", "cat", "a", ""))
    copies = find_copies(manifest, read_contents(manifest).hashes)
    assert not any((copies.across_classes, copies.across_splits, copies.across_environments, copies.within))
