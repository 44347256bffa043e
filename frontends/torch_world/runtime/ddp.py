"""What DistributedDataParallel does in C++, in Python: buckets of gradients and their all-reduce.

`torch.nn.parallel.DistributedDataParallel` stays PyTorch's; its C++ reducer reads gradients' memory,
which fake tensors do not have. `Reducer` and `Logger` take the places of the classes of that name
in `torch.distributed`. The rules are those of reducer.cpp in PyTorch 2.13: a bucket is reduced when
its last gradient is there and all buckets before it are under way, results are waited for when the
backward pass ends, and buckets are formed anew after the first iteration in the order in which
gradients arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flint.errors import FlintError
from flint.frontends.torch_private import after_backward, buckets_by_size
from flint.frontends.torch_world.runtime.buckets import Bucket, Future, GradBucket

Hook = Callable[[Any, Any], Any]


@dataclass
class _Iteration:
    expects_gradients: bool = False
    next_bucket: int = 0
    fired: Counter[int] = field(default_factory=Counter)
    unused: list[int] = field(default_factory=list)
    finalizing: bool = False
    used_map: Future | None = None


class Reducer:
    """Sums the gradients of `params` over a process group, bucket by bucket.

    The arguments are those of `torch.distributed.Reducer`. Raises FL235 for sparse gradients.
    """

    def __init__(
        self,
        params: Sequence[Any],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: dist.ProcessGroup,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 * 1024 * 1024,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        param_to_name_mapping: dict[int, str] | None = None,
        first_bucket_bytes_cap: int = 1024 * 1024,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_bytes_cap_list: Sequence[int] = (),
        batched_grad_copy: bool = False,
    ) -> None:
        if any(expect_sparse_gradients):
            raise FlintError(
                "FL235",
                "DistributedDataParallel over sparse gradients cannot be recorded",
                help="use nn.Embedding(..., sparse=False)",
            )
        self.params = list(params)
        self.group = process_group
        self.find_unused = find_unused_parameters
        self.as_views = gradient_as_bucket_view
        self.batches_copies = batched_grad_copy
        self.limits = list(bucket_bytes_cap_list) or [first_bucket_bytes_cap, bucket_bytes_cap]
        self.static_graph = False
        self.rebuilt = False
        self.arrived: dict[int, None] = {}
        self.hook: tuple[Any, Hook] | None = None
        self.futures: list[Any] = []
        self._now = _Iteration()
        self._fires: Counter[int] | None = None  # of a static graph, known after one iteration
        self._size = dist.get_world_size(process_group)
        self._make_buckets(bucket_indices, per_bucket_size_limits)
        self._handles = [
            param.register_post_accumulate_grad_hook(self._when_accumulated(index))
            for index, param in enumerate(self.params)
        ]

    def _when_accumulated(self, index: int) -> Callable[[Any], None]:
        return lambda _: self._autograd_hook(index)

    # The interface that DistributedDataParallel calls.

    def prepare_for_forward(self) -> None:
        """A forward pass starts whose gradients are reduced."""

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """The next backward pass is reduced; `outputs` are given to look for unused parameters."""
        self._now = _Iteration(expects_gradients=True)
        for bucket in self.buckets:
            bucket.pending, bucket.reduced = len(bucket.indices), None
        if self.find_unused and not self.static_graph:
            used = _reached_parameters(outputs)
            self._now.unused = [i for i, p in enumerate(self.params) if id(p) not in used]

    def _rebuild_buckets(self) -> bool:
        """Form buckets anew in the order in which gradients arrived, once.

        The broadcast of the new assignment that rank 0 makes is omitted: it happens in one
        iteration of a whole training run.
        """
        if self.rebuilt or not self.arrived or (self.find_unused and not self.static_graph):
            return False
        tensors = [self.params[index] for index in self.arrived]
        indices, limits = buckets_by_size(
            tensors, self.limits, [False] * len(tensors), list(self.arrived)
        )
        self._make_buckets(indices, limits)
        self.rebuilt = True
        self.arrived = {}
        return True

    def _autograd_hook(self, index: int) -> None:
        now = self._now
        if not now.expects_gradients:
            return
        now.fired[index] += 1
        if self.static_graph and self._fires is None:
            self._note_arrival(index)
            return
        unused, now.unused = now.unused, []
        for other in unused:
            self._mark_ready(other)
        if now.fired[index] == (self._fires[index] if self._fires else 1):
            self._mark_ready(index)

    def _note_arrival(self, index: int) -> None:
        if not self.rebuilt:
            self.arrived.setdefault(index)

    def _delay_all_reduce(self) -> None:
        """The end of the first backward pass of a static graph: everything is reduced now."""
        self._fires = self._now.fired
        for index in range(len(self.params)):
            self._mark_ready(index)
        self._finish()

    def _set_static_graph(self) -> None:
        """The used parameters are the same in all iterations."""
        self.static_graph = True

    def _install_post_backward_futures(self, futures: Sequence[Any]) -> None:
        """Futures to wait for at the end of the backward pass."""
        self.futures += list(futures)

    def _set_forward_pass_work_handle(self, work: dist.Work, use_static_world_size: bool) -> None:
        """Of `join`: ranks without input. All ranks have the same number of inputs here."""
        work.wait()

    def _push_all_rebuilt_params(self) -> None:
        """Of `join`: a rank without input takes the order of the parameters."""
        self.arrived = dict.fromkeys(range(len(self.params)))

    def _get_zeros_like_grad_buckets(self) -> list[GradBucket]:
        """Of `join`: what a rank without input contributes."""
        return [self._seen_by_hook(i, torch.zeros_like(b.buffer)) for i, b in self._numbered()]

    def _get_local_used_map(self) -> torch.Tensor:
        return torch.zeros(len(self.params), dtype=torch.int32, device=self.params[0].device)

    def _run_comm_hook(self, bucket: GradBucket) -> Future:
        """Start the reduction of a bucket, as the hook does it where there is one."""
        if self.hook is None:
            return self._sum(bucket.buffer())
        state, hook = self.hook
        future: Future = hook(state, bucket)
        return future

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _check_reducer_finalized(self) -> None:
        """Gradients that never came are not an error of a recording."""

    def _reset_state(self) -> None:
        self._now = _Iteration()

    def _update_process_group(self, new_process_group: dist.ProcessGroup) -> None:
        self.group = new_process_group
        self._size = dist.get_world_size(new_process_group)

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """There is no time to sample."""

    def _set_optimizer_in_backward(self) -> None:
        """The optimizer runs in a communication hook."""

    def get_backward_stats(self) -> list[int]:
        """There is no time to report."""
        return [0] * len(self.params)

    def set_logger(self, logger: Logger) -> None:
        """The logger asks the reducer, not the other way round."""

    # What it does.

    def _numbered(self) -> list[tuple[int, Bucket]]:
        return list(enumerate(self.buckets))

    def _make_buckets(self, groups: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
        self.buckets: list[Bucket] = []
        self._where: dict[int, tuple[int, int]] = {}
        for number, (indices, limit) in enumerate(zip(groups, limits, strict=True)):
            self.buckets.append(self._make_bucket(list(indices), limit))
            for position, index in enumerate(indices):
                self._where[index] = (number, position)

    def _make_bucket(self, indices: list[int], limit: int) -> Bucket:
        params = [self.params[index] for index in indices]
        with torch.no_grad():
            buffer = params[0].new_empty((sum(param.numel() for param in params),))
            views = _cut(buffer, params)
        return Bucket(indices, limit, buffer, views)

    def _mark_ready(self, index: int) -> None:
        self._note_arrival(index)
        number, position = self._where[index]
        bucket = self.buckets[number]
        with torch.no_grad():
            self._copy_in(self.params[index], bucket.views[position])
            bucket.pending -= 1
            if bucket.pending == 0:
                self._start_ready_buckets()
        now = self._now
        if now.next_bucket < len(self.buckets) or now.finalizing:
            return
        now.finalizing = True
        if self.find_unused and not self.static_graph:
            now.used_map = self._sum(self._get_local_used_map())
        if not self.static_graph or self._fires is not now.fired:
            after_backward(self._finish)

    def _copy_in(self, param: nn.Parameter, view: torch.Tensor) -> None:
        """Into the bucket, divided by the number of ranks unless a hook does that."""
        gradient = param.grad
        if gradient is None:
            view.zero_()
        elif gradient is view:
            if self.hook is None:
                view.div_(self._size)
        elif self.hook is None:
            torch.mul(gradient, 1.0 / self._size, out=view)
        else:
            view.copy_(gradient)
        if self.as_views and gradient is not None:
            param.grad = view

    def _start_ready_buckets(self) -> None:
        """Buckets are reduced in order, whichever is full first."""
        now = self._now
        while now.next_bucket < len(self.buckets) and not self.buckets[now.next_bucket].pending:
            bucket = self.buckets[now.next_bucket]
            seen = self._seen_by_hook(now.next_bucket, bucket.buffer)
            bucket.reduced = self._run_comm_hook(seen)
            now.next_bucket += 1

    def _seen_by_hook(self, number: int, buffer: torch.Tensor) -> GradBucket:
        bucket = self.buckets[number]
        params = [self.params[index] for index in bucket.indices]
        last = number == len(self.buckets) - 1
        return GradBucket(number, buffer, self._pieces(bucket, buffer), params, last)

    def _pieces(self, bucket: Bucket, buffer: torch.Tensor) -> list[Any]:
        if buffer is bucket.buffer:
            return bucket.views
        return _cut(buffer, [self.params[index] for index in bucket.indices])

    def _sum(self, tensor: torch.Tensor) -> Future:
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def resolve() -> object:
            work.wait()
            return tensor

        return Future(resolve)

    def _finish(self) -> None:
        with torch.no_grad():
            for bucket in self.buckets:
                assert bucket.reduced is not None, "all buckets are under way at the end"
                self._copy_out(bucket, bucket.reduced.wait())
            if self._now.used_map is not None:
                self._now.used_map.wait()
        for future in self.futures:
            future.wait()
        self.futures = []
        self._now = _Iteration()

    def _copy_out(self, bucket: Bucket, result: torch.Tensor | Sequence[torch.Tensor]) -> None:
        reduced = result[0] if isinstance(result, (list, tuple)) else result
        if self.as_views:
            if reduced is not bucket.buffer:
                bucket.buffer.copy_(reduced)
            return
        for index, view in zip(bucket.indices, self._pieces(bucket, reduced), strict=True):
            if self.params[index].grad is not None:
                self.params[index].grad.copy_(view)


class Logger:
    """What `torch.distributed.Logger` knows of a reducer, without times."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._initial = _sizes(reducer.buckets)
        self.strs_map: dict[str, str] = {}
        self.ints_map: dict[str, int] = {}

    def set_construction_data_and_log(
        self,
        module_name: str,
        device_ids: list[int],
        output_device: int,
        broadcast_buffers: bool,
        has_sync_bn: bool,
        static_graph: bool,
    ) -> None:
        self.strs_map = {"module_name": module_name, "bucket_sizes": self._initial}
        self.ints_map = {
            "world_size": dist.get_world_size(self._reducer.group),
            "broadcast_buffers": int(broadcast_buffers),
            "has_sync_bn": int(has_sync_bn),
            "static_graph": int(static_graph),
            "output_device": output_device,
        }

    def set_runtime_stats_and_log(self) -> None:
        """There is no time to report."""

    def set_error_and_log(self, error: str) -> None:
        """Errors are raised anyway."""
        self.strs_map["error"] = error

    def _get_ddp_logging_data(self) -> Logger:
        self.ints_map["has_rebuilt_buckets"] = int(self._reducer.rebuilt)
        if self._reducer.rebuilt:
            self.strs_map["rebuilt_bucket_sizes"] = _sizes(self._reducer.buckets)
        return self

    def _set_comm_hook_name(self, comm_hook: str) -> None:
        self.strs_map["comm_hook"] = comm_hook

    def _set_uneven_input_join(self) -> None:
        self.ints_map["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self.ints_map["static_graph"] = 1


def verify_param_shapes(process_group: object, tensors: object, logger: object = None) -> None:
    """In the place of `_verify_param_shape_across_processes`: all ranks run this very program."""


def check_comm_hook(module: object, hook: object) -> None:
    """In the place of `DistributedDataParallel._check_comm_hook`, which asks for CUDA and NCCL."""
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")


def register_comm_hook(reducer: Reducer, state: object, comm_hook: Hook) -> None:
    """In the place of `torch.distributed._register_comm_hook`."""
    reducer.hook = (state, comm_hook)


def register_builtin_comm_hook(reducer: Reducer, comm_hook_type: object) -> None:
    """In the place of `torch.distributed._register_builtin_comm_hook`."""
    compress = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS

    def hook(_: object, bucket: GradBucket) -> Future:
        buffer = bucket.buffer()
        sent = buffer.to(torch.float16) if compress else buffer
        reduced = reducer._sum(sent.div_(dist.get_world_size(reducer.group)))
        return reduced.then(lambda _: buffer.copy_(sent)) if compress else reduced

    reducer.hook = (None, hook)


def _sizes(buckets: Sequence[Bucket]) -> str:
    return ", ".join(str(bucket.num_bytes) for bucket in buckets)


def _cut(buffer: torch.Tensor, params: Sequence[Any]) -> list[Any]:
    """Views of a flat buffer, of the shapes and strides of parameters that fill it."""
    pieces = buffer.split([param.numel() for param in params])
    return [
        piece.view(param.shape)
        if param.is_contiguous()
        else piece.as_strided(param.shape, param.stride())
        for piece, param in zip(pieces, params, strict=True)
    ]


def _reached_parameters(outputs: Sequence[Any]) -> set[int]:
    """Identities of the parameters in the graph behind `outputs`."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set()
    found: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found
