"""Puts the viewer on a socket of this machine, and takes it off again at Ctrl-C."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from viva.errors import BadInput
from viva.history.index import History
from viva.viewer.app import make_app
from viva.viewer.guard import Guard
from viva.viewer.launcher import RunLauncher

LISTEN_ADDRESS = "127.0.0.1"
_PATIENCE_S = 2
_log = logging.getLogger("uvicorn.error")


class _Server(uvicorn.Server):
    """Says when it can be reached. Ctrl-C is how it is ended; a second one does not wait for anything."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(2)
        self.should_exit = True
        _log.setLevel(logging.CRITICAL)  # whom it leaves behind in the middle of an answer is no news


def serve(
    history: History, *, port: int, allow_run: bool, config: Path | None, on_ready: Callable[[str], None]
) -> None:
    """Serves until somebody ends it. `ready` gets the link, which works once."""
    starter = RunLauncher(history.home.parent, config) if allow_run else None
    guard = Guard(make_app(history, launcher=starter, is_closing=lambda: server.should_exit))
    with _listening(port) as listener:
        link = f"http://{LISTEN_ADDRESS}:{listener.getsockname()[1]}/?token={guard.token}"
        settings = uvicorn.Config(
            guard,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE_S,
        )
        server = _Server(settings, lambda: on_ready(link))
        server.run(sockets=[listener])


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LISTEN_ADDRESS, port))
    except OSError as taken:
        listener.close()
        raise BadInput.of(f"--port {port}: {taken.strerror}") from taken
    return listener
