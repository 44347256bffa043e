"""Measure the house: lines, files, functions, names, circles, and what a command loads.

    python -m benchmarks.house               # each number beside its budget and its bar
    python -m benchmarks.house --update      # lower the budgets to what is measured; never raises one
    python -m benchmarks.house --names       # what is behind the counts as well

The budgets are in `benchmarks/house.toml`, and `tests/benchmarks/test_house.py` fails when a number is
over its budget. Lines of code are held in hundreds, so that a line more or less is no matter.

Definitions. A function's lines run from `def` to its end; inner functions count. A class name is
reused if two modules of the product define it, and public without a leading underscore. A circle is
a group of modules that import each other, imports inside of functions counted and those for type
checkers not. What a command loads are Flint's modules in `sys.modules` when it is done, in the
process of the command: a JAX step of 512 devices that is captured, and then estimated.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sources import (
    PRODUCT,
    Source,
    bare_any,
    circles,
    function_lines,
    read_sources,
    reused_classes,
)

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "benchmarks" / "house.toml"
TOOLS = "flint/tools/"
LONG_FUNCTION, LONG_FILE = 60, 500
_LOADED = """
import json, sys
from flint.cli import app
code = app(prog_name="flint", standalone_mode=False)
files = {m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "flint" and m.__file__}
print(json.dumps(sorted(files)))
sys.exit(code)
"""
_NUMBER = re.compile(r"(?P<key>\w+) = (?P<number>[\d_]+)(?P<rest>.*)", re.DOTALL)
_BAR = re.compile(r"#\s*bar ([\d_]+)")
_TABLE = re.compile(r"\[(\w+)\]")
#: What to do about a number that is over its budget.
HELP = (
    "Look first for what can be deleted (python -m benchmarks.house --names says what is counted). To "
    "raise a budget, change the number in benchmarks/house.toml and write the reason in a line above it."
)

#: A table of `house.toml` -> a key in it -> a number.
Numbers = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Behind:
    """What the counts count, for people who want to lower them."""

    long_functions: list[str]
    long_files: list[str]
    reused: list[str]
    circles: list[str]


def main() -> int:
    """Print the table; 1 when a number is over its budget."""
    options = _options()
    sources = read_sources(ROOT, (*PRODUCT, "tests", "benchmarks"))
    measured = measure(sources)
    text = BUDGETS.read_text(encoding="utf-8")
    if options.update:
        text = lowered(text, measured)
        BUDGETS.write_text(text, encoding="utf-8")
    print_table(text, measured)
    if options.names:
        for title, names in vars(behind(product_of(sources))).items():
            print(f"\n{title.replace('_', ' ')}: {len(names)}", *names, sep="\n- ")
    found = over_budget(tomllib.loads(text), measured)
    print(*["", *found, HELP] if found else [], sep="\n")
    return bool(found)


def measure(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """Every number that has a budget, in the tables of `house.toml`."""
    return {**count(sources), "loaded": loaded()}


def count(sources: Sequence[Source]) -> dict[str, dict[str, int]]:
    """What the text says: of the product, and lines and files of tests and benchmarks too."""
    rooms: dict[str, list[Source]] = {"core": [], "product": product_of(sources)}
    for source in sources:
        rooms.setdefault(room(source), []).append(source)
    product = rooms["product"]
    lengths = function_lines(product)
    found = behind(product, lengths)
    return {
        "lines": {name: _hundreds(sum(s.lines for s in inside)) for name, inside in rooms.items()},
        "files": {name: len(inside) for name, inside in rooms.items()},
        "structure": {
            "longest_function": max(lengths.values(), default=0),
            "functions_over_60": len(found.long_functions),
            "files_over_500": len(found.long_files),
            "reused_public_names": len(found.reused),
            "circles": len(found.circles),
            "bare_any": sum(map(bare_any, product)),
        },
    }


def product_of(sources: Sequence[Source]) -> list[Source]:
    """Those that are installed."""
    return [source for source in sources if source.path.parts[0] in PRODUCT]


def room(source: Source) -> str:
    """Which budget a file's lines belong to: a tool's, the core's, tests or benchmarks."""
    path = source.path.as_posix()
    if path.startswith(TOOLS):
        name, *below = path.removeprefix(TOOLS).split("/")
        return name if below else "core"
    return "core" if source.path.parts[0] in PRODUCT else source.path.parts[0]


