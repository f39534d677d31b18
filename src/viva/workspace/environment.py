"""The small environment that a command gets: enough to run, and nobody's sessions, settings or keys."""

from collections.abc import Iterable, Mapping

from viva.protocols import Workspace

_PATHS = ("PATH",)
_LOCALE = ("LANG", "LANGUAGE", "TZ")
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
"""Where there is a proxy, there often is an authority of its own."""
_PRIVATE = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}


def build_environment(
    host: Mapping[str, str],
    workspace: Workspace,
    pass_names: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Of the `host`'s variables a few by name, and those that are `passed` (keys of the command's own); what the case adds;
    a private HOME and TMPDIR, whatever a case takes from the host; then what the config has `added`.
    """
    names = {*_PATHS, *_LOCALE, *_PROXY, *(name.lower() for name in _PROXY), *_TRUST, *pass_names}
    kept = {name: value for name, value in host.items() if name in names or name.startswith("LC_")}
    private = {name: f"{workspace.home}/{folder}" for name, folder in _PRIVATE.items()}
    return {**kept, **workspace.env, "HOME": workspace.home, "TMPDIR": workspace.tmp, **private, **(extra or {})}
