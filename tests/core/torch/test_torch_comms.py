"""Operators that communicate: which of their arguments are what, as PyTorch's schemas say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_world.program.comms import Family, family_of
from flint.frontends.torch_world.record.recording import CommKind
from flint.ir.program import Collective

NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")
#: Parts of names -> what the network does. What one rank gives to all others is a broadcast, and a
#: reduction for one rank moves as much.
KINDS = (
    ("reduce_scatter", Collective.REDUCE_SCATTER),
    ("allgather", Collective.ALL_GATHER),
    ("all_gather", Collective.ALL_GATHER),
    ("gather_", Collective.ALL_GATHER),
    ("alltoall", Collective.ALL_TO_ALL),
    ("all_to_all", Collective.ALL_TO_ALL),
    (":reduce_", Collective.BROADCAST),
    ("reduce", Collective.ALL_REDUCE),
    ("broadcast", Collective.BROADCAST),
    ("scatter_", Collective.BROADCAST),
    ("send", Collective.NONE),
    ("recv", Collective.NONE),
)


def operators() -> dict[str, tuple[Family, list[tuple[str, str]]]]:
    """Name -> its family, and names and types of its arguments."""
    import torch.distributed._functional_collectives  # they register operators
    import torch.distributed.tensor

    found = {}
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = full.partition("::")
        if namespace not in NAMESPACES or "." in name:
            continue
        try:
            family = family_of(namespace, name)
        except FlintError:  # it cannot be recorded
            continue
        if family is not None:
            schema = getattr(getattr(torch.ops, namespace), name).default._schema
            found[full] = family, [(a.name, str(a.type)) for a in schema.arguments]
    return found


def is_tensors(argument: tuple[str, str]) -> bool:
    return argument[1] in ("Tensor", "List[Tensor]", "List[List[Tensor]]")


def test_all_kinds_of_operators_are_known() -> None:
    assert len(operators()) > 20
    assert {family.collective for family, _ in operators().values()} == set(Collective) - {
        Collective.PERMUTE
    }


@pytest.mark.parametrize("name", operators())
def test_arguments_are_where_the_schema_has_them(name: str) -> None:
    family, arguments = operators()[name]
    tensors = [at for at, argument in enumerate(arguments) if is_tensors(argument)]
    given = [at for at in tensors if not arguments[at][0].startswith("out")]
    assert family.input == given[0]
    outputs = [at for at in tensors if arguments[at][0].startswith("output")]
    if outputs:  # those of c10d; an `out` of the others is returned
        assert family.output == outputs[0]
    else:
        in_place = name.endswith(("_", "irecv"))
        assert family.output == (family.input if in_place else -1)
    groups = [at for at, (_, kind) in enumerate(arguments) if kind.endswith("ProcessGroup")]
    assert [family.group] == (groups or [-1])
    if not groups:
        assert "group_name" in dict(arguments)


@pytest.mark.parametrize("name", operators())
def test_names_tell_what_the_network_does(name: str) -> None:
    family, _ = operators()[name]
    short = name.partition("::")[2]
    assert family.collective == next(kind for part, kind in KINDS if part in f":{short}")
    messages = {"send": CommKind.SEND, "isend": CommKind.SEND}
    messages |= {"recv_": CommKind.RECV, "irecv": CommKind.RECV}
    assert family.kind == messages.get(short, CommKind.COLLECTIVE)
