"""The row model: numpy says what PyTorch trained, sums to 1, learns, and is the same again."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from flint.errors import FlintError
from flint.tools.share.synth.model import RowModel, Sequence, Sizes, untrained
from flint.tools.share.synth.model.losses import losses
from flint.tools.share.synth.model.ngrams import count_ngrams
from flint.tools.share.synth.model.pointers import CODES, candidate_codes
from flint.tools.share.synth.model.repeats import Repeats
from flint.tools.share.synth.model.training import train

VOCABULARY, FEATURES, CONDITIONS = 12, 3, 5
SMALL = Sizes(VOCABULARY, FEATURES, CONDITIONS, 16, 24, 6, 4, 16, 12)


def _program(seed: int, steps: int = 40, *, family: int = -1, layer: int = 0) -> Sequence:
    """A program of random steps, or of a layer of so many steps again and again."""
    random = np.random.default_rng(seed)
    templates = random.integers(0, VOCABULARY, steps)
    if layer:
        templates = np.resize(random.integers(0, VOCABULARY, layer), steps)
    step, slot, target, candidates, unread = [], [], [], [], []
    for t in range(1, steps):
        for number in range(1 + t % 2):
            allowed = np.sort(random.choice(t, max(1, t // 2), replace=False))
            step.append(t)
            slot.append(number)
            target.append(int(allowed[-1] if layer else random.choice(allowed)))
            candidates.append(allowed)
            unread.append(random.random(len(allowed)) < 0.3)
    return Sequence(
        templates.astype(np.int32),
        random.random((steps, FEATURES), np.float32),
        random.random(CONDITIONS, np.float32),
        np.array(step, np.int32),
        np.array(slot, np.int32),
        np.array(target, np.int32),
        np.concatenate([[0], np.cumsum([len(c) for c in candidates])]),
        np.concatenate(candidates).astype(np.int32),
        np.concatenate(unread),
        family=family,
    )


@pytest.fixture(scope="module")
def layered() -> list[Sequence]:
    """Programs of three families, each of which repeats its own layer."""
    return [_program(f, 60 + n, family=f, layer=5 + f) for f in range(3) for n in range(3)]


@pytest.fixture(scope="module")
def learned(layered: list[Sequence]) -> RowModel:
    pytest.importorskip("torch")
    return train(layered, seed=3, steps=30, threads=1)


def test_probabilities_of_templates_and_of_candidates_add_up_to_one() -> None:
    model, program = untrained(SMALL, seed=1), _program(0)
    state = model.start(program.conditions, 40)
    for t, template in enumerate(program.templates.tolist()):
        assert np.exp(state.template_log_probs()).sum() == pytest.approx(1)
        read = [t - 1] if t else []
        if t:
            found = state.pointer_log_probs(template, 0, [], np.arange(t), np.ones(t, bool))
            assert np.exp(found).sum() == pytest.approx(1)
        state.advance(template, read, program.features[t])
    assert len(state) == 40


def test_numpy_gives_the_probabilities_of_the_network_that_pytorch_trains() -> None:
    torch = pytest.importorskip("torch")
    from flint.tools.share.synth.model.training.batches import piece, prepare
    from flint.tools.share.synth.model.training.network import Network, Run, entry_log_probs

    model = untrained(SMALL, seed=2)
    network = Network(SMALL, dict(model.weights), np.zeros((VOCABULARY, 0), np.int64))
    programs = sorted((_program(s, 30 + 9 * s, layer=7 * (s % 2)) for s in range(3)), key=len)[::-1]
    prepared = [prepare(p, VOCABULARY) for p in programs]
    run = Run(network, np.stack([p.conditions for p in programs]))
    templates, pointers = [[], [], []], [[], [], []]
    for start in range(0, len(programs[0]), 16):
        alive = [p for p in prepared if len(p.sequence) > start]
        part = piece(alive, start, 16, VOCABULARY, [len(p.sequence) for p in alive], None)
        with torch.no_grad():
            scores, entries, valid = run.outputs(part)
            rows = torch.log_softmax(scores, -1).numpy()
            choices = entry_log_probs(entries, part).numpy()
        for number in range(len(alive)):
            templates[number].extend(rows[valid.nonzero()[:, 0].numpy() == number])
            pointers[number].extend(choices[part.batch[part.owners] == number])
    for number, program in enumerate(programs):
        own_templates, own_pointers = _by_numpy(model, program)
        np.testing.assert_allclose(own_templates, templates[number], atol=1e-4)
        np.testing.assert_allclose(own_pointers, pointers[number], atol=1e-4)


def _by_numpy(model: RowModel, s: Sequence) -> tuple[list[np.ndarray], list[float]]:
    state = model.start(s.conditions, len(s))
    templates, pointers = [], []
    for t, template in enumerate(s.templates.tolist()):
        templates.append(np.log(state.network_probabilities()))
        chosen: list[int] = []
        for p in np.flatnonzero(s.step == t):
            entries = slice(s.first[p], s.first[p + 1])
            pointers += state.pointer_log_probs(
                template, int(s.slot[p]), chosen, s.candidates[entries], s.unread[entries]
            ).tolist()
            chosen.append(int(s.target[p]))
        state.advance(template, chosen, s.features[t])
    return templates, pointers


def test_the_gru_has_the_outputs_and_gradients_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    from flint.tools.share.synth.model.training.gru import Gru

    torch.manual_seed(0)
    theirs, given = torch.nn.GRU(5, 4), torch.randn(7, 3, 5)
    first, slopes = torch.randn(3, 4, requires_grad=True), torch.randn(7, 3, 4)
    inputs = (first, theirs.weight_hh_l0, theirs.bias_hh_l0, theirs.weight_ih_l0)
    expected = theirs(given, first[None])[0]
    products = given @ theirs.weight_ih_l0.T + theirs.bias_ih_l0
    found = Gru.apply(products, first, theirs.weight_hh_l0, theirs.bias_hh_l0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * slopes).sum(), inputs),
        torch.autograd.grad((expected * slopes).sum(), inputs),
    )


def test_equal_training_gives_equal_bytes(layered: list[Sequence]) -> None:
    pytest.importorskip("torch")
    first, again, other = (
        train(layered[:4], seed=seed, steps=4, threads=1).to_bytes() for seed in (3, 3, 4)
    )
    assert again == first
    assert other != first


def test_the_file_holds_the_whole_model(learned: RowModel) -> None:
    named = replace(learned, about={"from": "tests"}, codec='["a"]')
    loaded = RowModel.load(named.to_bytes())
    assert loaded.to_bytes() == named.to_bytes()
    assert (loaded.about, loaded.codec) == ({"from": "tests"}, '["a"]')
    program = _program(5)
    assert losses(loaded, [program]) == losses(learned, [program])


def test_training_helps_on_programs_of_families_that_were_not_there(learned: RowModel) -> None:
    # the layers of families 7 and 8 are in no program that was trained on
    strangers = [_program(s, 60, family=s, layer=9) for s in (7, 8)]
    found = losses(learned, strangers)
    assert found.template < min(found.network, found.counts)
    assert found.pointer < found.uniform - 0.5  # the last candidate is the target


def test_validation_decides_whom_to_trust(layered: list[Sequence]) -> None:
    pytest.importorskip("torch")
    # in programs of random steps nothing repeats; of layers, everything does
    layers = train(layered, seed=3, steps=4, threads=1, validation=[_program(7, 80, layer=9)])
    chance = train(layered, seed=3, steps=4, threads=1, validation=[_program(8, 80)])
    stranger = [_program(9, 60, layer=8)]
    assert losses(layers, stranger).template < losses(chance, stranger).template - 0.5


def test_counts_are_interpolated_as_witten_and_bell_say() -> None:
    found = count_ngrams([np.array([0, 1, 0, 2])], [1.0], 4)
    # after 0 came 1 and 2, once each: half of the mass stays with the templates themselves,
    # three kinds of which came in four steps, and share 3 of 7 with all
    single = (np.array([2, 1, 1, 0]) + 3 / 4) / 7
    double = (np.array([0, 1, 1, 0]) + 2 * single) / 4
    np.testing.assert_allclose(found.follow([3, 0]).probabilities, double, atol=1e-6)
    triple = (np.array([1, 0, 0, 0]) + (np.array([1, 0, 0, 0]) + single) / 2) / 2
    np.testing.assert_allclose(found.follow([0, 1]).probabilities, triple, atol=1e-6)


def test_repeats_find_the_longest_like_place() -> None:
    repeats = Repeats(6)
    for template in [1, 2, 3, 5, 2, 4, 1, 2]:
        repeats.append(template, np.full(8, -1))
    guess = repeats.guess()
    assert guess is not None
    assert (guess.template, guess.alike) == (3, 2)  # after 1 2, not 4, which came after 2
    assert guess.probabilities[4] > 0
    assert repeats.example(3)[1:] == (2, 2)
    assert repeats.example(0)[1:] == (0, 0)


def test_codes_say_near_or_last_or_unread_or_as_before() -> None:
    codes = candidate_codes(
        np.array([10, 10]),
        np.array([2, 7, 9, 0]),
        np.array([True, False, True, False]),
        np.array([3, 4]),
        np.array([0, 0, 0, 1]),
        np.array([[7, 2, 5], [-1, -1, 0]]),
    )
    assert codes[2, 0] < codes[1, 0] < codes[0, 0] < codes[3, 0]  # steps back: 1, 3, 8, 10
    assert codes[2, 1] == codes[3, 1] < codes[1, 1] < codes[0, 1]  # the last of their pointer
    assert codes[1, 2] == codes[3, 2] < codes[2, 2] < codes[0, 2]  # read, then the last unread
    assert (codes[:, 3] != CODES).tolist() == [False, True, False, False]
    assert (codes[:, 4] != CODES).tolist() == [True, False, False, False]


@pytest.mark.parametrize("change", ["target", "order", "later", "first"])
def test_a_sequence_that_contradicts_itself_is_refused(change: str) -> None:
    program = _program(0, layer=3)
    program.verify()
    candidates, target = program.candidates.copy(), program.target.copy()
    if change == "target":
        target[-1] = 39
    elif change == "order":
        candidates[-2:] = candidates[-2:][::-1]
    elif change == "later":
        candidates[-1] = 39
    else:
        candidates = candidates[:-1]
    with pytest.raises(ValueError):
        train([replace(program, candidates=candidates, target=target)], seed=0, steps=1)


@pytest.mark.parametrize("data", [b"", b"PK", "cut", "other"])
def test_what_is_no_model_is_refused(data: bytes | str) -> None:
    whole = untrained(SMALL).to_bytes()
    if data == "other":
        wrong = untrained(SMALL)
        data = replace(wrong, sizes=replace(SMALL, hidden=25)).to_bytes()
    with pytest.raises(FlintError, match="no row model") as raised:
        RowModel.load(whole[:-100] if data == "cut" else data)  # type: ignore[arg-type]
    assert raised.value.code == "FL959"


def test_without_pytorch_training_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(FlintError, match="PyTorch is not installed") as raised:
        train([_program(0)], seed=0, steps=1)
    assert raised.value.code == "FL958"
