"""Puts devices that are not there, and arrays without data, into JAX. Undone at the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flint.frontends.jax_step.gpu_kernels import lowering_options, without_gpu
from flint.frontends.jax_world.calls import MOST_PASSES, Call, Calls, Function, StepDone
from flint.frontends.jax_world.generation import generation_in, made_by
from flint.frontends.jax_world.runtime.arrays import Placed, array_class
from flint.frontends.jax_world.runtime.devices import VirtualClient, VirtualDevice
from flint.frontends.jax_world.runtime.placement import Placement
from flint.frontends.jax_world.values.answers import Answers
from flint.frontends.jax_world.values.follow import Follower
from flint.frontends.jax_world.values.known import Known, known_host_value
from flint.frontends.jax_world.work import Weight, Weights
from flint.passes import jax_private
from flint.passes.jax_private import PARAMETERS, device_count, setting

# Functions that the program compiles before it calls them: `jit(f).lower(...).compile()`.

Run = Callable[..., tuple[Any, ...]]


def lowering_ahead(original: Callable[..., Any], run: Run, platform: str) -> Callable[..., Any]:
    """JAX's lowering, whose result compiles to a `VirtualExecutable` that calls `run`.

    Without platforms of the program's own it lowers for `platform`, with rules that need no device.
    """

    def lower(types: Any, **parameters: Any) -> Any:
        if parameters["lowering_platforms"] is None:
            options = lowering_options(platform, parameters.get("jaxpr"))
            parameters["lowering_platforms"] = options["lowering_platforms"]
            parameters["lowering_parameters"] = options[PARAMETERS]
        with setting("use_shardy_partitioner", True), without_gpu():
            computation = original(types, **parameters)
        own = {k: v for k, v in parameters.items() if k not in _OF_LOWERING}

        def compiled(*_: object, **__: object) -> VirtualExecutable:
            return VirtualExecutable(computation, own, run)

        computation.compile = compiled
        return computation

    return lower


#: Parameters of a lowering that are not of the function.
_OF_LOWERING = ("lowering_platforms", "lowering_parameters", "pgle_profiler")


class VirtualExecutable:
    """What `jax.stages.Compiled` holds: runs nothing, and has no memory to speak of."""

    def __init__(self, computation: Any, parameters: dict[str, Any], run: Run) -> None:
        found = computation.compile_args
        self._computation = computation
        self._parameters = parameters
        self._run = run
        self.in_avals = found["global_in_avals"]
        self.out_avals = found["global_out_avals"]
        self._in_shardings = found["in_shardings"]
        self._out_shardings = found["out_shardings"]
        self._kept_var_idx = found["kept_var_idx"]
        self._all_args_info = found["all_args_info"]
        self._xla_in_layouts = [None] * len(self.in_avals)
        self._xla_out_layouts = [None] * len(self.out_avals)
        self.unsafe_call = self.call

    def call(self, *arguments: Any) -> Any:
        """Results without data."""
        return self._run(*arguments, **self._parameters)[0]

    def create_cpp_call(self, *_: Any) -> None:
        """There is no faster way."""

    def input_shardings(self) -> Any:
        """Where arguments have to be."""
        return self._in_shardings

    def output_shardings(self) -> Any:
        """Where the program says that results are."""
        return self._out_shardings

    def as_text(self) -> str:
        """StableHLO: nothing is compiled."""
        return str(self._computation.stablehlo())

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs in products, of each device if they share all of them."""
        weight = Weights().of(self._parameters["jaxpr"])
        return {"flops": weight.flops / device_count(self._computation)}

    def memory_analysis(self) -> None:
        """XLA says nothing either where it does not know."""

    def runtime_executable(self) -> None:
        """There is none."""


