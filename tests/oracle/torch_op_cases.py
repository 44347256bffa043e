"""Cases for the table of PyTorch operators: arguments from a seed, one jit for many, torch's answer.

A test module lists cases and gives them to a `Comparison`, which computes all of them in a few
compilations (one per case would cost a minute) and compares each with torch on the CPU:

    CASES = [*cases("aten::add.Tensor", t(2, 3), t(3), alpha=2, over="f32 bf16 i64", grad=True)]
    COMPARISON = Comparison(CASES)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_equals_torch(case: Case) -> None:
        COMPARISON.check(case)

    def test_every_operator_has_a_case() -> None:
        assert names_without_a_case(CASES, elementwise) == []
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from flint.frontends.torch_ops.registry import find_op, known_ops

DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8": torch.float8_e4m3fn,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
#: Relative and absolute tolerance of a comparison; types that are not named must be equal.
TOLERANCES = {
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (4e-3, 4e-3),
    torch.float32: (2e-5, 2e-6),
    torch.complex64: (2e-5, 2e-6),
    torch.float64: (1e-11, 1e-12),
    torch.complex128: (1e-11, 1e-12),
}
# Numpy has no such types: their bits travel as integers.
_AS_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
_CASES_PER_COMPILATION = 100
# Four times as fast: each case runs once, on a few numbers. Newer versions have no second option.
_COMPILE_FAST: Any = {"xla_backend_optimization_level": "0"}
if jax.__version__.startswith("0.10."):
    _COMPILE_FAST["xla_cpu_use_fusion_emitters"] = False


@dataclass(frozen=True)
class Random:
    """A tensor argument: uniform numbers from `low` to `high`, the same in every run.

    `dtype` None is the type that the case runs over. With `requires_grad` False no gradient is
    compared for it.
    """

    shape: tuple[int, ...]
    dtype: str | None
    low: float
    high: float
    requires_grad: bool = True

    def make(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) < 0.5
        if not (dtype.is_floating_point or dtype.is_complex):
            low, high = int(self.low) if dtype != torch.uint8 else max(0, int(self.low)), self.high
            return torch.randint(low, int(high) + 1, self.shape, generator=generator, dtype=dtype)
        parts = [torch.rand(self.shape, generator=generator, dtype=torch.float64) for _ in "ri"]
        real, imaginary = (self.low + (self.high - self.low) * part for part in parts)
        return (torch.complex(real, imaginary) if dtype.is_complex else real).to(dtype)


@dataclass(frozen=True)
class Exactly:
    """A tensor argument with these values."""

    values: Any
    dtype: str | None
    requires_grad: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.values))

    def make(self, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        del generator
        return torch.tensor(self.values, dtype=dtype)


def t(*shape: int, dtype: str | None = None, low: float = -3.0, high: float = 3.0) -> Random:
    """A tensor of random numbers; of the case's type unless `dtype` says otherwise."""
    return Random(shape, dtype, low, high)


def ints(*shape: int, high: int, low: int = 0, dtype: str = "i64") -> Random:
    """A tensor of random integers from `low` to `high`, both included."""
    return Random(shape, dtype, low, high)


def bools(*shape: int) -> Random:
    """A tensor of random truth values."""
    return Random(shape, "bool", 0, 1)


