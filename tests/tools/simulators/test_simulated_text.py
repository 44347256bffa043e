"""What `flint simulate` and `flint estimate --compare` print: exact tables of small results."""

from __future__ import annotations

from pathlib import Path

from flint.backends.cost.astrasim.ring import Dimension, Fabric
from flint.backends.cost.astrasim.step import SimulatedStep, Waiting
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError
from flint.io.processes import Patience
from flint.tools.simulators import reasons
from flint.tools.simulators.fidelities import Fidelities, Fidelity, FidelityMeasures
from flint.tools.simulators.inputs import Case
from flint.tools.simulators.outcome import SimulatedRun
from flint.tools.simulators.process import Limits
from flint.tools.simulators.rank_end import RankEnd
from flint.tools.simulators.reasons import CommunicationTimes, Comparison, RuleTimes, Term
from flint.tools.simulators.scale_sim import Array, ScaleSim, ScaleSimulation, SimulatedProduct

FABRIC = Fabric(("Ring", "Switch"), (5, 2), (Dimension(1, 1, 1), Dimension(1, 1)))
WAY = """\
from the estimate     time   of it  because
estimate on c      2.00 ms
prices             +500 us  +25.0%  rings
overlap            -100 us   -5.0%  some
simulated          2.40 ms  +20.0%"""


def run(ends: dict[int, RankEnd], **more: object) -> SimulatedRun:
    return SimulatedRun("network.yml", "system.json", FABRIC, ends, **more)  # type: ignore[arg-type]


def way(estimated_ns: float = 2e6) -> Comparison:
    terms = Term("prices", 5e5, "rings"), Term("overlap", -1e5, "some")
    return Comparison(2_400_000, None, "", "c", estimated_ns, terms, ())


def test_a_run_in_text() -> None:
    ends = {r: RankEnd(1000 + r, 300 + r, 700, 500) for r in range(10)}
    lines = run(ends, comparison=way(), notes=("late",)).to_text().splitlines()
    assert lines[:2] == [
        "network.yml: Ring of 5, Switch of 2",
        "step time  1.01 us (1,009 cycles of 1 ns), all ranks finished",
    ]
    assert lines[4].split() == ["9", "1,009", "700", "500", "309"]
    assert lines[11].split()[0] == "2" and lines[12] == "... 2 more rows (-v)"
    assert "\n".join(lines[14:19]) == WAY and lines[19:] == ["note: late"]
    verbose = run(ends).to_text(verbose=True).splitlines()
    assert len(verbose) == 4 + 10 and verbose[-1].split()[:2] == ["0", "1,000"]


def test_ranks_that_agree_are_one_row_and_those_that_did_not_finish_are_named() -> None:
    ends = dict.fromkeys(range(8), RankEnd(5))
    waiting = tuple(Waiting(8, n, "", "a message", (9,)) for n in range(9))
    failure = FlintError("FL712", "no")
    lines = run(ends, waiting=waiting, failure=failure).to_text().splitlines()
    assert lines[1] == "NOT FINISHED: 8 of 10 ranks did, 8-9 did not"
    assert lines[4].split() == ["0-7", "5", "-", "-", "-"] and lines[5] == ""
    assert lines[6] == "rank 8 waits in node 0, a message, for rank 9"
    assert lines[13].startswith("rank 8 waits in node 7,") and lines[14:] == ["... 1 more (-v)"]
    assert len(run({}, waiting=waiting).to_text(verbose=True).splitlines()) == 2 + 1 + 9


def test_the_way_has_signs_and_shares() -> None:
    assert way().to_text() == WAY
    assert way(0.0).to_text().splitlines()[-1].split() == ["simulated", "2.40", "ms", "-"]
    assert reasons.signed(-0.0) == "+0.00 ns" and reasons.signed(-2e3) == "-2.00 us"


def test_sentences_name_what_differs_most() -> None:
    table = [
        CommunicationTimes("all_gather", "data", 3, 1e3, 3, 2e3),
        CommunicationTimes("all_to_all", "model", 1, 9e6, 1, 1e6),
        CommunicationTimes("message", "pipe", 2, 5e3, 2, 5e3),
        CommunicationTimes("all_reduce", "data", 2, 5e3, 2, 1e3),
    ]
    assert table[1].difference_ns == 8e6
    assert reasons._dearer(table) == (
        "rings of single messages: all_to_all over model 9.00 ms instead of 1.00 ms; "
        "all_reduce over data 5.00 us instead of 1.00 us"
    )
    assert reasons._dearer(table[2:3]) == ""
    assert reasons._amount(5.0) == "5.00 ns hidden"
    assert reasons._amount(-7e3) == "7.00 us of waiting"


