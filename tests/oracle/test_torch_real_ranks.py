"""Four processes that talk through gloo do what recorded ranks do: a part of `benchmarks.real_ranks`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.real_ranks.compare import RANKS, Compared, compared

pytestmark = pytest.mark.long
#: Programs that take few seconds together; `python -m benchmarks.real_ranks` has all.
PROGRAMS = (
    *("ddp unused parameters", "fsdp uneven", "fsdp mixed precision", "fsdp fused attention"),
    *("fsdp clipped", "hsdp", "sequence parallel", "embedding by uneven rows"),
    *("experts uneven", "ring attention", "pipeline 1f1b", "pipeline interleaved", "muon by torch"),
    *("filled by parts", "fsdp second dimension", "fsdp offload", "ddp views of buckets"),
)
#: The map of used parameters is the host's in a real run, and filled one by one; CPUs keep statistics
#: of norms in bfloat16; CUDA has no flash attention for float32; on CPUs nothing is copied to the host.
OTHER_OPERATORS = (
    "ddp unused parameters",
    "fsdp mixed precision",
    "fsdp fused attention",
    "fsdp offload",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Compared]]:
    """Both sides of each program, by rank."""
    if not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    return dict(compared(PROGRAMS, tmp_path_factory.mktemp("real")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_do_what_real_ones_do(name: str, both: dict[str, dict[int, Compared]]) -> None:
    for rank in RANKS:
        one = both[name][rank]
        assert one.is_equal["collectives"] and one.is_equal["products"], one.difference()
        assert one.is_equal["operators"] or name in OTHER_OPERATORS, one.difference()
        assert one.is_equal["memory"], one.memory_error
