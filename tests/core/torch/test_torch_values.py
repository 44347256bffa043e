"""What fake tensors answer when a program reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from flint.errors import FlintError
from flint.frontends.torch_world.values.answers import Values
from flint.frontends.torch_world.values.hints import Surroundings

PLACE = "train.py:88"


class Through(TorchDispatchMode):  # type: ignore[misc]
    """Sends every operator through a `Values`."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.values.run(func, args, kwargs or {})


@contextmanager
def world(
    hints: Mapping[str, Any] | None = None, module: str = "layers.0.moe.router", size: int = 4
) -> Iterator[Values]:
    """Fake tensors whose reads are answered, as rank 1 of a group."""
    around = Surroundings(
        lambda: PLACE, lambda: module, _disable_current_modes, lambda g: (1, size)
    )
    values = Values(hints or {}, around)
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), Through(values):
        patch.setattr(FakeTensor, "tolist", lambda tensor: values.tolist(tensor))
        yield values


def routed(tokens: int = 64, experts: int = 8, top: int = 2) -> Any:
    """The experts that a router chose."""
    return torch.rand(tokens, experts).softmax(-1).topk(top, dim=-1).indices


@pytest.mark.parametrize(
    "count",
    [
        lambda i: torch.histc(i.flatten().float(), bins=8, min=0, max=8),
        lambda i: torch.bincount(i.flatten(), minlength=8),
        lambda i: torch.bincount(i.flatten()),
        lambda i: F.one_hot(i, 8).sum((0, 1)),
        lambda i: torch.zeros(64, 8, dtype=torch.int64).scatter_(1, i, 1).sum(0),
        lambda i: i.new_zeros((64, 8)).scatter_(1, i, 1).sum(dim=0),
        lambda i: torch.zeros(8, dtype=torch.int64).scatter_add_(
            0, i.flatten(), torch.ones(128, dtype=torch.int64)
        ),
        lambda i: torch.stack([(i == e).sum() for e in range(8)]),
        lambda i: torch.unique(i, return_counts=True)[1],
    ],
    ids=[
        "histc", "bincount", "bincount_free", "one_hot", "scatter", "new_zeros", "scatter_add",
        "compare", "unique",
    ],
)  # fmt: skip
def test_counts_of_routed_tokens_are_balanced(count: Any) -> None:
    with world() as values:
        assert count(routed()).tolist() == [16] * 8
    assert f"{PLACE}: .tolist() of 8 token counts: balanced, 16 each" in values.warnings


def test_counts_that_do_not_divide_keep_their_total() -> None:
    with world():
        counts = torch.bincount(routed(tokens=9, top=1).flatten(), minlength=8).tolist()
    assert sorted(counts) == [1] * 7 + [2] and sum(counts) == 9


def test_split_sizes_follow_from_counts_through_arithmetic_and_to_the_host() -> None:
    with world():
        counts = torch.histc(routed().flatten().float(), bins=8, min=0, max=8).to(torch.int64)
        assert counts.view(4, 2).sum(dim=1).to("cpu", non_blocking=True).tolist() == [32] * 4
        assert torch.cumsum(counts, 0)[-1].item() == 128
        assert int((counts > 0).sum()) == 8


def test_every_expert_is_found_and_gets_its_share_of_tokens() -> None:
    """The loop over experts of HuggingFace's mixtures."""
    with world() as values:
        mask = F.one_hot(routed(), 8).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        assert hit.shape == (8, 1)
        hidden = torch.rand(64, 5)
        for expert in hit:
            _, token = torch.where(mask[expert[0]])
            assert hidden[token].shape == (16, 5)
    assert f"{PLACE}: nonzero() of a mask of 128, balanced: 16 are set" in values.warnings


def test_a_spare_class_for_padding_takes_nothing_from_the_others() -> None:
    with world():
        mask = F.one_hot(routed(), 9).permute(2, 1, 0)
        assert torch.where(mask[3])[0].shape == (16,)


def test_a_line_that_reads_many_values_is_listed_once() -> None:
    with world() as values:
        for number in torch.unique(routed()):
            number.item()
    assert values.warnings[1] == f"{PLACE}: .item() of an int64 tensor: 0, 1, 2 and 5 more"