class World:
    """A run of one program: its devices, its arrays and its calls."""

    def __init__(self, client: VirtualClient, calls: Calls, answers: Answers) -> None:
        self.client = client
        self.calls = calls
        self.answers = answers
        self.array: Any = array_class(jax_private.base_array(), answers)
        self.undo = contextlib.ExitStack()
        self.unwritten = Unwritten(answers.say, self.undo)
        self._made = 0
        self._follower = Follower(self.known)
        self._placement = Placement(client.raw_platform)

    def known(self, value: Any) -> Known | None:
        """What is known of an array, or of a value of the host."""
        if isinstance(value, self.array):
            found: Known | None = value.known
            return found
        return known_host_value(value)

    # calls

    def call(self, *arguments: Any, **parameters: Any) -> tuple[Any, ...]:
        """What JAX asks to run a jitted function: results without data, and no executable."""
        function = self.calls.called(arguments, parameters)
        if function is not None:
            self.unwritten.look()
        for argument in arguments:
            if isinstance(argument, self.array):
                argument._check_if_deleted()
        if function is not None and function.calls % PLACED_EVERY == 0:
            self._place_all(arguments)
        self._made += 1
        call = Call(function or _NOBODY, tuple(arguments), parameters, self._made)
        if function is not None:
            makers = (made_by(a)[0] for a in arguments)
            function.follow(call, goes_on=any(m and m.function is function for m in makers))
        results = self._results(call)
        donated = zip(arguments, parameters["donated_invars"], strict=True)
        for argument, is_donated in donated:
            if is_donated and isinstance(argument, self.array):
                argument.delete()
        if function and self.calls.may_end(function) and not self._goes_on(function):
            raise StepDone
        return results, None, None, []

    def _goes_on(self, function: Function) -> bool:
        """Whether calls of a function may be the passes of a generation, whose end says how many there are."""
        same = (f for f in self.calls.free if f is function)
        return function.calls < MOST_PASSES and generation_in(same) is not None

    def _place_all(self, arguments: Sequence[Any]) -> None:
        """Find out where arguments are: each waits for the call before, and that for another."""
        for argument in arguments:
            if isinstance(argument, self.array) and not argument.is_placed:
                argument.place()

    def _results(self, call: Call) -> list[Any]:
        program = call.parameters["jaxpr"]
        known = self._follower.results(program, [self.known(a) for a in call.arguments])
        meshes, places = self._placement.of(call)
        avals = [v.aval for v in getattr(program, "jaxpr", program).outvars]
        results = [
            self._result(a, k, place, mesh)
            for a, k, place, mesh in zip(avals, known, places, meshes, strict=True)
        ]
        for number, result in enumerate(results):
            bits = jax_private.key_bits(result)
            if isinstance(bits, self.array):
                bits.made_by = call, number
        return results

    def _result(
        self, aval: Any, known: Known | None, place: Callable[[], Placed], mesh: Any
    ) -> Any:
        import jax

        core = jax_private.core()
        if not isinstance(aval, core.ShapedArray):
            return aval  # a token: there is nothing to wait for
        if aval.dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, jax.dtypes.float0)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            return self._keys(aval, place, mesh)
        made = self.array.made(aval, known, place)
        made.mesh_before = mesh
        return made

    def _keys(self, aval: Any, place: Callable[[], Placed], mesh: Any) -> Any:
        def physical() -> Placed:
            found = place()
            sharding = jax_private.shardings().physical_sharding(aval, found.sharding)
            return Placed(sharding, found.committed)

        bits = self.array.made(jax_private.core().physical_aval(aval), None, physical)
        bits.mesh_before = mesh
        return jax_private.random_keys()(jax_private.key_kind(aval.dtype), bits)

    # arrays

    def put(
        self,
        *values: Any,
        devices: Sequence[Any],
        srcs: Sequence[Any],
        copy_semantics: Sequence[Any],
        dst_avals: Sequence[Any] = (),
    ) -> list[Any]:
        """`jax.device_put` of several values."""
        found = [self._put(v, d) for v, d in zip(values, devices, strict=True)]
        for value, copy, new in zip(values, copy_semantics, found, strict=True):
            if "DONATE" in str(copy) and value is not new and isinstance(value, self.array):
                value.delete()
        return found

    def _put(self, value: Any, device: Any) -> Any:
        import jax

        keys = jax_private.random_keys()
        if isinstance(value, keys):
            where = device
            if isinstance(device, jax.sharding.Sharding):
                where = jax_private.shardings().physical_sharding(jax.typeof(value), device)
            kind, bits = jax_private.key_parts(value)
            return keys(kind, self._put(bits, where))
        if device is None and isinstance(value, self.array):
            return value
        sharding, committed = self._sharding(value, device)
        aval = value.aval if isinstance(value, self.array) else jax.typeof(value)
        sharding.shard_shape(tuple(aval.shape))  # raises as JAX does for what does not divide
        made = self.array(aval, sharding, (), committed)
        made.known = self.known(value)
        return made

    def _sharding(self, value: Any, device: Any) -> tuple[Any, bool]:
        from jax.sharding import Sharding, SingleDeviceSharding

        sharding = getattr(device, "sharding", device)  # a Format has one
        if sharding is None:
            return SingleDeviceSharding(jax_private.results().get_default_device()), False
        if isinstance(sharding, Sharding):
            return sharding, True
        if not hasattr(sharding, "device_kind"):  # a kind of memory: jax.memory.Space
            kind = {"host": "pinned_host"}.get(sharding.name.lower(), "device")
            own = (
                value.sharding if isinstance(value, self.array) else self._sharding(value, None)[0]
            )
            return own.with_memory_kind(kind), True
        return SingleDeviceSharding(sharding), True

    def put_shards(
        self,
        aval: Any,
        sharding: Any,
        values: Sequence[Any],
        devices: Sequence[Any],
        committed: bool = True,
        enable_x64: bool | None = None,
    ) -> Any:
        """One array of the values that each device gets."""
        made = self.array(aval, sharding, (), committed)
        whole = all(np.shape(v) == tuple(aval.shape) for v in values)
        if values and whole:
            made.known = self.known(values[0])
        return made

    def wait(self, arrays: Sequence[Any]) -> None:
        """`jax.block_until_ready` of several arrays."""


