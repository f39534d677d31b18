"""`viva view`: serves the viewer on a loopback socket until Ctrl-C."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from viva.concurrency.sockets import open_listening_socket
from viva.config import load_settings
from viva.history.index import History
from viva.viewer.app import make_app
from viva.viewer.guard import Guard
from viva.viewer.launcher import RunLauncher

LISTEN_ADDRESS = "127.0.0.1"
_SHUTDOWN_TIMEOUT_S = 2
_log = logging.getLogger("uvicorn.error")


class _ViewerServer(uvicorn.Server):
    """Calls `on_ready` when it accepts requests. Ctrl-C ends it; a second Ctrl-C ends it at once."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(2)
        self.should_exit = True
        _log.setLevel(logging.CRITICAL)  # aborted responses are expected


def serve(
    history: History, *, port: int, allow_run: bool, config: Path | None, on_ready: Callable[[str], None]
) -> None:
    """Serves until Ctrl-C. `on_ready` gets the link, which works once."""
    launcher = RunLauncher(history.home.parent, config) if allow_run else None
    project = history.home.parent

    def redact(text: str) -> str:
        """Reads the config each time: notes are rare, and a viewer needs no valid config to show runs."""
        return load_settings(config, project, allow_unset=True).redactor.redact_text(text)

    app = make_app(history, launcher=launcher, redact=redact, is_closing=lambda: server.should_exit)
    guard = Guard(app)
    with open_listening_socket(LISTEN_ADDRESS, port) as listener:
        link = f"http://{LISTEN_ADDRESS}:{listener.getsockname()[1]}/?token={guard.token}"
        settings = uvicorn.Config(
            guard,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        )
        server = _ViewerServer(settings, lambda: on_ready(link))
        server.run(sockets=[listener])