def test_mask_indexing_takes_the_balanced_number_of_rows() -> None:
    with world():
        chosen = routed(top=1).flatten()
        assert torch.rand(64, 3)[chosen == 2].shape == (8, 3)
        local = (chosen >= 2) & (chosen < 6)
        assert torch.rand(64, 3)[local].shape == (32, 3)
        assert torch.masked_select(torch.rand(64), local).shape == (32,)


def test_all_to_all_of_counts_gives_each_rank_its_experts() -> None:
    with world(size=4):
        counts = torch.bincount(routed().flatten(), minlength=8)
        swapped = torch.ops._c10d_functional.all_to_all_single(counts, [2] * 4, [2] * 4, "group")
        done = torch.ops._c10d_functional.wait_tensor(swapped)
        assert done.tolist() == [16] * 8


def test_all_to_all_of_uneven_counts_repeats_what_this_rank_gets() -> None:
    with world({"layers.*.moe": [1, 2, 3, 4]}):
        counts = torch.bincount(routed(tokens=10, experts=4, top=1).flatten(), minlength=4)
        swapped = torch.ops._c10d_functional.all_to_all_single(counts, [1] * 4, [1] * 4, "group")
        assert swapped.tolist() == [2, 2, 2, 2]


def test_a_sum_over_ranks_multiplies() -> None:
    with world(size=4):
        counts = torch.bincount(routed().flatten(), minlength=8)
        total = torch.ops._c10d_functional.all_reduce(counts, "sum", "group")
        assert total.tolist() == [64] * 8


def test_hints_by_module_give_the_counts_of_experts() -> None:
    uneven = [100, 4, 4, 4, 4, 4, 4, 4]
    with world({"layers.*.moe": uneven}) as values:
        counts = torch.bincount(routed().flatten(), minlength=8)
        assert counts.tolist() == uneven
    assert values.warnings == ()


def test_a_hint_that_loses_tokens_is_an_error() -> None:
    with world({"layers.*.moe": [1] * 8}), pytest.raises(FlintError) as caught:
        torch.bincount(routed().flatten(), minlength=8)
    assert caught.value.code == "FL237"
    assert "counts 8 of 128 tokens" in caught.value.message


def test_a_hint_by_line_answers_what_nothing_else_can() -> None:
    with world({"train.py:88": 3}) as values:
        assert torch.rand(10).int().sum().item() == 3
        assert (torch.rand(4, 4) > 0.5).nonzero().shape == (3, 2)
    assert values.warnings == ()


def test_a_hint_that_nothing_asked_for_is_named() -> None:
    with world({"train.py:99": 3}) as values:
        pass
    assert values.warnings == ("hint 'train.py:99' was never used",)


def test_floats_read_for_logging_are_one() -> None:
    with world() as values:
        assert torch.rand(3).sum().item() == 1.0
        assert float(torch.rand(())) == 1.0
        assert torch.rand(2).tolist() == [1.0, 1.0]
    assert values.warnings == (
        f"{PLACE}: .item() of a float32 tensor: 1.0",
        f"{PLACE}: .tolist() of 2 numbers: 1.0 each",
    )


def test_numbers_are_finite() -> None:
    with world():
        loss = torch.rand(5)
        assert torch.isfinite(loss).all()
        assert not torch.isnan(loss).any()
        assert not torch.isinf(loss.sum())
        assert not torch.logical_or(loss.sum().isnan(), loss.sum().isinf())


def test_conditions_on_data_are_an_error_that_names_the_line() -> None:
    with world(), pytest.raises(FlintError) as caught:
        if torch.rand(()) > 0.5:
            pass
    error = caught.value
    assert error.code == "FL233" and error.place == f"{PLACE}  layers.0.moe.router"
    assert error.help is not None and '--hint "train.py:88=true"' in error.help


@pytest.mark.parametrize(
    "read",
    [
        lambda: torch.rand(8).int().max().item(),
        lambda: (torch.rand(8) > 0.5).nonzero(),
        lambda: torch.rand(8)[torch.rand(8) > 0.5],
        lambda: torch.unique(torch.rand(8).int()),
        lambda: torch.repeat_interleave(torch.rand(8).int()),
        lambda: torch.rand(8).int().tolist(),
        lambda: torch.equal(torch.rand(2), torch.rand(2)),
    ],
    ids=["item", "nonzero", "mask", "unique", "repeat", "tolist", "equal"],
)
def test_what_has_no_policy_is_an_error(read: Any) -> None:
    with world(), pytest.raises(FlintError) as caught:
        read()
    assert caught.value.code == "FL233"


