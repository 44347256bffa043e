"""Communication of libraries other than NCCL's is told from computing: by name, operator and stream."""

from __future__ import annotations

import pytest

from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Kind
from flint.tools.measure.imported import Imported
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.comm_kernels import KERNELS, OPERATORS, comm_of_kernel
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile, Signature
from flint.tracing import Trace

#: Kernels as profilers write them, and what they are.
COMMUNICATE = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)": ("nccl", Collective.ALL_REDUCE),
    "ncclSymkDevKernel_ReduceScatter_LDMC_f16(ncclSymkDevWorkArgs)": ("nccl", Collective.REDUCE_SCATTER),
    "void ncclDevKernel_Generic_4<false>(ncclDevComm*)": ("nccl", Collective.NONE),
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)": ("deepep", Collective.ALL_TO_ALL),
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)": ("deepep", Collective.ALL_TO_ALL),
    "void dpsk::ep::internode::cached_notify<false>(int, int)": ("deepep", Collective.NONE),
    "void acme::ep::internode::dispatch<false, 8>(int)": ("deepep", Collective.ALL_TO_ALL),
    "void uccl::intranode::notify_dispatch<8>(int const*)": ("deepep", Collective.NONE),
    "mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)": ("mori", Collective.ALL_TO_ALL),
    "void EpCombineInterNodeV1Kernel<hip_bfloat16>(EpDispatchCombineArgs<hip_bfloat16>)": ("mori", Collective.ALL_TO_ALL),
    "void pplx::a2a_dispatch_send_kernel<1, true>(unsigned long)": ("pplx", Collective.ALL_TO_ALL),
    "void nvshmemi_barrier_on_stream_kernel_threadgroup<2>(int)": ("nvshmem", Collective.NONE),
    "void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, __half>(void*)": ("mscclpp", Collective.ALL_REDUCE),
    "void allreduce_LL_1node<__nv_bfloat16>(mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)": ("mscclpp", Collective.ALL_REDUCE),
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": ("custom all-reduce", Collective.ALL_REDUCE),
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, true>(aiter::RankData*)": ("custom all-reduce", Collective.ALL_REDUCE),
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>(__half const*)": ("quickreduce", Collective.ALL_REDUCE),
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)": ("aiter", Collective.REDUCE_SCATTER),
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true>(tensorrt_llm::kernels::AllReduceParams)": ("one-shot and two-shot all-reduce", Collective.ALL_REDUCE),
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)1, __nv_bfloat16, 2>(int)": ("one-shot and two-shot all-reduce", Collective.ALL_REDUCE),
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)": ("one-shot and two-shot all-reduce", Collective.ALL_REDUCE),
    "void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>(int)": ("tensorrt-llm", Collective.ALL_TO_ALL),
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)": ("symmetric memory", Collective.ALL_GATHER),
    "void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<8>(int, int)": ("userbuffers", Collective.REDUCE_SCATTER),
    "void kuserbuffers_pushsendrecv(int, int)": ("userbuffers", Collective.NONE),
    "uct_cuda_ipc_put_kernel(void*, void*)": ("ucx", Collective.NONE),
    "my_ring_all_gather_kernel": ("unknown library", Collective.ALL_GATHER),
}  # fmt: skip
#: Kernels that calculate, though a word of communication is in their names.
COMPUTE = (
    "triton_poi_fused_add_all_reduce_4",
    "triton_red_fused_all_gather_into_tensor_mul_0",
    "void cutlass::device_kernel<my::AllReduceEpilogue>(my::Params)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)",
    "moe_combine_kernel",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "void oneflow::SoftmaxKernel<oneflow::BlockAllReduce<float>>(int)",
    "smallReduceKernel",
    "void cub::DeviceReduceKernel<cub::AllReducePolicy>(int)",
    "gemm_kernel",
)


