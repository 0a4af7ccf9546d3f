import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from edge_client.commands.cli import run
from server.simulation.compare.comparison import compare
from server.simulation.compare.runs import find_runs
from server.simulation.compare.tables import overview, tables
from tests.server.simulation.conftest import config, rounds, write_run

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The contents of a page; every element must be closed by its own tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.references += given.get("aria-labelledby", "").split()
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def report(*arguments, out: str = "") -> int:
    return run(["report", *map(str, arguments), *(["--out", str(out)] if out else [])])


@pytest.fixture
def page(sweep, tmp_path, capsys) -> str:
    assert report(sweep, "--title", "Five & <six> methods", out=tmp_path / "page.html") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}: 10 rows\n"
    return (tmp_path / "page.html").read_text()


def test_the_page_holds_the_tables(page, sweep):
    found = Page(page).tables
    compared = compare(find_runs([sweep]))
    expected = [overview(compared), *(table for group in compared.groups for table in tables(group))]
    for table in expected:
        assert [list(table.headings), *(list(row) for row in table.rows)] in found


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    read = Page(page)
    assert len(read.ids) == len(set(read.ids))
    assert set(read.references) <= set(read.ids)
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not re.search(r"url\((?!#)|@import", page)
    hosts = set(re.findall(r"https?://([^/\"]+)", page))
    assert hosts == {"www.w3.org"}  # the names of SVG and of its links
    assert "<h1>Five &amp; &lt;six&gt; methods</h1>" in page
    assert "<title>Five &amp; &lt;six&gt; methods</title>" in page


