"""Passes as people write them: names, options, and the messages for what they get wrong."""

import importlib
import pkgutil
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.ir.program import Collective, Phase
from flint.passes import fusion, rewrites
from flint.passes.base import Pass
from flint.passes.fusion.attention import FuseAttention
from flint.passes.fusion.chains import FuseChains
from flint.passes.pass_list import described, known_passes, parse_passes, spelled_pass
from flint.passes.profiles import PROFILES
from flint.passes.rewrites.combine_collectives import CombineCollectives
from flint.passes.rewrites.reassociate import ReassociateAllReduce
from flint.passes.rewrites.small_kernels import MergeSmallKernels


def test_a_list_is_read_with_its_options() -> None:
    text = (
        'reassociate, fuse-chains{blocks=shared epilogue="" again=false},'
        "combine-collectives{most-bytes=100 collectives=all_gather,all_reduce phases=backward}"
    )
    assert parse_passes(text) == (
        ReassociateAllReduce(),
        FuseChains(blocks="shared", epilogue="", again=False),
        CombineCollectives(100, (Collective.ALL_GATHER, Collective.ALL_REDUCE), (Phase.BACKWARD,)),
    )
    assert parse_passes("") == ()


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_lists_that_read_back(name: str) -> None:
    for passes in (PROFILES[name].passes, PROFILES[name].kernels):
        assert parse_passes(",".join(map(spelled_pass, passes))) == passes


@given(st.booleans(), st.text(alphabet='abc {}=,"'.replace('"', "")))
def test_options_read_back(flag: bool, text: str) -> None:
    for one in (FuseChains(again=flag, blocks=text), FuseAttention(named=flag)):
        assert parse_passes(spelled_pass(one)) == (one,)


def test_what_is_written_leaves_defaults_out() -> None:
    assert spelled_pass(FuseChains()) == "fuse-chains"
    assert (
        spelled_pass(CombineCollectives(5, ()))
        == 'combine-collectives{most-bytes=5 collectives=""}'
    )
    assert parse_passes('combine-collectives{most-bytes=5 collectives=""}') == (
        CombineCollectives(5, ()),
    )


def test_every_pass_of_the_folders_is_known_by_its_own_name() -> None:
    for folder in (rewrites, fusion):
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            importlib.import_module(module.name)
    theirs = {c for c in Pass.__subclasses__() if c.__module__.startswith("flint.passes.")}
    assert {c.name: c for c in theirs - {MergeSmallKernels}} == known_passes()


@pytest.mark.parametrize("name", list(known_passes()))
def test_every_pass_says_what_it_does_and_its_options(name: str) -> None:
    term, summary = described(known_passes()[name])
    assert term.startswith(name) and summary.endswith(".")
    assert all(f.name.replace("_", "-") + "=" in term for f in fields(known_passes()[name]))


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("reasociate", "FL408", "did you mean 'reassociate'"),
        ("reassociate,", "FL408", "not the name of a pass"),
        ("reassociate fuse", "FL408", "not the name of a pass"),
        ("reassociate{", "FL408", "not the name of a pass"),
        ("fuse{profle=none}", "FL409", "did you mean 'profile'"),
        ("reassociate{x=1}", "FL409", "it has none"),
        ("fuse{profile}", "FL409", "name=value"),
        ("fuse-chains{again=maybe}", "FL409", "one of true, false"),
        ("combine-collectives", "FL409", "needs its option most-bytes"),
        ("combine-collectives{most-bytes=1.5}", "FL409", "1.5 is not of type int"),
        ("combine-collectives{most-bytes=1 phases=sideways}", "FL409", "one of unknown, forward"),
    ],
)
def test_what_is_wrong_is_said(text: str, code: str, says: str) -> None:
    with pytest.raises(FlintError) as caught:
        parse_passes(text)
    assert caught.value.code == code
    assert says in str(caught.value)