@pytest.mark.parametrize("name", COMMUNICATE)
def test_kernels_that_communicate(name: str) -> None:
    found = comm_of_kernel(name)
    assert found is not None
    assert (found.library, found.collective) == COMMUNICATE[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_calculate(name: str) -> None:
    assert comm_of_kernel(name) is None


def test_every_row_says_whose_and_from_where() -> None:
    assert all(row.library and row.source for row in KERNELS + OPERATORS)


def profile(*kernels: tuple[str, int, float, str]) -> Profile:
    """Kernels by name, stream, time in ms and the operator around them, one after the other."""
    builder = ProfileBuilder("kineto", rank=0, world_size=4, device="NVIDIA H100 80GB HBM3")
    builder.groups["0"] = (0, 1, 2, 3)
    builder.add_mark("ProfilerStep#1", 0, 1e9, 1, on_device=False)
    start = 1e5
    for number, (name, stream, ms, operator) in enumerate(kernels):
        at = 1000.0 * number
        if operator:
            signature = builder.signature(Signature(((256, 128),), ("c10::BFloat16",)))
            builder.add_operator(operator, at, 900, 1, external=number, signature=signature)
        builder.add_call(CallKind.LAUNCH, "cudaLaunch", at + 10, 10, 1, correlation=number, external=number)  # fmt: skip
        kind = ActivityKind.COPY if name.startswith("Memcpy") else ActivityKind.KERNEL
        builder.add_activity(kind, name, start, ms * 1e6, stream, correlation=number)
        start += ms * 1e6
    return builder.build()


def communication_ms(*kernels: tuple[str, int, float, str]) -> float:
    return Imported.of(workload_of([profile(*kernels)])).classes[0].communication_ns / 1e6


GEMM = ("gemm_kernel", 7, 50.0, "")


@pytest.mark.parametrize(
    ("kernels", "ms"),
    [
        ((GEMM, ("void deep_ep::intranode::dispatch<8>(int)", 16, 5.0, "")), 5.0),
        ((GEMM, ("opaque", 7, 3.0, "trtllm::allreduce"), ("Memcpy DtoD", 7, 1.0, "trtllm::allreduce")), 3.0),
        ((GEMM, ("opaque", 7, 3.0, "record_param_comms")), 3.0),
        ((GEMM, ("void at::native::elementwise_kernel<4>(int)", 7, 3.0, "record_param_comms")), 0.0),
        ((GEMM, ("void deep_ep::intranode::dispatch<8>(int)", 16, 9.0, ""), ("opaque", 16, 1.0, "")), 10.0),
        ((GEMM, ("void deep_ep::intranode::dispatch<8>(int)", 16, 1.0, ""), ("gemm_side", 16, 9.0, ""), ("opaque", 16, 2.0, "")), 1.0),
        (((*GEMM[:2], 1.0, ""), ("void deep_ep::intranode::dispatch<8>(int)", 16, 90.0, "")), 90.0),
    ],
)  # fmt: skip
def test_time_of_communication(kernels: tuple[tuple[str, int, float, str], ...], ms: float) -> None:
    assert communication_ms(*kernels) == pytest.approx(ms)


def test_operators_of_engines_say_bytes_where_the_group_is_known() -> None:
    workload = workload_of([profile(GEMM, ("opaque", 7, 3.0, "trtllm::allreduce"))])
    program = workload.programs[0]
    (row,) = (program.kind == Kind.COLLECTIVE).nonzero()[0]
    assert program.collective[row] == Collective.ALL_REDUCE
    assert program.comm_bytes[row] == 256 * 128 * 2


def test_what_is_not_known_of_communication_is_told_and_not_scaled() -> None:
    workload = workload_of([profile(GEMM, ("void deep_ep::intranode::dispatch<8>(int)", 16, 5.0, ""))])  # fmt: skip
    assert "kernels of deepep that do not say" in " ".join(workload.metadata["warnings"])
    assert (workload.programs[0].op == OpClass.COMMUNICATION).sum() == 1
    assert "1 kernel of unknown bytes and group" in Trace(workload).summary().to_text()
    estimate = Trace(workload).estimate("h100-dgx")
    assert estimate.measured is not None
    found = estimate.measured.classes[0].attribution
    assert (found.compute_ns, found.wire_ns) == (pytest.approx(50e6), pytest.approx(5e6))
    assert "communication" in estimate.to_text()
    (one,) = estimate.classes
    assert (one.compute_ns, one.exposed_ns) == (pytest.approx(50e6), pytest.approx(5e6))
    faster = Trace(workload).estimate("h100-dgx", scale=("compute=2x",))
    assert faster.step_time_ns == pytest.approx(estimate.step_time_ns - 25e6, rel=1e-6)


def test_long_kernels_of_no_class_on_another_stream_are_told() -> None:
    said = workload_of([profile(GEMM, ("fast_a2x_kernel", 16, 5.0, ""))]).metadata["warnings"]
    assert "stream 16" in " ".join(said)
    assert "'fast_a2x_kernel'" in " ".join(said)
    short = workload_of([profile(GEMM, ("fast_a2x_kernel", 16, 0.5, ""))]).metadata.get("warnings", [])  # fmt: skip
    assert "stream 16" not in " ".join(short)
