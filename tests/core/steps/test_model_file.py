"""Model files: entries, plain functions with --args, --set, and what their authors do wrong."""

import sys
import textwrap

import pytest

import flint
from flint.errors import FlintError
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.mesh import Mesh

pytest.importorskip("jax", reason="model files are handed a JAX mesh")

ENTRY = """
    import flint

    @flint.entry(axes=("data", "model"))
    def train(mesh, layers=2, name: str = "tiny", bf16=True, rate=0.1, widths=(8, 16)):
        return flint.Step(lambda x: x, (mesh, layers, name, bf16, rate, widths))
"""


@pytest.fixture
def write(tmp_path):
    def _write(text, name="model.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return _write


def _load(path, name=None, mesh="4x2", args=None, settings=None):
    target = Target(path, name)
    with importable(path.parent):
        given = Target(path, args) if args else None
        return load_step(target, mesh, args=given, settings=settings or {})


def _error(path, name=None, mesh="4x2", args=None, settings=None):
    with pytest.raises(FlintError) as caught:
        _load(path, name, mesh, args, settings)
    return str(caught.value).split("\n")


def test_targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd:name").write_text("")
    assert Target.parse("m.py") == Target(tmp_path.__class__("m.py"))
    assert Target.parse("a/m.py:train") == Target(tmp_path.__class__("a/m.py"), "train")
    assert Target.parse("m.py:Model.step").name == "Model.step"
    assert Target.parse("C:\\m.py").name is None
    assert Target.parse("C:\\m.py:train").name == "train"
    assert Target.parse("odd:name").name is None


def test_one_entry_needs_no_name(write):
    found = _load(write(ENTRY))
    assert (found.name, found.source) == ("train", "model.py")
    assert found.mesh == Mesh(("data", "model"), (4, 2))
    jax_mesh = found.step.args[0]
    assert (jax_mesh.axis_names, jax_mesh.axis_sizes) == (("data", "model"), (4, 2))


def test_settings_get_the_type_of_the_default(write):
    path = write(ENTRY)
    texts = {"layers": "1_000", "name": "3", "bf16": "no", "rate": "1e-3", "widths": "1,2,3"}
    step = _load(path, settings=texts).step
    assert step.args[1:] == (1000, "3", False, 0.001, (1, 2, 3))


def test_settings_without_default_get_the_type_of_the_annotation_or_literal(write):
    path = write(
        """
        import flint

        @flint.entry()
        def make(mesh, *, size: int, label: "str | None" = None, other=None, **rest):
            return flint.Step(print, (size, label, other, rest))
        """
    )
    texts = {"size": "4", "label": "7", "other": "(1, 2)", "extra": "true"}
    step = _load(path, mesh="data=2", settings=texts).step
    assert step.args == (4, "7", (1, 2), {"extra": True})
    assert _error(path, mesh="data=2") == [
        "error[FL216]: model.py:make needs a value for 'size'",
        "  help: give --set size=VALUE",
    ]


def test_entries_need_no_parentheses(write):
    text = """
        import flint

        @flint.entry
        def make(mesh, *, size: int = 3):
            return flint.Step(print, (size,))
        """
    assert _load(write(text), mesh="data=2").step.args == (3,)
    with pytest.raises(FlintError, match="not a function") as raised:
        flint.entry(("data", "model"))
    assert raised.value.code == "FL219"


def test_unknown_settings_name_the_nearest(write):
    assert _error(write(ENTRY), settings={"layer": "4"}) == [
        "error[FL216]: model.py:train has no option 'layer'; did you mean 'layers'?",
        "  help: its options are layers, name, bf16, rate, widths",
    ]


def test_what_is_offered_reaches_entries_that_have_such_an_option(write):
    path = write(ENTRY)
    offered = {"layers": "6", "microbatches": "8"}
    with importable(path.parent):
        step = load_step(Target(path), "4x2", offered=offered).step
        said = load_step(Target(path), "4x2", settings={"layers": "3"}, offered=offered).step
    assert (step.args[1], said.args[1]) == (6, 3)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("layers", "two", "a whole number"),
        ("bf16", "maybe", "true or false"),
        ("rate", "fast", "a number"),
    ],
)
def test_settings_that_do_not_convert(write, name, value, what):
    assert _error(write(ENTRY), settings={name: value}) == [
        f"error[FL216]: --set {name}={value}: '{value}' is not {what}"
    ]


def test_several_entries_are_listed(write):
    path = write(
        """
        import flint

        @flint.entry()
        def train(mesh):
            return flint.Step(print)

        @flint.entry()
        def decode(mesh):
            return flint.Step(print, name="decode step")
        """
    )
    assert _error(path, mesh="2") == [
        "error[FL211]: model.py has 2 entries: train, decode",
        "  help: name one: model.py:train",
    ]
    assert _load(path, "decode", mesh="2").name == "decode step"
    assert _error(path, "trian", mesh="2") == [
        "error[FL211]: model.py has no 'trian'; did you mean 'train'?",
        "  help: it has train, decode",
    ]


