"""A client by the SDK of MCP: lists the tools of a server, calls each with `{"n": 1}`, and prints what came as JSON.

mcp_client.py URL            over streamable HTTP
mcp_client.py COMMAND ...    over standard input and output
"""

import asyncio
import json
import sys
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def main(words: list[str]) -> None:
    is_url = words[0].startswith("http")
    target: Any = words[0] if is_url else stdio_client(StdioServerParameters(command=words[0], args=words[1:]))
    async with Client(target) as client:
        tools = (await client.list_tools()).tools
        results = [await client.call_tool(tool.name, {"n": 1}) for tool in tools]
    shown = [[tool.name, result.content[0].text, result.is_error] for tool, result in zip(tools, results, strict=True)]
    print(json.dumps(shown))


asyncio.run(main(sys.argv[1:]))
