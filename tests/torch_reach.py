"""Steps that reach what PyTorch has: every module of torch.nn, every optimizer, every transform.

Each step is a function of a device, which runs on the CPU with values and in a recorded program
without them. `outcomes` records many steps in one process and tells what came of each.
"""

from __future__ import annotations

import math
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Step = Callable[[str], Any]
Make = Callable[[str], Any]


def numbers(*shape: int) -> Make:
    """Numbers that want a gradient."""
    return lambda device: torch.randn(shape, device=device, requires_grad=True)


def _halves(*shape: int) -> Make:
    return lambda device: torch.randn(
        shape, device=device, dtype=torch.bfloat16, requires_grad=True
    )


def given(*shape: int) -> Make:
    """Numbers between 0 and 1 that want none."""
    return lambda device: torch.rand(shape, device=device)


def choices(high: int, *shape: int) -> Make:
    """Whole numbers below `high`."""
    return lambda device: torch.randint(high, shape, device=device)


def signs(*shape: int) -> Make:
    """1 or -1."""
    return lambda device: torch.ones(shape, device=device)


def lengths(*sizes: int) -> Make:
    """Whole numbers, as they are."""
    return lambda device: torch.tensor(sizes, device=device)


def _sum(result: Any) -> Any:
    """A number that depends on every floating-point tensor of a result."""
    if isinstance(result, torch.Tensor):
        floats = result.is_floating_point() and result.requires_grad
        return result.float().sum() if floats else 0
    if isinstance(result, dict):
        result = list(result.values())
    return sum(map(_sum, result)) if isinstance(result, (list, tuple)) else 0


def module_step(build: Callable[[], nn.Module], *inputs: Make) -> Step:
    """Forward and backward of a module. The result and the gradients, in one list."""

    def step(device: str) -> list[Any]:
        module = build().to(device)
        arguments = [make(device) for make in inputs]
        result = module(*arguments)
        loss = _sum(result)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        gradients = [p.grad for p in module.parameters()]
        gradients += [a.grad for a in arguments if isinstance(a, torch.Tensor) and a.is_leaf]
        return [result, gradients]

    return step


def _recurrent(kind: type[nn.Module], **options: Any) -> Step:
    """With first states that want gradients, as cuDNN calculates them in any case."""

    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = kind(8, 16, **options)

        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
            return self.network(x, states if len(states) > 1 else states[0])

    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = 5 if options.get("batch_first") else 3
    states = [numbers(layers, batch, options.get("proj_size", 16))]
    if kind is nn.LSTM:
        states.append(numbers(layers, batch, 16))
    return module_step(Started, numbers(5, 3, 8), *states)


def _packed(kind: type[nn.Module]) -> Step:
    def step(device: str) -> list[Any]:
        module: Any = kind(8, 16).to(device)
        x = torch.randn(5, 3, 8, device=device, requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
        out, _ = nn.utils.rnn.pad_packed_sequence(module(packed)[0])
        out.sum().backward()
        return [out, [p.grad for p in module.parameters()]]

    return step


def _pool(kind: type[nn.Module], dimensions: int, *options: Any, **named: Any) -> Step:
    return module_step(lambda: kind(*options, **named), numbers(2, 3, *(8,) * dimensions))


def _unpool(dimensions: int) -> Step:
    def step(device: str) -> list[Any]:
        x = torch.randn(2, 3, *(8,) * dimensions, device=device, requires_grad=True)
        pool = getattr(nn, f"MaxPool{dimensions}d")(2, return_indices=True)
        out = getattr(nn, f"MaxUnpool{dimensions}d")(2)(*pool(x))
        out.sum().backward()
        return [out, [x.grad]]

    return step


def _norm(kind: type[nn.Module], dimensions: int, *options: Any, **named: Any) -> Step:
    return module_step(lambda: kind(*options, **named), numbers(4, 8, *(6,) * dimensions))


def _map(kind: type[nn.Module], *options: Any) -> Step:
    return module_step(lambda: kind(*options), numbers(4, 8))


def _loss(kind: Callable[[], nn.Module], *more: Make) -> Step:
    return module_step(kind, numbers(4, 8), *more)


_MAPS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh"), ()
    ),
    **dict.fromkeys(("Identity", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "RReLU", "ReLU"), ()),
    **dict.fromkeys(("ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign"), ()),
    **dict.fromkeys(("Tanh", "Tanhshrink", "Flatten", "Dropout", "AlphaDropout"), ()),
    **dict.fromkeys(("LogSoftmax", "Softmax", "Softmin"), (-1,)),
    "Threshold": (0.1, 20.0),
    "Unflatten": (1, (2, 4)),
    "Linear": (8, 16),
    "LazyLinear": (16,),
    "LayerNorm": (8,),
    "RMSNorm": (8,),
    "Module": (),
}


