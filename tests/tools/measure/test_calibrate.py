"""`flint calibrate`: finds constants that made times, fits no more than rows determine, and says so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import flint
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns, model_of
from flint.backends.cost.collectives.choose import duration_ns
from flint.backends.cost.software import with_stack
from flint.cli import app
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.errors import FlintError
from flint.ir.op_class import Collective, OpClass
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.measure.calibration.calibrate import calibrate
from flint.tools.measure.calibration.fitted import Fitted, determined
from flint.tools.measure.calibration.result import Calibration
from flint.tools.measure.fitting.fit import fit, halves, lowest
from flint.tools.measure.fitting.kernels import latencies, measured_kernels, with_constants
from flint.tools.measure.fitting.networks import call_of
from flint.tools.measure.measurements import rows as make
from flint.tools.measure.measurements.rows import CollectiveTime, KernelTime
from tests.estimates import zoo
from tests.machine_output import valid

ROOT = Path(__file__).parents[3]
KINETO = ROOT / "benchmarks" / "data" / "kineto"
LOGS = ROOT / "tests" / "data" / "collective_logs"


def named(found: Calibration, name: str) -> Fitted:
    return next(f for f in (*found.kernels, *(t for _, t in found.tiers)) if f.name == name)


def elements_csv(path: Path, values: dict[str, float], *, least: int, most: int) -> Path:
    """Adds of 2**least to 2**most elements as a chip with these constants would have them."""
    chip = with_constants(Cluster.load("h100-dgx").chip, values)
    rows = [make.by_elements(OpClass.ADD, 3 * 2**e, 2, "f32", 1.0) for e in range(least, most)]
    times = latencies(measured_kernels(rows), chip)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "dtype", "elements", "reads", "time_ns"])
        for row, time in zip(rows, times.tolist(), strict=True):
            writer.writerow(["add", "f32", row.elements, 2, f"{time:.3f}"])
    return path


MADE = {"elementwise.launch_ns": 2500.0, "elementwise.memory_efficiency": 0.6}


def test_a_fit_finds_the_constants_that_made_the_times(tmp_path: Path) -> None:
    found = calibrate(elements_csv(tmp_path / "a.csv", MADE, least=8, most=30), base="h100-dgx")
    result = named(found, "element-wise")
    values = {c.name: c.after for c in result.changes}
    assert values == pytest.approx(MADE, rel=0.03)
    assert result.is_better and result.after is not None and result.after.mean_percent < 2
    assert result.before is not None and result.before.mean_percent > 15
    assert (result.fitted_on, result.held_out) == (11, 11)


LIBRARY = """name = "lab"
title = "lab"
base = "h100-dgx"

[chip.gpu.libraries.aten]
"elementwise.launch_ns" = { value = 1800, kind = "measured", source = "this test" }
"elementwise.memory_efficiency" = { value = 0.5, kind = "measured", source = "this test" }
"elementwise.cycles" = { value = 0.09, kind = "measured", source = "this test" }
"""


def test_kernels_of_a_stack_are_fitted_and_priced_as_its_estimates_do(tmp_path: Path) -> None:
    """What is fitted takes the place of the library's constants, with those that were not."""
    base = tmp_path / "lab.toml"
    base.write_text(LIBRARY)
    data = elements_csv(tmp_path / "a.csv", {**MADE, "elementwise.cycles": 0.09}, least=8, most=30)
    found = calibrate(data, base=base, stack="pytorch-eager")
    starts = {c.name: c.before for c in named(found, "element-wise").changes}
    assert starts == {"elementwise.launch_ns": 1800, "elementwise.memory_efficiency": 0.5}
    found.write(tmp_path / "mine.toml")
    mine = Cluster.load(tmp_path / "mine.toml")
    running = with_stack(mine, Stack.load("pytorch-eager"))
    for cluster in (mine, running):
        values = model_of(cluster.chip).constants_in_use()
        wanted = {**MADE, "elementwise.cycles": 0.09}
        assert {n: values[n] for n in wanted} == pytest.approx(wanted, rel=0.03)
    plain = calibrate(data, base=base)
    assert named(plain, "element-wise").before != named(found, "element-wise").before


