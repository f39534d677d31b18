"""The names of a host."""

import pytest

from viva.host.connections import KnownHosts


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ("evals.example.com", True),
        ("EVALS.example.com:443", True),
        ("intern", True),
        ("10.0.0.7:8765", True),
        ("[fe80::1]:8765", True),
        ("other.example.com", False),
        ("localhost", False),
        ("", False),
        ("a:b:c", False),
        ("evals.example.com/x", False),
        ("other@evals.example.com", False),
    ],
)
def test_a_host_on_all_addresses_knows_its_names_and_every_address(header: str, is_known: bool):
    hosts = KnownHosts("0.0.0.0", "https://evals.example.com/viva", ["intern"])
    assert hosts.includes(header) is is_known


def test_a_host_on_one_address_knows_only_that_one():
    hosts = KnownHosts("10.0.0.7", "http://10.0.0.7:8765")
    assert [hosts.includes(name) for name in ("10.0.0.7:8765", "10.0.0.8", "localhost")] == [True, False, False]