def _padding() -> Iterator[tuple[str, Step]]:
    for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero"):
        options = (1, 0.5) if kind == "Constant" else (1,)
        for n in (1, 2, 3):
            name = f"{kind}Pad{n}d"
            yield name, _pool(getattr(nn, name), n, *options)


def _by_dimensions() -> Iterator[tuple[str, Step]]:
    for n in (1, 2, 3):
        yield f"AdaptiveAvgPool{n}d", _pool(getattr(nn, f"AdaptiveAvgPool{n}d"), n, 3)
        yield f"AdaptiveMaxPool{n}d", _pool(getattr(nn, f"AdaptiveMaxPool{n}d"), n, 3)
        yield f"AvgPool{n}d", _pool(getattr(nn, f"AvgPool{n}d"), n, 2)
        yield f"MaxPool{n}d", _pool(getattr(nn, f"MaxPool{n}d"), n, 2)
        yield f"LPPool{n}d", _pool(getattr(nn, f"LPPool{n}d"), n, 2, 2)
        yield f"MaxUnpool{n}d", _unpool(n)
        yield f"Dropout{n}d", _pool(getattr(nn, f"Dropout{n}d"), n)
        yield f"Conv{n}d", _pool(getattr(nn, f"Conv{n}d"), n, 3, 4, 3)
        yield f"ConvTranspose{n}d", _pool(getattr(nn, f"ConvTranspose{n}d"), n, 3, 4, 3)
        yield f"LazyConv{n}d", _pool(getattr(nn, f"LazyConv{n}d"), n, 4, 3)
        yield f"LazyConvTranspose{n}d", _pool(getattr(nn, f"LazyConvTranspose{n}d"), n, 4, 3)
        yield f"BatchNorm{n}d", _norm(getattr(nn, f"BatchNorm{n}d"), n, 8)
        yield f"LazyBatchNorm{n}d", _norm(getattr(nn, f"LazyBatchNorm{n}d"), n)
        norm = getattr(nn, f"InstanceNorm{n}d")
        yield f"InstanceNorm{n}d", _norm(norm, n, 8, affine=True, track_running_stats=True)
        yield f"LazyInstanceNorm{n}d", _norm(getattr(nn, f"LazyInstanceNorm{n}d"), n)


def _containers() -> Iterator[tuple[str, Step]]:
    class Held(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.held: Any = {
                "ModuleDict": lambda: nn.ModuleDict({"a": nn.Linear(8, 8)}),
                "ModuleList": lambda: nn.ModuleList([nn.Linear(8, 8)]),
                "ParameterDict": lambda: nn.ParameterDict({"a": torch.ones(8)}),
                "ParameterList": lambda: nn.ParameterList([torch.ones(8)]),
            }[kind]()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            key: Any = "a" if hasattr(self.held, "keys") else 0
            first = self.held[key]
            return first(x) if isinstance(first, nn.Module) else x * first

    for kind in ("ModuleDict", "ModuleList", "ParameterDict", "ParameterList"):
        yield kind, module_step(lambda kind=kind: Held(kind), numbers(4, 8))
    yield (
        "Sequential",
        module_step(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), numbers(4, 8)),
    )
    yield "DataParallel", module_step(lambda: nn.DataParallel(nn.Linear(8, 8)), numbers(4, 8))


def _losses() -> Iterator[tuple[str, Step]]:
    probabilities = nn.Sequential(nn.Sigmoid(), nn.Identity())

    class Bounded(nn.Module):
        def __init__(self, loss: nn.Module) -> None:
            super().__init__()
            self.loss = loss

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.loss(probabilities(x), y)

    yield "BCELoss", _loss(lambda: Bounded(nn.BCELoss()), given(4, 8))
    yield "BCEWithLogitsLoss", _loss(nn.BCEWithLogitsLoss, given(4, 8))
    yield "CosineEmbeddingLoss", _loss(nn.CosineEmbeddingLoss, numbers(4, 8), signs(4))
    yield "CrossEntropyLoss", _loss(nn.CrossEntropyLoss, choices(8, 4))
    yield "GaussianNLLLoss", _loss(nn.GaussianNLLLoss, numbers(4, 8), given(4, 8))
    yield "HingeEmbeddingLoss", _loss(nn.HingeEmbeddingLoss, signs(4, 8))
    for name in ("HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "PoissonNLLLoss", "SmoothL1Loss"):
        yield name, _loss(getattr(nn, name), given(4, 8))
    yield "MarginRankingLoss", _loss(nn.MarginRankingLoss, numbers(4, 8), signs(4, 8))
    yield "MultiLabelMarginLoss", _loss(nn.MultiLabelMarginLoss, choices(8, 4, 8))
    yield "MultiLabelSoftMarginLoss", _loss(nn.MultiLabelSoftMarginLoss, given(4, 8))
    yield "MultiMarginLoss", _loss(nn.MultiMarginLoss, choices(8, 4))
    yield "NLLLoss", _loss(nn.NLLLoss, choices(8, 4))
    yield "NLLLoss2d", module_step(nn.NLLLoss2d, numbers(2, 8, 4, 4), choices(8, 2, 4, 4))
    yield "SoftMarginLoss", _loss(nn.SoftMarginLoss, signs(4, 8))
    yield "TripletMarginLoss", _loss(nn.TripletMarginLoss, numbers(4, 8), numbers(4, 8))
    triplet = nn.TripletMarginWithDistanceLoss
    yield "TripletMarginWithDistanceLoss", _loss(triplet, numbers(4, 8), numbers(4, 8))
    yield "CosineSimilarity", _loss(nn.CosineSimilarity, numbers(4, 8))
    yield "PairwiseDistance", _loss(nn.PairwiseDistance, numbers(4, 8))
    yield "CTCLoss", module_step(_CTC, numbers(12, 3, 20), choices(20, 3, 5))
    adaptive = lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])
    yield "AdaptiveLogSoftmaxWithLoss", _loss(adaptive, choices(20, 4))
    yield "LinearCrossEntropyLoss", _loss(lambda: nn.LinearCrossEntropyLoss(8, 20), choices(20, 4))