def test_large_sizes_alone_do_not_determine_a_launch(tmp_path: Path) -> None:
    found = calibrate(elements_csv(tmp_path / "a.csv", MADE, least=25, most=33), base="h100-dgx")
    result = named(found, "element-wise")
    assert [c.name for c in result.changes] == ["elementwise.memory_efficiency"]
    assert result.kept["elementwise.launch_ns"] == "does not show in these rows"


def test_one_shape_is_not_fitted(tmp_path: Path) -> None:
    found = calibrate(elements_csv(tmp_path / "a.csv", MADE, least=10, most=11), base="h100-dgx")
    assert not found.is_changed and "one shape" in named(found, "element-wise").reason
    with pytest.raises(FlintError, match="FL849"):
        found.write(tmp_path / "mine.toml")


def test_what_is_no_better_is_not_written(tmp_path: Path) -> None:
    """Times of the base itself: its own constants are as near as any."""
    found = calibrate(elements_csv(tmp_path / "a.csv", {}, least=8, most=30), base="h100-dgx")
    assert not named(found, "element-wise").is_better and found.constants == {}


def test_collectives_of_a_tier_are_fitted_by_the_prices_of_estimates(tmp_path: Path) -> None:
    cluster = Cluster.load("a100-80-dgx")
    network = cluster.network[0]
    made = {"a0_ns": 20_000.0, "a1_ns": 2_000.0, "efficiency": 0.5}
    constants = {n: network.constants[n].model_copy(update={"value": v}) for n, v in made.items()}
    tiers = (
        network.model_copy(update={"constants": network.constants | constants}),
        *cluster.network[1:],
    )
    truth = cluster.model_copy(update={"network": tiers})
    path = tmp_path / "calls.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["collective", "bytes", "ranks", "nodes", "time_ns"])
        for name, kind in (
            ("all_reduce", Collective.ALL_REDUCE),
            ("all_gather", Collective.ALL_GATHER),
        ):
            for ranks in (2, 4, 8):
                for e in range(10, 30, 2):
                    call = call_of(CollectiveTime(kind, 2**e, ranks, 1, "bf16", 1.0), cluster)
                    assert not isinstance(call, str)
                    writer.writerow([name, 2**e, ranks, 1, duration_ns(call, truth)])
    result = named(calibrate(path, base="a100-80-dgx"), "nvlink")
    assert result.after is not None and result.after.mean_percent < 4
    assert result.before is not None and result.before.mean_percent > 25
    values = {c.name: c.after for c in result.changes}
    assert values["efficiency"] == pytest.approx(0.5, rel=0.1)


def test_real_logs_improve_the_tier_that_they_are_of() -> None:
    found = calibrate(LOGS / "rccl_mi300x.log", base="mi300x")
    result = named(found, "ib")
    assert result.is_better and result.before is not None and result.after is not None
    assert result.after.mean_percent < result.before.mean_percent / 2
    inside = named(found, "xgmi")  # whose constants rest on half of these rows
    assert inside.before is not None and inside.before.mean_percent < 8


def test_a_cluster_file_is_written_once_and_always_the_same(tmp_path: Path) -> None:
    data = elements_csv(tmp_path / "a.csv", MADE, least=8, most=30)
    first, second = tmp_path / "mine.toml", tmp_path / "twin" / "mine.toml"
    second.parent.mkdir()
    log = LOGS / "rccl_mi300x.log"
    for path in (first, second):
        assert calibrate(data, log, base="mi300x").write(path) == [path]
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text("utf-8")
    assert str(tmp_path) not in text and 'base = "mi300x"' in text and "a.csv" in text
    made, base = Cluster.load(first), Cluster.load("mi300x")
    gpu, before = made.chip.gpu, base.chip.gpu
    changed = {n for n, q in gpu.constants.items() if q != before.constants.get(n)}
    assert changed == set(MADE)
    assert {str(gpu.constants[n].kind) for n in changed} == {"fitted"}
    assert made.network[0].measured_members == 8
    with pytest.raises(FlintError, match="FL508"):
        calibrate(data, base="mi300x").write(first)


