"""An update's form on the wire: both ways, and what is no update."""

import numpy as np
import pytest
from safetensors.numpy import save

from edge_client.wire.protocol import Report
from edge_client.wire.tensors import check_format, decode_update, encode_update, parse_tensors

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "é": np.zeros(0, np.float32)}
REPORT = Report(examples=7, steps=2, loss=0.1, held_back=3, right_global=1, sums_global={"f1": 0.5})


def test_an_update_comes_back_as_it_was():
    tensors, report = decode_update(encode_update(TENSORS, REPORT))
    assert report == REPORT
    assert tensors.keys() == TENSORS.keys()
    assert all(np.array_equal(value, TENSORS[name]) for name, value in tensors.items())


def test_a_header_without_a_format_is_of_the_first_and_others_are_refused():
    _, header = parse_tensors(encode_update(TENSORS, REPORT))
    check_format(header)
    check_format({})  # devices wrote none before there was one
    with pytest.raises(ValueError, match="it is of format '2', this version of spry reads 1"):
        check_format({"format": "2"})


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_what_is_cut_off_is_no_update(cut):
    with pytest.raises(ValueError, match=r"."):
        decode_update(encode_update(TENSORS, REPORT)[:cut])


def test_tensors_without_a_report_are_no_update():
    with pytest.raises(ValueError, match="report"):
        decode_update(save(TENSORS))