def behind(product: Sequence[Source], lengths: Mapping[str, int] | None = None) -> Behind:
    """The functions, files, names and circles that the counts are of; `lengths` are `function_lines` if known."""
    known = (function_lines(product) if lengths is None else lengths).items()
    longest = sorted(((n, name) for name, n in known if n > LONG_FUNCTION), reverse=True)
    return Behind(
        long_functions=[f"{n} {name}" for n, name in longest],
        long_files=[f"{s.lines} {s.path}" for s in product if s.lines > LONG_FILE],
        reused=[
            f"{name}: {', '.join(modules)}"
            for name, modules in sorted(reused_classes(product).items())
            if not name.startswith("_")
        ],
        circles=[", ".join(group) for group in circles(product)],
    )


def loaded() -> dict[str, int]:
    """Modules and lines that are loaded by `flint capture` of a JAX step, then `flint estimate`.

    Without hints, which a tool finds: this is what the core loads.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = str(ROOT / "examples" / "llama_jax.py")
        sizes = [f"--set={size}" for size in ("num_layers=2", "seq=128")]
        captured = loaded_by("capture", model, "--mesh=64x8", *sizes, f"--output={folder}/traces")
        estimated = loaded_by("estimate", f"{folder}/traces", "--cluster=h100-dgx", "--no-hints")
    return {
        "capture_modules": len(captured),
        "capture_lines": _hundreds(_lines(captured)),
        "estimate_modules": len(estimated),
        "estimate_lines": _hundreds(_lines(estimated)),
    }


def loaded_by(*arguments: str) -> list[Path]:
    """The files of Flint that a command loads. RuntimeError: the command failed."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"flint {' '.join(arguments)} failed:\n{done.stderr}")
    return [Path(name) for name in json.loads(done.stdout.splitlines()[-1])]


def _lines(files: Sequence[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def _hundreds(lines: int) -> int:
    """Rounded up."""
    return -(-lines // 100) * 100


def over_budget(budgets: Numbers, measured: Numbers) -> list[str]:
    """A sentence for each number that is over its budget, or has none."""
    found = []
    for table, key, number in _each(measured):
        budget = budgets.get(table, {}).get(key)
        if budget is None:
            found.append(f"[{table}] {key} is {number} and has no budget.")
        elif number > budget:
            found.append(
                f"[{table}] {key} is {number}, {number - budget} over its budget of {budget}."
            )
    return found


def lowered(text: str, measured: Numbers) -> str:
    """`house.toml` with budgets that are higher than what is measured lowered to it."""
    lines = []
    table = ""
    for line in text.splitlines(keepends=True):
        if heading := _TABLE.match(line):
            table = heading[1]
        elif match := _NUMBER.match(line):
            budget = int(match["number"])
            number = min(budget, measured.get(table, {}).get(match["key"], budget))
            line = f"{match['key']} = {number}{match['rest']}"
        lines.append(line)
    return "".join(lines)


def print_table(text: str, measured: Numbers) -> None:
    """Markdown: what is measured, its budget, and the bar that stands in the comment."""
    budgets = tomllib.loads(text)
    bars = dict(_bars(text))
    print("| | measured | budget | bar |\n|---|--:|--:|--:|")
    for table, key, budget in _each(budgets):
        number = measured.get(table, {}).get(key, "gone")
        print(f"| {table}: {key} | {number} | {budget} | {bars.get((table, key), '')} |")


def _bars(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    table = ""
    for line in text.splitlines():
        if heading := _TABLE.match(line):
            table = heading[1]
        elif (match := _NUMBER.match(line)) and (bar := _BAR.search(match["rest"])):
            yield (table, match["key"]), bar[1]


def _each(numbers: Numbers) -> Iterator[tuple[str, str, int]]:
    for table, values in numbers.items():
        yield from ((table, key, number) for key, number in values.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--update", action="store_true", help="lower the budgets to what is measured"
    )
    parser.add_argument("--names", action="store_true", help="what is behind the counts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
