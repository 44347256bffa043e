"""Random programs whose ranks do, or do not, do the same: is what differs found, and nothing else?

    python -m benchmarks.rank_faults [--programs 60] [--seed 0]

A program gets its rank in one way of many, carries it through its text in another, and then does
something by it: a planted fault (half of the programs), other work, or something that is alike. Every rank is recorded for the
answer: classes have to be those of what the ranks did, a fault has to be told, and nothing else.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flint.backends.chakra import check, write
from flint.errors import FlintError
from flint.frontends.torch_world.program.classes import rank_classes
from flint.frontends.torch_world.program.deeds import deeds_of
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import RankProcesses, Relay
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload

MESH = Mesh(("dp", "tp"), (2, 2))

PROGRAM = """
import argparse, functools, os, random, torch, torch.nn as nn, torch.distributed as dist
from dataclasses import dataclass, field
from types import SimpleNamespace
from torch.distributed.device_mesh import init_device_mesh
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
world = dist.group.WORLD; half = dist.new_group([0, 1]); other_half = dist.new_group([2, 3])
x = torch.randn(8, 64, device="cuda"); y = torch.randn(8, 64, device="cuda")
m = nn.Linear(64, 64).cuda(); o = torch.optim.SGD(m.parameters(), .1)
{before}
def step(value):
    {step}
for _ in range(2):
    l = m(x).sum(); l.backward()
    for p in m.parameters(): dist.all_reduce(p.grad)
    {use}
    o.step(); o.zero_grad()