def test_a_base_in_a_file_is_named_from_the_new_one(tmp_path: Path) -> None:
    base = tmp_path / "bases" / "ours.toml"
    base.parent.mkdir()
    base.write_text('name = "ours"\ntitle = "Ours"\nbase = "h100-dgx"\n', "utf-8")
    data = elements_csv(tmp_path / "a.csv", MADE, least=8, most=30)
    calibrate(data, base=base).write(tmp_path / "mine.toml")
    assert 'base = "bases/ours.toml"' in (tmp_path / "mine.toml").read_text("utf-8")


def test_residuals_are_taken_for_exactly_their_shapes(tmp_path: Path) -> None:
    data = tmp_path / "gemm.csv"
    data.write_text(
        "m,n,k,dtype,time_us\n512,512,512,bf16,100\n64,64,64,bf16,50\n64,64,64,bf16,70\n", "utf-8"
    )
    path = tmp_path / "mine.toml"
    written = calibrate(data, base="h100-dgx").write(path, residuals=True)
    assert [p.name for p in written] == ["mine.toml", "mine.kernels.csv"]
    chip = Cluster.load(path).chip
    rows = [make.product(m, m, m, "bf16", 1.0) for m in (512, 64, 128)]
    kernels = measured_kernels(rows).kernels
    times = latency_ns(kernels, chip)
    assert times[:2].tolist() == [100_000, 60_000]
    assert times[2] == model_of(chip).latency_ns(kernels)[2]  # not measured: the model's
    assert Cluster.load(path) == Cluster.load(path)
    assert json.loads(Cluster.load(path).model_dump_json())["chip"]["measured_kernels"] == (
        "mine.kernels.csv (2 shapes)"
    )


def test_an_estimate_says_what_rests_on_exact_shapes(tmp_path: Path) -> None:
    trace = zoo("llama_fsdp_tp")
    work = trace.estimate("h100-dgx").kernels
    from flint.backends.cost.chips.kernel_table import kernels_of

    kernels, _ = kernels_of(work.programs[0], tf32=frozenset({KernelKind.GEMM}))
    at = int(np.flatnonzero(kernels.kind == KernelKind.GEMM)[0])
    table = tmp_path / "mine.kernels.csv"
    b, m, n, k = kernels.dims[at].tolist()
    columns = "kind,dtype,batch,m,n,k,causal,read_bytes,written_bytes,time_ns"
    dtype = kernels.dtypes[kernels.dtype[at]]
    table.write_text(f"{columns}\ngemm,{dtype},{b},{m},{n},{k},0,0,0,1e9\n", "utf-8")
    path = tmp_path / "mine.toml"
    text = 'name = "m"\ntitle = "M"\nbase = "h100-dgx"\n[chip]\nmeasured_kernels = "mine.kernels.csv"\n'
    path.write_text(text, "utf-8")
    found = trace.estimate(path)
    (note,) = [n for n in found.notes if "mine.kernels.csv" in n]
    assert "for exactly their shapes" in note and found.step_time_ns > 1e9
    assert not any("exactly" in n for n in trace.estimate("h100-dgx").notes)

    other = tmp_path / "other.toml"  # another chip has not been measured
    power = '{ value = 500, kind = "datasheet", source = "d" }'
    for same, key in ((True, "variation"), (False, "power_w")):
        text = f'name = "o"\ntitle = "O"\nbase = "mine.toml"\n[chip]\n{key} = {power}\n'
        other.write_text(text, "utf-8")
        assert (Cluster.load(other).chip.measured_kernels is not None) is same
    for same, change in ((True, ("chip.memory", "2x")), (False, ("chip.power", "500W"))):
        assert (changed(Cluster.load(path), (change,)).chip.measured_kernels is not None) is same


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.csv", "", "a\\b.csv", "none.csv", "C:a.csv"])
def test_a_table_lies_beside_its_cluster_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.toml"
    text = f'name = "m"\ntitle = "M"\nbase = "h100-dgx"\n[chip]\nmeasured_kernels = {json.dumps(name)}\n'
    path.write_text(text, "utf-8")
    with pytest.raises(FlintError, match="FL852"):
        Cluster.load(path)


