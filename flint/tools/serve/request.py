"""ServeRequest: which requests come, and which engines serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flint.cli.options import Writes
from flint.requests.option import Form, Request, option


@dataclass(frozen=True)
class ServeRequest(Request):
    """Options of `flint serve` beside those of a capture and an estimate. Texts are as typed."""

    requests: str = option(
        "--requests",
        metavar="LOAD|FILE",
        required=True,
        reads=True,
        help="poisson:10/s,lengths=sharegpt, concurrency:16,input=1024,output=128, or a log (Azure, BurstGPT, "
        "Mooncake, Vidur, ShareGPT, your own CSV or JSON lines).",
    )
    engine: str = option(
        "--engine",
        default="vllm",
        metavar="NAME[:OPTION=VALUE,...]",
        help="vllm, sglang or trtllm, with options under their own names: vllm:max_num_seqs=128.",
    )
    replicas: int = option(
        "--replicas",
        form=Form.NUMBER,
        default=1,
        least=1,
        metavar="N",
        help="Engines behind a router, each with the devices of --mesh.",
    )
    router: str = option(
        "--router",
        default="least",
        words=("least", "round-robin", "prefix"),
        help="Which engine a request goes to.",
    )
    decode_replicas: int = option(
        "--decode-replicas",
        form=Form.NUMBER,
        default=0,
        least=0,
        metavar="N",
        help="Engines of a second pool, which decodes; the others then only prefill.",
    )
    decode_mesh: str | None = option(
        "--decode-mesh",
        metavar="MESH",
        help="Devices of an engine that decodes (default: --mesh).",
    )
    decode_cluster: str | None = option(
        "--decode-cluster",
        metavar="NAME|FILE",
        names="clusters",
        reads=True,
        help="Machines of the engines that decode (default: --cluster).",
    )
    decode_engine: str | None = option(
        "--decode-engine",
        metavar="NAME[:OPTION=VALUE,...]",
        help="The engine that decodes (default: --engine).",
    )
    limits: str | None = option(
        "--goodput",
        metavar="LIMITS",
        help="Count requests within limits: ttft<=2s,tpot<=50ms (also latency, queue).",
    )
    export: Sequence[str] = option(
        "--export",
        form=Form.TEXTS,
        default=(),
        metavar="KIND:DIR",
        role=Writes(adds=True),
        help="Also write what passes take for another simulator: vidur, llmservingsim or sglang; or the steps of "
        "the run as traces for ASTRA-sim: chakra (repeatable).",
    )
    model_config: Path | None = option(
        "--model-config",
        form=Form.PATH,
        metavar="config.json",
        reads=True,
        help="The model's numbers as Hugging Face has them, for --export vidur and llmservingsim.",
    )
    longest: int | None = option(
        "--longest",
        form=Form.NUMBER,
        least=1,
        metavar="TOKENS",
        help="The longest sequence that the model takes.",
    )
    memory_share: str = option(
        "--memory-share",
        default="90%",
        metavar="PERCENT",
        help="Share of a device's memory that an engine takes for weights, passes and the cache.",
    )
