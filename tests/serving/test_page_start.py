"""Starting without a model, as programs and other sites could ask for it too."""

import pytest
from page_client import BYTES, desk_of, page_of
from pages import Made, make

from bayescal.serving import start
from servers import picture, refused


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("page"), 4)


def test_folders_are_listed_below_the_roots_alone(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start.Path, "home", lambda: tmp_path / "home")
    (tmp_path / "inside").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    page = page_of(desk_of(made, tmp_path / "labels", model=False))
    listed = page.get("/page/folders").json()
    assert {folder["name"] for folder in listed["folders"]} == {"inside", "link"}
    for path in ("/etc", f"{tmp_path}/..", f"{tmp_path}/link", f"{tmp_path}/inside/../../.."):
        refused(page.get("/page/folders", params={"path": path}), 403, "type its path")
    refused(page.post("/page/look", json={"path": f"{tmp_path}/nothing"}), 422, "no such folder")
    found = page.post("/page/look", json={"path": str(made.data)}).json()
    assert (found["images"], found["classes"]) == (81, ["dog", "guitar", "house"])
    assert page.post("/page/look", json={"path": str(made.model)}).json()["model"]


def test_folders_that_can_be_read_in_two_ways_are_asked_about(made, tmp_path):
    for place, name in (("dog", "001"), ("dog", "002"), ("cat", "001"), ("cat", "117")):
        (tmp_path / "data" / place / name).mkdir(parents=True)
        (tmp_path / "data" / place / name / "0.png").write_bytes(picture((len(name), 9, 9)))
    page = page_of(desk_of(made, tmp_path / "labels", model=False))
    asked = page.post("/page/look", json={"path": str(tmp_path / "data")}).json()
    assert "look like numbers" in asked["unclear"]
    assert asked["readings"][0]["layout"] == "class"
    told = {"layout": "class", "class_from_name": False}
    assert page.post("/page/look", json={"path": asked["path"], **told}).json()["classes"] == ["cat", "dog"]


ODD = ("loop", "loop/inside", "~nosuchuser", "n" * 300, "a\0b", "n" * 300 + "/x", "", "file/x")


@pytest.mark.parametrize("path", ODD, ids=lambda path: path[:11].replace("\0", "0"))
def test_paths_that_lead_nowhere_are_said(made, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    desk = desk_of(made, tmp_path / "labels", model=False)
    page = page_of(desk)
    if path:
        refused(page.get("/page/folders", params={"path": path}), 422)
    refused(page.post("/page/look", json={"path": path}), 422)
    refused(page.post("/page/open", json={"path": path}), 422)
    for asked in ({"path": path, "output": "model"}, {"path": str(made.data), "output": path or "file"}):
        if page.post("/page/fit", json=asked).status_code == 200:
            desk.jobs.join()
            assert desk.jobs.progress.state == "failed"
            assert "should not happen" not in desk.jobs.progress.message


def test_a_folder_that_must_not_be_looked_into_does_not_hide_the_others(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop").symlink_to("loop")
    is_file = start.Path.is_file

    def refuse(path):
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(start.Path, "is_file", refuse)
    listed = page_of(desk_of(made, tmp_path / "labels", model=False)).get("/page/folders").json()
    assert [(folder["name"], folder["model"]) for folder in listed["folders"]] == [("closed", False), ("open", False)]


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("POST", "/page/images", {"params": {"name": "x"}, "content": b"x", "headers": BYTES}),
        ("POST", "/page/labels", {"json": {"labels": []}}),
        ("POST", "/page/removed", {"json": {"images": []}}),
        ("POST", "/page/teach", {}),
        ("POST", "/page/undo", {}),
        ("GET", f"/page/images/{'0' * 64}", {}),
        ("GET", f"/page/images/{'0' * 64}/picture", {}),
        ("GET", "/page/training/0/picture", {}),
        ("GET", "/page/queue", {}),
        ("GET", "/page/quality", {}),
        ("GET", "/page/download/model.zip", {}),
        ("GET", "/page/download/answers.csv", {}),
    ],
)
def test_before_there_is_a_model_nothing_else_can_be_asked(made, tmp_path, method, path, more):
    page = page_of(desk_of(made, tmp_path / "labels", model=False))
    refused(page.ask(method, path, **more), 422, "there is no model yet")


def test_folders_are_for_those_at_this_machine(made, tmp_path):
    far = page_of(desk_of(made, tmp_path / "labels", model=False, local=False))
    refused(far.get("/page/folders"), 403, "bayescal fit")
    refused(far.post("/page/fit", json={"path": "/", "output": "x"}), 403)
    refused(page_of(desk_of(made, tmp_path / "labels")).get("/page/folders"), 409)
