"""How a kernel of Pallas is lowered without its device: a custom call with its cost, on TPUs Mosaic's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flint.frontends.jax_stages.cut.jaxprs import scan_operands
from flint.frontends.jax_step.kernel_counts import counts_of
from flint.passes.jax_private import cost_estimate, custom_call, lower_interpreted_pallas
from flint.passes.mlir import FRONTEND_ATTRIBUTES
from flint.passes.work.declared import declaration_of
from flint.passes.work.hand_written import BLOCKS, MaskBlocks

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, JaxprEqn
    from jax.interpreters.mlir import LoweringRuleContext
    from jaxlib.mlir import ir

# The blocks that splash attention's mask leaves, from the program that calls it.
#
# The kernel is given an array that says of each block of queries and keys whether it is run. That array is
# made of the mask before anything is traced, so that it is a constant of the program, handed on
# through whatever is jitted, mapped or scanned.

#: Constants that are not larger are followed: masks of blocks are small.
_MOST_ELEMENTS = 2**20
_PASSED_ON = frozenset(
    (
        *("convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "copy"),
        *("device_put", "sharding_constraint", "optimization_barrier", "pvary", "name"),
        "reshard",
    )
)


def blocks_of_masks(program: ClosedJaxpr) -> Mapping[int, MaskBlocks]:
    """For each splash kernel of a program (by the id of its body) the blocks that it runs.

    Not of one that is called with several masks, or with one that is not a constant.
    """
    search = _Search()
    search.run(program.jaxpr, [None] * len(program.jaxpr.invars), program.consts)
    return {body: found for body, found in search.found.items() if found is not None}


class _Search:
    def __init__(self) -> None:
        self.found: dict[int, MaskBlocks | None] = {}
        self._results: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def run(self, jaxpr: Any, arguments: Sequence[Any], constants: Sequence[Any] = ()) -> list[Any]:
        """Follow constants through a jaxpr; returns its results as far as they are constants.

        A jaxpr that is called again with the same ones is followed once.
        """
        key = (id(jaxpr), *map(id, arguments))
        if key not in self._results:  # what the ids are of is held
            self._results[key] = self._follow(jaxpr, arguments, constants), (jaxpr, arguments)
        return self._results[key][0]

    def _follow(self, jaxpr: Any, arguments: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        known = dict(zip(jaxpr.invars, arguments, strict=True))
        known.update(zip(jaxpr.constvars, map(_small, constants), strict=False))

        def read(atom: Any) -> Any:
            return None if hasattr(atom, "val") else known.get(atom)

        for equation in jaxpr.eqns:
            values = [read(v) for v in equation.invars]
            known.update(zip(equation.outvars, self._equation(equation, values), strict=False))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, e: JaxprEqn, values: list[Any]) -> list[Any]:
        name = e.primitive.name
        if name == "pallas_call":
            self._kernel(e, values)
            return []
        if name in _PASSED_ON:
            return values[: len(e.outvars)]
        if name == "scan":
            return self._scan(e, values)
        if name == "while":
            return self._while(e, values)
        if name == "cond":
            for body in e.params["branches"]:
                self._called(body, values[1:])
            return []
        for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
            if key in e.params:
                return self._called(e.params[key], values)
        return []

    def _called(self, body: Any, values: list[Any]) -> list[Any]:
        inner = getattr(body, "jaxpr", body)
        if not hasattr(inner, "eqns"):
            return []
        given = values if len(inner.invars) == len(values) else [None] * len(inner.invars)
        return self.run(inner, given, getattr(body, "consts", ()))

    def _scan(self, e: JaxprEqn, values: list[Any]) -> list[Any]:
        constants, carried = scan_operands(e)
        inner = e.params["jaxpr"].jaxpr
        passed = list(values[:constants])
        for at in range(constants, constants + carried):
            same = inner.outvars[at - constants] is inner.invars[at]
            passed.append(values[at] if same else None)
        passed += [None] * (len(values) - len(passed))
        return self.run(inner, passed, e.params["jaxpr"].consts)[:carried]

    def _while(self, e: JaxprEqn, values: list[Any]) -> list[Any]:
        first, second = int(e.params["cond_nconsts"]), int(e.params["body_nconsts"])
        inner = e.params["body_jaxpr"].jaxpr
        passed = list(values[first : first + second])
        for at, value in enumerate(values[first + second :]):
            passed.append(value if inner.outvars[at] is inner.invars[second + at] else None)
        return self.run(inner, passed, e.params["body_jaxpr"].consts)

    def _kernel(self, e: JaxprEqn, values: list[Any]) -> None:
        if "splash" not in str(e.params.get("name")):
            return
        body = id(e.params["jaxpr"])
        blocks = _blocks(e, values)
        if self.found.setdefault(body, blocks) != blocks:
            self.found[body] = None


def _small(value: Any) -> Any:
    """A small array of integers as numpy has it, None of anything else."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or np.dtype(dtype).kind not in "iu" or value.size > _MOST_ELEMENTS:
        return None
    return np.asarray(value)


