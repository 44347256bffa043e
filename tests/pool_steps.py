"""Small prefill and decode steps, and the pools that serve them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Program, Row
from flint.ir.workload import Workload
from flint.steps.pools import Disaggregated
from flint.steps.step import Step
from flint.tracing_pools import trace_pools
from tests.auto_mesh import auto_mesh

LAYERS, WIDTH = 3, 16


@dataclass(frozen=True)
class Case:
    """A cache of `LAYERS` x requests x places x WIDTH, and how each of the steps holds it.

    `form` is "scan" (a stack made and read in a loop), "list" (an array for each layer) or
    "stacked" (a stack that is made and read as a whole). Specs are of one layer's cache.
    """

    mesh: str = "pool=3,data=2,model=2"
    forms: tuple[str, str] = ("scan", "scan")
    specs: tuple[P, P] = (P("data", None, "model"), P("data", None, "model"))
    requests: tuple[int, int] = (8, 8)
    places: tuple[int, int] = (4, 8)
    width: tuple[int, int] = (WIDTH, WIDTH)
    dtypes: tuple[Any, Any] = (jnp.bfloat16, jnp.bfloat16)
    tokens: int = 1

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)

    @property
    def abstract(self) -> AbstractMesh:
        mesh = Mesh.parse(self.mesh)
        return auto_mesh(mesh.sizes, mesh.names)

    def array(self, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16) -> Any:
        sharding = NamedSharding(self.abstract, P(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def prefill(self) -> Step:
        """(requests, places) tokens to a scalar and the cache."""
        sharding = NamedSharding(self.abstract, self.specs[0])
        form = self.forms[0]

        def layer(x: Any, w: Any) -> tuple[Any, Any]:
            kept = (x[..., None] * w).astype(self.dtypes[0])
            return x + kept.sum(-1), jax.lax.with_sharding_constraint(kept, sharding)

        def step(weights: Any, tokens: Any) -> Any:
            x = tokens.astype(jnp.bfloat16)
            if form == "scan":
                x, cache = jax.lax.scan(layer, x, weights)
                return x.sum(), cache
            caches = []
            for i in range(LAYERS):
                x, cache = layer(x, weights[i])
                caches.append(cache)
            return x.sum(), jnp.stack(caches) if form == "stacked" else caches

        weights = self.array((LAYERS, self.width[0]))
        tokens = self.array((self.requests[0], self.places[0]), dtype=jnp.int32)
        return Step(step, (weights, tokens), name="prefill")

    def decode(self) -> Step:
        """A cache to a sum over it and the cache, a token further."""
        form, shape = self.forms[1], (self.requests[1], self.places[1], self.width[1])
        spec = self.specs[1]

        def layer(x: Any, cache: Any) -> tuple[Any, Any]:
            return x + cache.sum((-1, -2)), cache.at[:, 0].set(x[:, None])

        def once(cache: Any) -> Any:
            x = jnp.zeros(self.requests[1], self.dtypes[1])
            if form == "scan":
                return jax.lax.scan(layer, x, cache)[1]
            if form == "stacked":
                return cache + cache.sum((0, -1, -2), keepdims=True)
            new = []
            for of_layer in cache:
                x, of_layer = layer(x, of_layer)
                new.append(of_layer)
            return new

        def step(cache: Any) -> Any:
            if self.tokens == 1:
                return once(cache)
            return jax.lax.fori_loop(0, self.tokens, lambda _, c: once(c), cache)

        if form == "list":
            cache = [self.array(shape, *spec, dtype=self.dtypes[1]) for _ in range(LAYERS)]
        else:
            cache = self.array((LAYERS, *shape), None, *spec, dtype=self.dtypes[1])
        return Step(step, (cache,), donate_argnums=(0,), name="decode")

    def pools(self, **options: Any) -> Disaggregated:
        listed = self.forms[1] == "list"
        given: dict[str, Any] = {
            "caches": {"result[1][*]": "cache[*]"} if listed else {"result[1]": "cache"},
            "batch_dimension": 0 if listed else 1,
            "length_dimension": 1 if listed else 2,
        }
        return Disaggregated(self.prefill(), self.decode(), **given | options)

    def trace(self, **options: Any) -> Workload:
        """The workload, verified."""
        workload = trace_pools(self.pools(**options), self.mesh)
        workload.verify()
        return workload


def rows(program: Program, kind: Kind) -> list[Row]:
    """The rows of one kind."""
    return [row for row in map(program.row, range(len(program))) if row.kind is kind]


def trips(program: Program, row: Row) -> int:
    """How often a row runs."""
    return int(program.trips[row.number])
