"""`viva pack`: sign OpenWOP packs, so that a config with `trusted_keys` runs and serves them."""

from pathlib import Path
from typing import Any

import click

from viva.errors import BadInput
from viva.formats.openwop.pack_files import MANIFEST, check_pack_path
from viva.formats.openwop.packs import DIGESTS, Pack, is_pack, open_pack
from viva.formats.openwop.signatures import Signer, format_digests
from viva.model import codec

SIGNATURE = f"{MANIFEST}.sig"
EPILOG = """\b
Examples:
  openssl genpkey -algorithm ed25519 -out signer.pem
  viva pack sign packs/support --key signer.pem        a folder, before it is packed
  viva pack sign support-1.0.0.tgz --key signer.pem    a tarball: support-1.0.0.tgz.sig covers all of it
"""


@click.group(epilog=EPILOG)
def command() -> None:
    """Sign OpenWOP packs."""


@command.command(epilog=EPILOG)
@click.argument("pack", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your Ed25519 private key, as a PEM file without a password.",
)
def sign(pack: Path, key: Path) -> int:
    """Sign PACK. Beside a tarball this writes its signature. In a folder it writes evals.sha256, which lists the digests of
    pack.json and of all files that are run, and the signatures of that list and of pack.json.
    """
    if not is_pack(pack):
        raise BadInput.of(f"is no pack: neither a folder with a {MANIFEST} nor a .tgz", str(pack))
    try:
        signer = Signer(key)
    except ValueError as wrong:
        raise BadInput.of(f"--key {key}: {wrong}") from wrong
    opened = open_pack(pack, str(pack))
    try:
        written = _sign_folder(pack, opened, signer) if pack.is_dir() else _sign_tarball(pack, signer)
    except OSError as wrong:
        raise BadInput.of(f"cannot be written: {wrong.strerror}", str(wrong.filename or pack)) from wrong
    for path in written:
        print(f"wrote {path}")
    print(f'[openwop] trusted_keys = ["{signer.public_key}"] trusts this signer')
    return 0


def _sign_tarball(pack: Path, signer: Signer) -> list[Path]:
    signature = pack.with_name(f"{pack.name}.sig")
    signature.write_bytes(signer.sign(pack.read_bytes()))
    return [signature]


def _sign_folder(folder: Path, pack: Pack, signer: Signer) -> list[Path]:
    """Everything is made and checked before the first file is written. All depends on the manifest, which names its
    signature from now on if it did not.
    """
    files = pack.read_used_files()
    signing = pack.manifest.signing
    named = signing.signature_ref if signing is not None and signing.method != "sigstore" else None
    made: dict[str, bytes] = {}
    if named is None:
        document: dict[str, Any] = codec.decode(files[MANIFEST])
        document["signing"] = {"method": "manual", "signatureRef": SIGNATURE}
        made[MANIFEST] = files[MANIFEST] = codec.pretty_json(codec.encode(document)) + b"\n"
    signature, listed = _checked(folder, named or SIGNATURE), format_digests(files)
    if signature in (*files, DIGESTS, f"{DIGESTS}.sig"):
        raise BadInput.of(f"{signature!r} cannot hold the signature: it is another file of the pack", str(folder))
    made |= {signature: signer.sign(files[MANIFEST]), DIGESTS: listed, f"{DIGESTS}.sig": signer.sign(listed)}
    for name in made:
        _checked(folder, name)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in made]


def _checked(folder: Path, name: str) -> str:
    """The pack may be somebody else's: nothing outside of it is written."""
    try:
        name = check_pack_path(name)
        if any((folder / each).is_symlink() for each in (name, *Path(name).parents[:-1])):
            raise ValueError("is a link, or lies behind one; a pack holds plain files")
        if (folder / name).exists() and not (folder / name).is_file():
            raise ValueError("is no file; move it away")
    except ValueError as wrong:
        raise BadInput.of(f"{name!r} {wrong}", str(folder)) from wrong
    return name
