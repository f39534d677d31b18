"""Listening sockets of the servers."""

import socket

from viva.errors import BadInput


def open_listening_socket(address: str, port: int) -> socket.socket:
    """Binds and listens. Port 0 means any free port. Raises BadInput."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise BadInput.of(f"Cannot listen on {address}:{port}: {error.strerror}") from error
    listener.listen(2048)
    return listener
