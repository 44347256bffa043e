"""`--sweep`: values, ranges, units and quotes."""

import pytest

from flint.errors import FlintError
from flint.tools.explore.space.sweep import parse_sweeps


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("remat=none,full", {"remat": ("none", "full")}),
        ("batch=512", {"batch": ("512",)}),
        ("m=4..64", {"m": ("4", "8", "16", "32", "64")}),
        ("m=4..100", {"m": ("4", "8", "16", "32", "64", "100")}),
        ("m=5..5", {"m": ("5",)}),
        ("m=4..18:4", {"m": ("4", "8", "12", "16")}),
        ("m=0..1:0.25", {"m": ("0", "0.25", "0.5", "0.75", "1")}),
        ("m=1,2,8..32", {"m": ("1", "2", "8", "16", "32")}),
        (
            "cluster.ib.bandwidth=50..200GB/s x=0.5us..2us",
            {
                "cluster.ib.bandwidth": ("50GB/s", "100GB/s", "200GB/s"),
                "x": ("0.5us", "1us", "2us"),
            },
        ),
        ('cut="layers:8,16",layers', {"cut": ("layers:8,16", "layers")}),
        ("optimizer='',sharded", {"optimizer": ("", "sharded")}),
        ("remat = none, full  m=1", {"remat": ("none", "full"), "m": ("1",)}),
        ('name="a b = c, d" m=1', {"name": ("a b = c, d",), "m": ("1",)}),
        ("cluster=../a.toml,b/../c.toml", {"cluster": ("../a.toml", "b/../c.toml")}),
        ("m=1e3..4e3", {"m": ("1000", "2000", "4000")}),
    ],
)
def test_values(text, found):
    assert parse_sweeps([text]) == found


def test_several_texts_are_one_space():
    assert parse_sweeps(["a=1 b=2", "c=3"]) == {"a": ("1",), "b": ("2",), "c": ("3",)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("remat", "is not NAME=VALUES"),
        ("=a", "is not NAME=VALUES"),
        ("a=1 b 2", "--sweep b is not NAME=VALUES"),
        ("a=", "there is no value"),
        ("a=1,,2", "has an empty value"),
        ("a=1,2,1", "the value '1' appears twice"),
        ("a=1..4,2", "the value '2' appears twice"),
        ("a=1 a=2", "--sweep a is given twice"),
        ("a=8..4", "begins above its end"),
        ("a=0..4", "cannot double from 0"),
        ("a=1GB..2MB", "has the units GB and MB"),
        ("a=1..9:0", "has a step that is not above 0"),
        ("a=1..1e9:1", "has more than 10,000 values"),
        ('a="x', "is not closed"),
    ],
)
def test_sweeps_that_cannot_be_read(text, said):
    with pytest.raises(FlintError) as caught:
        parse_sweeps([text])
    assert caught.value.code == "FL860"
    assert said in caught.value.message