"""

#: Expressions that are 0 on rank 0 and another number on at least one other; before them what they need.
SOURCES = {
    "get_rank": "dist.get_rank()",
    "environment": "int(os.environ['RANK'])",
    "environment, local": "int(os.environ.get('LOCAL_RANK', '0'))",
    "getenv": "int(os.getenv('RANK', 0))",
    "copy of the environment": "int(dict(os.environ)['RANK'])",
    "names of variables": "int({k.lower(): v for k, v in os.environ.items()}['rank'])",
    "variable by a constant": "KEY = 'RA' 'NK'; VALUE = int(os.environ[KEY])",
    "variable put together": "KEY = '_'.join(['LOCAL', 'RANK']); VALUE = int(os.environ[KEY])",
    "mesh": "mesh.get_local_rank('dp')",
    "mesh by number": "mesh.get_local_rank(1)",
    "submesh": "mesh['tp'].get_local_rank()",
    "coordinate": "mesh.get_coordinate()[0]",
    "coordinates": "a, b = mesh.get_coordinate(); VALUE = 2 * a + b",
    "mesh's rank": "mesh.get_rank()",
    "group's rank": "dist.get_group_rank(world, dist.get_rank())",
    "rank in a group": "dist.get_rank(mesh.get_group('tp'))",
    "rank() of a group": "mesh.get_group('dp').rank()",
    "rank() of the world": "world.rank()",
    "position in a list": "dist.get_process_group_ranks(world).index(dist.get_rank())",
    "who is first": "min(dist.get_process_group_ranks(mesh.get_group('tp')))",
    "node's rank": "dist.get_node_local_rank(0)",
    "member of a group": "int(half == dist.GroupMember.NON_GROUP_MEMBER)",
    "is a group": "int(not isinstance(half, dist.ProcessGroup))",
    "not in a group": "int(dist.get_rank(half) < 0)",
    "device": "torch.cuda.current_device()",
    "device of a tensor": "x.device.index",
    "device's text": "int(str(x.device).split(':')[1])",
    "another name": "from torch.distributed import get_rank as me; VALUE = me()",
    "by getattr": "getattr(dist, 'get_' + 'rank')()",
    "module's alias": "from torch.distributed import distributed_c10d as c; VALUE = c.get_rank()",
    "tensor of the mesh": "(mesh.mesh.flatten() == dist.get_rank()).nonzero()[0].item()",
    "argument": (
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--who', type=int, default=int(os.environ['RANK']))\n"
        "VALUE = parser.parse_args([]).who"
    ),
    "sampler": "torch.utils.data.DistributedSampler(range(8)).rank",
    "indices of a sampler": "next(iter(torch.utils.data.DistributedSampler(range(8), shuffle=False)))",
    "seed": "random.seed(dist.get_rank()); D = random.random(); random.seed(0); VALUE = int(D != random.random())",
    "generator": "VALUE = int(random.Random(7 + dist.get_rank()).random() != random.Random(7).random())",
    "an all_gather of objects": "L = [None] * 4; dist.all_gather_object(L, 1); VALUE = dist.get_rank()",
    "process index": "class P: process_index = property(lambda s: dist.get_rank())\nVALUE = P().process_index",
}  # fmt: skip

#: How VALUE comes to `who`, which is called.
CARRIED = {
    "variable": "v = VALUE\ndef who(): return v",
    "closure": "def make(n):\n    def inner(): return n\n    return inner\nwho = make(VALUE)",
    "lambda": "v = VALUE\nwho = lambda: v",
    "dataclass": "@dataclass\nclass C:\n    stage: int = 0\nc = C(VALUE)\ndef who(): return c.stage",
    "keyword of a dataclass": "@dataclass\nclass C:\n    size: int\n    stage: int = 0\nc = C(4, stage=VALUE)\ndef who(): return c.stage",
    "property": (
        "@dataclass\nclass C:\n    size: int = 0\n    @property\n    def late(self): return self.size + 0\n"
        "c = C(VALUE)\ndef who(): return c.late"
    ),
    "__post_init__": (
        "@dataclass\nclass C:\n    stage: int = 0\n    def __post_init__(self): self.stage = VALUE\n"
        "c = C()\ndef who(): return c.stage"
    ),
    "default factory": "@dataclass\nclass C:\n    stage: int = field(default_factory=lambda: VALUE)\nc = C()\ndef who(): return c.stage",
    "namespace": "c = SimpleNamespace(size=4, stage=VALUE)\ndef who(): return c.stage",
    "dictionary": "c = {'stage': VALUE}\ndef who(): return c['stage']",
    "dict()": "c = dict(stage=VALUE)\ndef who(): return c['stage']",
    "put into a dictionary": "c = {}\nc['stage'] = VALUE\ndef who(): return c['stage']",
    "updated": "c = {}\nc.update(stage=VALUE)\ndef who(): return c['stage']",
    "list": "c = [VALUE]\ndef who(): return c[0]",
    "appended": "c = []\nc.append(VALUE)\ndef who(): return c[0]",
    "constructor": "class C:\n    def __init__(self, n): self.n = n\nc = C(VALUE)\ndef who(): return c.n",
    "inherited": "class B:\n    def __init__(self, n): self.n = n\nclass C(B): pass\nc = C(VALUE)\ndef who(): return c.n",
    "super": (
        "class B:\n    def __init__(self, n): self.n = n\n"
        "class C(B):\n    def __init__(self, k): super().__init__(k)\nc = C(VALUE)\ndef who(): return c.n"
    ),
    "method": "class C:\n    def n(self): return VALUE\nc = C()\ndef who(): return c.n()",
    "class attribute": "class C: n = VALUE\ndef who(): return C.n",
    "setattr": "c = SimpleNamespace()\nsetattr(c, 'n', VALUE)\ndef who(): return c.n",
    "partial": "def f(n): return n\nwho = functools.partial(f, VALUE)",
    "star arguments": "def f(*a): return a[0]\nv = VALUE\ndef who(): return f(v)",
    "keyword arguments": "def f(**k): return k['n']\nv = VALUE\ndef who(): return f(n=v)",
    "unpacked": "def f(a, n): return n\nv = dict(a=1, n=VALUE)\ndef who(): return f(**v)",
    "cached": "@functools.cache\ndef who(): return VALUE",
    "global": "v = 0\ndef fill():\n    global v\n    v = VALUE\nfill()\ndef who(): return v",
    "walrus": "if (v := VALUE) < 0: raise ValueError\ndef who(): return v",
    "chosen": "v = 1 if VALUE else 0\ndef who(): return v",
    "looked up": "NAMES = ['first', 'a', 'b', 'c']\nv = NAMES[VALUE]\ndef who(): return NAMES.index(v)",
    "match": "n = VALUE\nmatch n:\n    case 0: v = 0\n    case _: v = 1\ndef who(): return v",
    "raised": "def fill():\n    try: return (0,)[VALUE]\n    except IndexError: return 1\nv = fill()\ndef who(): return v",
    "own variable": "os.environ['ROLE'] = str(VALUE)\ndef who(): return int(os.environ['ROLE'])",
    "text": "v = 'stage-' + str(VALUE)\ndef who(): return int(v.split('-')[1])",
    "compared": "v = str(VALUE) != '0'\ndef who(): return int(v)",
    "counted": "v = 0\nfor _ in range(VALUE): v += 1\ndef who(): return v",
    "comprehension": "v = [i for i in range(4) if i == VALUE] or [1]\ndef who(): return v[0]",
    "module": "class M(nn.Module):\n    def __init__(s, n):\n        super().__init__(); s.n = n\nc = M(VALUE)\ndef who(): return c.n",
    "buffer": "class M(nn.Module):\n    stage = None\nc = M()\nc.stage = VALUE\ndef who(): return c.stage",
    "returned with others": "def f(): return 4, VALUE\n_, v = f()\ndef who(): return v",
    "generator": "def f():\n    yield VALUE\nv = next(f())\ndef who(): return v",
    "context": "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield VALUE\nwith f() as v: pass\ndef who(): return v",
    "sorted": "v = sorted([VALUE, 0])[-1]\ndef who(): return v",
    "callback": "def each(f): return f()\nv = each(lambda: VALUE)\ndef who(): return v",
}  # fmt: skip

#: What hangs, or mixes up memory, on every cluster.
FAULTS = {
    "missing": "if value == 0: dist.all_reduce(y)",
    "missing, inverted": "if not value: return\n    dist.all_reduce(y)",
    "by and": "value or dist.all_reduce(y)",
    "other order": (
        "a = lambda: dist.all_reduce(y); b = lambda: dist.all_gather_into_tensor(x.new_empty(32, 64), x)\n"
        "    for f in ((a, b) if value else (b, a)): f()"
    ),
    "other size": "dist.all_reduce(x.new_ones(8 + value))",
    "cut": "dist.all_reduce(y.flatten()[: 64 - 2 * value].clone())",
    "other group": "dist.all_reduce(y, group=mesh.get_group('dp') if value else mesh.get_group('tp'))",
    "group or world": "g = [None, mesh.get_group('tp')]\n    dist.all_reduce(y, group=g[min(value, 1)])",
    "other type": "dist.all_reduce(y.to(torch.bfloat16) if value else y)",
    "type of the same size": "dist.all_reduce(y.view(torch.int32) if value else y)",
    "other root": "dist.broadcast(y, src=value)",
    "other reduction": "dist.all_reduce(y, op=dist.ReduceOp.MAX if value else dist.ReduceOp.SUM)",
    "more often": "for _ in range(1 + value): dist.all_reduce(y)",
    "other collective": "(dist.all_reduce if value else lambda t: dist.broadcast(t, 0))(y)",
    "functional": (
        "from torch.distributed import _functional_collectives as f\n"
        "    if value: f.all_reduce(y, 'sum', mesh['dp']).add_(1)"
    ),
    "gradients": "for p in list(m.parameters())[min(value, 1):]: dist.all_reduce(p.grad)",
    "gathers": "dist.all_gather([torch.empty_like(y) for _ in range(4)], y) if value else None",
    "parts": "dist.all_to_all_single(x.new_empty(8, 64), x, [2] * 4, [2 + value, 2 - value, 2, 2] if value < 2 else [2] * 4)",
    "sends alone": "value and dist.send(y, 0)",
    "barrier only in one": "if value: dist.barrier(); dist.all_reduce(y)",
    "raises": "try:\n        [0][value]\n        dist.all_reduce(y)\n    except IndexError: pass",
    "while": "n = 0\n    while n < value:\n        dist.all_reduce(y); n += 1",
    "in a hook": "if value == 0: m.register_forward_hook(lambda *_: dist.all_reduce(y))\n    m(x)",
}  # fmt: skip
#: What ranks may do otherwise: the work differs.
OTHER = {
    "rows": "m(x.new_ones(8 + 4 * value, 64))",
    "one evaluates": "if value == 0: m(x)",
    "more layers": "for _ in range(1 + value): m(x)",
    "columns": "torch.mm(x, x.new_ones(64, 100 if value else 103))",
    "types": "x.to(torch.bfloat16 if value else torch.float16) @ y.T.to(torch.bfloat16 if value else torch.float16)",
}  # fmt: skip
#: What is alike on all ranks.
ALIKE = {
    "prints": "if value == 0: print(l.item())",
    "offset": "(x[: , 4 * value : 4 * value + 4] * 2).sum()",
    "scale": "x.mul_(value)",
    "seed": "torch.manual_seed(1234 + value); torch.randn(4, device='cuda')",
    "device": "y.to(f'cuda:{torch.cuda.current_device()}')",
    "written": "if value == 0: torch.save(m.state_dict(), '/tmp/never')",
    "mask": "torch.where(torch.arange(8, device='cuda') == value, 1, 0)",
    "branch": "y.add_(1) if value else y.add_(2)",
    "own group": "dist.all_reduce(y, group=half if dist.get_rank() < 2 else other_half)",
    "along": "dist.all_reduce(y, group=mesh.get_group('dp'))",
    "same root": "dist.broadcast(x.fill_(value), src=0)",
    "logged": "import logging; logging.info('rank %s', value)",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program: how it gets its rank, how that is carried, what is done."""

    source: str
    carried: str
    kind: str
    deed: str
    inline: bool = False

    @property
    def text(self) -> str:
        """The script."""
        *need, value = (
            SOURCES[self.source].split("VALUE = ")
            if "VALUE" in SOURCES[self.source]
            else ("", SOURCES[self.source])
        )
        before = need[0].rstrip("; \n") if need else ""
        table = {"fault": FAULTS, "other": OTHER, "alike": ALIKE}[self.kind]
        carried = CARRIED[self.carried].replace("VALUE", f"({value})")
        return PROGRAM.format(
            before=f"{before}\n{carried}", step=table[self.deed], use="step(who())"
        )


