"""Tests that need the SDKs of the protocols are left out where these are not installed; `tests/conftest.py` says so."""

from real_protocols import find_python

collect_ignore_glob = [] if find_python() else ["test_protocols.py"]
