"""`spry bench step`, in processes as it runs."""

import json
import shutil

import msgspec
import pytest

from edge_client import plugins
from edge_client.bundle.chain import Chain
from edge_client.bundle.folder import Bundle
from edge_client.commands import cli
from edge_client.commands.bench import worker as stepbench
from edge_client.commands.bench.command import BenchError, _baseline, _both_ways
from edge_client.commands.bench.figures import (
    EAGER,
    STOCK_FP32,
    STOCK_INT8,
    STOCK_ONNX,
    NotMeasured,
)
from edge_client.commands.bench.worker import (
    DUAL,
    EXACT,
    FORWARD,
    LOW,
    MIXED,
    SUFFIX,
    Bench,
    BenchWork,
    Variant,
    programs_of,
    variants,
)
from tests.warm import python


@pytest.fixture(scope="module")
def measured(bundle, tmp_path_factory):
    """One run with a line of each kind; all that stands beside a bundle is tried in tests/export/check.

    What exports for others to measure begins warm.
    """
    import contextlib
    import io

    from export.check import baselines

    out, picture = io.StringIO(), tmp_path_factory.mktemp("plots") / "step.svg"
    options = ["--json", "--rounds", "2", "--cuts", "1", "--plot", str(picture)]
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", python())
        patch.setattr(baselines, "BASELINES", (baselines.BACKPROP,))
        patch.setattr(baselines, "STOCK", {STOCK_ONNX: baselines.STOCK[STOCK_ONNX]})
        code = cli.run(["bench", "step", str(bundle), *options])
    assert code == 0
    return json.loads(out.getvalue()) | {"picture": picture.read_text()}


def test_every_kind_of_step_is_measured(measured):
    rows = [(row["step"], row["cut"]) for row in measured["rows"] if row["runtime"] == "onnx"]
    at = "block.0"
    steps = [kind + count for count in ("", " K=2") for kind in ("dual", "suffix", "mixed")]
    assert rows == [("forward", ""), *((step, at) for step in steps), ("exact", at)]
    assert (measured["batch"], measured["length"], measured["threads"]) == (2, 8, 1)
    assert measured["machine"].keys() == {"processor", "python"}


def test_figures_are_those_of_a_process(measured):
    for row in measured["rows"]:
        assert row["cpu_ms"] > 0
        assert row["peak_mb"] >= 0
        assert row["rss_mb"] > 20
    forward, *others = (row for row in measured["rows"] if row["runtime"] == "onnx")
    assert forward["ratio"] == 1
    for row in others:
        assert row["ratio"] == pytest.approx(row["cpu_ms"] / forward["cpu_ms"], rel=0.1, abs=0.02)
    assert all(row["load_mb"] > 0 for row in [forward, *others])


def test_eager_pytorch_stands_beside(measured):
    rows = [row["step"] for row in measured["rows"] if row["runtime"] == EAGER]
    assert rows == ["backprop"]


def test_a_stock_runtime_stands_beside(measured):
    rows = [row for row in measured["rows"] if row["runtime"].startswith("stock")]
    assert [(row["runtime"], row["step"]) for row in rows] == [(STOCK_ONNX, step) for step in (STOCK_FP32, STOCK_INT8)]
    assert rows[0]["ratio"] == rows[0]["by_stock"] == 1
    assert rows[1]["ratio"] == pytest.approx(rows[1]["cpu_ms"] / rows[0]["cpu_ms"], rel=0.1, abs=0.02)
    assert measured["skipped"] == []


def test_every_line_has_its_ratio_to_the_stock_forward(measured):
    stock = next(row["cpu_ms"] for row in measured["rows"] if row["runtime"] == STOCK_ONNX)
    for row in measured["rows"]:
        assert row["by_stock"] == pytest.approx(row["cpu_ms"] / stock, rel=0.05, abs=0.01)


def test_peaks_are_there_with_and_without_mapped_files(measured):
    for row in measured["rows"]:
        assert row["peak_mapped_mb"] >= row["peak_mb"] - 0.5, row


def test_the_picture_shows_every_runtime(measured):
    for runtime in {row["runtime"] for row in measured["rows"]}:
        assert f">{runtime}<" in measured["picture"]


def test_a_process_without_torch_is_smaller(measured):
    onnx = max(row["rss_mb"] for row in measured["rows"] if row["runtime"] == "onnx")
    eager = min(row["rss_mb"] for row in measured["rows"] if row["runtime"] == EAGER)
    assert onnx < 0.6 * eager


@pytest.fixture(scope="module")
def two_directions(exported_once):
    """A bundle without programs for one direction."""
    return exported_once("two-directions-onnx", runtimes=("onnx",), directions=(2,), verify="none")


def test_the_table(two_directions, capsys):
    args = ["--rounds", "1", "--cuts", "1,2", "--no-baselines", "--shape", "2x8", "--runtime", "onnx"]
    assert cli.run(["bench", "step", str(two_directions), *args]) == 0
    out = capsys.readouterr().out
    assert "tiny-bert, 2 x 8" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    for step in ("forward", "dual", "suffix", "mixed", "exact"):
        assert step in out
    assert EAGER not in out


