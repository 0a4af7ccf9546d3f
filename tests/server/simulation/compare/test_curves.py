import itertools
import re
from xml.etree import ElementTree as ET

import pandas as pd
import pytest

from edge_client.pictures import CARD, DARK, INK, LINES, MUTED
from server.simulation.compare.comparison import spread
from server.simulation.compare.curves import DASHES, Line, Panel, draw, write_curves
from tests.server.simulation.conftest import config, rounds, write_run

SVG = "{http://www.w3.org/2000/svg}"


def texts(root) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def test_a_run_gets_its_curves(tmp_path):
    folder = write_run(tmp_path / "run", config("fedyogi", 2), rounds(30, every=5))
    file = write_curves(folder)
    assert file == folder / "curves.svg"
    root = ET.parse(file).getroot()
    assert {"training loss", "score, %", "round", "loss", "generalised", "personalised"} <= set(texts(root))
    assert root.find(f"{SVG}title").text == "fedyogi on news, seed 2"
    assert "fedyogi on news, seed 2" in texts(root)


@pytest.mark.parametrize("lines", [[], rounds(1), rounds(3, every=9)], ids=["none", "one", "no score"])
def test_a_run_that_has_just_begun_gets_them_too(tmp_path, lines):
    root = ET.parse(write_curves(write_run(tmp_path / "run", config(), lines, peak=None))).getroot()
    assert "training loss" in texts(root)
    assert ("score, %" in texts(root)) == (len(lines) == 1)


def lines(count: int) -> list[Line]:
    return [
        Line(
            f"method {number}",
            spread(pd.DataFrame({n: [n / 100, n / 90 + number / 50] for n in (1, 5, 9)}).T),
            number,
        )
        for number in range(count)
    ]


def test_every_id_is_the_picture_s_own_and_every_reference_leads_to_one():
    svg = draw([Panel("accuracy, %", lines(4))], "a title", "a description", name="chart-7")
    root = ET.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(one.startswith("chart-7-") for one in ids)
    used = re.findall(r"url\(#([^)]+)\)", svg) + re.findall(r'href="#([^"]+)"', svg)
    assert used
    assert set(used) <= set(ids)
    named = root.get("aria-labelledby").split()
    assert [root.find(f".//*[@id='{one}']").text for one in named] == ["a title", "a description"]


def test_text_is_text_and_the_same_numbers_give_the_same_picture():
    svg = draw([Panel("accuracy, %", lines(2))], "a title", "a description")
    assert {"accuracy, %", "round", "method 0", "method 1"} <= set(texts(ET.fromstring(svg)))
    assert svg == draw([Panel("accuracy, %", lines(2))], "a title", "a description")


def test_each_line_has_its_colour_and_dashes_and_a_band():
    svg = draw([Panel("accuracy, %", lines(len(LINES)))], "", "")
    for colour in LINES:
        assert f"stroke: {colour}" in svg
        assert re.search(rf"fill: {colour}; fill-opacity: 0.14", svg)
    assert len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", svg))) == len(DASHES) - 1


def test_as_many_lines_as_anybody_compares_look_different():
    looks = {(line.colour, line.dashes) for line in lines(40)}
    assert len(looks) == 40


def test_long_labels_leave_the_curves_their_place():
    """matplotlib would make the axes as narrow as a legend is wide."""
    words = ["spry", "default", "bottleneck r=16", "K 4", "head_learning_rate 0.3", "per round 48", "rounds 100"]
    long = Line(", ".join(words), lines(1)[0].points, 0)
    root = ET.fromstring(draw([Panel("accuracy, %", [long, *lines(12)[1:]])], "", ""))
    _, _, width, height = map(float, root.get("viewBox").split())
    (clip,) = (element for element in root.iter(f"{SVG}rect") if element.get("width"))
    assert float(clip.get("width")) > 0.75 * width
    assert float(clip.get("height")) > 130
    below = [float(element.get("y")) for element in root.iter(f"{SVG}text") if element.get("y")]
    assert max(below) < height
    assert all(word in " ".join(texts(root)) for word in words)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [{colour: colour for colour in DARK}, DARK], ids=["light", "dark"])
def test_colours_stand_out_on_their_card(colours):
    assert all(contrast(colours[line], colours[CARD]) >= 3 for line in LINES)
    assert all(contrast(colours[text], colours[CARD]) >= 4.5 for text in (INK, MUTED))


DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))


def seen(colour: str, matrix) -> tuple[float, ...]:
    """As somebody sees it who lacks one kind of cone (Machado, Oliveira and Fernandes, 2009), in CIELAB."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    r, g, b = (min(1.0, max(0.0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in matrix)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("matrix", [DEUTERANOPIA, PROTANOPIA], ids=["deuteranopia", "protanopia"])
@pytest.mark.parametrize("colours", [{colour: colour for colour in DARK}, DARK], ids=["light", "dark"])
def test_lines_with_the_same_dashes_differ_for_the_colour_blind(colours, matrix):
    for one, other in itertools.combinations(lines(8), 2):
        if one.dashes == other.dashes:
            pair = (seen(colours[line.colour], matrix) for line in (one, other))
            distance = sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5
            assert distance > 20, (one.colour, other.colour, distance)
