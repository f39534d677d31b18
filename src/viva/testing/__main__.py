"""`python -m viva.testing gemini --script replies.yaml`: a stand-in model server without a line of Python."""

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
@click.option("--script", metavar="FILE", help="Replies, as YAML, JSON or JSON lines; without it every reply is `ok`.")
@click.option("--port", default=0, help="0 takes a free one.")
@click.option("--seen", metavar="FILE", help="Append each request to this file, as a line of JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def main(provider: str, script: str | None, port: int, seen: str | None, command: tuple[str, ...]) -> None:
    """A stand-in for a model PROVIDER on this machine, until Ctrl-C, or, after `--`, as long as a COMMAND runs.

    The command finds the server through its environment (GOOGLE_GEMINI_BASE_URL, OPENAI_BASE_URL, ANTHROPIC_BASE_URL,
    and a key); its exit code is passed on.
    """
    try:
        replies: Script = load_script(script) if script else "ok"
        with _server(provider, replies, port, seen) as server:
            if command:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and `run` ends its child
                sys.exit(subprocess.run(command, env=os.environ | server.env, check=False).returncode)
            stopped = _stopped_by_signal()
            for name, value in server.env.items():
                click.echo(f"export {name}={value}")
            stopped.wait()
    except BadInput as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(4)
    except OSError as wrong:  # a port in use, a command that is not there
        click.echo(str(wrong), err=True)
        sys.exit(4)


def _server(provider: str, script: Script, port: int, seen: str | None) -> ModelServer:
    server = SERVERS[provider](script, port=port)
    if seen is not None:
        log, handler = Path(seen), server.handler

        def noting(received: ReceivedRequest) -> StubResponse:
            answer = handler(received)
            with log.open("ab") as file:
                file.write(codec.encode(_noted(received, answer.status)) + b"\n")
            return answer

        server.handler = noting
    return server


def _noted(received: ReceivedRequest, status: int) -> dict[str, object]:
    """A request without its headers, for they hold keys."""
    try:
        body = received.json if received.body else None
    except codec.DecodeError:
        body = received.body.decode("utf-8", "replace")
    return {"method": received.method, "path": received.path, "status": status, "body": body}


def _stopped_by_signal() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets. Made before the first line is printed: whoever reads it may stop us at once."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


if __name__ == "__main__":
    main()