class _CTC(nn.Module):
    """Lengths are on the host, as cuDNN wants them."""

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        target_lengths, input_lengths = torch.tensor([5, 4, 3]), torch.tensor([12, 12, 12])
        return nn.CTCLoss()(x.log_softmax(-1), targets + 1, input_lengths, target_lengths)


class _SelfAttention(nn.Module):
    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return found


def _inference(build: Callable[[], nn.Module], *shape: int) -> Step:
    def step(device: str) -> Any:
        module = build().to(device).eval()
        with torch.inference_mode():
            return module(torch.randn(shape, device=device))

    return step


def modules() -> dict[str, Step]:
    """A step for every class of torch.nn by its name, and for some a second one."""
    cell = (numbers(3, 8), numbers(3, 16))
    image = numbers(2, 4, 8, 8)
    coder = lambda: nn.TransformerEncoderLayer(16, 2, 32)
    decoder = lambda: nn.TransformerDecoderLayer(16, 2, 32)
    return {
        **{
            name: _map(getattr(nn, name), *options)
            for name, options in _MAPS.items()
            if name != "Module"
        },
        **dict(_padding()),
        **dict(_by_dimensions()),
        **dict(_containers()),
        **dict(_losses()),
        "Bilinear": module_step(lambda: nn.Bilinear(8, 6, 4), numbers(5, 8), numbers(5, 6)),
        "ChannelShuffle": module_step(lambda: nn.ChannelShuffle(2), image),
        "CrossMapLRN2d": module_step(lambda: nn.CrossMapLRN2d(2), image),
        "LocalResponseNorm": module_step(lambda: nn.LocalResponseNorm(2), image),
        "FeatureAlphaDropout": module_step(nn.FeatureAlphaDropout, image),
        "Softmax2d": module_step(nn.Softmax2d, image),
        "GroupNorm": module_step(lambda: nn.GroupNorm(2, 4), image),
        "SyncBatchNorm": module_step(lambda: nn.SyncBatchNorm(4), image),
        "PixelShuffle": module_step(lambda: nn.PixelShuffle(2), image),
        "PixelUnshuffle": module_step(lambda: nn.PixelUnshuffle(2), image),
        "Fold": module_step(lambda: nn.Fold((4, 5), (2, 2)), numbers(2, 12, 12)),
        "Unfold": module_step(lambda: nn.Unfold((2, 2)), image),
        "FractionalMaxPool2d": module_step(lambda: nn.FractionalMaxPool2d(2, output_size=4), image),
        "FractionalMaxPool3d": _pool(nn.FractionalMaxPool3d, 3, 2, output_size=4),
        "Upsample": module_step(lambda: nn.Upsample(scale_factor=2), image),
        "Upsample trilinear": _pool(nn.Upsample, 3, None, 2, "trilinear"),
        "Upsample bicubic": _pool(nn.Upsample, 2, None, 2, "bicubic"),
        "Upsample linear": _pool(nn.Upsample, 1, None, 2, "linear"),
        "UpsamplingBilinear2d": module_step(lambda: nn.UpsamplingBilinear2d(scale_factor=2), image),
        "UpsamplingNearest2d": module_step(lambda: nn.UpsamplingNearest2d(scale_factor=2), image),
        "Embedding": module_step(lambda: nn.Embedding(20, 8), choices(20, 4, 3)),
        "Embedding sparse": module_step(
            lambda: nn.Embedding(20, 8, sparse=True), choices(20, 4, 3)
        ),
        "EmbeddingBag": module_step(lambda: nn.EmbeddingBag(20, 8), choices(20, 4, 3)),
        "EmbeddingBag max": module_step(
            lambda: nn.EmbeddingBag(20, 8, mode="max"), choices(20, 4, 3)
        ),
        "RNN": _recurrent(nn.RNN),
        "LSTM": _recurrent(nn.LSTM),
        "LSTM of two layers": _recurrent(
            nn.LSTM, num_layers=2, bidirectional=True, batch_first=True
        ),
        "LSTM projected": _recurrent(nn.LSTM, proj_size=4),
        "GRU": _recurrent(nn.GRU),
        "GRU with dropout": _recurrent(nn.GRU, num_layers=2, dropout=0.5, bias=False),
        "RNNBase": _recurrent(nn.RNN, nonlinearity="relu"),
        "RNN in bfloat16": module_step(lambda: nn.RNN(8, 16).bfloat16(), _halves(5, 3, 8)),
        "GRU in bfloat16": module_step(lambda: nn.GRU(8, 16).bfloat16(), _halves(5, 3, 8)),
        "weight norm": module_step(
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), numbers(4, 8)
        ),
        "spectral norm": module_step(
            lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), numbers(4, 8)
        ),
        "packed LSTM": _packed(nn.LSTM),
        "packed GRU": _packed(nn.GRU),
        "RNNCell": module_step(lambda: nn.RNNCell(8, 16), *cell),
        "RNNCellBase": module_step(lambda: nn.RNNCell(8, 16, nonlinearity="relu"), *cell),
        "GRUCell": module_step(lambda: nn.GRUCell(8, 16), *cell),
        "LSTMCell": module_step(lambda: nn.LSTMCell(8, 16), cell[0]),
        "LSTMCell without biases": module_step(lambda: nn.LSTMCell(8, 16, bias=False), cell[0]),
        "MultiheadAttention": module_step(
            lambda: nn.MultiheadAttention(16, 2), *(numbers(5, 3, 16) for _ in range(3))
        ),
        "TransformerEncoderLayer": module_step(coder, numbers(5, 3, 16)),
        "TransformerDecoderLayer": module_step(decoder, numbers(5, 3, 16), numbers(6, 3, 16)),
        "TransformerEncoder": module_step(
            lambda: nn.TransformerEncoder(coder(), 2), numbers(5, 3, 16)
        ),
        "TransformerDecoder": module_step(
            lambda: nn.TransformerDecoder(decoder(), 2), numbers(5, 3, 16), numbers(6, 3, 16)
        ),
        "TransformerEncoderLayer in inference": _inference(coder, 5, 3, 16),
        "MultiheadAttention in inference": _inference(
            lambda: _SelfAttention(nn.MultiheadAttention(16, 2, batch_first=True)), 5, 3, 16
        ),
        "Transformer": module_step(
            lambda: nn.Transformer(16, 2, 1, 1, 32), numbers(5, 3, 16), numbers(6, 3, 16)
        ),
    }


