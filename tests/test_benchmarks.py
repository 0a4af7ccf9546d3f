"""Benchmarks' own arithmetic: what their figures are made of, on small models; seconds are nobody's business here."""

import asyncio
import json
from argparse import Namespace
from collections import Counter

import pytest

from server.project.file import JobPart, ModelPart, ProjectFile, written
from server.project.folder import Project
from tests.benchmarks import script


def test_sets_of_few_rows_have_other_rows_held_out(tmp_path):
    module = script("small_sets")
    (tmp_path / "data").mkdir()
    rows = [{"asked": f"{word} number {number}", "of": of} for word, of in TOPICS for number in range(12)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = module.made(tmp_path / "data", tmp_path / "few", ("asked", "of"), each=6, parts=2, number=0)
    train, test = (
        [json.loads(line) for line in (made / f"{part}.jsonl").read_text().splitlines()] for part in ("train", "test")
    )
    assert Counter(row["label"] for row in train) == {f"{of} {part}": 6 for of in ("song", "sky") for part in (0, 1)}
    assert not {row["text"] for row in train} & {row["text"] for row in test}
    assert len({(row["text"].split()[0], row["label"]) for row in train + test}) == len(TOPICS)


TOPICS = ("play", "song"), ("skip", "song"), ("rain", "sky"), ("sunny", "sky")


def test_other_users_have_other_rows_and_a_mean_has_an_error(tmp_path):
    script("small_sets")
    module = script("own_data")
    apart, (first, second) = tmp_path / "apart", (tmp_path / name for name in ("first", "second"))
    apart.mkdir()
    (apart / "train.csv").write_text("text,label\n" + "".join(f"text {number},a\n" for number in range(9)))
    drawn = [module.taken(apart, folder, number, 5) for number, folder in enumerate((first, second))]
    rows = [(folder / "train.csv").read_text().splitlines() for folder in drawn]
    assert [(lines[0], len(set(lines))) for lines in rows] == [("text,label", 6)] * 2
    assert rows[0] != rows[1]

    (tmp_path / "spry.toml").write_text(written(ProjectFile(model=ModelPart("some"), job=JobPart("mine")), {}))
    project = Project(tmp_path)
    files = [project.path(name) for name in (project.file.data.train, project.file.data.held_out)]
    files[0].parent.mkdir()
    files[0].write_text("".join(f"{number}\n" for number in range(6)))
    files[1].write_text("6\n7\n")
    module.dealt(project, 1)
    dealt = [file.read_text().split() for file in files]
    assert [len(part) for part in dealt] == [6, 2]
    assert sorted(dealt[0] + dealt[1]) == [str(number) for number in range(8)]
    assert dealt[1] != ["6", "7"]

    users = [module.Result(2, 1, 1, 1, 1, accuracy, 0.8, 5, 2, (0.7, 0.6)) for accuracy in (0.9, 0.7, 0.8)]
    means = {name: module.apart(users, other) for name, other in module.OTHERS.items()}
    assert [mean for mean, _ in means.values()] == [pytest.approx(0), pytest.approx(0.1), pytest.approx(0.2)]
    assert [error for _, error in means.values()] == [pytest.approx(0.1 / 3**0.5)] * 3
    assert module.apart(users[:1], module.OTHERS["one place"]) == (pytest.approx(0.1), None)
    assert module.apart([module.Result(2, 1, 1, 1, 1, 0.9, None, 5, 2)], module.OTHERS["one place"]) is None


def test_members_and_others_share_no_text_and_labels_say_nothing_unless_asked(tmp_path):
    script("fleet")
    module = script("privacy")
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(400)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    true = {row["text"]: str(row["label"]) for row in rows}
    wrong = {}
    for labels in ("own", "drawn"):
        own, foreign = module.texts(Namespace(data=tmp_path, seed=3, members=40, texts=5, labels=labels))
        assert [len(part) for part in own] == [5] * 40
        assert len(foreign) == 200
        everything = [row for part in [*own, foreign] for row in part]
        assert len({row["text"] for row in everything}) == 400
        wrong[labels] = sum(row["label"] != true[row["text"]] for row in everything)
    assert wrong["own"] == 0
    assert 120 < wrong["drawn"] < 280


def test_a_device_asks_once_it_was_answered():
    script("fleet")
    connection_of = script("load").Connection

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            asked = await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.05)
            path = asked.split(b" ", 2)[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))
        writer.close()

    async def both() -> list[tuple[int, bytes]]:
        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        async with server:
            connection = connection_of(server.sockets[0].getsockname()[1])
            try:
                return await asyncio.gather(*(connection.request("GET", path, "", b"") for path in ("/one", "/other")))
            finally:
                connection.close()

    assert asyncio.run(both()) == [(200, b"/one"), (200, b"/other")]