def test_each_group_has_its_curves_and_both_colour_schemes(page):
    pictures = re.findall(r"<svg xmlns.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 4  # generalised and personalised, in two groups
    names = [ET.fromstring(picture).find("{http://www.w3.org/2000/svg}title").text for picture in pictures]
    assert names == [
        f"news, Dirichlet {alpha}: {kind} accuracy"
        for alpha in ("0.1", "1")
        for kind in ("generalised", "personalised")
    ]
    assert page.count("@media (prefers-color-scheme: dark)") >= 2
    assert all(label in pictures[0] for label in ("fedavg", "fedyogi", "spry", "fedmezo", "classifier"))


def test_a_single_row_makes_a_page_too(tmp_path):
    write_run(tmp_path / "run", config(), rounds(3), peak=None)
    assert report(tmp_path / "run", out=tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text()
    Page(text)
    assert "spry, seed 0 has not ended: 3 of 20 rounds" in text
    assert "Settings that differ" not in text


@pytest.mark.parametrize(
    ("field", "words"),
    [("device_passes", "forward passes of a device"), ("clock", "simulated time, in forward passes")],
)
def test_accuracy_stands_over_passes_and_time_where_every_run_tells_them(field, words, tmp_path):
    told = [{**line, field: 120.0 * line["round"]} for line in rounds(10)]
    write_run(tmp_path / "runs" / "spry", config(clients=50), told)
    out = tmp_path / "report.md"
    assert report(tmp_path / "runs", out=out) == 0
    assert words in (tmp_path / "report-1.svg").read_text()
    write_run(tmp_path / "runs" / "fedavg", config(method="fedavg", clients=50), rounds(10))
    assert report(tmp_path / "runs", out=out) == 0
    assert words not in (tmp_path / "report-1.svg").read_text()


def test_a_run_without_an_evaluation_makes_a_page_without_charts(tmp_path):
    write_run(tmp_path / "run", config(), rounds(3, every=9))
    assert report(tmp_path / "run", out=tmp_path / "page.html") == 0
    assert "figure" not in Page((tmp_path / "page.html").read_text()).tags


def test_names_of_runs_cannot_break_the_page(tmp_path):
    write_run(tmp_path / "run", config(model="<script>|x", data={"name": "a<b|c"}), rounds(3))
    for name in ("page.html", "page.md"):
        assert report(tmp_path / "run", out=tmp_path / name) == 0
    assert "script" not in Page((tmp_path / "page.html").read_text()).tags
    assert "| model | <script>\\|x |" in (tmp_path / "page.md").read_text()
    assert ET.parse(tmp_path / "page-1.svg").getroot() is not None


def test_markdown_has_the_tables_and_pictures_beside_it(sweep, tmp_path):
    assert report(sweep, out=tmp_path / "my report.md") == 0
    text = (tmp_path / "my report.md").read_text()
    compared = compare(find_runs([sweep]))
    for table in (overview(compared), *tables(compared.groups[1])):
        lines = [f"| {' | '.join(row)} |" for row in table.rows]
        assert "\n".join(lines) in text
        assert f"| {' | '.join(table.headings)} |\n| --- | ---:" in text
    shown = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", text)
    assert [name for _, name in shown] == [f"my%20report-{number}.svg" for number in (1, 2, 3, 4)]
    for title, name in shown:
        root = ET.parse(tmp_path / name.replace("%20", " ")).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text == title
    assert "<script" not in text


def test_json_has_every_figure_and_curve(sweep, capsys):
    assert report(sweep, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    compared = compare(find_runs([sweep]))
    assert [group["split"] for group in found["groups"]] == ["0.1", "1"]
    for group, expected in zip(found["groups"], compared.groups, strict=True):
        assert [row["label"] for row in group["rows"]] == [row.label for row in expected.rows]
        for row, wanted in zip(group["rows"], expected.rows, strict=True):
            finals = [one.rounds["accuracy"].iloc[-1] for one in wanted.runs]
            assert row["figures"]["accuracy.last"]["mean"] == pytest.approx(sum(finals) / 3)
            assert row["figures"]["accuracy.last"]["low"] == min(finals)
            assert row["seeds"] == [0, 1, 2]
            assert row["curves"]["accuracy"][-1]["high"] == max(finals)
            assert row["settings"]["method"] == wanted.settings["method"]
    assert found["common"]["clients"] == "100"


def test_json_says_what_was_written(sweep, tmp_path, capsys):
    assert report(sweep / "0.1", "--json", out=tmp_path / "a.md") == 0
    names = ["a.md", "a-1.svg", "a-2.svg"]
    assert json.loads(capsys.readouterr().out)["written"] == [str(tmp_path / name) for name in names]


def test_the_terminal_shows_what_fits(sweep, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert report(sweep) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    (group, _) = compare(find_runs([sweep])).groups
    finals = f"{100 * group.rows[0].figures.loc['accuracy.last', 'mean']:.1f} ±"
    assert re.search(rf"^{group.rows[0].label}\s+{finals}", shown, re.MULTILINE)


def test_a_report_is_written_again_and_nothing_else_is_replaced(sweep, tmp_path, capsys):
    for name in ("page.html", "page.md"):
        assert report(sweep / "0.1", out=tmp_path / name) == 0
        assert report(sweep / "0.1", "--title", "Once more", out=tmp_path / name) == 0
        assert "Once more" in (tmp_path / name).read_text()
    mine = tmp_path / "mine.md"
    mine.write_text("# mine\n")
    assert report(sweep, out=mine) == 2
    assert capsys.readouterr().err == f"error: {mine} exists and is no report; choose another --out\n"
    assert mine.read_text() == "# mine\n"


def test_the_format_is_guessed_or_given(sweep, tmp_path, capsys):
    assert report(sweep / "0.1", "--format", "md", out=tmp_path / "page.txt") == 0
    assert (tmp_path / "page.txt").read_text().startswith("<!-- made by spry report -->\n\n# Simulated runs\n")
    assert report(sweep, out=tmp_path / "page.pdf") == 2
    assert "--out ends with .html, .htm, .md, .markdown, got page.pdf; or give --format" in capsys.readouterr().err
    assert report(sweep, out=tmp_path / "none" / "page.md") == 2
    assert "none does not exist; make it" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["gone", "empty"])
def test_a_folder_that_holds_no_run_is_one_line(tmp_path, capsys, where):
    (tmp_path / "empty").mkdir()
    assert report(tmp_path / where) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: \S+ (is no folder|holds no run); give .*\n", error)


def test_nothing_heavy_is_imported_until_something_is_drawn(sweep):
    code = (
        "import sys; from edge_client.commands.cli import run; "
        f"assert run(['report', {str(sweep)!r}, '--json']) == 0; "
        "print([name for name in ('matplotlib', 'jinja2', 'torch', 'fastapi') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
