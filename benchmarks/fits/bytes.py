"""Kernels bound by bytes, by library: element-wise, copies, softmax, norms, reductions, look-ups.

What is of which data:
- `[chip.gpu.libraries.aten]` are PyTorch's own kernels. Of launches and of what a kernel does beside
  its bytes, real profiles (data/kineto) say how long kernels ran on the device. NeuSight times single
  calls from outside: what a call takes beside its kernel (`call_ns`, 16 microseconds on an A100, 50 for a
  layer norm) is fitted with its rows and belongs to no kernel; efficiencies come from how its times
  grow with bytes.
- Norms are of the library (`fits.norms`), but for A100, whose own forward passes NeuSight has, and MI300X,
  whose profiles have some.
- `triton` and `transformer-engine` are assumed to stream as PyTorch's vectorised kernels do elsewhere: no
  public data has theirs.
- `[chip.gpu.constants]` are for estimates of no stack: NeuSight's rows on all five GPUs alike, with
  launches of profiles. Times with and without the call count alike.

Half of the kernels are fitted on, by hash. A class of kernels of which the half has little time is
fitted on all of them, and its source says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks import kernel_rows as rows
from benchmarks import trace_kernels
from benchmarks.fits import norms
from benchmarks.fits.fit import FEW, Constant, Fit
from flint.backends.cost.chips.families.gpu import memory
from flint.backends.cost.chips.families.gpu.constants import Constants
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, hardware_of
from flint.backends.cost.chips.kernels import Kernels
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s
from flint.tools.measure.fitting.fit import Bounds, fit
from flint.tools.measure.fitting.kernels import MeasuredKernels

Made = Mapping[str, Constant]
Values = dict[str, float]
Price = Callable[[Kernels, GpuHardware], Float64s]

A100 = "NVIDIA A100-PCIE-40GB"
#: The preset whose profiles say most, whose constants others have.
TRACED = "h100-dgx"
#: Presets of an A100; NeuSight's rows are of one.
AMPERE = ("a100-80-dgx", "a100-40-dgx")
#: Presets that have the constants of another one: the same die.
SAME_DIE = {"gb200-nvl72": "b200-dgx"}
#: The preset of a maker whose chips have nothing of NeuSight's.
OTHER_MAKER = "mi300x"
#: What only norms of that maker's PyTorch were seen to have.
ELEMENT_CYCLES = "norm.element_cycles"
#: How much a kernel of a profile counts alike, of 1; the rest is by its time.
EACH = 0.1
#: Constants of code that all machines compile from one source: how places are found, and a row's norm.
SAME_CODE = (
    *("elementwise.indexed_cycles", "copy.indexed_cycles", "norm.row_cycles", "norm.launch_ns"),
)
#: A half with a smaller share of the time of its class says too little.
LEAST_SHARE = 0.25
#: L1 of an SM over that of an A100 (NVIDIA's whitepapers: 256 and 192 KB).
L1_RATIO = 256 / 192
_LAUNCH = (1500.0, 8000.0, 2500.0)
_SHARE = (0.3, 0.95, 0.85)
_CYCLES = (0.0, 8.0, 0.6)
_CALL = "call_ns"
_CALLS = (0.0, 80000.0, 20000.0)


@dataclass(frozen=True)
class Part:
    """Constants that are fitted together on one class of the kernels of profiles.

    `power` is that of errors: 2 so that sums hold, 1 where some operators are of another library, or
    of several kernels, and should count less.
    """

    name: str
    price: Price
    bounds: Bounds
    power: int = 2


ELEMENTWISE = Part(
    "element-wise", memory.elementwise_ns,
    {"elementwise.launch_ns": _LAUNCH, "elementwise.memory_efficiency": _SHARE,
     "elementwise.indexed_cycles": _CYCLES},
)  # fmt: skip
#: Copies are mostly the kernels of element-wise operators; the small ones of H100's profiles are all
#: concatenations, which say nothing of the launch of others.
PLACES = Part("copies", memory.copy_ns, {"copy.indexed_cycles": _CYCLES})
COPIES = Part("copies", memory.copy_ns, {"copy.launch_ns": _LAUNCH, "copy.indexed_cycles": _CYCLES})
STARTS = Part("norms", memory.norm_ns, {"norm.launch_ns": _LAUNCH})
#: With as few rows as channels, batch norms leave most of a chip idle.
NORMS = Part(
    "norms", memory.norm_ns,
    {"norm.launch_ns": (1500.0, 20000.0, 2500.0), "norm.row_cycles": (0.0, 4000.0, 300.0),
     ELEMENT_CYCLES: (0.0, 8.0, 2.0)}, power=1,
)  # fmt: skip
REDUCTIONS = Part("reductions", memory.reduction_ns, {"reduction.launch_ns": _LAUNCH})
LOOK_UPS = Part(
    "look-ups", memory.gather_ns, {"gather.launch_ns": _LAUNCH, "gather.cycles": _CYCLES}
)
#: Of an eager model on a B200 the profile has few kernels that are PyTorch's own.
LAUNCHES = Part(
    "element-wise", memory.elementwise_ns,
    {n: b for n, b in ELEMENTWISE.bounds.items() if not n.endswith("efficiency")},
)  # fmt: skip
PARTS = {
    TRACED: (ELEMENTWISE, PLACES, STARTS, REDUCTIONS, LOOK_UPS),
    OTHER_MAKER: (ELEMENTWISE, COPIES, NORMS, LOOK_UPS),
    "b200-dgx": (LAUNCHES, COPIES),
}
#: NeuSight's data, the model of each, and what is fitted of it beside the call.
CALLS: Mapping[str, tuple[str, Price, Bounds]] = {
    "elem": ("element-wise kernels", memory.elementwise_ns,
             {"elementwise.memory_efficiency": _SHARE, "elementwise.cycles": (0.0, 5.0, 0.1)}),
    "softmax": ("softmax", memory.softmax_ns,
                {"softmax.memory_efficiency": _SHARE, "softmax.cycles": (0.0, 5.0, 0.1),
                 "softmax.long_bytes": (1.0, 2.0, 1.2)}),
    "ln": ("layer norm", memory.norm_ns,
           {"norm.memory_efficiency": _SHARE, "norm.row_cycles": (0.0, 3000.0, 300.0),
            "norm.near_bytes": (2000.0, 30000.0, 6000.0)}),
}  # fmt: skip


PRESETS = (
    "a100-80-dgx", "a100-40-dgx", "h100-dgx", "h200-dgx", "l40s", "b200-dgx", "gb200-nvl72",
    "mi300x",
)  # fmt: skip
_STREAMED = ("launch_ns", "memory_efficiency", "cycles")
LAUNCHES_OF_ALL = ("elementwise.launch_ns", "softmax.launch_ns", "norm.launch_ns")
_IN_PLACE: Constant = (1.0, "assumed", "a compiler's kernel keeps a row where it is")
#: What the tables hold.
BASE = (
    *(f"elementwise.{name}" for name in _STREAMED),
    *(f"softmax.{name}" for name in (*_STREAMED, "long_bytes")),
    *(f"norm.{name}" for name in ("launch_ns", "memory_efficiency", "row_cycles", "near_bytes")),
)
ATEN = (
    *BASE, *(n for n in norms.NAMES if n not in BASE), "elementwise.indexed_cycles", "copy.launch_ns", "copy.indexed_cycles",
    "reduction.launch_ns", "gather.launch_ns", "gather.cycles",
)  # fmt: skip
TRITON = tuple(name for name in BASE if not name.startswith("norm.")) + norms.NAMES
_HERE = "benchmarks.fits bytes on"
_BESIDE = "what PyTorch's kernels do beside their bytes is in indexed_cycles and long_bytes"
_ZEROS: Made = {
    f"{model}.cycles": (0.0, "assumed", _BESIDE) for model in ("elementwise", "softmax")
}


def fit_logs(
    bounds: Bounds, price: Callable[[Values], Float64s], measured: MeasuredKernels, power: int, elsewhere: Values
) -> Values:  # fmt: skip
    """Constants with the least errors of logarithms of times, to a power.

    Kernels count by their time in all runs, and a little each. What was found `elsewhere` of constants
    of `SAME_CODE` counts as `FEW` kernels.
    """
    measured_ns, times = measured.measured_ns, measured.measured_ns * measured.count
    weights = EACH + (1 - EACH) * len(measured) * times / times.sum()
    known = [n for n in bounds if n in SAME_CODE and elsewhere.get(n, 0.0) > 0]
    theirs = np.array([elsewhere[name] for name in known])
    weights = np.append(weights, np.full(len(known), float(FEW)))

    def away(values: Values) -> Float64s:
        ours = np.array([values[name] for name in known]) / theirs
        ratios = np.append(price(values) / measured_ns, np.maximum(ours, 1e-3))
        return 1 + np.abs(np.log(ratios)) ** power

    return fit(bounds, away, np.ones(len(weights)), weights)


# --- profiles -----------------------------------------------------------------------------------


@cache
def of_profiles(preset: str, alone: bool = False) -> Made:
    """What a machine's profiles say of PyTorch's kernels. Parts take what those before them found.

    `alone` is what they say by themselves, without what is known of other machines.
    """
    given = _given(preset, alone)
    elsewhere = {} if alone else given | _elsewhere(preset)
    found: dict[str, Constant] = {}
    data, _ = trace_kernels.kernels_on(preset)
    for part in PARTS[preset]:
        if not trace_kernels.of_class(data, part.name).any():
            continue  # those of the preset that lends
        values, said = _fit_part(part, preset, given, elsewhere)
        source = f"{_HERE} {said} of profiles of {preset} (kineto)"
        found |= {name: (value, "fitted", source) for name, value in values.items()}
        given |= values
    return found


def _elsewhere(preset: str) -> Values:
    """Geometric means of what the profiles of other machines say."""
    found: dict[str, list[float]] = {}
    for other in PARTS:
        if other != preset:
            for name, (value, _, _) in of_profiles(other, alone=True).items():
                found.setdefault(name, []).append(value)
    return {n: float(np.exp(np.mean(np.log(v)))) for n, v in found.items() if min(v) > 0}


def _given(preset: str, alone: bool) -> Values:
    """What parts are priced with that profiles do not say."""
    calls = {n: v for n, (v, _, _) in of_calls().items()}
    wider = 1.0 if preset in AMPERE else L1_RATIO
    given = calls | {"elementwise.cycles": 0.0, "norm.near_bytes": wider * calls["norm.near_bytes"]}
    if preset == TRACED:
        given |= {n: v for n, (v, _, _) in norms_of("aten", preset).items()}
    elif preset != OTHER_MAKER:
        given |= {n: v for n, (v, _, _) in of_profiles(TRACED, alone).items()}
    return given


def all_are_fitted(preset: str, name: str) -> bool:
    """Whether a class of kernels is fitted on all of them: half of them have little of its time."""
    data, half = trace_kernels.kernels_on(preset)
    mine = trace_kernels.of_class(data, name)
    return data.select(mine & (half == 0)).total_ns < LEAST_SHARE * data.select(mine).total_ns


def _fit_part(part: Part, preset: str, given: Values, elsewhere: Values) -> tuple[Values, str]:
    data, half = trace_kernels.kernels_on(preset)
    mine = trace_kernels.of_class(data, part.name)
    fitted = data.select(mine & (half == 0))
    said = f"half of the kernels of class {part.name}"
    if all_are_fitted(preset, part.name):
        fitted, said = data.select(mine), f"all {int(mine.sum())} kernels of class {part.name}"
    chip = Cluster.load(preset).chip

    def price(values: Values) -> Float64s:
        return part.price(fitted.kernels, hardware_of(chip, Constants(given | values)))

    return fit_logs(part.bounds, price, fitted, part.power, elsewhere), said


# --- single calls -------------------------------------------------------------------------------


@cache
def of_calls() -> Made:
    """Efficiencies of PyTorch's kernels on an A100, and what each has to do beside its bytes.

    The call of an element-wise operator is also that of a softmax; that of a layer norm is longer.
    """
    found: dict[str, Constant] = {}
    call: Bounds = {_CALL: _CALLS}
    given = {"elementwise.launch_ns": 1500.0, "softmax.launch_ns": 3000.0, "norm.launch_ns": 3000.0,
             "elementwise.cycles": 0.0, "softmax.cycles": 0.0}  # fmt: skip
    for name, (title, _, bounds) in CALLS.items():
        free = {n: b for n, b in bounds.items() if n not in given}
        values = fit_calls(name, free | ({} if name == "softmax" else call), given, (A100,))
        given |= {_CALL: values.pop(_CALL, given.get(_CALL, 0.0))}
        source = f"{_HERE} half of NeuSight's {title} of an A100"
        found |= {n: (v, "fitted", source) for n, v in values.items()}
    return found


def times_of_calls(
    name: str, devices: Sequence[str], half: int, given: Values
) -> tuple[Callable[[Values], Float64s], Float64s]:
    """Prices by constants, and measured times, of one of NeuSight's data sets on some GPUs.

    `name` is "elem", "softmax" or "ln". With `call_ns` among the constants, each call takes that
    beside its kernel.
    """
    price = CALLS[name][1]
    parts = [rows.row_kernels(name, d) for d in devices]
    parts = [p.select(p.half == half) for p in parts]

    def times(values: Values) -> Float64s:
        constants = given | values
        hardware = (rows.neusight_hardware(d, constants) for d in devices)
        kernels = [price(p.kernels, h) for p, h in zip(parts, hardware, strict=True)]
        return np.concatenate(kernels) + constants.get(_CALL, 0.0)

    return times, np.concatenate([p.measured_ns for p in parts])


def fit_calls(name: str, bounds: Bounds, given: Values, devices: Sequence[str]) -> Values:
    """Constants of one of NeuSight's data sets over some GPUs, from half 0."""
    times, measured_ns = times_of_calls(name, devices, 0, given)
    return fit(bounds, times, measured_ns)