def _blocks(e: JaxprEqn, values: list[Any]) -> MaskBlocks | None:
    """The mask of blocks is the second of the scalars that come first, or the only one."""
    mapping = e.params["grid_mapping"]
    scalars = int(mapping.num_index_operands)
    if not scalars or len(mapping.block_mappings) < 2:
        return None
    mask = values[min(1, scalars - 1)]
    if mask is None or mask.ndim != 3:
        return None
    queries, keys = (_sequence(m) for m in mapping.block_mappings[:2])
    return _counted(mask, queries, keys)


@dataclass(frozen=True)
class _Sequence:
    length: int
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.length // max(self.block, 1))


def _sequence(mapping: Any) -> _Sequence:
    """Length and block of the sequence: the longer of the last two dimensions."""
    shape, blocks = mapping.array_aval.shape[-2:], mapping.block_shape[-2:]
    at = 0 if shape[0] >= shape[1] else 1
    size = getattr(blocks[at], "block_size", blocks[at])
    return _Sequence(int(shape[at]), int(size) if isinstance(size, int) else int(shape[at]))


def _counted(mask: NDArray[Any], queries: _Sequence, keys: _Sequence) -> MaskBlocks:
    heads = math.prod(mask.shape[:1])
    return MaskBlocks(
        run=int(np.count_nonzero(mask)),
        of=heads * queries.blocks * keys.blocks,
        queries=queries.block,
        keys=keys.block,
    )


def pallas_rule(platform: str, program: ClosedJaxpr | None) -> Callable[..., object]:
    """The rule of `pallas_call` on a GPU's or a TPU's platform, for the kernels of a program."""
    if platform in ("cuda", "rocm"):
        return _lower_pallas
    return partial(_lower_for_tpu, {} if program is None else blocks_of_masks(program))


def _lower_pallas(
    context: LoweringRuleContext, *values: ir.Value, interpret: object, **parameters: Any
) -> Sequence[ir.Value]:
    """One custom call `pallas_call` with its cost; the kernel is not compiled."""
    if interpret:
        lower: Callable[..., Sequence[ir.Value]] = lower_interpreted_pallas()
        return lower(context, *values, interpret=interpret, **parameters)
    return _called(context, values, parameters, _estimate_of(parameters, is_pipelined=False))


def _called(
    context: LoweringRuleContext,
    values: Sequence[ir.Value],
    parameters: dict[str, Any],
    estimate: Any,
) -> Sequence[ir.Value]:
    from jax.interpreters import mlir

    config: dict[str, Any] = {"name": str(parameters.get("name") or "kernel")}
    if estimate is not None:
        fields = ("flops", "bytes_accessed", "transcendentals")
        config["cost_estimate"] = {f: int(getattr(estimate, f)) for f in fields}
    types = [mlir.aval_to_ir_type(context.module_context, a) for a in context.avals_out]
    out = custom_call()(
        "pallas_call",
        result_types=types,
        operands=list(values),
        backend_config=json.dumps(config),
        api_version=2,
    )
    return list(out.results)


def _lower_for_tpu(
    masks: Mapping[int, MaskBlocks],
    context: LoweringRuleContext,
    *values: ir.Value,
    interpret: object,
    **parameters: Any,
) -> Sequence[ir.Value]:
    """Mosaic's own lowering; a kernel that declares no cost gets what is counted of it.

    A kernel that is compiled only beside a TPU of some generation becomes a call, as on GPUs.
    """
    lower: Callable[..., Sequence[ir.Value]] = lower_interpreted_pallas()
    if interpret:
        return lower(context, *values, interpret=interpret, **parameters)
    parameters["cost_estimate"] = estimate = _estimate_of(parameters, is_pipelined=True)
    try:
        made = lower(context, *values, interpret=interpret, **parameters)
        _say_blocks(made, masks.get(id(parameters["jaxpr"])))
        return made
    except ValueError as error:
        if "device kind" not in str(error):
            raise
        return _called(context, values, parameters, estimate)


def _say_blocks(made: Sequence[ir.Value], blocks: MaskBlocks | None) -> None:
    """Write the blocks that a kernel runs beside its call."""
    from jaxlib.mlir import ir

    if blocks is None or not made or isinstance(made[0], ir.BlockArgument):
        return
    call = made[0].owner
    said = call.attributes.get(FRONTEND_ATTRIBUTES, ())
    full = {n.name: n.attr for n in said} | {BLOCKS: ir.StringAttr.get(str(blocks))}
    call.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(full)


def _estimate_of(parameters: dict[str, Any], *, is_pipelined: bool) -> Any:
    """What a kernel declares, else what its body and grid say, unless `@flint.cost_of` does."""
    given = parameters.get("cost_estimate")
    name = str(parameters.get("name") or "kernel")
    if given is not None or declaration_of(f"pallas.{name}") is not None:
        return given
    counts = counts_of(parameters["jaxpr"], parameters["grid_mapping"], is_pipelined=is_pipelined)
    if counts is None:
        return None
    return cost_estimate()(
        flops=counts.flops,
        transcendentals=counts.transcendentals,
        bytes_accessed=counts.bytes_accessed,
    )