def cases(count: int, seed: int) -> Iterator[Case]:
    """`count` programs; each way comes up before one comes up again."""
    draw = random.Random(seed)

    def turns(table: Sequence[str]) -> Iterator[str]:
        while True:
            yield from draw.sample(list(table), len(table))

    sources, carried = turns(list(SOURCES)), turns(list(CARRIED))
    deeds = {"fault": turns(list(FAULTS)), "other": turns(list(OTHER)), "alike": turns(list(ALIKE))}
    for number in range(count):
        kind = ("fault", "other", "fault", "alike")[number % 4]
        yield Case(next(sources), next(carried), kind, next(deeds[kind]))


def verdict(case: Case, processes: RankProcesses, folder: Path) -> str:
    """What is wrong with Flint's answer, or ""."""
    script = folder / "train.py"
    script.write_text(case.text)
    job = replace(
        Job.of_script(script), world_size=MESH.size, mesh_sizes=MESH.sizes, mesh_names=MESH.names
    )
    relay = Relay(job, processes.record)
    try:
        first = relay([0])[0]
        found = rank_classes(Relay(job, processes.record), first, MESH)
    except FlintError as error:
        good = case.kind == "fault" and error.code in ("FL250", "FL251")
        return "" if good else f"{error.code}: {error.message} {error.place}"
    told = [w for w in found.warnings if "hangs" in w]
    workload = Workload(MESH, found.programs, found.classes)
    write(workload, folder / "traces")
    findings = check(folder / "traces").findings
    if case.kind == "fault":
        return "" if told and findings else f"MISSED: told {told}, check {findings}"
    if told or findings:
        return f"FALSE ALARM: {told or findings}"
    every = relay(range(MESH.size))
    deeds = [deeds_of(recording, MESH) for recording in every]
    truth = [deeds.index(d) for d in deeds]
    classes = [
        found.classes.index(next(c for c in found.classes if c.mask(MESH)[r]))
        for r in range(MESH.size)
    ]
    mine = [classes.index(c) for c in classes]
    return "" if mine == truth else f"OTHER CLASSES: {mine} instead of {truth}"


def main() -> None:
    """Print what was wrong, and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    right = 0
    with RankProcesses() as processes:
        for case in cases(asked.programs, asked.seed):
            with tempfile.TemporaryDirectory() as folder:
                wrong = verdict(case, processes, Path(folder))
            right += not wrong
            if wrong:
                print(
                    f"{case.kind} | {case.source} | {case.carried} | {case.deed}: {wrong}",
                    flush=True,
                )
    print(f"{right} of {asked.programs} right")


if __name__ == "__main__":
    main()