@cache
def of_device(name: str, device: str) -> Mapping[str, float]:
    """All constants of a data set on one GPU alone, and what its calls take (`call_ns`)."""
    given = {n: v for n, (v, _, _) in launches_of_all().items()}
    return given | fit_calls(name, {**CALLS[name][2], _CALL: _CALLS}, given, (device,))


def fit_shared(name: str, devices: Sequence[str]) -> Values:
    """Constants of several GPUs alike; times with and without the call count alike."""
    given = {n: v for n, (v, _, _) in launches_of_all().items()}
    times, measured_ns = times_of_calls(name, devices, 0, given)
    alone = [times_of_calls(name, (d,), 0, given)[1] - of_device(name, d)[_CALL] for d in devices]
    both = np.concatenate([measured_ns, *alone])
    return fit(CALLS[name][2], lambda values: np.tile(times(values), 2), both)


# --- tables -------------------------------------------------------------------------------------


@cache
def launches_of_all() -> Made:
    """Launches that all GPUs are taken to have: those of profiles."""
    traced = aten(TRACED)
    return {name: (traced[name][0], "fitted", traced[name][2]) for name in LAUNCHES_OF_ALL}


@cache
def shared() -> Made:
    """For estimates of no stack: launches of profiles, the rest of all of NeuSight's GPUs alike."""
    found = dict(launches_of_all())
    for name, (title, _, _) in CALLS.items():
        source = f"{_HERE} half of NeuSight's {title} of P100, P4, T4, V100 and A100"
        values = fit_shared(name, tuple(rows.NEUSIGHT_GPUS))
        found |= {n: (v, "fitted", source) for n, v in values.items()}
    return found


