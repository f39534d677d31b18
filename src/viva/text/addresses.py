"""Network addresses."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Is the host an address or name of this machine only?"""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