#: Calls of a function after which it is found out where its arguments are.
PLACED_EVERY = 8
#: Stands for JAX's own functions, of which nothing is kept.
_NOBODY = Function("", "", Weight())


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """JAX on the devices of `world` for as long as the context lasts."""
    import jax

    with contextlib.ExitStack() as stack:
        stack.enter_context(world.undo)
        stack.enter_context(jax.set_mesh(None))  # and the program's own does not stay
        stack.enter_context(without_gpu())
        _install_devices(world, stack)
        _install_arrays(world, stack)
        pjit = jax_private.jitted_calls()
        ahead = lowering_ahead(jax_private.lower_call(), world.call, world.client.raw_platform)
        _set(stack, pjit, jax_private.LOWER, ahead)
        _set(stack, pjit, jax_private.RUN, world.call)
        _set(stack, jax_private.core().EvalTrace, "process_shard_map", _jitted_shard_map)
        _set(stack, jax.distributed, "initialize", _initialized(world))
        _set(stack, jax.distributed, "is_initialized", lambda: True)
        _set(stack, jax.distributed, "shutdown", lambda: None)
        yield


def _install_devices(world: World, stack: contextlib.ExitStack) -> None:
    backends, runtime = jax_private.backends(), jax_private.runtime()
    real = dict(backends.backends())
    cpu = {name: client for name, client in real.items() if name == "cpu"}
    _set(stack, backends, jax_private.CLIENTS, {world.client.raw_platform: world.client, **cpu})
    _set(stack, backends, jax_private.DEFAULT_CLIENT, world.client)
    # Settings of devices (jax_num_cpu_devices) are refused once there are some.
    _set(stack, backends, "backends_are_initialized", lambda: False)
    _forget_devices(stack)
    import jax

    kind = _also_virtual(runtime.Device)
    _set(stack, runtime, "Device", kind)
    _set(stack, jax, "Device", kind)