@pytest.mark.parametrize(
    "rows",
    [
        "a,b\n1,2\n",
        "{}\ngemm,bf16,1,1,1,1,0,0,0,nan\n",
        "{}\ngemm,bf16,1,1,1,1,0,0,0,-1\n",
        "{}\ngemm,bf16,1,1,1\n",
        "{}\ngemm,bf16,x,1,1,1,0,0,0,1\n",
        "\x00",
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, rows: str) -> None:
    columns = "kind,dtype,batch,m,n,k,causal,read_bytes,written_bytes,time_ns"
    (tmp_path / "t.csv").write_text(rows.format(columns), "utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "m"\ntitle = "M"\nbase = "h100-dgx"\n[chip]\nmeasured_kernels = "t.csv"\n', "utf-8"
    )
    with pytest.raises(FlintError, match="FL852"):
        Cluster.load(path)


def test_a_profile_is_calibrated_to() -> None:
    """Kernel times are those of the profile: all of its 60 kernels, in 308.6 us."""
    found = calibrate(KINETO / "h100_bert-small.json.gz", base="h100-dgx")
    (source,) = found.sources
    assert source.format == "measured trace" and source.unknown_share < 0.02
    total = sum(f.measured_ns for f in found.kernels)
    assert total == pytest.approx(307e3, rel=0.02)
    assert found.host_launch_ns is not None and 5e3 < found.host_launch_ns < 200e3


def test_check_fits_nothing() -> None:
    found = calibrate(KINETO / "h100_bert-small.json.gz", base="h100-dgx", check=True)
    assert not found.is_changed and all(not f.changes for f in found.kernels)


def test_errors() -> None:
    with pytest.raises(FlintError, match="FL848"):
        calibrate(base="h100-dgx")
    with pytest.raises(FlintError, match="FL702"):
        calibrate(LOGS / "vega_one_row.log", base="h100-dgxx")


def test_a_chip_without_constants_is_refused(tmp_path: Path) -> None:
    base = Cluster.load("h100-dgx")
    plain = base.model_copy(update={"chip": base.chip.model_copy(update={"gpu": None})})
    data = elements_csv(tmp_path / "a.csv", MADE, least=8, most=12)
    with pytest.raises(FlintError, match="FL853"):
        calibrate(data, base=plain)


def test_the_command(tmp_path: Path) -> None:
    data = elements_csv(tmp_path / "a.csv", MADE, least=8, most=30)
    path = tmp_path / "mine.toml"
    run = CliRunner().invoke
    done = run(app, ["calibrate", str(data), "--base", "h100-dgx", "-o", str(path), "--json"])
    assert done.exit_code == 0, done.output
    document = valid(done.stdout, "flint.calibration/1")
    assert document["files"] == [str(path)] and path.is_file()
    assert document["kernels"][0]["is_written"]
    for arguments, said in (
        ([str(data)], "--base"),
        ([str(data), "--base", "h100-dgx", "--residuals"], "-o FILE"),
        ([str(data), "--base", "h100-dgx", "--check", "-o", "x.toml"], "--check"),
        ([str(data), "--collect", str(tmp_path / "s.py")], "--collect"),
    ):
        done = run(app, ["calibrate", *arguments])
        assert done.exit_code == 2 and said in done.output
    done = run(app, ["calibrate", str(data), "--base", "h100-dgx"])
    assert "element-wise" in done.stdout and "written" in done.stdout
    assert isinstance(flint.calibrate(data, base="h100-dgx"), flint.Calibration)


def test_the_simplex_is_that_of_scipy() -> None:
    """Step by step: presets were fitted with SciPy's."""
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(3)
    for size in (1, 2, 5, 9):
        matrix, target = random.normal(size=(size, size)), random.normal(size=size)

        def function(z: np.ndarray, m: np.ndarray = matrix, b: np.ndarray = target) -> float:
            return float(np.mean(np.abs(m @ z - b) + 0.1 * np.abs(np.sin(3 * z))))

        corners = np.vstack([target, target + 0.7 * np.eye(size)])
        options = {"maxfev": 50 * size, "maxiter": 400, "initial_simplex": corners}
        theirs = optimize.minimize(function, target, method="Nelder-Mead", options=options).x
        assert lowest(function, corners).tolist() == theirs.tolist()


def test_what_is_determined_is_told_apart() -> None:
    size = np.geomspace(1e3, 1e9, 12)
    bounds = {
        "launch": (1.0, 1e4, 50.0),
        "twin": (1.0, 1e4, 50.0),
        "slope": (0.1, 9.0, 1.0),
        "none": (0.0, 9.0, 1.0),
    }
    names, reasons = determined(
        bounds, lambda c: c["launch"] + c["twin"] + size * c["slope"] * 1e-5, np.ones(12)
    )
    assert set(names) in ({"launch", "slope"}, {"twin", "slope"})
    assert reasons["none"] == "does not show in these rows"
    assert any(why.startswith("cannot be distinguished from") for why in reasons.values())


def test_halves_are_of_one_size_and_follow_hashes() -> None:
    found = halves([50, 10, 10, 30, 20])
    assert found.tolist() == [1, 0, 0, 0, 1]


def test_a_fit_stays_inside_its_bounds() -> None:
    found = fit({"x": (1.0, 2.0, 1.5)}, lambda c: np.array([c["x"]]), np.array([9.0]))
    assert found["x"] == 2.0


def test_rows_of_one_kernel_become_one() -> None:
    one = make.product(8, 8, 8, "bf16", 100.0)
    twice = KernelTime(
        **{**{f: getattr(one, f) for f in one.__slots__}, "measured_ns": 400.0, "count": 2}
    )
    found = measured_kernels([one, twice])
    assert len(found) == 1 and found.measured_ns.tolist() == [300.0] and found.count.tolist() == [3]


def test_half_of_the_calls_give_the_times_of_the_other_half() -> None:
    """Of every class with more than a hundredth of the time, on H100, within 10 %."""
    from benchmarks.calibrate_calls import report

    rows = [line.rsplit(maxsplit=5) for line in report("h100").splitlines()[1:]]
    times = {name: float(time) for name, _, time, *_ in rows}
    error = {name: float(after) for name, *_, after in rows}
    large = [name for name, time in times.items() if time > 0.01 * sum(times.values())]
    assert set(large) == {"products", "attention", "element-wise", "copies", "reductions"}
    assert {name: error[name] for name in large if abs(error[name]) > 10} == {}


def test_measured_times_are_not_derated(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text(
        'name = "slow"\ntitle = "slow"\nbase = "h100-dgx"\n'
        'derate = { value = 0.5, kind = "measured", source = "ours" }\n'
    )
    assert Cluster.load(file).derate.value == 0.5
    table = elements_csv(tmp_path / "a.csv", MADE, least=8, most=30)
    calibrate(table, base=file).write(tmp_path / "mine.toml")
    assert Cluster.load(tmp_path / "mine.toml").derate.value == 1.0