#: Classes of torch.nn that cannot be called.
ABSTRACT = ("Module", "Container")


# --- optimizers -----------------------------------------------------------------------------------


def optimizer_step(make: Callable[[Any], torch.optim.Optimizer], sparse: bool = False) -> Step:
    """Two updates of a small model."""

    def step(device: str) -> list[Any]:
        module: Any = nn.Embedding(20, 8, sparse=True) if sparse else nn.Linear(8, 16, bias=False)
        module = module.to(device)
        optimizer: Any = make(module.parameters())
        x: Any = (choices(20, 4) if sparse else given(4, 8))(device)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = module(x).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return list(module.parameters())

    return step


def _rate_on_device(kind: Any) -> Step:
    def step(device: str) -> list[Any]:
        rate = torch.tensor(0.1, device=device)
        return optimizer_step(lambda p: kind(p, lr=rate, fused=True))(device)

    return step


def optimizers() -> dict[str, Step]:
    """Every optimizer of torch.optim, in each of its forms."""
    found: dict[str, Step] = {}
    plain = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam")
    for name in (*plain, "RMSprop", "Rprop", "SGD"):
        kind = getattr(torch.optim, name)
        found[name] = optimizer_step(kind)
        found[f"{name} one by one"] = optimizer_step(lambda p, kind=kind: kind(p, foreach=False))
    for name in (
        "ASGD",
        "Adadelta",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
    ):
        kind = getattr(torch.optim, name)
        found[f"{name} capturable"] = optimizer_step(lambda p, kind=kind: kind(p, capturable=True))
    for name in ("Adam", "AdamW", "SGD", "Adagrad"):
        kind = getattr(torch.optim, name)
        found[f"{name} fused"] = optimizer_step(lambda p, kind=kind: kind(p, fused=True))
    for name in ("Adam", "AdamW"):
        kind = getattr(torch.optim, name)
        found[f"{name} fused, its rate on the device capturable"] = _rate_on_device(kind)
    optim = torch.optim
    found["Adam amsgrad"] = optimizer_step(lambda p: optim.Adam(p, amsgrad=True, weight_decay=0.1))
    found["SGD nesterov"] = optimizer_step(lambda p: optim.SGD(p, 0.1, 0.9, nesterov=True))
    found["Adafactor"] = optimizer_step(optim.Adafactor)
    found["Muon"] = optimizer_step(optim.Muon)
    found["LBFGS"] = optimizer_step(lambda p: optim.LBFGS(p, max_iter=3))
    found["LBFGS with a line search"] = optimizer_step(
        lambda p: optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe")
    )
    found["SparseAdam"] = optimizer_step(lambda p: optim.SparseAdam(list(p)), sparse=True)
    return found