def test_ignored_labels_are_taken_not_to_occur() -> None:
    with world():
        labels = torch.randint(0, 100, (4, 7))
        assert (labels != -100).sum().item() == 28


def test_labels_that_are_ignored_everywhere_and_independent_masks() -> None:
    with world() as values:
        labels, rows = torch.full((40_000,), -100), torch.rand(40_000, 4)
        assert [len(rows[m]) for m in (labels != -100, labels == -100, labels == 3)] == [
            0,
            40_000,
            0,
        ]
        assert not values.warnings, "nothing was made up"
        one, other = routed(4096, 8, 4) < 4, routed(4096, 8, 4) < 2
        assert [int(m.sum()) for m in (one & other, one | other)] == [2048, 10240]
        assert (one & ~one).sum().item() == 0


def test_what_is_known_is_counted_not_balanced() -> None:
    with world() as values:
        tokens = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
        assert torch.bincount(tokens, minlength=4).tolist() == [5, 2, 1, 0]
        assert torch.histc(tokens.float(), bins=3, min=0, max=3).tolist() == [5, 2, 1]
        found, counts = torch.unique(tokens, return_counts=True)
        assert (found.tolist(), counts.tolist()) == ([0, 1, 2], [5, 2, 1])
    assert not values.warnings


def test_constants_are_read_exactly_and_without_a_word() -> None:
    with world() as values:
        offsets = torch.tensor([3, 1, 2])
        assert offsets.cumsum(0).tolist() == [3, 4, 6]
        assert torch.arange(5)[2:].sum().item() == 9
        assert torch.rand(9).repeat_interleave(2).shape == (18,)
        assert torch.repeat_interleave(torch.arange(4), torch.tensor([1, 0, 2, 1])).shape == (4,)
        assert torch.unique(routed()).tolist() == list(range(8))
    assert len(values.warnings) == 2


def test_updates_in_place_are_followed() -> None:
    with world():
        offsets = torch.zeros(5, dtype=torch.int64)
        offsets[1:] = torch.arange(4).cumsum(0)
        offsets += 1
        assert offsets.tolist() == [1, 1, 2, 4, 7]


def test_the_step_counts_of_an_optimizer_are_known() -> None:
    with world() as values:
        parameters = [torch.nn.Parameter(torch.rand(3)) for _ in range(2)]
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.rand(3)
            optimizer.step()
        assert optimizer.state[parameters[0]]["step"].item() == 2.0
    assert values.warnings == ()


def test_an_unknown_update_in_place_forgets_the_value_and_its_views() -> None:
    with world():
        counts = torch.zeros(4, dtype=torch.int64)
        view = counts[1:]
        counts.add_(torch.rand(4).int())
        with pytest.raises(FlintError):
            view.tolist()


def test_the_gradient_scaler_finds_no_overflow() -> None:
    with world():
        found = torch.full((1,), 0.0)
        scale = torch.full((), 0.5)
        torch._amp_foreach_non_finite_check_and_unscale_([torch.rand(3)], found, scale)
        assert found.item() == 0.0


@pytest.mark.parametrize(("reduction", "total"), [("SUM", 64), ("MAX", 16), ("AVG", 16)])
def test_all_reduce_in_place_of_counts(reduction: str, total: int) -> None:
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    try:
        with world(size=4):
            counts = torch.bincount(routed().flatten(), minlength=8)
            dist.all_reduce(counts, getattr(dist.ReduceOp, reduction))
            assert counts.tolist() == [total] * 8
            received = torch.empty(8, dtype=torch.int64)
            dist.all_to_all_single(received, counts)
            assert received.tolist() == [total] * 8
            gathered = [torch.empty(8, dtype=torch.int64) for _ in range(4)]
            dist.all_gather(gathered, counts)
            assert gathered[3].tolist() == [total] * 8
    finally:
        dist.destroy_process_group()