def exactly(values: Any, dtype: str | None = None) -> Exactly:
    """A tensor with these values."""
    return Exactly(values, dtype)


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an operator, and how closely its results must agree with torch's.

    Attributes:
        op: What PyTorch prints, `aten::add.Tensor`.
        over: The type of tensors that name none.
        grad: Also compare vector-Jacobian products with torch.autograd.
        tolerance: Relative and absolute, instead of the type's in `TOLERANCES`.
        undefined: Results whose values PyTorch leaves open: only shape and type are compared.
        reference: Computes what is expected where torch's own operator cannot run on the CPU.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    over: str = "f32"
    grad: bool = False
    tolerance: tuple[float, float] | None = None
    undefined: tuple[int, ...] = ()
    reference: Callable[..., Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        shapes = "_".join("x".join(map(str, a.shape)) or "scalar" for a in _specs(self.args))
        return f"{self.op}-{self.over}-{shapes}"

    @functools.cached_property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with torch tensors; the same objects every time."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))

        def make(spec: Random | Exactly) -> torch.Tensor:
            dtype = DTYPES[spec.dtype or self.over]
            tensor = spec.make(dtype, generator)
            wanted = (
                self.grad and spec.requires_grad and (dtype.is_floating_point or dtype.is_complex)
            )
            return tensor.requires_grad_(wanted)

        return _replaced(self.args, make), _replaced(self.kwargs, make)

    def expected(self) -> Any:
        """What torch computes; raises what torch raises."""
        args, kwargs = self.arguments
        return (self.reference or torch_overload(self.op))(*args, **kwargs)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in the order of the call."""
        found: list[torch.Tensor] = []
        _replaced(self.arguments, found.append, kinds=torch.Tensor)
        return found


def cases(
    op: str,
    *args: Any,
    over: str = "f32",
    grad: bool = False,
    tolerance: tuple[float, float] | None = None,
    undefined: tuple[int, ...] = (),
    reference: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Iterator[Case]:
    """One case per type in `over`; gradients are compared for f32 and c64 only."""
    for dtype in over.split():
        with_grad = grad and dtype in ("f32", "c64")
        yield Case(op, args, kwargs, dtype, with_grad, tolerance, undefined, reference)


def torch_overload(op: str) -> Callable[..., Any]:
    """The operator that PyTorch prints as `aten::add.Tensor`."""
    namespace, _, name = op.partition("::")
    packet, _, overload = name.partition(".")
    found: Callable[..., Any] = getattr(
        getattr(getattr(torch.ops, namespace), packet), overload or "default"
    )
    return found


def names_without_a_case(all_cases: Iterable[Case], *modules: ModuleType) -> list[str]:
    """Operators that `modules` register and that no case runs."""
    tested = {find for case in all_cases for find in (case.op, f"{case.op}.default")}
    homes = {module.__name__ for module in modules}
    mine = [n for n in known_ops() if getattr(find_op(n), "__module__", "") in homes]
    assert mine, f"nothing is registered in {sorted(homes)}"
    return [name for name in mine if name not in tested]


class Comparison:
    """JAX's results for many cases, computed in few compilations when first asked for."""

    def __init__(self, all_cases: Sequence[Case]) -> None:
        self._cases = all_cases

    @functools.cached_property
    def _outcomes(self) -> dict[Case, _Outcome | Exception]:
        found: dict[Case, _Outcome | Exception] = {}
        for start in range(0, len(self._cases), _CASES_PER_COMPILATION):
            found.update(_computed(self._cases[start : start + _CASES_PER_COMPILATION]))
        return found

    def check(self, case: Case) -> None:
        """Assert that shapes, types, values and gradients are torch's."""
        outcome = self._outcomes[case]
        if isinstance(outcome, Exception):
            raise outcome
        expected = _leaves(case.expected())
        assert len(outcome.results) == len(expected), "number of results"
        for position, (got, want) in enumerate(zip(outcome.results, expected, strict=True)):
            close = None if position in case.undefined else case.tolerance
            _assert_equal(got, want, close, values=position not in case.undefined)
        if case.grad:
            for got, want in zip(outcome.gradients, _torch_gradients(case), strict=True):
                _assert_equal(got, want, case.tolerance, values=True)


def operations(case: Case) -> list[str]:
    """The primitive operations that JAX traces for a case, without constants."""
    with jax.enable_x64(True):
        inputs = [to_numpy(tensor) for tensor in case.tensors()]
        jaxpr = jax.make_jaxpr(functools.partial(_call, case))(*inputs).jaxpr
    return _primitives(jaxpr)


@dataclass(frozen=True)
class _Outcome:
    results: list[Any]
    gradients: list[Any]


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """The same values as a JAX array; call with 64-bit types enabled."""
    return jnp.asarray(to_numpy(tensor))


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same values in numpy, also of types that numpy does not have itself."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _AS_BITS:
        bits, dtype = _AS_BITS[tensor.dtype]
        return tensor.view(bits).numpy().view(dtype)
    return tensor.numpy()


def _computed(some: Sequence[Case]) -> dict[Case, _Outcome | Exception]:
    outcomes: dict[Case, _Outcome | Exception] = {}
    traced: list[tuple[Case, Callable[..., Any], list[Any]]] = []
    with jax.enable_x64(True):
        for case in some:
            try:
                inputs = [to_numpy(tensor) for tensor in case.tensors()]
                traced.append((case, _traced(case, inputs), inputs))
            except Exception as problem:  # noqa: BLE001 - shown by the test of this case
                outcomes[case] = problem
        computed = _run([(run, inputs) for _, run, inputs in traced])
        for (case, _, _), (results, gradients) in zip(traced, computed, strict=True):
            outcomes[case] = _Outcome(list(results), list(gradients))
    return outcomes


def _run(programs: list[tuple[Callable[..., Any], list[Any]]]) -> list[Any]:
    def everything(inputs: list[list[Any]]) -> list[Any]:
        return [run(*mine) for (run, _), mine in zip(programs, inputs, strict=True)]

    run_all = jax.jit(everything, compiler_options=_COMPILE_FAST)
    results: list[Any] = jax.device_get(run_all([inputs for _, inputs in programs]))
    return results


def _traced(case: Case, inputs: list[Any]) -> Callable[..., Any]:
    """A traced function of the case's tensors to its results and gradients."""
    wanted = [i for i, tensor in enumerate(case.tensors()) if tensor.requires_grad]

    def run(*tensors: Any) -> tuple[list[Any], list[Any]]:
        def of_wanted(*values: Any) -> tuple[list[Any], list[Any]]:
            filled = list(tensors)
            for i, value in zip(wanted, values, strict=True):
                filled[i] = value
            results = _call(case, *filled)
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)], results

        if not case.grad:
            return _call(case, *tensors), []
        linked, pull, results = jax.vjp(of_wanted, *(tensors[i] for i in wanted), has_aux=True)
        cotangents = [to_numpy(_cotangent(r.shape, r.dtype.name)) for r in linked]
        # JAX's cotangent of a complex number is the conjugate of torch's.
        back = pull([c.conj() if jnp.iscomplexobj(c) else c for c in cotangents])
        return results, [g.conj() if jnp.iscomplexobj(g) else g for g in back]

    closed, shape = jax.make_jaxpr(run, return_shape=True)(*inputs)
    evaluate = jax.extend.core.jaxpr_as_fun(closed)
    treedef = jax.tree.structure(shape)
    return lambda *tensors: jax.tree.unflatten(treedef, evaluate(*tensors))


