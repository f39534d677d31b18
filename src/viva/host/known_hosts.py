"""The names under which clients may reach a host. A browser that was led here under another name is refused."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from viva.text.addresses import is_loopback

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class KnownHosts:
    """The names and addresses under which clients may reach a host."""

    def __init__(self, bind_address: str, public_url: str, names: Iterable[str] = ()) -> None:
        self._names = {bind_address.lower(), *(name.lower() for name in names), urlsplit(public_url).hostname or ""}
        if is_loopback(bind_address):
            self._names.update(_LOCAL_NAMES)
        # A page that a browser was sent to under a foreign name has that name as its Host, never an address.
        self._takes_any_address = bind_address in ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound

    def includes(self, header: str) -> bool:
        """Is that value of the header Host one of them? The port does not matter: it may be forwarded."""
        try:
            name = "" if set("/?#@\\") & set(header) else urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return name in self._names or (self._takes_any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