# --- transforms -----------------------------------------------------------------------------------


def _model(device: str) -> tuple[Any, dict[str, Any], Any]:
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    return module, dict(module.named_parameters()), torch.randn(4, 8, device=device)


def transforms() -> dict[str, Step]:
    """Every transform of torch.func, over a small model."""
    func = torch.func

    def with_model(run: Callable[[Callable[..., Any], dict[str, Any], Any], Any]) -> Step:
        def step(device: str) -> Any:
            module, parameters, x = _model(device)
            loss = lambda p, x: func.functional_call(module, p, (x,)).sum()
            return run(loss, parameters, x)

        return step

    def of_square(run: Callable[[Callable[..., Any], Any], Any]) -> Step:
        return lambda device: run(lambda x: (x @ x).sin(), torch.randn(4, 4, device=device))

    def ensemble(device: str) -> Any:
        modules = [nn.Linear(8, 16).to(device) for _ in range(3)]
        parameters, buffers = func.stack_module_state(modules)
        call = lambda p, b, x: func.functional_call(modules[0], (p, b), (x,))
        return func.vmap(call, in_dims=(0, 0, None))(
            parameters, buffers, torch.randn(4, 8, device=device)
        )

    def without_batch_norm(device: str) -> Any:
        module = func.replace_all_batch_norm_modules_(nn.Sequential(nn.BatchNorm1d(8)).to(device))
        return module(torch.randn(4, 8, device=device))

    return {
        "grad": with_model(lambda f, p, x: func.grad(f)(p, x)),
        "grad_and_value": with_model(lambda f, p, x: func.grad_and_value(f)(p, x)),
        "vmap": with_model(lambda f, p, x: func.vmap(f, (None, 0))(p, x)),
        "vmap of grad": with_model(lambda f, p, x: func.vmap(func.grad(f), (None, 0))(p, x)),
        "vmap random": lambda device: func.vmap(
            lambda x: torch.nn.functional.dropout(x), randomness="different"
        )(torch.randn(4, 8, device=device)),
        "functionalize": of_square(lambda f, x: func.functionalize(f)(x)),
        "functional_call": with_model(lambda f, p, x: f(p, x)),
        "hessian": of_square(lambda f, x: func.hessian(lambda y: f(y).sum())(x)),
        "jacfwd": of_square(lambda f, x: func.jacfwd(f)(x)),
        "jacrev": of_square(lambda f, x: func.jacrev(f)(x)),
        "jvp": of_square(lambda f, x: func.jvp(f, (x,), (x,))),
        "linearize": of_square(lambda f, x: func.linearize(f, x)[1](x)),
        "vjp": of_square(lambda f, x: func.vjp(f, x)[1](x)),
        "rearrange": lambda device: func.rearrange(torch.randn(4, 8, device=device), "a b -> b a"),
        "stack_module_state": ensemble,
        "replace_all_batch_norm_modules_": without_batch_norm,
    }


# --- functions ------------------------------------------------------------------------------------


def function_step(call: Callable[..., Any], *inputs: Make) -> Step:
    """Forward and backward of a function."""

    def step(device: str) -> list[Any]:
        arguments = [make(device) for make in inputs]
        result = call(*arguments)
        loss = _sum(result)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        return [result, [a.grad for a in arguments if a.is_leaf]]

    return step


def _definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1], device=x.device)