def test_each_step_once_more_with_one_program_at_a_time(two_directions, capsys):
    args = ["--rounds", "1", "--cuts", "1", "--no-baselines", "--runtime", "onnx", "--low-memory"]
    assert cli.run(["bench", "step", str(two_directions), *args, "--json"]) == 0
    rows = {row["step"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    usual = [name for name in rows if not name.endswith(LOW)]
    assert usual == [FORWARD, "dual K=2", "suffix K=2", "mixed K=2", EXACT]
    assert [name for name in rows if name.endswith(LOW)] == [name + LOW for name in usual]
    for name in usual:
        low = rows[name + LOW]
        assert low["ratio"] == pytest.approx(low["cpu_ms"] / rows[FORWARD]["cpu_ms"], rel=0.05, abs=0.02)
        assert low["load_mb"] is None
        assert low["rss_mb"] > 20
    assert rows[f"{EXACT}{LOW}"]["cpu_ms"] > rows[EXACT]["cpu_ms"], "programs are loaded in every step"


def test_steps_side_by_side_that_fail_are_told_and_the_others_are_tried(work):
    gone = msgspec.structs.replace(work, bundle=work.bundle + "-gone")
    rows = _both_ways(gone, Chain(Bundle.open(work.bundle).manifest, "onnx", 2, 8, 2), lambda _: None)
    told = next(rows)
    assert isinstance(told, NotMeasured)
    assert (told.runtime, told.step) == ("onnx", "with programs side by side")
    with pytest.raises(BenchError, match="measuring onnx failed"):
        next(rows)


def test_a_baseline_whose_library_is_missing_is_told(tmp_path, monkeypatch):
    info = tmp_path / "spry_beside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spry-beside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[spry.baselines]\nbeside = spry_beside:measure\n")
    (tmp_path / "spry_beside.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.added.cache_clear()
    try:
        assert _baseline("beside") == NotMeasured("beside", "", "No module named 'no_such_library'")
    finally:
        plugins.added.cache_clear()


# --- which programs and variants -------------------------------------------------------------------------------------


def test_variants_of_every_cut_and_number_of_directions():
    found = variants([1, 3], [1, 4])
    assert found[0] == Variant(FORWARD)
    assert [(v.kind, v.cut, v.directions) for v in found[1:6]] == [
        (DUAL, 1, 1), (SUFFIX, 1, 1), (DUAL, 1, 4), (SUFFIX, 1, 4), (EXACT, 1, 1),
    ]  # fmt: skip
    assert len(found) == 11
    assert [variant.name for variant in found[1:4]] == ["dual", "suffix", "dual K=4"]
    assert variants([], [1]) == [Variant(FORWARD)]
    assert [(v.kind, v.directions) for v in variants([1, 3], [1, 4], mixed=[1]) if v.kind == MIXED] == [
        (MIXED, 1), (MIXED, 4),
    ]  # fmt: skip


def test_programs_of_a_step(bundle):
    chain = Chain(Bundle.open(bundle).manifest, "onnx", 2, 8, 2)

    def kinds(variant):
        return [f"{program.segment}.{program.kind}" for program in programs_of(chain, variant)]

    assert kinds(Variant(FORWARD)) == ["embed.plain", "block.0.plain", "block.1.plain", "head.plain"]
    assert kinds(Variant(DUAL, 2, 2)) == ["embed.plain", "block.0.plain", "block.1.enter", "head.dual"]
    assert kinds(Variant(SUFFIX, 1, 2)) == ["block.0.enter", "block.1.dual", "head.dual"]
    exact = ["embed.plain", "block.0.plain", "block.1.plain", "head.vjp", "block.1.vjp"]
    assert kinds(Variant(EXACT, 2)) == exact
    mixed = ["embed.plain", "block.0.enter", "block.1.plain", "block.1.vjp", "head.vjp"]
    assert kinds(Variant(MIXED, 1, 2)) == mixed


@pytest.fixture
def work(bundle):
    return BenchWork(str(bundle), "onnx", 2, 8, 1, 1, variants([1, 2], [1, 2], mixed=[1]), memory=False)


def test_every_variant_takes_a_step(work):
    bench = Bench(work)
    for variant in work.variants:
        result = bench.step(variant)()
        loss = result.behind.loss if variant.kind == MIXED else result.loss
        assert loss.shape == (2,)
    times = bench.times()
    assert [found.variant for found in times] == work.variants
    assert all(found.cpu_ms > 0 for found in times)


def test_what_a_worker_is_asked_and_answers_survives_json(work, capsys):
    import msgspec

    assert msgspec.json.decode(stepbench.encode(work), type=BenchWork) == work
    stepbench.main(stepbench.encode(work))
    found = stepbench.decode(capsys.readouterr().out)
    assert [row.variant for row in found] == work.variants


# --- what cannot work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "3x8"], "the bundle has no shape '3x8'; it has 2x8, 1x8"),
        (["--cuts", "first"], "--cuts takes numbers between commas or `all`, got 'first'"),
        (["--cuts", "0"], "no cut at 0; the bundle's cuts: 1, 2"),
        (["--runtime", "tflite"], "the bundle has no programs for tflite; it has onnx"),
        (["--plot", "no-such-folder/step.svg"], "there is no folder no-such-folder; make it, or name another file"),
        (["--rounds", "0"], "Invalid value for '--rounds'"),
        (["--threads", "0"], "Invalid value for '--threads'"),
    ],
)
def test_refused(bundle, capsys, args, message):
    assert cli.run(["bench", "step", str(bundle), *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("error: ") == 1


def test_a_damaged_program_is_one_line(bundle, tmp_path, capsys):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    spec = Bundle.open(folder).manifest.runtimes["onnx"].programs[0]
    size = (folder / spec.file).stat().st_size
    (folder / spec.file).write_bytes(b"x" * size)
    assert cli.run(["bench", "step", str(folder), "--no-baselines"]) == 2
    err = capsys.readouterr().err
    assert "measuring onnx failed: " in err
    assert "cannot load" in err
    assert "Traceback" not in err


def test_a_truncated_bundle_is_refused_before_anything_runs(bundle, tmp_path, capsys):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    spec = Bundle.open(folder).manifest.runtimes["onnx"].programs[0]
    (folder / spec.file).write_bytes(b"x")
    assert cli.run(["bench", "step", str(folder)]) == 2
    assert "is truncated" in capsys.readouterr().err