#: What a program asks of the classes of 128 rows.
QUESTIONS = {
    "not": lambda i, b: torch.logical_not(i < b),
    "inverted": lambda i, b: ~(i >= b),
    "between": lambda i, b: (i >= 2) & (i < b),
    "outside": lambda i, b: (i < 2) | (i > b),
    "covering": lambda i, b: (i < 6) | (i > b - 1),
    "product of masks": lambda i, b: (i >= 1) * (i < b),
    "logical and": lambda i, b: torch.logical_and(i >= 1, i <= b),
    "doubled": lambda i, b: (i < b).long() * 2,
    "<": lambda i, b: i < b,
    "<=": lambda i, b: i <= b,
    ">": lambda i, b: i > b,
    ">=": lambda i, b: i >= b,
    "==": lambda i, b: i == b,
    "!=": lambda i, b: i != b,
    "== tensor": lambda i, b: i == torch.tensor(b),
    "< tensor": lambda i, b: i < torch.tensor(b),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_balanced_classes_are_counted_as_if_they_were_there(question: str) -> None:
    """Against 128 real rows that name each of 8 classes as often as the others."""
    ask = QUESTIONS[question]
    of_two = question in ("between", "outside", "covering", "product of masks", "logical and")
    for bound in (3, 4, 6) if of_two else (-1, 0, 1, 3, 7, 8, 9):
        real = int(ask(torch.arange(128) % 8, bound).sum())
        with world():
            assert ask(routed(), bound).sum().item() == real, bound


@pytest.mark.parametrize("swapped", [False, True])
def test_what_one_of_two_masks_hides_is_not_known(swapped: bool) -> None:
    with world():
        unknown, known = torch.randint(3, 9, (64, 2)), routed() < 3
        for ask in (torch.mul, torch.logical_and, torch.logical_or):
            both = (known, unknown) if swapped else (unknown, known)
            with pytest.raises(FlintError, match="FL233"):
                ask(*both).sum().item()


def test_bounds_of_classes() -> None:
    with world():
        assert (routed().max().item(), routed().min().item()) == (7, 0)
        assert bool((routed() < 8).all()) and not bool((routed() < 7).all())
        assert bool((routed() < 1).any()) and not bool((routed() < 0).any())
        assert torch.randint(8, (128,)).max().item() == 7
        assert torch.randint(0, 5, (128,)).max().item() == 4
        assert torch.multinomial(torch.ones(6), 3).max().item() == 5
        assert torch.rand(64, 8).argmax(1).max().item() == 7
        assert torch.rand(64, 8).topk(2, 0)[1].max().item() == 63
        assert routed().sort()[0].max().item() == 7


def test_places_in_an_order_are_classes_in_inference() -> None:
    with world(), torch.inference_mode():
        assert torch.rand(64, 8).argsort(0).max().item() == 63
        assert torch.rand(64, 8).argsort().max().item() == 7
        assert torch.argsort(torch.rand(64, 8), dim=0, stable=True).max().item() == 63


def test_what_is_filled_is_known() -> None:
    with world():
        for filled, number in (
            (torch.zeros(6), 0),
            (torch.ones(6), 1),
            (torch.full((6,), 3), 3),
            (torch.ones(6).new_full((6,), 4), 4),
            (torch.empty(6, dtype=torch.int64).fill_(5), 5),
            (torch.zeros(2, 3), 0),
        ):
            assert filled.sum().item() == 6 * number
            assert filled.long()[0].max().item() == number


@pytest.mark.parametrize(
    "below",
    [
        lambda norm: norm < 0,
        lambda norm: norm * 2 + 1 < 0,
        lambda norm: torch.stack([norm, norm], -1).sum(-1) < 0,
        lambda norm: torch.where(torch.tensor(True), norm, -norm) < 0,
    ],
)
def test_norms_are_not_negative(below: Any) -> None:
    with world():
        assert not below(torch.rand(4).norm())


@pytest.mark.parametrize(
    "below",
    [
        lambda norm: norm * -1 < 0,
        lambda norm: norm - 1 < 0,
        lambda norm: torch.add(norm, norm, alpha=-1) < 0,
        lambda norm: norm.clamp(-1, 1) < 0,
        lambda norm: norm < 0.5,
    ],
)
def test_what_is_made_of_norms_may_be_negative(below: Any) -> None:
    with world(), pytest.raises(FlintError, match="depends on data"):
        bool(below(torch.rand(4).norm()))


def test_a_choice_has_the_shape_of_the_result() -> None:
    with world():
        chosen = torch.where(
            torch.ones(3, dtype=torch.bool), torch.tensor(7), torch.empty(3).long()
        )
        assert chosen.tolist() == [7, 7, 7]
