"""Speaks MCP on standard input and output for a server that speaks it over HTTP: `python mcp_bridge.py URL`.

It runs as a program of its own, with the standard library only, so that it starts fast in any Python.
"""

import sys
import urllib.request


def main(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        request = urllib.request.Request(url, line, headers)  # noqa: S310 -- the address of our own server
        with opener.open(request) as answer:
            body = answer.read()
        if body.strip():
            sys.stdout.buffer.write(body.replace(b"\n", b" ") + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
