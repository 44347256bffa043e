"""Weisfeiler-Leman hashes against networkx: the same graphs are told apart, and no others."""

from __future__ import annotations

import random
import warnings
from itertools import islice

import numpy as np

from flint.ir.program import Program
from flint.tools.share.leaks.fingerprints import View, first_labels, of_multiset, refined
from tests.leak_workloads import MESH
from tests.program_rows import ProgramBuilder

OPCODES = ("stablehlo.add", "stablehlo.multiply")


def _random_program(seed: int, rows: int) -> Program:
    """Few rows, each reading at most two earlier ones: many seeds give graphs alike."""
    draw = random.Random(seed)
    builder = ProgramBuilder(MESH)
    for row in range(rows):
        deps = {draw.randrange(row) for _ in range(draw.randrange(3))} if row else set()
        builder.add(draw.choice(OPCODES), deps=deps, dtype="f32")
    return builder.build()


def _networkx_hash(program: Program, view: View, depth: int) -> str:
    """The hash of the same graph. Edges have both directions, marked by who reads."""
    import networkx as nx

    graph = nx.DiGraph()
    for row in range(len(program)):
        label = program.opcodes[program.opcode[row]] if view is View.OPS else ""
        graph.add_node(row, label=label)
    for row, read in zip(program.dep_owner.tolist(), program.deps.tolist(), strict=True):
        graph.add_edge(row, read, way="reads")
        graph.add_edge(read, row, way="is read")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of versions whose hashes were others
        return str(
            nx.weisfeiler_lehman_graph_hash(
                graph, edge_attr="way", node_attr="label", iterations=depth
            )
        )


def test_hashes_part_graphs_as_networkx_does():
    """400 graphs of 4 to 6 rows, with and without op classes, to depths 1, 2 and 3."""
    graphs = [_random_program(seed, 4 + seed % 3) for seed in range(400)]
    for view in (View.TOPOLOGY, View.OPS):
        for depth in (1, 2, 3):
            pairs = set()
            for program in graphs:
                deep = next(islice(refined(program, first_labels(program, view)), depth, None))
                pairs.add((of_multiset(deep), _networkx_hash(program, view, depth)))
            ours, theirs = {a for a, _ in pairs}, {b for _, b in pairs}
            assert len(ours) == len(theirs) == len(pairs)
            assert 5 < len(pairs) < len(graphs)


def test_labels_part_rows_as_refinement_by_hand_does():
    """Partitions of rows to depth 3 against refinement with tuples in place of hashes."""
    program = _random_program(7, 30)
    wanted = [0] * len(program)
    reads = [program.dependencies(i).tolist() for i in range(len(program))]
    readers: list[list[int]] = [[] for _ in reads]
    for row, read in enumerate(reads):
        for r in read:
            readers[r].append(row)
    for labels in islice(refined(program, first_labels(program, View.TOPOLOGY)), 4):
        assert _partition(labels.tolist()) == _partition(wanted)
        wanted = _numbers(
            [
                (
                    wanted[i],
                    tuple(sorted(wanted[r] for r in reads[i])),
                    tuple(sorted(wanted[r] for r in readers[i])),
                )
                for i in range(len(program))
            ]
        )
    assert len(np.unique(wanted)) > 5


def _partition(labels: list[int]) -> list[int]:
    return _numbers(labels)


def _numbers(values: list) -> list[int]:
    """Values as numbers in the order in which they come."""
    found: dict = {}
    return [found.setdefault(v, len(found)) for v in values]
