"""Lines of `spry bench step`, and the picture of them."""

from xml.etree import ElementTree as ET

import pytest

from edge_client.commands.bench.figures import (
    EAGER,
    STOCK_FP32,
    STOCK_ONNX,
    NotMeasured,
    StepFigures,
    beside_stock,
    from_baseline,
)
from edge_client.commands.bench.plot import draw, kinds
from edge_client.pictures import LINES

SVG = "{http://www.w3.org/2000/svg}"
OWN = [
    StepFigures("onnx", "forward", 20.0, peak_mb=5.0),
    StepFigures("onnx", "dual", 40.0, cut="block.0", peak_mb=11.0),
    StepFigures("onnx", "dual", 30.0, cut="block.1", peak_mb=0.0),
]
STOCK = StepFigures(STOCK_ONNX, STOCK_FP32, 50.0, peak_mb=12.0)
BACKPROP = StepFigures(EAGER, "backprop", 150.0, peak_mb=60.0)


def test_each_row_is_set_beside_the_stock_forward():
    assert [row.by_stock for row in beside_stock([*OWN, STOCK, BACKPROP])] == [0.4, 0.8, 0.6, 1.0, 3.0]


def test_without_a_stock_forward_there_is_no_such_ratio():
    assert beside_stock([*OWN, BACKPROP]) == [*OWN, BACKPROP]


def test_a_baseline_gives_figures_or_a_reason():
    assert from_baseline({"runtime": "x", "step": "y", "cpu_ms": 1}) == StepFigures("x", "y", 1.0)
    skipped = from_baseline({"runtime": "x", "step": "y", "skipped": "needs z"})
    assert skipped == NotMeasured("x", "y", "needs z")
    assert str(skipped) == "x y not measured: needs z"
    assert str(NotMeasured("x", "", "needs z")) == "x not measured: needs z"


def test_a_kind_of_step_has_a_point_a_cut_and_no_zero():
    found = kinds([*OWN, StepFigures("plugin", "step", 1.0)])
    assert [(kind.runtime, kind.step, kind.points) for kind in found] == [
        ("onnx", "forward", [(5.0, 20.0)]),
        ("onnx", "dual", [(0.1, 30.0), (11.0, 40.0)]),
    ]


@pytest.mark.parametrize("rows", [OWN, [*OWN, STOCK, BACKPROP]], ids=["own", "beside others"])
def test_the_picture_names_runtimes_and_steps(rows):
    root = ET.fromstring(draw(rows, "tiny, 2 x 8"))
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    for row in rows:
        assert texts.count(row.runtime) == 1
        assert texts.count(row.step) == 1
    assert "tiny, 2 x 8" in texts


def test_others_have_marks_and_colours_of_their_own():
    svg = draw([*OWN, STOCK, BACKPROP], "tiny")
    marks = {element.get("d") for element in ET.fromstring(svg).iter(f"{SVG}path") if element.get("id")}
    assert len(marks) >= 3
    assert all(colour in svg for colour in LINES[:3])
