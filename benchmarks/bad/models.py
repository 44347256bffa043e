"""Spoilt model files: what a file does at import, what its entry returns, what its step does."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import spoil_bytes, spoil_text

_FILE = """import jax
import jax.numpy as jnp
import flint
from jax.sharding import NamedSharding, PartitionSpec as P
{top}

def step(x, w):
    {body}
    return x @ w


@flint.entry(default=True)
def train(mesh{signature}):
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    w = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    return {result}
"""
_GOOD = "flint.Step(step, (x, w))"
_RESULTS = (
    *("None", "3", "[]", "step", "flint.Step", "flint.Step(step)", "flint.Step(step, x)", "mesh"),
    *("flint.Step(step, ())", "flint.Step(step, (x,))", "flint.Step(step, (x, w, x))"),
    *("flint.Step(3, (x, w))", "flint.Step(None, (x, w))", 'flint.Step("step", (x, w))'),
    *(f"flint.Step(step, (x, w), {field}={value})" for field, values in (
        ("in_shardings", ("3", "()", "(3, 4)", "None", '"data"', 'P("data")', '(P("data"), P())',
                          '(P("none"), P())', '(P("data", "data"), P())', "(P(3), P())", "{}")),
        ("donate_argnums", ("0", "1", "(0,)", "-1", "9", '"x"', "None", "1.5", "(0, 0)", "True")),
        ("static_argnums", ("0", "1", "(0,)", "9", '"x"', "None", "1.5")),
        ("trip_counts", ("3", "{}", '{"loop0": -1}', '{"loop0": "x"}', '{3: 3}', "None", '{"x": 3}')),
        ("name", ("3", "None", '""', '"\\x1b[31m"', '"a/b"', '"x" * 10000', "[]")),
        ("nonsense", ("3",)),
    ) for value in values),
    *(f"flint.Step(step, ({x}, w))" for x in (
        "3", "None", '"x"', "[1, 2]", "jnp.float32", "jax.ShapeDtypeStruct((8, 10**30), jnp.float32)",
        "jax.ShapeDtypeStruct((0, 16), jnp.float32)", "jax.ShapeDtypeStruct((-8, 16), jnp.float32)",
        "jax.ShapeDtypeStruct((8, 16), jnp.int8)", "jax.ShapeDtypeStruct((8, 17), jnp.float32)",
        "jax.ShapeDtypeStruct((10**12, 16), jnp.float32)", "object()", "float('nan')",
    )),
    *(f"flint.Pipeline({arguments})" for arguments in (
        "", "model=step", "model=step, params=w, inputs=x", "model=3, params=w, inputs=(x,)",
        "model=step, params=x, inputs=(w,), microbatches=0",
        "model=step, params=x, inputs=(w,), microbatches='x'",
        'model=step, params=x, inputs=(w,), schedule="none"',
        "model=step, params=x, inputs=(w,), chunks=-1",
    )),
    *("flint.Disaggregated(3, 4)", "flint.TorchStep(3, (4,))", "flint.TorchStep(step, (x,))"),
)  # fmt: skip
_BODIES = (
    "raise SystemExit(0)", "raise SystemExit(3)", "raise ValueError", "import os; os._exit(0)",
    "import sys; sys.exit()", "x = None", "x = x.sum().item()", "1 / 0", "print('hello')",
    "import os; os.write(1, b'hello')", "raise MemoryError", "assert False", "return 3",
    "return None", "return 'x'", "return {}", "yield x", "x = float(x)", "del w",
    "x = jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x)", "if x.sum() > 0: x = x",
    "raise Exception('\\x1b[31mred')", "step(x, w)", "x = jnp.zeros((10**9, 16)) + 1",
    "x = x[:, :99]", "import signal, os; os.kill(os.getpid(), signal.SIGTERM)", "x = x.T",
    "import gc; gc.disable()", "x = jax.lax.with_sharding_constraint(x, P('none'))",
    "jax.debug.print('{}', x)",
)  # fmt: skip
_TOPS = (
    "raise SystemExit(0)", "raise SystemExit('x')", "import os; os._exit(0)", "import none",
    "1 / 0", "import os; os.write(1, b'hello')", "print('x' * 10**6)", "import os; os.close(1)",
    "flint = None", "import sys; sys.setrecursionlimit(60)", "class A: pass", "def f(: pass",
    "exit()", "def __getattr__(n): raise ValueError(n)", "raise BaseException('x')",
    "jax.config.update('jax_enable_x64', True)", "x = '\\ud800'", "import sys; sys.stdout = None",
    "import threading; threading.Thread(target=print).start()", "import os; os.environ.clear()",
    "import os; os.chdir('/')", "del jax",
)  # fmt: skip
_SIGNATURES = (", *, n", ", n=3", "=None", ", *args", ", n: int = 'x'", ", n: object() = 3", ", /")


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """A model file with one odd part."""
    parts = {"top": "", "body": "pass", "signature": "", "result": _GOOD}
    name = rng.choice(
        ("result", "result", "result", "body", "body", "top", "top", "signature", "text")
    )
    choices = {"result": _RESULTS, "body": _BODIES, "top": _TOPS, "signature": _SIGNATURES}
    data: bytes | Special
    if name in choices:
        parts[name] = rng.choice(choices[name])
        change, data = parts[name], _FILE.format(**parts).encode()
    elif rng.random() < 0.7:
        change, text = spoil_text(rng, _FILE.format(**parts))
        data = text.encode("utf-8", "surrogatepass")
    else:
        change, data = spoil_bytes(rng, _FILE.format(**parts).encode())
    command = ("capture", "m.py", "--mesh", "2x2", *rng.choice(((), ("--json",), ("-o", "out"))))
    return Case("models", number, f"{name}: {change}", {"m.py": data}, (command,))
