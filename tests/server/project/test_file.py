"""`spry.toml`, written and read."""

import pytest

from server.errors import ProjectError
from server.project.file import DataPart, JobPart, ModelPart, ProjectFile, ServerPart, read, written
from server.project.folder import Project, own_address

FILE = ProjectFile(
    model=ModelPart("package:some", labels=('say "yes"', "a, b", "grün\t")),
    job=JobPart("a"),
    server=ServerPart(port=8123),
)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "spry.toml"
    path.write_text(written(FILE, {"model.length": "so many tokens"}))
    assert read(path) == FILE
    assert "length = 64  # so many tokens" in path.read_text()


def test_settings_may_be_added(tmp_path):
    path = tmp_path / "spry.toml"
    text = written(FILE, {}).replace("# settings = { }  # as `spry job", "settings = { deadline = 30 }  # as `spry job")
    path.write_text(text)
    assert read(path).job.settings == {"deadline": 30}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[model", "cannot be read"),
        ("[model]\nsource = 3\n[job]\nname = 'a'", r"Expected `str`, got `int` - at `\$.model.source`"),
        ("[model]\nsource = 'a'\nsorce = 'b'\n[job]\nname = 'a'", "unknown field `sorce`"),
        ("[job]\nname = 'a'", "missing required field `model`"),
    ],
)
def test_what_is_wrong_in_it_is_told(tmp_path, text, problem):
    (tmp_path / "spry.toml").write_text(text)
    with pytest.raises(ProjectError, match=problem):
        Project(tmp_path)


def test_a_project_is_found_from_folders_within(tmp_path):
    (tmp_path / "spry.toml").write_text(written(FILE, {}))
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = Project.around(tmp_path / "a" / "b")
    assert found is not None
    assert found.folder == tmp_path
    assert found.url == "http://127.0.0.1:8123"
    assert found.path(DataPart().train) == tmp_path / "data" / "train.jsonl"


def test_where_there_is_none_the_command_says_how_to_make_one(tmp_path):
    assert Project.around(tmp_path) is None
    with pytest.raises(ProjectError, match=r"is no project, as it has no spry\.toml: go into one, or make it with"):
        Project.here(tmp_path)


def test_one_command_at_a_time(tmp_path):
    (tmp_path / "spry.toml").write_text(written(FILE, {}))
    one, other = Project(tmp_path), Project(tmp_path)
    with one.locked(), pytest.raises(ProjectError, match="another command starts or ends"), other.locked():
        pass


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (ServerPart(host="0.0.0.0", port=1), "http://127.0.0.1:1"),
        (ServerPart(host="::2", port=2, tls_cert="c", tls_key="k"), "https://[::2]:2"),
        (ServerPart(host="box.lan"), "http://box.lan:8000"),
    ],
)
def test_the_address_for_this_machine(tmp_path, server, url):
    (tmp_path / "spry.toml").write_text(written(ProjectFile(model=FILE.model, job=FILE.job, server=server), {}))
    project = Project(tmp_path)
    assert project.url == url
    assert project.is_reached
    if server.host == "0.0.0.0":
        assert project.outer_url == f"http://{own_address()}:1" != url
    else:
        assert project.outer_url == url


def test_a_project_is_for_this_machine_unless_its_file_says_otherwise(tmp_path):
    (tmp_path / "spry.toml").write_text(written(FILE, {}))
    assert not Project(tmp_path).is_reached