def test_sentences_on_kernels_slots_and_what_is_left() -> None:
    def system(roofline: int) -> SystemFile:
        values = {"peak-perf": 900, "local-mem-bw": 3350.5, "roofline-enabled": roofline}
        return SystemFile.model_validate(values)

    assert reasons._durations(system(1), 7, 7) == (
        "a roofline of 900 TFLOP/s and 3350.5 GB/s for every kernel"
    )
    assert reasons._durations(system(0), 4655, 3205) == (
        "durations in traces are whole microseconds, for the cluster that they name; "
        "4,655 kernels instead of 3,205"
    )
    step = SimulatedStep("n", FABRIC, (5, 9), (1, 2))
    assert reasons._own(9, step, False).startswith("equal to the nanosecond")
    assert reasons._own(10, step, False).startswith("not by Flint's version of the rules")
    assert reasons._own(9, step, True).startswith("congestion")
    assert reasons._slot(RuleTimes(step)).startswith("unknown")
    assert reasons._slot(RuleTimes(step, step)).startswith("collectives and sends")
    assert Case(Path("n"), Path("s"), FABRIC).fabric.world == 10


def test_products_in_text() -> None:
    products = tuple(SimulatedProduct(m, 2, 3, 10, 100 * m) for m in range(25, 0, -1))
    array = Array(128, 256, "ws", 64)
    found = ScaleSimulation("step", "chip", array, products, {0: 2503, 24: 100}, None, ("slow",))
    lines = found.to_text().splitlines()
    assert lines[:2] == [
        "products   step: 25 distinct products",
        "array      128 x 256, ws, of chip",
    ]
    assert lines[4].split() == ["25", "2", "3", "10", "2,500", "2,503", "+3"]
    assert lines[5].split()[-2:] == ["-", "-"] and lines[24].strip() == "... 5 more (-v)"
    assert lines[26:] == [
        "all        325,000 cycles of one array, all ranks",
        "compared   2 products, 8.0% of these cycles: SCALE-Sim says +30 cycles",
        "note: slow",
    ]
    assert found.differing == (0,)
    assert len(found.to_text(verbose=True).splitlines()) == 4 + 25 + 4


def test_what_is_not_simulated_is_said_with_its_time() -> None:
    products = tuple(SimulatedProduct(m, 1, 1, 1, m * 10**6) for m in (3, 2, 1))
    limits = Limits(Patience(total_seconds=1))
    simulator = ScaleSim(Path("python"), limits)
    found = simulator.simulate("step", "chip", Array(128, 128, "ws", 1), products)
    assert found.simulated == {} and found.failures == ()
    (note,) = found.notes
    told = "SCALE-Sim would take about 8 min 32 s to 25 min 36 s for each (--limit SECONDS)"
    assert note == f"3 products were not simulated: {told}"


TABLE = """\
program  step

c                                analytic  compiled           simulated
step time                         2.00 us         -  3.00 us     +50.0%
computation                       1.50 us         -        -
exposed communication, waits       500 ns         -        -
kernels                                 4         -        4      +0.0%
bytes that they move             1.00 KiB         -    512 B     -50.0%
collectives                             0         -        1
bytes of collectives                  0 B         -      8 B
messages                                0         -        0
bytes of messages                     0 B         -      0 B
memory at the peak               2.00 MiB         -        -

analytic: the estimate
compiled: none, not compiled
simulated: a binary"""


def test_fidelities_in_text() -> None:
    first = FidelityMeasures(2e3, 1.5e3, 500.0, 4, 1024, 0, 0, 0, 0, 2 << 20)
    other = FidelityMeasures(3e3, None, None, 4, 512, 1, 8, 0, 0)
    columns = (
        Fidelity("analytic", "the estimate", first),
        Fidelity("compiled", "a compiler", reason="not compiled"),
        Fidelity("simulated", "a binary", other),
    )
    found = Fidelities("step", "c", columns).to_text()
    assert [line.split() for line in found.splitlines()] == [
        line.split() for line in TABLE.splitlines()
    ]
    assert all(line == line.rstrip() for line in found.splitlines())
    assert Fidelities("step", "c", columns[1:2]).first is None