def test_of_several_entries_the_default_needs_no_name(write):
    text = """
        import flint

        @flint.entry()
        def train(mesh):
            return flint.Step(print)

        @flint.entry(axes=("data",), default=True)
        def decode(mesh):
            return flint.Step(print)
        """
    path = write(text)
    assert _load(path, mesh="2").name == "decode"
    assert _load(path, "train", mesh="2").name == "train"
    twice = write(text.replace("entry()", "entry(default=True)"), "twice.py")
    assert _error(twice, mesh="2") == [
        "error[FL211]: twice.py has 2 entries: train, decode",
        "  help: name one: twice.py:train",
    ]


def test_no_entry_says_how_to_mark_one(write):
    path = write("def step(x):\n    return x\n")
    marking = (
        "  help: mark the function that returns a flint.Step with "
        '@flint.entry(axes=("data", "model")), name a function and its arguments: '
        "model.py:train_step --args model.py:abstract_args, or record a script with --world"
    )
    assert _error(path) == ["error[FL211]: model.py has no entry", marking]
    assert _error(path, "step") == [
        "error[FL212]: 'step' in model.py is not an entry",
        "  --> model.py:1",
        marking,
    ]


@pytest.mark.parametrize(
    ("given", "said", "help_"),
    [
        (
            "mesh",
            "returned int, not a flint.Step",
            "return a flint.Step, TorchStep, WorldStep, Pipeline or Disaggregated",
        ),
        (
            "*, size=1",
            "takes no positional argument, but it is called with the mesh",
            "write def make(mesh, ...)",
        ),
    ],
)
def test_an_entry_takes_the_mesh_and_returns_a_step(write, given, said, help_):
    path = write(f"import flint\n\n\n@flint.entry()\ndef make({given}):\n    return 3\n")
    head = f"error[FL212]: entry 'make' {said}"
    assert _error(path) == [head, "  --> model.py:4", f"  help: {help_}"]


def test_meshes_must_have_the_axes_of_the_entry(write):
    path = write(ENTRY)
    assert _error(path, mesh="4x2x2") == [
        "error[FL101]: mesh '4x2x2' has 3 axes, but the program names 2: data, model",
        "  help: give <data>x<model>",
    ]
    assert _error(path, mesh="data=4,tensor=2") == [
        "error[FL214]: model.py:train needs a mesh axis 'model', but the mesh is data=4,tensor=2",
        "  help: give --mesh data=4,model=1",
    ]
    assert _load(path, mesh="model=2,data=4").mesh.names == ("model", "data")


def test_what_a_file_raises_is_shown_at_its_line(write):
    path = write("import flint\n\nvalue = {}['missing']\n")
    assert _error(path) == [
        "error[FL203]: model.py raised KeyError: 'missing'",
        "  --> model.py:3  value = {}['missing']",
        "  help: -v prints the traceback",
    ]


def test_what_an_entry_raises_is_shown_at_the_users_line(write, tmp_path):
    write("import json\n\ndef parse():\n    return json.loads('{')\n", "parsing.py")
    path = write(
        """
        import flint

        @flint.entry()
        def make(mesh):
            from parsing import parse

            return parse()
        """
    )
    first, place, _ = _error(path)
    assert first.startswith("error[FL203]: model.py raised json.decoder.JSONDecodeError: ")
    assert place == "  --> parsing.py:4  return json.loads('{')"


@pytest.mark.parametrize(
    ("spec", "error", "help_"),
    [
        (
            "'dp', None",
            "error[FL102]: mesh has no axis 'dp', named by P('dp', None)",
            "its axes are 'data', 'model'",
        ),
        (
            "('data', 'mode')",
            "error[FL102]: mesh has no axis 'mode', named by P(('data', 'mode'),); "
            + "did you mean 'model'?",
            "its axes are 'data', 'model'",
        ),
        (
            "'data', 'data'",
            "error[FL106]: P('data', 'data') uses mesh axis 'data' twice",
            "an axis can shard only one dimension",
        ),
    ],
)
def test_axes_that_jax_refuses_are_named_with_place_and_help(write, spec, error, help_):
    path = write(
        f"""
        import flint
        from jax.sharding import NamedSharding, PartitionSpec as P

        @flint.entry(axes=("data", "model"))
        def make(mesh):
            return NamedSharding(mesh, P({spec}))
        """
    )
    line = f"  --> model.py:6  return NamedSharding(mesh, P({spec}))"
    assert _error(path) == [error, line.replace("model.py:6", "model.py:7"), f"  help: {help_}"]


