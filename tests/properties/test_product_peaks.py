"""No kernel multiplies faster than the peak of its chip: fusions of HLO, kernels of profiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns, peak_flops_per_ns
from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.partition.xla_child import parse_text
from flint.passes.profiles import PROFILES
from flint.passes.work.totals import matmul_flops
from flint.requests.estimate import EstimateRequest
from tests.hlo_programs import hlo_to_program
from tests.long import long_but
from tests.random_programs import QUICK, programs

GOLDEN = Path(__file__).parents[1] / "golden" / "hlo"
MESH = Mesh.parse("data=1")
CLUSTERS = ("a100-80-dgx", "h100-dgx", "b200", "v4", "v5e", "v5p", "v6e")
FUSIONS = ("kCustom", "kOutput", "kLoop")
#: Kinds whose time depends on the peak.
PRODUCTS = [
    KernelKind.GEMM,
    KernelKind.CONVOLUTION,
    KernelKind.ATTENTION,
    KernelKind.ATTENTION_BACKWARD,
    KernelKind.DECLARED,
]
SIZES = st.sampled_from([1, 8, 100, 1024, 8192])


@dataclass(frozen=True)
class Dot:
    """A product of batches of matrices, and the opcodes that follow it in its computation."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    after: tuple[str, ...]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def text(self, number: int, within: str) -> str:
        """Computations that calculate it: `c<number>` is the outermost."""
        b, m, n, k, t = self.batch, self.m, self.n, self.k, self.dtype
        left, right, result = f"{t}[{b},{m},{k}]", f"{t}[{b},{k},{n}]", f"{t}[{b},{m},{n}]"
        operands = f"x = {left} parameter(0)\ny = {right} parameter(1)\n"
        chain = "".join(
            f"e{i} = {result} {opcode}({'d' if i == 0 else f'e{i - 1}'})\n"
            for i, opcode in enumerate(self.after)
        )
        last = f"e{len(self.after) - 1}" if self.after else "d"
        body = f"""d = {result} dot(x, y), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
        lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
        {chain}ROOT r = {result} copy({last})"""
        inner = f"c{number} {{ {operands}{body} }}\n"
        if not within:
            return inner
        call = "call(x, y), to_apply" if within == "call" else "fusion(x, y), kind=kLoop, calls"
        return (
            inner.replace(f"c{number}", f"i{number}")
            + f"c{number} {{ {operands}ROOT f = {result} {call}=i{number} }}\n"
        )

    def entry(self, number: int, kind: str) -> str:
        b, m, n, k, t = self.batch, self.m, self.n, self.k, self.dtype
        return f"""x{number} = {t}[{b},{m},{k}] parameter({2 * number})
        y{number} = {t}[{b},{k},{n}] parameter({2 * number + 1})
        f{number} = {t}[{b},{m},{n}] fusion(x{number}, y{number}), kind={kind}, calls=c{number}
        """


DOTS = st.builds(
    Dot,
    st.sampled_from([1, 3, 64]),
    SIZES,
    SIZES,
    SIZES,
    st.sampled_from(["bf16", "f32"]),
    st.lists(st.sampled_from(["negate", "exponential"]), max_size=2).map(tuple),
)


def module(computations: str, entry: str) -> Program:
    text = f"HloModule m\n{computations}\nENTRY e {{\n{entry}\n}}\n"
    program = hlo_to_program(parse_text(text.encode()), MESH)
    program.verify()
    return program


def of_fusions(dots: list[tuple[Dot, str, str]]) -> Program:
    """One fusion for each product, of a kind and with the product in a nested computation."""
    computations = "".join(dot.text(i, within) for i, (dot, _, within) in enumerate(dots))
    entry = "".join(dot.entry(i, kind) for i, (dot, kind, _) in enumerate(dots))
    results = ", ".join(f"f{i}" for i in range(len(dots)))
    shapes = ", ".join(f"{d.dtype}[{d.batch},{d.m},{d.n}]" for d, _, _ in dots)
    return module(computations, f"{entry}ROOT t = ({shapes}) tuple({results})")


@pytest.mark.parametrize("cluster", long_but({"h100-dgx", "v5p"}, CLUSTERS))
def test_no_fusion_multiplies_faster_than_its_chip(cluster: str) -> None:
    chips = Cluster.load(cluster)
    nested = st.sampled_from(["", "fusion", "call"])

    @settings(max_examples=20)
    @given(dots=st.lists(st.tuples(DOTS, st.sampled_from(FUSIONS), nested), min_size=1, max_size=3))
    def check(dots: list[tuple[Dot, str, str]]) -> None:
        program = of_fusions(dots)
        kernels, rows = kernels_of(program)
        assert kernels.kind.tolist() == [KernelKind.GEMM] * len(dots)
        said = [(d.flops, (d.batch, d.m, d.n, d.k)) for d, _, _ in dots]
        assert [(int(f), tuple(s)) for f, s in zip(
            matmul_flops(program)[rows], kernels.dims.tolist(), strict=True
        )] == said  # fmt: skip
        no_faster_than_peak(program, chips)
        found = estimate(Workload.single(program), EstimateRequest(chips))
        assert 0 < found.mfu <= found.hfu <= 1

    check()


def no_faster_than_peak(program: Program, cluster: Cluster) -> None:
    """Every kernel takes as long as its products at the peak of what they multiply."""
    kernels, rows = kernels_of(program)
    products = matmul_flops(program)[rows]
    times = latency_ns(kernels, cluster.chip)
    # what holds a product is priced as one
    assert not products[~np.isin(kernels.kind, PRODUCTS)].any()
    for at in np.flatnonzero(products).tolist():
        peak = peak_flops_per_ns(cluster.chip, kernels.dtypes[kernels.dtype[at]])
        assert times[at] >= products[at] / peak