@cache
def base(preset: str) -> Made:
    """`[chip.gpu.constants]`. Those of another maker's chip are of its own profiles."""
    if preset != OTHER_MAKER:
        return shared()
    own = aten(preset)
    return {name: own[name] for name in BASE}


@cache
def aten(preset: str) -> Made:
    """PyTorch's own kernels: what profiles of the machine say, else those of `TRACED`, else calls."""
    if preset in SAME_DIE:
        return _assumed(aten(SAME_DIE[preset]), SAME_DIE[preset]) | norms_of("aten", preset)
    own = of_profiles(preset) if preset in PARTS else {}
    calls = of_calls()
    if preset not in AMPERE:
        calls = _assumed(_for_larger_l1(calls), AMPERE[0])
        calls = {name: c for name, c in calls.items() if name not in of_profiles(TRACED)}
    elsewhere = {} if preset == TRACED else _assumed(of_profiles(TRACED), TRACED)
    found = {**_ZEROS, **elsewhere, **calls, **own}
    if preset != TRACED and preset not in PARTS and preset not in AMPERE:
        found = _assumed(found, TRACED)
    if preset != OTHER_MAKER:  # whose profiles have norms, backward passes too
        theirs = norms_of("aten", preset)
        here = {**calls, **own} if preset in AMPERE else own
        found |= {n: c for n, c in theirs.items() if n not in here}
    found.setdefault("copy.launch_ns", found["elementwise.launch_ns"])
    if preset == OTHER_MAKER:  # operators of several kernels say nothing of one
        found["reduction.launch_ns"] = found["elementwise.launch_ns"]
    launch, _, source = found["norm.launch_ns"]
    return found | {"softmax.launch_ns": (launch, "assumed", f"{source}: no softmax is there")}


