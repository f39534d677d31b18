"""`python -m viva.testing gemini --script replies.yaml`: a stand-in model server for the command line."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click

from viva.errors import BadInput
from viva.model import codec
from viva.testing import AnthropicServer, GeminiServer, OpenAIServer, ReceivedRequest, load_script
from viva.testing.http_server import StubResponse
from viva.testing.model_server import ModelServer, Script

SERVERS: dict[str, type[ModelServer]] = {
    server.provider: server for server in (GeminiServer, OpenAIServer, AnthropicServer)
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("provider", type=click.Choice(list(SERVERS)))
@click.option("--script", metavar="FILE", help="Replies as YAML, JSON or JSON lines. Default: every reply is `ok`.")
@click.option("--port", default=0, help="Port to listen on. Default: a free one.")
@click.option("--seen", metavar="FILE", help="Append each request to this file as a line of JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(provider: str, script: str | None, port: int, seen: str | None, command: tuple[str, ...]) -> None:
    """Run a stand-in for a model PROVIDER until Ctrl-C or, after `--`, while COMMAND runs.

    The command gets the server's address and a key as environment variables (GOOGLE_GEMINI_BASE_URL, OPENAI_BASE_URL,
    ANTHROPIC_BASE_URL, ...). Its exit code is passed on.
    """
    try:
        replies: Script = load_script(script) if script else "ok"
        with _create_server(provider, replies, port, seen) as server:
            if command:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and `run` ends its child
                sys.exit(subprocess.run(command, env=os.environ | server.env, check=False).returncode)
            stop = _create_stop_event()
            for name, value in server.env.items():
                click.echo(f"export {name}={value}")
            stop.wait()
    except (BadInput, OSError) as error:  # an OSError for a port in use or an unknown command
        click.echo(str(error), err=True)
        sys.exit(4)


def _create_server(provider: str, script: Script, port: int, seen: str | None) -> ModelServer:
    server = SERVERS[provider](script, port=port)
    if seen is not None:
        log, handler = Path(seen), server.handler

        def log_request(request: ReceivedRequest) -> StubResponse:
            response = handler(request)
            with log.open("ab") as file:
                file.write(codec.encode(_build_log_entry(request, response.status)) + b"\n")
            return response

        server.handler = log_request
    return server


def _build_log_entry(request: ReceivedRequest, status: int) -> dict[str, object]:
    """Return the log entry of a request. Headers are left out: they hold keys."""
    try:
        body = request.json if request.body else None
    except codec.DecodeError:
        body = request.body.decode("utf-8", "replace")
    return {"method": request.method, "path": request.path, "status": status, "body": body}


def _create_stop_event() -> threading.Event:
    """Return an event that Ctrl-C or SIGTERM sets. Call it before printing: whoever reads the output may send a signal at once."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    main()
