"""Where unlabelled images may come from: folders below what was named, never those above."""

import pytest

from bayescal.cli.suggested_environments import environments_of, tops_of

KNOWN = {"photo", "sketch"}


def found(tmp_path, monkeypatch, arguments: dict[str, list[str]]) -> list[str]:
    """The environments of images, by argument; a name that ends with "/" is a folder."""
    (tmp_path / "photo").mkdir()
    monkeypatch.chdir(tmp_path / "photo")  # as if somebody kept all data in a folder of this name
    for argument, images in arguments.items():
        if argument.endswith("/"):
            (tmp_path / "photo" / argument).mkdir(parents=True)
        for image in images:
            path = tmp_path / "photo" / image
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    parts = list(arguments.items())
    images = [image for _, own in parts for image in own]
    return environments_of(images, tops_of(parts), KNOWN)


@pytest.mark.parametrize(
    ("arguments", "environments"),
    [
        ({"new/": ["new/a/1.jpg", "new/b/2.jpg"]}, ["", ""]),  # what lies above says nothing
        ({"new/": ["new/photo/1.jpg", "new/street/dog/2.jpg", "new/3.jpg"]}, ["photo", "street", ""]),
        ({"new/photo/": ["new/photo/1.jpg", "new/photo/dog/2.jpg"]}, ["photo", "photo"]),
        ({"photo/": ["photo/street/1.jpg", "photo/sketch/2.jpg"]}, ["street", "sketch"]),  # deeper folders say more
        ({"new/photo/": ["new/photo/1.jpg"], "new/street/": ["new/street/2.jpg"]}, ["photo", "street"]),
        ({"a/": ["a/photo/1.jpg"], "b/": ["b/dog/2.jpg"]}, ["photo", ""]),
        ({"1.jpg": ["1.jpg"], "2.jpg": ["2.jpg"]}, ["photo", "photo"]),  # files of the folder that one is in
        ({"new/*/*.jpg": ["new/photo/1.jpg", "new/street/2.jpg"]}, ["photo", "street"]),
        ({"new/photo/1.jpg": ["new/photo/1.jpg"], "new/street/2.jpg": ["new/street/2.jpg"]}, ["photo", "street"]),
        ({"-": ["new/street/1.jpg"]}, [""]),
        ({"memory://photo/new": ["memory://photo/new/1.jpg"]}, [""]),
    ],
)
def test_environments_of_folders(tmp_path, monkeypatch, arguments, environments):
    assert found(tmp_path, monkeypatch, arguments) == environments
