"""What a plan is, in words, and the lines that put it into a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flint.steps.step import TorchStep
from flint.tools.explore.propose.blank import Blank
from flint.tools.explore.propose.plan import AtRest, ShardingPlan

if TYPE_CHECKING:
    from flint.tools.explore.propose.origin import ProgramOrigin


def family(plan: ShardingPlan, blank: Blank) -> str:
    """`fully sharded over data, tensor (wq dimension 2) and sequence over model`."""
    said = []
    for (axis, size), colours in zip(plan.axes, plan.splits, strict=True):
        if size > 1 and colours and axis not in ("data", "replica"):
            kinds = [f"{kind(blank, c)} ({blank.name_of(c)})" for c in colours]
            said.append(f"{', '.join(kinds)} over {axis}")
    over = "+".join(n for n, size in plan.axes if size > 1 and n in ("data", "replica"))
    rest = "+".join(plan.rest_axes)
    first = {
        AtRest.NOTHING: f"data parallel over {over}",
        AtRest.STATE: f"data parallel over {over}, optimizer state split over {rest}",
        AtRest.ALL: f"fully sharded over {rest}"
        + (f", copies over {over}" if over != rest else ""),
    }[plan.rest]
    return "; ".join(
        [first, *said] if over or plan.rest is not AtRest.NOTHING else said or ["one device"]
    )


def kind(blank: Blank, colour: int) -> str:
    """What splitting a colour is called, by what products do with it."""
    of = blank.reading.colours.of
    products = blank.reading.products
    if any(not p.flops and of(a) == colour for p in products for a, _ in p.contracted
           if a in p.operands[0] and blank.is_weight(p.operands[0])):  # fmt: skip
        return "vocabulary"
    weights = {c for d in blank.reading.arguments if not blank.is_activation(d)
               for c in blank.reading.colours_of(d)}  # fmt: skip
    if colour not in weights:
        return "sequence"
    for p in products:
        sides = [blank.reading.colours_of(d) for d in p.operands]
        batched = p.flops and all(colour in side for side in sides)
        if batched and any(map(blank.is_weight, p.operands)) and all(
            of(n) != colour for pair in p.contracted for n in pair
        ):  # fmt: skip
            return "expert"
    return "tensor"


def lines(origin: ProgramOrigin, plan: ShardingPlan) -> list[str]:
    """What to paste into the program."""
    found = origin.keywords(plan)
    return _torch_lines(origin, plan, found) if "fsdp" in found else _jax_lines(plan, found)


def _jax_lines(plan: ShardingPlan, found: Mapping[str, Any]) -> list[str]:
    names = ", ".join(repr(n) for n, _ in plan.axes)
    sizes = ", ".join(str(s) for _, s in plan.axes)
    said = [
        f"mesh = jax.make_mesh(({sizes},), ({names},))",
        "# in_shardings, and out_shardings of what comes back:",
    ]
    said += [f"#   {name}: {spec!r}" for name, spec in found["arguments"].items()]
    said.append("# inside, around what these lines make, read or hand on:")
    for key, spec in found["constraints"].items():
        said.append(f"#   {key}: jax.lax.with_sharding_constraint(..., {spec!r})")
    said.append("# or all of them from outside: flint.constrained(step, {key: spec, ...})")
    return said


def _torch_lines(origin: ProgramOrigin, plan: ShardingPlan, found: Mapping[str, Any]) -> list[str]:
    names = tuple(n for n, _ in plan.axes)
    said = [
        f"mesh = init_device_mesh('cuda', {tuple(s for _, s in plan.axes)}, mesh_dim_names={names})"
    ]
    step = getattr(origin, "of", None)
    plan_of = _parallel_plan(step, found["arguments"])
    if plan_of:
        said += [
            "parallelize_module(model, mesh['model'], {",
            *(f"    {n!r}: {how}," for n, how in plan_of),
            "})",
        ]
    if found["fsdp"]:
        over = ", ".join(map(repr, found["fsdp"]))
        one = f"fully_shard(block, mesh=mesh[{over}])"
        said += [f"for block in model.{name}: {one}" for name in _stacks(step)]
        said.append(f"fully_shard(model, mesh=mesh[{over}])")
    said.append("# for flint.TorchStep:")
    said.append("shardings={")
    said += [f"    {name!r}: {spec!r}," for name, spec in found["arguments"].items()]
    return [*said, "},", f"fsdp={found['fsdp']!r}"]


def _stacks(step: object) -> list[str]:
    """Names of the lists of layers that a module has, outermost ones."""
    if not isinstance(step, TorchStep):
        return []
    import torch

    found: list[str] = []
    for name, module in step.module.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, torch.nn.ModuleList) and not is_inside:
            found.append(name)
    return found


def _parallel_plan(step: object, arguments: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """`parallelize_module`'s plan of linear layers and embeddings whose weights "model" splits."""
    if not isinstance(step, TorchStep):
        return []
    import torch

    modules = dict(step.module.named_modules())
    found = []
    for name, spec in arguments.items():
        module = modules.get(name.replace("*", "0").removesuffix(".weight"))
        rows = len(spec) > 0 and spec[0] is not None and "model" in str(spec[0])
        columns = len(spec) > 1 and spec[1] is not None and "model" in str(spec[1])
        if isinstance(module, torch.nn.Linear) and (rows or columns):
            found.append(
                (name.removesuffix(".weight"), "ColwiseParallel()" if rows else "RowwiseParallel()")
            )
        elif isinstance(module, torch.nn.Embedding) and (rows or columns):
            how = "RowwiseParallel(input_layouts=Replicate())" if rows else "ColwiseParallel()"
            found.append((name.removesuffix(".weight"), how))
    return found


def model_file(origin: ProgramOrigin, plan: ShardingPlan, *, model: str, args: str | None, settings: Sequence[str],
               title: str) -> str:  # fmt: skip
    """A model file with the proposal as its entry, which `flint capture` takes.

    `model` and `args` are as the command line has them, by their paths from the folder of the file.
    """
    found = dict(origin.keywords(plan))
    names = tuple(n for n, _ in plan.axes)
    body = []
    for keyword, value in found.items():
        if isinstance(value, Mapping):
            rows = [f"            {n!r}: {_spec(s)}," for n, s in value.items()]
            body += [f"        {keyword}={{", *rows, "        },"]
        else:
            body.append(f"        {keyword}={value!r},")
    target = f"Target.parse(HERE + {args!r})" if args else "None"
    given = dict(s.split("=", 1) for s in settings)
    return "\n".join([
        f'"""{title} (written by flint propose).',
        "",
        f"flint capture THIS_FILE --mesh {plan.mesh}",
        '"""',
        "",
        "import os",
        "",
        "from jax.sharding import PartitionSpec as P",
        "",
        "import flint",
        "from flint.frontends.model_file import Target, load_step",
        "",
        'HERE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "")',
        "",
        "",
        f"@flint.entry(axes={names!r})",
        "def proposed(mesh):",
        '    text = ",".join(f"{name}={size}" for name, size in mesh.shape.items())',
        f"    loaded = load_step(Target.parse(HERE + {model!r}), text, args={target}, settings={given!r})",
        "    return flint.sharded(",
        "        loaded.step,",
        "        mesh,",
        *body,
        "    )",
        "",
    ])  # fmt: skip


def _spec(value: Any) -> str:
    """A sharding as a file has it, which calls PartitionSpec P."""
    return repr(value).replace("PartitionSpec(", "P(")
