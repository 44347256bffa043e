"""Normalisations against torch, forward and backward, in every type that a step has them in."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from flint.frontends.torch_ops.nn import norms
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    cases,
    exactly,
    names_without_a_case,
    t,
    torch_overload,
)

ALL = [True, True, True]
CLOSE = (1e-4, 1e-5)


def as_on_a_device(op: str) -> Any:
    """Torch's float32 results in the shapes and types that its kernels for devices give."""

    def compute(*args: Any) -> Any:
        def each(convert: Any) -> Any:
            return [convert(a) if isinstance(a, torch.Tensor) else a for a in args]

        overload = torch_overload(op)
        types = overload(*each(lambda a: a.to("meta")))
        results = overload(*each(lambda a: a.float().clone()))
        made = zip(_tuple(types), _tuple(results), strict=True)
        return tuple(None if kind is None else value.to(kind.dtype) for kind, value in made)

    return compute


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def norm_cases(op: str, *args: Any, over: str = "f32 bf16", **options: Any) -> list[Case]:
    return [*cases(op, *args, over=over, reference=as_on_a_device(op), **options)]


def backward_cases(forward: str, backward: str, x: Any, args: Any, of: Any) -> list[Case]:
    """Gradients from the statistics that the forward operator saved."""
    found = []
    for over in ("f32", "bf16"):
        case = Case(forward, (x, *args), {}, over)
        inputs = [a.float() if isinstance(a, torch.Tensor) else a for a in case.arguments[0]]
        out, *saved = torch_overload(forward)(*inputs)
        kept = [exactly(s.tolist(), "f32") for s in saved[:2]]
        grad, given = t(*out.shape), exactly(inputs[0].tolist())
        tolerance = (1e-4, 1e-4) if over == "f32" else (3e-2, 6e-2)
        found.append(
            Case(
                backward,
                tuple(of(grad, given, *kept)),
                {},
                over,
                tolerance=tolerance,
                reference=as_on_a_device(backward),
            )
        )
    return found


X, IMAGE = t(2, 3, 4, 6), t(3, 4, 5, 2)
W6, W46, C4 = t(6), t(4, 6), t(4)
STATS = (t(4, dtype="f32"), t(4, dtype="f32", low=0.5, high=2.0))
GROUPED = (3, 4, 10, 2)
LAYER, LAYER_BACK = "aten::native_layer_norm", "aten::native_layer_norm_backward"
GROUP, GROUP_BACK = "aten::native_group_norm", "aten::native_group_norm_backward"
BATCH, BATCH_BACK = "aten::native_batch_norm", "aten::native_batch_norm_backward"
FUNCTIONAL = "aten::_native_batch_norm_legit_functional"

CASES = [
    *norm_cases(LAYER, X, [6], W6, W6, 1e-5),
    *norm_cases(LAYER, X, [4, 6], W46, None, 1e-5),
    *norm_cases(LAYER, X, [6], t(6, dtype="f32"), t(6, dtype="f32"), 1e-5, over="bf16"),
    *norm_cases(LAYER, X, [6], None, None, 1e-5, over="f32 f16"),
    *backward_cases(
        LAYER, LAYER_BACK, X, ([6], W6, W6, 1e-5), lambda g, x, m, r: (g, x, [6], m, r, W6, W6, ALL)
    ),
    *backward_cases(
        LAYER,
        LAYER_BACK,
        X,
        ([4, 6], None, None, 1e-5),
        lambda g, x, m, r: (g, x, [4, 6], m, r, None, None, [True, False, False]),
    ),
    *norm_cases(GROUP, IMAGE, C4, C4, *GROUPED, 1e-5),
    *norm_cases(GROUP, IMAGE, None, None, *GROUPED, 1e-5),
    *backward_cases(
        GROUP,
        GROUP_BACK,
        IMAGE,
        (C4, C4, *GROUPED, 1e-5),
        lambda g, x, m, r: (g, x, m, r, C4, *GROUPED, ALL),
    ),
    *norm_cases(FUNCTIONAL, IMAGE, C4, C4, *STATS, True, 0.1, 1e-5),
    *norm_cases(FUNCTIONAL, t(3, 4), None, None, *STATS, True, 0.3, 1e-5),
    *norm_cases("aten::_native_batch_norm_legit.no_stats", IMAGE, C4, C4, True, 0.1, 1e-5),
    *backward_cases(
        BATCH,
        BATCH_BACK,
        IMAGE,
        (C4, C4, None, None, True, 0.1, 1e-5),
        lambda g, x, m, r: (g, x, C4, None, None, m, r, True, 1e-5, ALL),
    ),
    *norm_cases(
        BATCH_BACK, IMAGE, IMAGE, C4, *STATS, *STATS, False, 1e-5, ALL, tolerance=(3e-2, 6e-2)
    ),
    *norm_cases(
        BATCH_BACK,
        IMAGE,
        IMAGE,
        None,
        *STATS,
        *STATS,
        False,
        1e-5,
        [True, False, False],
        over="f32",
    ),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


EVALUATED = ("aten::_native_batch_norm_legit_no_training", FUNCTIONAL)


@pytest.mark.parametrize("op", EVALUATED)
def test_running_statistics_are_used_and_kept(op: str) -> None:
    """Torch's CPU kernels give empty statistics here, its kernels for devices the running ones."""
    import jax

    from flint.frontends.torch_ops.registry import find_op
    from tests.oracle.torch_op_cases import to_jax

    x, weight, bias = torch.randn(3, 4, 5), torch.randn(4), torch.randn(4)
    mean, var = torch.randn(4), torch.rand(4) + 0.5
    training = () if op == EVALUATED[0] else (False,)
    with jax.enable_x64(True):
        args = [to_jax(a) for a in (x, weight, bias, mean, var)]
        out, *statistics = find_op(op)(*args, *training, 0.1, 1e-5)
    expected = torch.nn.functional.batch_norm(x, mean, var, weight, bias)
    assert float(abs(out - to_jax(expected)).max()) < 1e-5
    meta = [a.to("meta") for a in (x, weight, bias, mean, var)]
    types = torch_overload(op)(*meta, *training, 0.1, 1e-5)[1:]
    assert [s.shape for s in statistics] == [tuple(t.shape) for t in types]
    assert float(abs(statistics[1] - to_jax((var + 1e-5) ** -0.5)).max()) < 1e-5


def test_every_operator_has_a_case() -> None:
    tested = [*CASES, *(Case(op, (), {}) for op in EVALUATED)]
    assert names_without_a_case(tested, norms) == []