def norms_of(library: str, preset: str) -> dict[str, Constant]:
    """Norms of a library: as measured on the chip, or on the chips that they were measured on.

    Kernels of another maker's chip start as much later as its element-wise ones do.
    """
    if preset in norms.GENERATIONS:
        return dict(norms.made(library, preset))
    lender = norms.SISTERS.get(preset, norms.LENDER)
    found = _assumed(norms.made(library, lender), lender)
    if preset != OTHER_MAKER:
        return found
    # PyTorch's own norms have some there, which would stand for any library's
    found[ELEMENT_CYCLES] = (0.0, "assumed", "its kernels have none")
    theirs, ours = (of_profiles(p)["elementwise.launch_ns"][0] for p in (TRACED, preset))
    for name in ("norm.launch_ns", "norm.backward_launch_ns"):
        value, kind, source = found[name]
        source = f"later as element-wise kernels start, {source}"
        found[name] = value + ours - theirs, kind, source
    return found


def _for_larger_l1(calls: Made) -> dict[str, Constant]:
    near, _, source = calls["norm.near_bytes"]
    return {**calls, "norm.near_bytes": (near * L1_RATIO, "assumed", f"by the L1's size, {source}")}


def _as(constant: Constant, whose: str) -> Constant:
    value, _, source = constant
    return value, "assumed", source if source.startswith("as ") else f"as {whose}{source}"