@pytest.mark.parametrize(("dump", "cluster"), [("gpu", "h100-dgx"), ("tpu", "v5p")])
def test_products_that_compilers_fused_are_products(dump: str, cluster: str) -> None:
    """Three layers of two products, forward and twice backward, as XLA compiled them."""
    text = (GOLDEN / f"scanned_block_{dump}.txt").read_bytes()
    program = hlo_to_program(parse_text(text), Mesh.parse("data=2,model=4"))
    kernels, rows = kernels_of(program)
    assert (kernels.kind == KernelKind.GEMM).sum() == 6
    assert (program.trips[rows][kernels.kind == KernelKind.GEMM] == 3).all()
    no_faster_than_peak(program, Cluster.load(cluster))


SEVERAL = """c {{ q = bf16[8,{s},128] parameter(0)
  k = bf16[8,{s},128] parameter(1)
  v = bf16[8,{s},64] parameter(2)
  p = bf16[8,{s},{s}] dot(q, k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  e = bf16[8,{s},{s}] exponential(p)
  ROOT o = bf16[8,{s},64] dot(e, v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}} }}
"""


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("size", [64, 2048])
def test_a_kernel_of_two_products_takes_as_long_as_both(size: int, cluster: str) -> None:
    program = module(
        SEVERAL.format(s=size),
        f"""q = bf16[8,{size},128] parameter(0)
        k = bf16[8,{size},128] parameter(1)
        v = bf16[8,{size},64] parameter(2)
        ROOT f = bf16[8,{size},64] fusion(q, k, v), kind=kCustom, calls=c""",
    )
    kernels, rows = kernels_of(program)
    assert kernels.dims.tolist() == [[8, size, size, 128 + 64]]
    assert matmul_flops(program)[rows].tolist() == [2 * 8 * size * size * (128 + 64)]
    no_faster_than_peak(program, Cluster.load(cluster))


@pytest.mark.parametrize("cluster", ["h100-dgx", "v5p"])
@pytest.mark.parametrize("kind", FUSIONS)
def test_a_fused_convolution_takes_as_long_as_alone(kind: str, cluster: str) -> None:
    line = """bf16[64,56,56,256] convolution(x, w), dim_labels=b01f_01io->b01f,
        window={size=3x3 pad=1_1x1_1}"""
    operands = """x = bf16[64,56,56,256] parameter(0)
        w = bf16[3,3,256,256] parameter(1)
        """
    alone = module("", f"{operands}ROOT r = {line}")
    fused = module(
        f"c {{ {operands}ROOT r = {line} }}",
        f"{operands}ROOT f = bf16[64,56,56,256] fusion(x, w), kind={kind}, calls=c",
    )
    chip = Cluster.load(cluster).chip
    times = [latency_ns(kernels_of(p)[0], chip)[0] for p in (alone, fused)]
    assert times[0] == times[1]
    assert matmul_flops(fused).any()
    no_faster_than_peak(fused, Cluster.load(cluster))


@pytest.mark.parametrize("cluster", ["h100-dgx", "v5p"])
def test_an_epilogue_is_part_of_the_product(cluster: str) -> None:
    plain, ended = (
        of_fusions([(Dot(1, 8192, 16384, 4096, "bf16", after), "kOutput", "")])
        for after in ((), ("negate",))
    )
    kernels = [kernels_of(p)[0] for p in (plain, ended)]
    assert (kernels[0].dims == kernels[1].dims).all()
    assert (kernels[1].flops - kernels[0].flops).tolist() == [math.prod((8192, 16384))]
    times = [latency_ns(k, Cluster.load(cluster).chip)[0] for k in kernels]
    assert 1 <= times[1] / times[0] < 1.05


@pytest.mark.parametrize("body", ["negate(x)", "reduce(x, z), dimensions={1}, to_apply=add"])
def test_fusions_without_a_product_are_no_products(body: str) -> None:
    shape = "f32[64]" if "reduce" in body else "f32[64,64]"
    program = module(
        f"""add {{ a = f32[] parameter(0)
        b = f32[] parameter(1)
        ROOT s = f32[] add(a, b) }}
        c {{ x = f32[64,64] parameter(0)
        z = f32[] constant(0)
        ROOT r = {shape} {body} }}""",
        f"x = f32[64,64] parameter(0)\nROOT f = {shape} fusion(x), kind=kLoop, calls=c",
    )
    kind = KernelKind.REDUCTION if "reduce" in body else KernelKind.ELEMENTWISE
    assert kernels_of(program)[0].kind.tolist() == [kind]
    assert (program.kind == Kind.COMPUTE).sum() == 1


@pytest.mark.parametrize(
    ("profile", "cluster"),
    [("xla-gpu", "h100-dgx"), ("xla-gpu+flash", "b200"), ("inductor", "a100-80-dgx"),
     ("megatron", "h100-dgx"), ("xla-tpu", "v5p"), ("xla-tpu", "v6e")],
)  # fmt: skip
def test_no_kernel_of_a_profile_multiplies_faster_than_its_chip(profile: str, cluster: str) -> None:
    chips, kernels = Cluster.load(cluster), PROFILES[profile].kernels

    @QUICK
    @given(program=programs(mesh=MESH))
    def check(program: Program) -> None:
        no_faster_than_peak(run_passes(program, kernels), chips)

    check()