def _linear_algebra() -> dict[str, Step]:
    linalg = torch.linalg
    square, wide, sides = numbers(2, 6, 6), numbers(2, 6, 4), numbers(2, 6, 3)
    return {
        "svd": function_step(lambda x: linalg.svd(x, full_matrices=False)[1], wide),
        "svdvals": function_step(linalg.svdvals, wide),
        "qr": function_step(linalg.qr, wide),
        "cholesky": function_step(lambda x: linalg.cholesky(_definite(x)), square),
        "cholesky_solve": function_step(
            lambda x, b: torch.cholesky_solve(b, linalg.cholesky(_definite(x))), square, sides
        ),
        "solve": function_step(linalg.solve, square, sides),
        "solve_triangular": function_step(
            lambda a, b: linalg.solve_triangular(a.tril(), b, upper=False), square, sides
        ),
        "inv": function_step(linalg.inv, square),
        "det": function_step(linalg.det, square),
        "slogdet": function_step(linalg.slogdet, square),
        "lu": function_step(linalg.lu, square),
        "lu_factor": function_step(lambda x: linalg.lu_factor(x)[0], square),
        "eigh": function_step(lambda x: linalg.eigh(x + x.mT)[0], square),
        "eigvals": function_step(linalg.eigvals, given(2, 6, 6)),
        "lstsq": function_step(lambda a, b: linalg.lstsq(a, b).solution, wide, sides),
        "pinv": function_step(linalg.pinv, wide),
        "matrix_exp": function_step(linalg.matrix_exp, square),
        "matrix_norm": function_step(lambda x: linalg.matrix_norm(x, "nuc"), wide),
        "householder": function_step(
            lambda a: linalg.householder_product(a, torch.ones(2, 4, device=a.device)), wide
        ),
        "geqrf": function_step(torch.geqrf, given(6, 4)),
        "ldl_factor": function_step(linalg.ldl_factor, given(2, 6, 6)),
    }


def _attentions() -> dict[str, Step]:
    """Attention by each of PyTorch's kernels: it chooses by types, shapes, masks and switches."""
    kinds = nn.attention.SDPBackend
    wide, narrow = numbers(2, 4, 8, 16), numbers(2, 2, 8, 16)

    def by(*allowed: Any, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
        def call(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            mask = (
                torch.ones(8, 8, dtype=torch.bool, device=q.device) if "scale" in options else None
            )
            known = [k for k in allowed if q.is_cuda or k is kinds.MATH]
            with nn.attention.sdpa_kernel(known) if known else nullcontext():
                q, k = q.to(dtype), k.to(dtype)
                return nn.functional.scaled_dot_product_attention(q, k, k, mask, **options)

        return call

    return {
        "attention": function_step(by(), wide, wide),
        "attention of float32": function_step(by(dtype=torch.float32), wide, wide),
        "attention by products": function_step(by(kinds.MATH), wide, wide),
        "attention by cuDNN": function_step(by(kinds.CUDNN_ATTENTION), wide, wide),
        "attention of groups": function_step(by(enable_gqa=True), wide, narrow),
        "attention of groups, masked": function_step(by(enable_gqa=True, scale=1.0), wide, narrow),
    }


def functions() -> dict[str, Step]:
    """Functions of torch.nn.functional and torch that no module calls, and factorisations."""
    F = nn.functional
    grid = lambda device: torch.rand(2, 5, 5, 2, device=device, requires_grad=True)
    image, rows = numbers(2, 4, 8, 8), numbers(6, 8)
    return {
        **_linear_algebra(),
        **_attentions(),
        "grid_sample": function_step(
            lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid
        ),
        "affine_grid": function_step(
            lambda t: F.affine_grid(t, [2, 4, 8, 8], align_corners=False), numbers(2, 2, 3)
        ),
        "gumbel_softmax": function_step(F.gumbel_softmax, rows),
        "pdist": function_step(F.pdist, rows),
        "cdist": function_step(torch.cdist, rows, numbers(5, 8)),
        "one_hot": function_step(lambda i: F.one_hot(i, 8), choices(8, 6)),
        "cross_entropy of probabilities": function_step(F.cross_entropy, rows, given(6, 8)),
        "interpolate area": function_step(lambda x: F.interpolate(x, 4, mode="area"), image),
        "interpolate antialiased": function_step(
            lambda x: F.interpolate(x, 4, mode="bilinear", antialias=True), image
        ),
        "interpolate nearest-exact": function_step(
            lambda x: F.interpolate(x, 4, mode="nearest-exact"), image
        ),
        "logcumsumexp": function_step(lambda x: x.logcumsumexp(-1), rows),
        "cummax": function_step(lambda x: x.cummax(-1)[0], rows),
        "prod": function_step(lambda x: x.prod(-1), rows),
        "renorm": function_step(lambda x: x.renorm(2, 0, 1.0), rows),
        "trapezoid": function_step(torch.trapezoid, rows),
        "kron": function_step(torch.kron, rows, numbers(2, 2)),
        "einsum": function_step(lambda a, b: torch.einsum("ij,kj->ik", a, b), rows, rows),
        "fft": function_step(lambda x: torch.fft.rfft(x).abs(), rows),
        "stft": function_step(
            lambda x: torch.stft(
                x, 16, return_complex=True, window=torch.ones(16, device=x.device)
            ).abs(),
            numbers(2, 64),
        ),
        "special": function_step(lambda x: torch.special.i0e(x) + torch.special.ndtr(x), rows),
        "polygamma": function_step(lambda x: torch.polygamma(1, x.exp()), rows),
        "gamma": function_step(lambda x: torch._standard_gamma(x.exp()), rows),
        "dirichlet": function_step(
            lambda x: torch.distributions.Dirichlet(x.exp(), validate_args=False).rsample(), rows
        ),
        "binomial": function_step(lambda n, p: torch.binomial(10 * n, p), given(6), given(6)),
        "poisson": function_step(torch.poisson, given(6)),
        "multinomial": function_step(lambda p: torch.multinomial(p, 2), given(6, 8)),
        "take_along_dim": function_step(
            lambda x, i: torch.take_along_dim(x, i, 1), rows, choices(8, 6, 3)
        ),
        "scatter_reduce": function_step(
            lambda x, i: torch.zeros_like(x).scatter_reduce(1, i, x, "amax"), rows, choices(8, 6, 8)
        ),
        "index_reduce": function_step(
            lambda x, i: torch.zeros_like(x).index_reduce(0, i, x, "mean"), rows, choices(6, 6)
        ),
        "segment_reduce": function_step(
            lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 4], device=x.device)),
            rows,
        ),
        "fake quantisation": function_step(
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), rows
        ),
        "quantile": function_step(lambda x: x.quantile(0.5, dim=-1), rows),
        "histogram": function_step(lambda x: torch.histc(x, 4), given(8)),
        "searchsorted": function_step(torch.searchsorted, given(8), given(3)),
        "nan_to_num": function_step(torch.nan_to_num, rows),
        "cross": function_step(torch.linalg.cross, numbers(6, 3), numbers(6, 3)),
        "unique": function_step(lambda i: i.sort().values, choices(8, 6)),
        "jagged": _jagged,
        "a state that holds others": function_step(lambda x: _Halved.of(x).copied(), given(6, 8)),
        "clip": function_step(lambda x: torch.clip(x, 0, 1), rows),
        "addr": function_step(torch.addr, numbers(6, 8), numbers(6), numbers(8)),
        **_refused(),
    }


