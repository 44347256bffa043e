"""Writes down every operator that the program runs on the virtual device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from flint.frontends.torch_declared import plain_arguments
from flint.frontends.torch_precision import convolution_precision, matmul_precision
from flint.frontends.torch_private import (
    DispatchKey,
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    below_autograd,
    current_node,
    has_kernel,
    kernel_of,
    next_sequence_number,
    plain_dispatch,
    schema_of,
    sequence_number,
)
from flint.frontends.torch_world.device.device import SHOWN, is_virtual, virtual_device
from flint.frontends.torch_world.program.comms import Family, GroupsByName, comm_of, family_of
from flint.frontends.torch_world.program.cuda_kernels import PRECISION
from flint.frontends.torch_world.program.names import base_name
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.work import OF_CUDNN, PRODUCTS, SCORES, is_known
from flint.frontends.torch_world.record.compiled import EAGER, CompiledCall
from flint.frontends.torch_world.record.declared import DeclaredWork, work_of_call
from flint.frontends.torch_world.record.modules import Places
from flint.frontends.torch_world.record.recording import (
    ALLOCATION,
    Comm,
    CommKind,
    Event,
    HostCopy,
    TensorInfo,
)
from flint.frontends.torch_world.record.refusals import of_functions
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.record.storages import Storages
from flint.frontends.torch_world.values.packed import packed_call
from flint.ir.op_class import ATTENTION
from flint.ir.program import Collective, Phase
from flint.passes.work.work import Work

#: Operators that only allocate: they are events where the memory is then used in parts.
_EMPTY = "empty empty_like empty_strided empty_permuted new_empty new_empty_strided"
_ALLOCATIONS = frozenset(f"aten::{name}" for name in _EMPTY.split())
#: These, and others for which nothing runs on the device.
_SILENT = _ALLOCATIONS | {"aten::_local_scalar_dense", "aten::is_pinned"}
_SILENT |= {"aten::record_stream", "aten::set_"}
#: Operators that copy between devices.
_COPIES = frozenset(("aten::_to_copy", "aten::copy_", "aten::_copy_from", "prims::device_put"))
#: Operators whose result the host reads at once.
_READ = frozenset(("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"))
_DEVICE_OF = torch.ops.prim.device.default
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class _Operator:
    """What is known of an operator before it is called."""

    func: OpOverload
    op: str
    names: tuple[str, ...]
    written: tuple[str, ...]
    allocates: bool
    is_silent: bool  #: no event: it allocates, asks or marks
    copies: bool
    is_read: bool  #: by the host, at once
    family: Family | None
    precision: Callable[[], str] | None  #: how it multiplies f32 now
    attends: bool
    is_composite: bool  #: PyTorch takes it apart, on any device
    is_known: bool  #: its work is known as a whole: views have none
    views: bool  #: its result is its first argument, seen differently


class Recorder(TorchDispatchMode):
    """The dispatch mode that the program runs under, above fake tensors."""

    supports_higher_order_operators = True

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.events: list[Event] = []
        self.storages = Storages(lambda: len(self.events))
        self.groups = GroupsByName()
        self.places = Places()
        #: Storages of the device that were copied from the host, as a batch is.
        self.host_inputs: dict[int, TensorInfo] = {}
        #: Storages of the host that the recorded step copied to the device, and those it filled.
        self.host_sources: set[int] = set()
        self._offloaded: dict[int, int] = {}  # and what the host made of it: where that came from
        self.end = 0
        #: Outermost modules by number, each with the event before which it was called.
        self.calls: list[tuple[int, int]] = []
        self._operators: dict[OpOverload, _Operator] = {}
        self._declared = DeclaredWork()
        self._subclasses: dict[type, bool] = {}
        self._forward: dict[int, tuple[str, str, CompiledCall]] = {}
        self._works: WeakKeyDictionary[dist.Work, tuple[int, object]] = WeakKeyDictionary()
        self._waits_in_graph: list[int] = []
        self._messages: dict[int, Phase] = {}
        self._device = virtual_device()
        session.on_replay = self.events.append
        session.on_emptied = self.storages.emptied

    # --- the recorded step ----------------------------------------------------------------------

    def restart(self) -> None:
        """The recorded step starts here, unless another start follows."""
        self.events.clear()
        self.calls.clear()
        self.storages.restart()
        self._works.clear()
        self.host_sources.clear()
        self._offloaded.clear()
        self.session.timeline.restart()

    def mark_end(self) -> None:
        """The recorded step ends here, unless another end follows."""
        self.end = len(self.events)

    def called(self, module: int) -> None:
        """An outermost module is called."""
        self.calls.append((module, len(self.events)))

    def waited(self, work: dist.Work) -> None:
        """`work.wait()`: what comes next on this stream waits for the collective."""
        self.session.under_way.waited(work)
        event, graph = self._works.get(work, (-1, None))
        if event < 0 or graph is not self.session.graph:
            return
        if graph is None:
            self.session.timeline.current.wait_for({~event: event})
        else:
            self._waits_in_graph.append(event)

    def meets(self, name: str, group: Any, root: int) -> None:
        """A barrier, or a collective of objects: all members of the group have to call it.

        `root` is a place in the group, or -1.
        """
        session = self.session
        if session.phases.recording and not session.paused and session.graph is None:
            key, _ = self.groups.of(group)
            comm = Comm(CommKind.COLLECTIVE, Collective.NONE, key, 0, root=root)
            self._add(f"c10d.{name}", (), (), (), False, {}, comm)

    def will_move(self, tensor: torch.Tensor, phase: Phase) -> None:
        """A pipeline sends or receives this next, in that phase."""
        self._messages[self.storages.number(tensor)] = phase

    def place(self) -> str:
        """Where the program is; in the backward pass, where the forward operator was."""
        return self._where()[1]

    # --- dispatch -------------------------------------------------------------------------------

    def dispatch(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """What `__torch_dispatch__` is: it runs an operator and writes it down."""
        if any(map(self._dispatches, types)):
            return NotImplemented
        if func is _DEVICE_OF:
            return args[0].fake_device if type(args[0]) is FakeTensor else func(*args)
        kwargs = self._on_device(kwargs) if kwargs else {}
        session = self.session
        if session.paused:
            return func(*args, **kwargs)
        operator = self._operators.get(func)
        if operator is None and isinstance(func, HigherOrderOperator):
            raise of_functions(func)
        if operator is None:
            operator = self._operators[func] = _operator(func)
        inference = torch.is_inference_mode_enabled()
        if operator.is_composite and (inference or not operator.is_known):
            # Elsewhere than in inference mode, and below tensors that hold others, autograd's part
            # of PyTorch has taken it apart before it comes here.
            with self:
                return kernel_of(func)(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if inference and operator.views and not all(t.is_inference() for t in _tensors(args)):
            # A view of a tensor from before is none of inference mode: autograd's part checks.
            with torch.inference_mode(mode=False), below_autograd():
                return self._run(operator, args, kwargs)
        return self._run(operator, args, kwargs)

    def _run(self, operator: _Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        session = self.session
        result = session.values.run(operator.func, args, kwargs)
        session.under_way.latest = None
        if operator.family is not None:
            session.under_way.starts(result, _tensors(args[:1]), _tensors(args))
        if session.phases.recording or session.graph is not None:
            if not operator.is_silent:
                self._record(operator, args, kwargs, result)
            elif operator.allocates and session.graph is None:
                self.storages.allocate(filter(_on_accelerator, _tensors((result,))))
            if (operator.copies or operator.is_read) and session.graph is None:
                self._follow_host(operator, args, kwargs, result)
        else:
            self._note_found(operator, args, result)
        return result

    def _follow_host(
        self, operator: _Operator, args: Sequence[Any], kwargs: dict[str, Any], result: object
    ) -> None:
        """The host waits for the stream where it reads a number, and in copies that block."""
        tensors = _tensors((*args, result))
        crosses = operator.is_read or (
            any(map(_on_host, tensors)) and not _argument(operator, "non_blocking", args, kwargs)
        )
        if crosses and any(map(_on_accelerator, tensors)):
            self.session.timeline.current.synchronize()

    def _dispatches(self, kind: type) -> bool:
        """Whether a subclass of Tensor (DTensor, ...) has to translate the call first."""
        found = self._subclasses.get(kind)
        if found is None:
            own = getattr(kind, "__torch_dispatch__", None)
            plain = issubclass(kind, FakeTensor) or kind in _PLAIN or own is plain_dispatch
            found = self._subclasses[kind] = own is not None and not plain
        return found

    def _on_device(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        device = kwargs.get("device")
        if device is not None and is_virtual(device):
            kwargs = {**kwargs, "device": self._device}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return kwargs

    # --- one event ------------------------------------------------------------------------------

    def _record(
        self, operator: _Operator, args: Sequence[Any], kwargs: Mapping[str, Any], result: object
    ) -> None:
        given = _tensors((*args, *kwargs.values()) if kwargs else args)
        outputs = _tensors((result,))
        device_inputs = [t for t in given if _on_accelerator(t)]
        device_outputs = [t for t in outputs if _on_accelerator(t)]
        if not device_inputs and not device_outputs:
            self._follow_on_host(given, outputs)
            return
        if operator.family is not None:
            self._record_communication(operator, operator.family, args, kwargs, result)
            return
        if operator.copies and self._record_host_copy(operator, given, outputs, args, kwargs):
            return
        inputs = tuple(map(self.storages.info, device_inputs))
        results = tuple(map(self.storages.info, device_outputs))
        writes = self._writes(operator, args, kwargs)
        attributes = plain_arguments(operator.names, args, kwargs)
        if operator.precision is not None and any(t.dtype == "f32" for t in inputs):
            attributes = {**attributes, PRECISION: operator.precision()}
        if operator.attends and (packed := packed_call(operator.names, args, kwargs)) is not None:
            attributes = {**attributes, SCORES: packed[:4]}
            if packed.assumed:
                self.session.warnings.setdefault(packed.assumed)
        known = {t.storage for t in inputs}
        is_view = bool(results) and not writes and all(t.storage in known for t in results)
        work, declares = None, self._declared.declares(operator.func)
        if declares is not None and not is_view:
            declaration = declares(args, kwargs, result)
            work = work_of_call(operator.func, declaration, inputs, results, attributes)
        self._add(operator.op, inputs, results, writes, is_view, attributes, None, work=work)

    def _record_host_copy(
        self,
        operator: _Operator,
        given: Sequence[Any],
        outputs: Sequence[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> bool:
        """Record a copy of an array between the memories of device and host, if it is one.

        A copy of what the host made of its own is an input of the step, as a batch is.
        """
        (target,) = outputs
        on_device = _on_accelerator(target)
        other = _on_host if on_device else _on_accelerator
        sources = [t for t in given if other(t) and t.dim() > 0]
        if not sources or not target.dim() or not (on_device or _on_host(target)):
            return False
        source, stored = self.storages.info(sources[0]), self.storages.info(target)
        if on_device:
            self.host_sources.add(source.storage)
            if source.storage in self._offloaded:
                source = replace(source, storage=self._offloaded[source.storage])
            else:
                self.host_inputs[stored.storage] = stored
        else:
            self._offloaded[stored.storage] = stored.storage
        self._add(
            operator.op, (source,), (stored,), (stored.storage,) if operator.written else (), False,
            plain_arguments(operator.names, args, kwargs), None,
            HostCopy.FROM_HOST if on_device else HostCopy.TO_HOST,
        )  # fmt: skip
        return True

    def _follow_on_host(self, given: Sequence[Any], outputs: Sequence[Any]) -> None:
        """What the host makes of offloaded values (pinned, converted) is as good as these."""
        if not self._offloaded:
            return
        read = {self.storages.number(t) for t in given}
        source = next((self._offloaded[s] for s in read if s in self._offloaded), None)
        if source is not None:
            made = {self.storages.number(t) for t in outputs} - read
            self._offloaded.update(dict.fromkeys(made, source))

    def _note_found(self, operator: _Operator, args: Sequence[Any], result: object) -> None:
        """What the step may find: a copy from the host, as a batch is, or what it does not touch."""
        made = [t for t in _tensors((result,)) if _on_accelerator(t)]
        for tensor in made:
            self.storages.number(tensor)
        if operator.copies and made and not all(map(_on_accelerator, _tensors(args))):
            self.host_inputs.update((info.storage, info) for info in map(self.storages.info, made))

    def _record_communication(
        self,
        operator: _Operator,
        family: Family,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: object,
    ) -> None:
        sources = _tensors((args[family.input],))
        if family.kind is CommKind.RECV:
            sources = []
        targets = _tensors((result,) if family.output < 0 else (args[family.output],))
        if family.kind is CommKind.SEND:
            targets = []
        ordered = (*args, *(kwargs[name] for name in operator.names[len(args) :] if name in kwargs))
        sent = sources or (targets if family.kind is CommKind.RECV else [])
        comm = comm_of(family, ordered, sent, targets, operator.names, self.groups)
        inputs = tuple(map(self.storages.info, sources))
        outputs = tuple(map(self.storages.info, targets))
        writes = tuple(dict.fromkeys(t.storage for t in outputs)) if family.output >= 0 else ()
        index = self._add(operator.op, inputs, outputs, writes, False, {}, comm)
        if self.session.graph is None:
            self.session.timeline.under_way.append(index)
        work = self.session.under_way.latest
        if work is not None:
            self._works[work] = index, self.session.graph

    def _writes(
        self, operator: _Operator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, ...]:
        if not operator.written:
            return ()
        found: dict[int, None] = {}
        for name in operator.written:
            for tensor in _tensors((_argument(operator, name, args, kwargs),)):
                if _on_accelerator(tensor):
                    found[self.storages.number(tensor)] = None
        return tuple(found)

    def _add(
        self,
        op: str,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        writes: tuple[int, ...],
        is_view: bool,
        attributes: Mapping[str, Any],
        comm: Comm | None,
        host: HostCopy = HostCopy.NONE,
        work: Work | None = None,
    ) -> int:
        sent = {t.storage for t in inputs} if comm is not None else ()
        filled = [storage for storage in writes if storage not in sent]
        for whole in self.storages.used((*inputs, *outputs), filled):
            if self.session.graph is None:  # each replay would allocate anew
                self._add(ALLOCATION, (), (whole,), (), False, {}, None)
        timeline = self.session.timeline
        module, location, call = self._where()
        phase = self._phase(comm, outputs or inputs)
        captured = self.session.graph
        stream = timeline.current.stream_id
        waits = timeline.take_waits() if captured is None else tuple(self._waits_in_graph)
        self._waits_in_graph.clear()
        events = self.events if captured is None else captured
        events.append(
            Event(
                op, inputs, outputs, writes, is_view, attributes, module, phase, location, stream,
                comm, waits, host, work, call,
            )
        )  # fmt: skip
        return len(events) - 1

    def _phase(self, comm: Comm | None, moved: Sequence[TensorInfo]) -> Phase:
        """Messages between the backward passes of a pipeline that says nothing belong to these."""
        phases = self.session.phases
        phase = phases.phase(len(self.session.modules.stack))
        if comm is None or comm.kind is CommKind.COLLECTIVE:
            return phase
        told = next((self._messages[t.storage] for t in moved if t.storage in self._messages), None)
        if told is not None:
            return told
        if phase is Phase.OPTIMIZER and not phases.in_optimizer:
            return Phase.BACKWARD
        return phase

    def _where(self) -> tuple[str, str, CompiledCall]:
        """Module, place and compiled call; of a backward operator, those of its forward one."""
        stack, phases = self.session.modules.stack, self.session.phases
        calls = self.session.compiled
        call = calls.current
        if phases.in_backward:
            node = current_node()
            found = self._forward.get(sequence_number(node)) if node is not None else None
            if found is not None and not phases.recomputes(len(stack)):
                return (*found[:2], EAGER) if calls.is_outside else found
            if found is not None and not (calls.is_outside or call.number):
                call = found[2]  # a checkpoint inside a compiled call
        where = (stack[-1] if stack else "", self.places.current(), call)
        if not phases.in_optimizer:
            self._forward[next_sequence_number() - 1] = where
        return where


# Assigned, as a method of that name would be wrapped for the compiler, at every call.
Recorder.__torch_dispatch__ = Recorder.dispatch


def _operator(func: OpOverload) -> _Operator:
    schema = schema_of(func)
    written = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    views = not written and any(a.alias_info for a in schema.arguments)
    return _Operator(
        func=func,
        op=str(func),
        names=tuple(a.name for a in schema.arguments),
        written=() if torch.Tag.inplace_view in func.tags else written,  # no element moves
        allocates=schema.name in _ALLOCATIONS,
        is_silent=schema.name in _SILENT,
        copies=schema.name in _COPIES,
        is_read=schema.name in _READ,
        family=family_of(*schema.name.split("::")),
        precision=_precision(base_name(str(func))),
        attends=class_of(str(func)) in ATTENTION,
        is_composite=_is_composite(func),
        is_known=is_known(str(func)) or views,
        views=views,
    )


def _is_composite(func: OpOverload) -> bool:
    """Whether PyTorch takes an operator apart: not where the device has a kernel for the whole."""
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "PrivateUse1")


def _precision(name: str) -> Callable[[], str] | None:
    if name in PRODUCTS:
        return matmul_precision
    return convolution_precision if name in OF_CUDNN else None


def _tensors(values: Sequence[object]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found


def _on_accelerator(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == SHOWN)


def _on_host(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _argument(
    operator: _Operator, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    position = operator.names.index(name)
    return args[position] if position < len(args) else kwargs.get(name)
