"""The server: it runs a command in a process of its own for each call, and hands back its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.cli.exits import FOUND
from flint.errors import FlintError
from flint.tools.mcp.tools import ANSWERS, FIELDS, RUNS, Tool, chosen, shortened, tools

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_ABOUT = (
    "Flint says what a JAX or PyTorch step would do on devices that are not there: communication, memory, time. "
    "Capture a program once, then ask the other tools about the directory or .flint file that it wrote. "
    "Times are in ns, sizes in bytes; numbers on a mesh are of one device unless a field says otherwise."
)


@dataclass(frozen=True)
class Printed:
    """What a command printed, and the status that it ended with."""

    status: int
    output: str
    errors: str


Run: TypeAlias = Callable[[Sequence[str]], Awaitable[Printed]]


async def in_a_process(arguments: Sequence[str]) -> Printed:
    """Run `flint` with arguments, without input."""
    import anyio

    command = [sys.executable, "-m", "flint", *arguments]
    done = await anyio.run_process(command, stdin=subprocess.DEVNULL, check=False)
    return Printed(done.returncode, done.stdout.decode(), done.stderr.decode())


async def answer(tool: Tool, given: Mapping[str, Any], run: Run) -> dict[str, Any] | str:
    """The document of a call, or what the command says is wrong. Raises FlintError FL730 and FL731."""
    ran = await run(tool.command_line(given))
    if ran.status not in (0, FOUND) or not ran.output:
        return ran.errors.strip() or f"flint ended with status {ran.status}"
    document = json.loads(ran.output)
    fields = given.get(FIELDS)
    return chosen(document, fields) if fields else shortened(document)


def server_of(*, allow_run: bool, run: Run = in_a_process) -> Server[Any]:
    """The server. Raises FlintError FL732 where the SDK is missing."""
    try:
        from mcp import types
        from mcp.server.lowlevel import Server
    except ImportError as error:
        raise FlintError(
            "FL732", "the MCP SDK is not installed", help="pip install 'flint-ir[mcp]'"
        ) from error
    known = {tool.name: tool for tool in tools(allow_run=allow_run)}

    async def listed(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=ANSWERS[name],
                    input_schema=tool.schema(),
                    annotations=types.ToolAnnotations(
                        read_only_hint=name not in RUNS and not allow_run
                    ),
                )
                for name, tool in known.items()
            ]
        )

    async def called(_: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if request.name not in known:
                raise FlintError("FL731", f"no tool is called '{request.name}'")
            found = await answer(known[request.name], request.arguments or {}, run)
        except FlintError as error:
            return _result(types, str(error), is_error=True)
        if isinstance(found, str):
            return _result(types, found, is_error=True)
        return _result(types, json.dumps(found), found)

    return Server(
        "flint",
        version=version("flint-ir"),
        instructions=_ABOUT,
        on_list_tools=listed,
        on_call_tool=called,
    )


def _result(types: Any, text: str, found: object = None, *, is_error: bool = False) -> Any:
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=found, is_error=is_error)


def serve(*, allow_run: bool) -> None:
    """Serve standard input and output until the input ends. Raises FlintError FL732 as `server_of`."""
    server = server_of(allow_run=allow_run)
    import anyio
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    anyio.run(main)