def _forget_devices(stack: contextlib.ExitStack) -> None:
    """JAX keeps what it asked its clients: before and after, they are others."""
    backends = jax_private.backends()
    for name in ("get_backend", "local_devices", "process_count"):
        getattr(backends, name).cache_clear()
        stack.callback(getattr(backends, name).cache_clear)


def _also_virtual(real: type) -> type:
    """What `isinstance(d, jax.Device)` is asked of: also true of virtual devices."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real | VirtualDevice)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    return Kind("Device", (), {})


def _install_arrays(world: World, stack: contextlib.ExitStack) -> None:
    kind, core = world.array, jax_private.core()
    methods, results = jax_private.array_methods(), jax_private.results()
    jax_private.give_array_methods(kind)
    jax_private.canonical_types().register_canonicalize_value_handler(kind, None)
    core.pytype_aval_mappings[kind] = _typed
    jax_private.adders()[kind] = jax_private.adders()[jax_private.arrays().ArrayImpl]
    results.shard_arg_handlers[kind] = world.wait
    _set(stack, methods, jax_private.ARRAY_TYPES, (*jax_private.array_types(), kind))
    _set(stack, methods, "ArrayImpl", kind)
    _set(stack, jax_private.arrays(), "ArrayImpl", kind)
    _set(stack, results, "batched_device_put", world.put_shards)
    placing = jax_private.placing()
    _set(stack, placing.device_put_p, "impl", world.put)
    _set(stack, placing, jax_private.PUT, world.put)
    _set(stack, jax_private.runtime(), "batched_block_until_ready", world.wait)


def _typed(array: Any) -> Any:
    """The type of an array for JAX: its shape, its dtype, and the mesh that it is on."""
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    core = jax_private.core()
    mesh = array.mesh_before
    if array.is_placed or mesh is None or AxisType.Explicit in mesh.axis_types:
        return core.update_aval_with_sharding(array.aval, array.sharding)
    return core.update_aval_with_sharding(array.aval, NamedSharding(mesh, PartitionSpec()))


def _jitted_shard_map(
    trace: Any, primitive: Any, function: Any, arguments: Any, **parameters: Any
) -> Any:
    """A `shard_map` outside a jitted function: staged whole, instead of run part by part."""
    import jax

    return jax.jit(lambda *a: primitive.bind(function, *a, **parameters))(*arguments)


def _initialized(world: World) -> Callable[..., None]:
    def initialize(*_: object, **__: object) -> None:
        """`jax.distributed.initialize`: this process has all devices."""

    return initialize


def _set(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, name)
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, before)


# Checkpoints of arrays without data stay unwritten, whoever writes them.

#: What saves, by its module, and what it returns when it has: orbax says whether a step was due.
_SAVES: dict[str, dict[str, object]] = {
    "orbax.checkpoint": {
        "CheckpointManager.save": True,
        "Checkpointer.save": None,
        "AsyncCheckpointer.save": None,
        "StandardCheckpointer.save": None,
        "PyTreeCheckpointer.save": None,
    },
    "flax.training.checkpoints": {"save_checkpoint": "", "save_checkpoint_multiprocess": ""},
}
#: The sentence for the user.
SAID = "checkpoints are not written: arrays have no data"


class Unwritten:
    """Replaces what saves in libraries that are imported by then, until `undo` is closed."""

    def __init__(self, said: Callable[[str], None], undo: contextlib.ExitStack) -> None:
        self._said = said
        self._undo = undo
        self._done: set[str] = set()

    def look(self) -> None:
        """Replace what was imported since the last time."""
        for module, saves in _SAVES.items():
            if module not in self._done and module in sys.modules:
                self._done.add(module)
                for path, result in saves.items():
                    self._replace(sys.modules[module], path, result)

    def _replace(self, module: Any, path: str, result: object) -> None:
        owner, _, name = path.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        if holder is None or name not in vars(holder):
            return  # inherited, or not in this release
        original = getattr(holder, name)

        def save(*_: object, **__: object) -> object:
            self._said(SAID)
            return result

        setattr(holder, name, save)
        self._undo.callback(setattr, holder, name, original)