def _assumed(constants: Made, preset: str) -> dict[str, Constant]:
    return {name: _as(constant, f"{preset}: ") for name, constant in constants.items()}


@cache
def triton(preset: str) -> Made:
    """Kernels of compilers: they stream as PyTorch's vectorised ones do, however arrays lie."""
    theirs, found = aten(preset), {}
    for name in (n for n in BASE if not n.startswith("norm.")):
        what = name.partition(".")[2]
        value, _, source = theirs[f"elementwise.{what}" if what == "launch_ns" else name]
        found[name] = (value, "assumed", f"as PyTorch's, none of a compiler is measured: {source}")
    return found | {"softmax.long_bytes": _IN_PLACE} | norms_of("triton", preset)


def transformer_engine(preset: str) -> Made:
    """Its softmax is vectorised as compilers' are; its norms are written by hand, as cuDNN's."""
    softmax = {name: c for name, c in triton(preset).items() if name.startswith("softmax.")}
    return softmax | by_hand(preset)


def by_hand(preset: str) -> Made:
    """Norms that are taken to be as cuDNN's, which are written by hand, too."""
    return {
        name: _as(c, "cuDNN's, none of its own is measured: ") for name, c in cudnn(preset).items()
    }


def cudnn(preset: str) -> Made:
    """Norms of cuDNN."""
    return norms_of("cudnn", preset)


_BOUNDS: Bounds = {
    **{n: b for _, _, bounds in CALLS.values() for n, b in bounds.items() if n not in _ZEROS},
    **{n: b for parts in PARTS.values() for part in parts for n, b in part.bounds.items()},
}
TABLES: Mapping[str, tuple[Callable[[str], Made], tuple[str, ...]]] = {
    "chip.gpu.constants": (base, BASE),
    "chip.gpu.libraries.aten": (aten, ATEN),
    "chip.gpu.libraries.triton": (triton, TRITON),
    "chip.gpu.libraries.cudnn": (cudnn, norms.NAMES),
    "chip.gpu.libraries.transformer-engine": (
        transformer_engine,
        tuple(n for n in TRITON if not n.startswith("elementwise.")),
    ),
}


def fits() -> list[Fit]:
    """All tables of all presets."""
    tables = [(preset, table) for preset in PRESETS for table in TABLES]
    return [_fit(p, t) for p, t in tables if (p, TABLES[t][0]) != (OTHER_MAKER, cudnn)]


def _fit(preset: str, table: str) -> Fit:
    make, names = TABLES[table]
    if preset == OTHER_MAKER and make is aten:
        names = tuple(n for n in names if n in BASE or n not in norms.NAMES)
    if preset == OTHER_MAKER and make is not base:
        names += (ELEMENT_CYCLES,)
    count = len(rows.row_kernels("ln", A100))
    if preset in PARTS:
        count = len(trace_kernels.kernels_on(preset)[0]) or count
    name = f"bytes-{table.rpartition('.')[2]}"
    bounds = _BOUNDS if make in (base, aten) else {}
    if preset in norms.GENERATIONS and make is not base:
        bounds = bounds | norms.bounds_of(
            "aten" if make is aten else "triton" if make is triton else "cudnn"
        )
    return Fit(name, preset, table, names, count, lambda: make(preset), bounds, quick=True)
