"""Measure how a checkout is built: files, functions, folders, and what trips a newcomer.

    python -m benchmarks.house
    python -m benchmarks.house --root ../old-checkout --names

Prints markdown. Works on any checkout of Flint, whatever its layout: nothing of it is imported, and
the links in `flint/` are not followed. The first table counts the product (flint, frontends,
passes, backends), then the product with benchmarks and examples; everything after it is of the
product. `--names` lists the names behind the counts.

Definitions. A function's lines run from `def` to its end; inner functions count. A module is
imported by another one wherever the statement stands; `__init__.py` files are left out of that
share. p99 is the smallest length that 99 % of the functions do not exceed. Private names and
opcode strings are found without types, so they are lower bounds; see `structure/findings.py`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.structure import findings
from benchmarks.structure.sources import PRODUCT, Source, importers, read_sources

ROOT = Path(__file__).resolve().parents[1]
#: More modules than this in one folder are hard to survey.
CROWDED = 15
_SCOPES = {
    "product": PRODUCT,
    "with benchmarks and examples": (*PRODUCT, "benchmarks", "examples"),
}


def main() -> int:
    """Measure one checkout and print its tables."""
    options = _options()
    scopes = {title: read_sources(options.root, folders) for title, folders in _SCOPES.items()}
    print_sizes(scopes)
    product = scopes["product"]
    print_folders(product)
    print_reused("class names in more than one module", findings.reused_classes(product), options)
    print_reused("file names used more than once", findings.reused_files(product), options)
    print_annotations(product)
    print_private(product)
    print_opcodes(product)
    return 0


def print_sizes(scopes: dict[str, list[Source]]) -> None:
    """The table of sizes: one row a scope."""
    rows = [(title, *sizes(sources)) for title, sources in scopes.items()]
    print_table(
        (
            "",
            "files / lines",
            "lines a file, median / most",
            "function: median, mean, p99, most",
            "imported by exactly one module",
            "largest flat folder",
        ),
        rows,
    )


def sizes(sources: Sequence[Source]) -> tuple[str, ...]:
    """The cells of one row."""
    lines = [source.lines for source in sources]
    users = importers(sources)
    modules = [source.module for source in sources if not source.is_package]
    once = sum(len(users[module]) == 1 for module in modules)
    folder, most = findings.per_folder(sources).most_common(1)[0]
    return (
        f"{len(lines)} / {sum(lines) / 1000:.1f}k",
        f"{statistics.median(lines):.0f} / {max(lines)}",
        ", ".join(_lengths(sorted(n for s in sources for n in findings.function_lines(s)))),
        f"{percent(once, len(modules))} ({once} of {len(modules)})",
        f"{most} ({folder})",
    )


def _lengths(ordered: list[int]) -> tuple[str, ...]:
    """Median, mean, p99 and most of lengths in rising order."""
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return (
        f"{statistics.median(ordered):.0f}",
        f"{statistics.mean(ordered):.1f}",
        str(p99),
        str(ordered[-1]),
    )


def print_folders(sources: Sequence[Source]) -> None:
    """How many modules lie directly in each folder, the fullest first."""
    counted = findings.per_folder(sources)
    crowded = sum(number > CROWDED for number in counted.values())
    print(f"\n**Folders**: {len(counted)}, of which {crowded} hold more than {CROWDED} modules\n")
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    print_table(("folder", "modules"), [(f"`{name}`", str(n)) for name, n in ordered])


def print_reused(title: str, found: dict[str, list[str]], options: argparse.Namespace) -> None:
    """The count and the most frequent names; all of them and where they are with `--names`."""
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    print(f"\n**{title[0].upper()}{title[1:]}**: {len(found)}\n")
    if options.names:
        for name, places in ordered:
            print(f"- `{name}` x{len(places)}: {', '.join(places)}")
    else:
        print(", ".join(f"`{name}` x{len(places)}" for name, places in ordered[:12]))


def print_annotations(sources: Sequence[Source]) -> None:
    """The share of bare `Any` in each top folder, and in each folder of the frontends."""
    counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for source in sources:
        bare, all_of_them = findings.bare_any(source)
        for folder in _reported_folders(source):
            counted[folder][0] += bare
            counted[folder][1] += all_of_them
    print("\n**Annotations that are bare `Any`**\n")
    rows = [
        (f"`{folder}`", str(bare), str(number), percent(bare, number))
        for folder, (bare, number) in sorted(counted.items())
    ]
    print_table(("folder", "bare `Any`", "annotations", "share"), rows)


def _reported_folders(source: Source) -> list[str]:
    top, *rest = source.path.parts
    return [top, f"{top}/{rest[0]}"] if top == "frontends" and len(rest) > 1 else [top]


def print_private(sources: Sequence[Source]) -> None:
    """Modules that touch private names of torch and jax, those that do most first."""
    own = findings.own_private_names(sources)
    found = [(source.path, findings.private_names(source, own)) for source in sources]
    touching = [(path, private) for path, private in found if private]
    touching.sort(key=lambda item: (-item[1].reached - item[1].likely, -item[1].named, item[0]))
    print(f"\n**Private names of torch, jax and jaxlib**: {len(touching)} modules touch some\n")
    rows = [(f"`{p}`", str(n.reached), str(n.likely), str(n.named)) for p, n in touching]
    headings = ("module", "imports and attributes", "likely attributes", "in strings")
    print_table(headings, [*rows, ("all", *_column_sums(rows))])


def print_opcodes(sources: Sequence[Source]) -> None:
    """Modules that take opcodes for strings, those that do most first."""
    folders = [source for source in sources if source.path.parts[0] in ("passes", "backends")]
    found = [(source.path, findings.opcode_strings(source)) for source in folders]
    touching = [(path, opcodes) for path, opcodes in found if opcodes]
    touching.sort(key=lambda item: (-item[1].literals - item[1].tables, item[0]))
    print(f"\n**Opcodes as strings in passes and backends**: {len(touching)} modules\n")
    rows = [(f"`{path}`", str(o.literals), str(o.tables)) for path, o in touching]
    headings = ("module", "string literals", "uses of `.opcodes`")
    print_table(headings, [*rows, ("all", *_column_sums(rows))])


def _column_sums(rows: Sequence[tuple[str, ...]]) -> list[str]:
    columns = list(zip(*rows, strict=True))[1:]
    return [str(sum(int(cell) for cell in column)) for column in columns]


def percent(part: int, whole: int) -> str:
    """A share without decimals; nothing of nothing is 0 %."""
    return f"{100 * part / max(whole, 1):.0f} %"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of markdown: the first column is words, the others numbers."""
    print("| " + " | ".join(headings) + " |")
    print("|---|" + "--:|" * (len(headings) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout; this one by default")
    parser.add_argument("--names", action="store_true", help="where the reused names are")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