def _call(case: Case, *tensors: Any) -> list[Any]:
    function = find_op(case.op)
    assert function is not None, f"{case.op} is not registered"
    remaining = iter(tensors)
    args, kwargs = _replaced(case.arguments, lambda _: next(remaining), kinds=torch.Tensor)
    return _leaves(function(*args, **kwargs))


def _torch_gradients(case: Case) -> list[torch.Tensor]:
    wanted = [tensor for tensor in case.tensors() if tensor.requires_grad]
    results = [r for r in _leaves(case.expected()) if r.is_floating_point() or r.is_complex()]
    cotangents = [_cotangent(tuple(r.shape), str(r.dtype).removeprefix("torch.")) for r in results]
    linked = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
    return list(
        torch.autograd.grad(
            [r for r, _ in linked],
            wanted,
            [c for _, c in linked],
            allow_unused=True,
            materialize_grads=True,
        )
    )


def _cotangent(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=getattr(torch, dtype))


def _assert_equal(
    got: Any, want: Any, tolerance: tuple[float, float] | None, *, values: bool
) -> None:
    if not isinstance(want, torch.Tensor):
        assert got == want
        return
    expected = to_numpy(want)
    assert got.dtype == expected.dtype, f"type {got.dtype}, torch's {expected.dtype}"
    assert got.shape == expected.shape, f"shape {got.shape}, torch's {expected.shape}"
    if not values:
        return
    relative, absolute = tolerance or TOLERANCES.get(want.dtype, (0.0, 0.0))
    wide = np.complex128 if want.dtype.is_complex else np.float64
    if relative or absolute:
        got, expected = got.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(got, expected, rtol=relative, atol=absolute)


def _primitives(jaxpr: Any) -> list[str]:
    """Names of primitives; of nested programs those inside. Filled constants are no work."""
    found: list[str] = []
    filled: set[Any] = set()
    for equation in jaxpr.eqns:
        inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
        of_constants = all(
            isinstance(v, jax.extend.core.Literal) or v in filled for v in equation.invars
        )
        if of_constants and equation.primitive.name == "broadcast_in_dim":
            filled.update(equation.outvars)
        elif inner and not equation.primitive.name.startswith("scatter"):
            found += [name for one in inner for name in _primitives(one)]
        else:
            found.append(equation.primitive.name)
    return found


def _leaves(results: Any) -> list[Any]:
    if isinstance(results, (tuple, list)):
        return [leaf for result in results for leaf in _leaves(result)]
    return [] if results is None else [results]


def _specs(args: Any) -> list[Random | Exactly]:
    found: list[Random | Exactly] = []
    _replaced(args, found.append)
    return found


def _replaced(tree: Any, make: Callable[[Any], Any], *, kinds: Any = (Random, Exactly)) -> Any:
    if isinstance(tree, kinds):
        return make(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_replaced(item, make, kinds=kinds) for item in tree)
    if isinstance(tree, dict):
        return {key: _replaced(item, make, kinds=kinds) for key, item in tree.items()}
    return tree