@pytest.mark.parametrize("code", ["def broken(:\n", "x = 1\0\n"])
def test_files_that_are_not_python(write, code):
    first, *_ = _error(write(code))
    assert first.startswith("error[FL203]: ")


def test_a_file_that_exits_is_an_error_not_an_exit(write):
    assert _error(write("raise SystemExit(3)\n"))[0] == (
        "error[FL203]: model.py raised SystemExit: 3"
    )


def test_siblings_are_importable_and_nothing_is_left_behind(write, tmp_path):
    write("SIZE = 7\n", "flint_sibling_config.py")
    path = write(
        """
        import flint
        import flint_sibling_config

        @flint.entry()
        def make(mesh):
            return flint.Step(print, (flint_sibling_config.SIZE,))
        """
    )
    before = list(sys.path)
    assert _load(path).step.args == (7,)
    assert sys.path == before
    assert "flint_sibling_config" not in sys.modules and "model" not in sys.modules
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".pyc"]
    (tmp_path / "flint_sibling_config.py").write_text("SIZE = 77\n")
    assert _load(path).step.args == (77,)


def test_dataclasses_with_text_annotations_work(write):
    path = write(
        """
        from __future__ import annotations

        from dataclasses import dataclass

        import flint

        @dataclass
        class Config:
            layers: int = 3

        @flint.entry()
        def make(mesh):
            return flint.Step(print, (Config().layers,))
        """
    )
    assert _load(path).step.args == (3,)


UNMARKED = """
    import flint

    def train_step(params, batch, *, scale=1):
        return params

    def both(mesh):
        return ("p", "b"), {"scale": mesh.axis_sizes[0]}

    def only_arguments(mesh):
        return ["p", "b"]

    def no_mesh(layers=2):
        return "p", layers

    def a_step(mesh):
        return flint.Step(print, ("p", "b"), donate_argnums=(0,))

    pair = ("p", {"b": 1})
    wrong = 3
    short = ("p",)
"""


@pytest.mark.parametrize(
    ("args", "positional", "keywords"),
    [
        ("both", ("p", "b"), {"scale": 4}),
        ("only_arguments", ("p", "b"), {}),
        ("no_mesh", ("p", 2), {}),
        ("a_step", ("p", "b"), {}),
        ("pair", ("p", {"b": 1}), {}),
    ],
)
def test_unmarked_functions_get_their_arguments(write, args, positional, keywords):
    found = _load(write(UNMARKED), "train_step", args=args)
    assert found.step.fn.__name__ == "train_step"
    assert (tuple(found.step.args), dict(found.step.kwargs)) == (positional, keywords)
    assert found.name == "train_step"
    assert found.mesh.names == ("data", "model")


def test_options_of_an_arguments_function(write):
    assert _load(
        write(UNMARKED), "train_step", args="no_mesh", settings={"layers": "5"}
    ).step.args == ("p", 5)
    assert _error(write(UNMARKED), "train_step", args="pair", settings={"layers": "5"})[0] == (
        "error[FL216]: --set needs a function that takes its values, but model.py:pair is an object"
    )


def test_a_step_of_arguments_keeps_its_other_fields(write):
    assert _load(write(UNMARKED), "train_step", args="a_step").step.donate_argnums == (0,)


def test_arguments_that_do_not_fit(write):
    path = write(UNMARKED)
    assert _error(path, "train_step", args="wrong") == [
        "error[FL215]: model.py:wrong is int, not the arguments of a function",
        "  help: give a tuple of arguments, (arguments, keywords), or a flint.Step",
    ]
    assert _error(path, "train_step", args="short") == [
        "error[FL215]: model.py:short holds 1 argument, "
        + "but the function is train_step(params, batch, *, scale=1)"
    ]
    assert _error(path, "wrong", args="pair") == [
        "error[FL212]: 'wrong' in model.py is not a function"
    ]
    assert _error(path, args="both")[0].startswith(
        "error[FL211]: model.py does not say which function to trace (functions: train_step, "
    )


def test_one_function_beside_its_arguments_needs_no_name(write):
    path = write("def f(x):\n    return x\n\n\ndef args():\n    return (1,)\n")
    assert _load(path, args="args").name == "f"


def test_jitted_functions_are_functions(write):
    path = write("import jax\n\n@jax.jit\ndef f(x):\n    return x\n\nargs = (1,)\n")
    assert _load(path, args="args").name == "f"


def test_a_module_level_step_needs_no_entry(write):
    path = write("import flint\n\nSTEP = flint.Step(print, (1,))\n")
    assert _load(path, "STEP").step.args == (1,)