def _jagged(device: str) -> list[Any]:
    weight = torch.randn(8, 16, device=device, requires_grad=True)
    rows = [torch.randn(n, 8, device=device) for n in (3, 5, 2)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    out = (nested @ weight).relu().values()
    out.sum().backward()
    return [out, weight.grad]


class _Halved(torch.Tensor):
    """A tensor kept in half of its bytes, as states of optimizers and weights in float8 are."""

    kept: torch.Tensor

    @staticmethod
    def __new__(cls, kept: torch.Tensor, dtype: torch.dtype) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, kept.shape, strides=kept.stride(), dtype=dtype, device=kept.device
        )

    def __init__(self, kept: torch.Tensor, dtype: torch.dtype) -> None:
        self.kept = kept

    @classmethod
    def of(cls, x: torch.Tensor) -> _Halved:
        return cls(x.bfloat16(), x.dtype)

    def copied(self) -> torch.Tensor:
        """Read and written through operators on itself."""
        with torch.no_grad():
            self.copy_(self.float() * 2)
        return self.kept

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = lambda t: t.kept.to(t.dtype) if isinstance(t, cls) else t
        if func is torch.ops.aten.copy_.default:
            args[0].kept.copy_(whole(args[1]))
            return args[0]
        return func(*map(whole, args), **(kwargs or {}))


