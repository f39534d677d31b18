"""A host on a socket, until it is told to stop."""

import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from msgspec import structs

from viva.errors import BadInput
from viva.host.app import make_app
from viva.host.host import Host
from viva.host.setup import HostSetup
from viva.host.store import Store

SHUTDOWN_TIMEOUT_S = 5


class _Server(uvicorn.Server):
    """Tells those who watch runs that it goes down, so that it does not wait for them."""

    host: Host | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.host is not None:
            self.host.shutdown.set()
        super().handle_exit(sig, frame)


def serve(setup: HostSetup, on_ready: Callable[[str], None]) -> None:
    """Serves until a signal ends it. `ready` hears where, once requests are answered."""
    setup.store = Store(setup.settings.data_folder / "host")
    listening = _listen(setup.bind_address, setup.port)
    port = listening.getsockname()[1]
    public = setup.options.public_url
    if setup.port == 0 and public.endswith(":0"):  # the links of answers name the port that it came to be
        setup.options = structs.replace(setup.options, public_url=f"{public.removesuffix(':0')}:{port}")
    running: list[_Server] = []

    async def on_open(host: Host) -> None:
        running[0].host = host
        on_ready(host.options.public_url)

    app = make_app(setup.open_host, on_open)
    # No access log: paths hold ids of tenants' runs, and queries what they ask for.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S, server_header=False
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    running.append(_Server(config))
    running[0].run([listening])


def _listen(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((bind, port))
    except OSError as wrong:
        listening.close()
        raise BadInput.of(f"cannot listen on {bind}:{port}: {wrong.strerror}") from wrong
    listening.listen(2048)
    return listening
