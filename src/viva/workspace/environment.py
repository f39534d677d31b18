"""The environment of a command: enough to run, without the user's sessions, settings or keys."""

from collections.abc import Iterable, Mapping

from viva.protocols import Workspace

_PATHS = ("PATH",)
_LOCALE = ("LANG", "LANGUAGE", "TZ")
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
"""Networks with a proxy often have their own certificate authority."""
_PRIVATE_FOLDERS = {
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
    """Build the environment: a few variables of the `host` and the `pass_names`; the variables of the case; a private HOME
    and TMPDIR; last, the `extra` variables of the config. Later ones replace earlier ones.
    """
    names = {*_PATHS, *_LOCALE, *_PROXY, *(name.lower() for name in _PROXY), *_CERTIFICATES, *pass_names}
    inherited = {name: value for name, value in host.items() if name in names or name.startswith("LC_")}
    private = {name: f"{workspace.home}/{folder}" for name, folder in _PRIVATE_FOLDERS.items()}
    return {**inherited, **workspace.env, "HOME": workspace.home, "TMPDIR": workspace.tmp, **private, **(extra or {})}