def _refused() -> dict[str, Step]:
    """What depends on data, or has no shapes anywhere."""

    @torch.library.custom_op("reach::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @torch.library.custom_op("reach::as_large", mutates_args=())
    def as_large(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @as_large.register_fake
    def of_data(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    channels = lambda x: torch.quantize_per_channel(
        x, torch.ones(6, device=x.device), torch.zeros(6, device=x.device), 0, torch.qint8
    )
    return {
        "to_sparse": function_step(lambda x: x.to_sparse(), given(6, 8)),
        "quantize_per_channel": function_step(channels, given(6, 8)),
        "an operator without shapes": function_step(unknown, given(6, 8)),
        "an operator as large as its data": function_step(as_large, given(6, 8)),
        "nonzero": function_step(torch.nonzero, given(6, 8)),
        "an operator without shapes, backward": function_step(
            _UnknownGradient.apply, numbers(6, 8)
        ),
    }


class _UnknownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.ops.reach.unknown(gradient)


# --- what came of them ----------------------------------------------------------------------------

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Outcome:
    """What a step returned, as (shape, type) of its tensors, or the exception that it raised.

    Of a recorded step, the names of operators whose work is not known, and the FLOPs of products.
    """

    results: Shapes = ()
    error: str = ""
    code: str = ""
    unpriced: tuple[str, ...] = ()
    product_flops: int = 0
    operators: tuple[str, ...] = ()


def all_steps() -> dict[str, Step]:
    """Every step, as `nn.Linear`, `optim.Adam`, `func.vmap`, `F.grid_sample`."""
    groups = {"nn": modules(), "optim": optimizers(), "func": transforms(), "F": functions()}
    return {
        f"{group}.{name}": step for group, steps in groups.items() for name, step in steps.items()
    }


def shapes(tree: Any) -> Shapes:
    """Shape and type of all tensors of a result, in order."""
    leaves = torch.utils._pytree.tree_leaves(tree)
    found = [t for t in leaves if isinstance(t, torch.Tensor)]
    return tuple((tuple(t.shape), str(t.dtype)) for t in found)


def on_cpu(steps: dict[str, Step]) -> dict[str, Outcome]:
    """Run steps with values; products are counted by PyTorch, networks without oneDNN's whole ones."""
    found = {}
    for name, step in steps.items():
        torch.manual_seed(0)
        with _without_onednn():
            if name in UNCOUNTED:
                found[name] = Outcome(shapes(step("cpu")))
                continue
            with FlopCounterMode(display=False) as counter:
                results = shapes(step("cpu"))
            found[name] = Outcome(results, product_flops=counter.get_total_flops())
    return found


#: PyTorch's counter cannot multiply nested tensors.
UNCOUNTED = ("F.jagged",)


@contextmanager
def _without_onednn() -> Iterator[None]:
    torch._C._set_mkldnn_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_mkldnn_enabled(True)


def recorded(steps: dict[str, Step]) -> dict[str, Outcome]:
    """Run steps in one recorded program. The process is changed for good."""
    from flint.frontends.torch_world.record.job import Job
    from flint.frontends.torch_world.record.run import run

    found: dict[str, Outcome] = {}

    def program() -> None:
        torch.distributed.init_process_group("nccl")
        recorder: Any = torch.utils._python_dispatch._get_current_dispatch_mode_stack()[-1]
        nn.Linear(2, 2).cuda()(torch.randn(2, 2, device="cuda"))  # the recorded step has begun
        for name, step in steps.items():
            before = len(recorder.events)
            error: Any = None
            results: Shapes = ()
            try:
                results = shapes(step("cuda"))
            except Exception as raised:  # noqa: BLE001 - every end of a step is an outcome
                error = raised
            found[name] = _outcome(results, error, recorder.events[before:])

    run(Job(call=program, world_size=2, steps=0))
    return found


def _outcome(results: Shapes, error: Any, events: list[Any]) -> Outcome:
    from flint.frontends.torch_world.program.operands import does_nothing
    from flint.frontends.torch_world.program.work import work_of
    from flint.frontends.torch_world.record.refusals import said_of_cuda
    from flint.frontends.user_process import what_happened

    if error is not None:
        message = getattr(error, "message", "") or said_of_cuda(what_happened(error))
        return Outcome(error=message, code=getattr(error, "code", ""))
    work = [e for e in events if e.comm is None and not does_nothing(e) and not e.is_view]
    work = [e for e in work if not e.op.startswith("aten.empty")]
    unpriced = tuple(sorted({e.op for e in work if work_of(e).unpriced}))
    operators = tuple(e.op for e in work)
    return Outcome(results, "", "", unpriced, sum(map(_product_flops, work)), operators)


def _product_flops(event: Any) -> int:
    """Multiplications and additions of products alone: no bias, no functions of gates."""
    from flint.frontends.torch_world.program.cuda_kernels import recurrent_products
    from flint.frontends.torch_world.program.names import base_name
    from flint.frontends.torch_world.program.work import PRODUCTS, work_of

    name, work = base_name(event.op), work_of(event)
    if name == "convolution":
        return work.flops - (math.prod(event.outputs[0].shape) if len(event.inputs) > 2 else 0)
    if name == "convolution_backward":
        mask = event.attributes.get("output_mask") or [True] * 3
        return work.flops - (math.prod(event.inputs[0].shape) if mask[2] else 0)
    if name.startswith("_cudnn_rnn"):
        return recurrent_products(event)
    if "attention" in name and name != "_native_multi_head_attention":
        return work.flops
    # PyTorch's counter leaves out products of vectors.
    return 2 * math.prod(work.dims) if name in PRODUCTS - {"dot", "vdot", "mv"} else 0


if __name__ == "__main__":
    import logging

    from tests import torch_reach  # whose classes the reader of the pickle finds

    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    warnings.simplefilter("ignore")
    outcomes = torch_reach.recorded(torch_reach.all_steps())
    Path(sys.argv[1]).write_bytes(pickle.dumps(outcomes))
