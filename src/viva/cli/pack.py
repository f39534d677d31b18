"""`viva pack`: signs OpenWOP packs for configs with `trusted_keys`."""

from pathlib import Path
from typing import Any

import click

from viva.errors import BadInput
from viva.formats.openwop.pack_files import MANIFEST, check_pack_path
from viva.formats.openwop.packs import DIGESTS, Pack, is_pack, open_pack
from viva.formats.openwop.signatures import Signer, format_digests
from viva.model import codec

DEFAULT_SIGNATURE_FILE = f"{MANIFEST}.sig"
EPILOG = """\b
Examples:
  openssl genpkey -algorithm ed25519 -out signer.pem
  viva pack sign packs/support --key signer.pem        a folder, before packing
  viva pack sign support-1.0.0.tgz --key signer.pem    a tarball; writes support-1.0.0.tgz.sig
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
    """Sign PACK. For a tarball this writes a signature file beside it.

    In a folder it writes evals.sha256 with the digests of pack.json and of all files that run, and signatures of
    evals.sha256 and pack.json.
    """
    if not is_pack(pack):
        raise BadInput.of(f"is not a pack; give a folder with a {MANIFEST}, or a .tgz", str(pack))
    try:
        signer = Signer(key)
    except ValueError as error:
        raise BadInput.of(f"--key {key}: {error}") from error
    opened_pack = open_pack(pack, str(pack))
    try:
        paths = _sign_folder(pack, opened_pack, signer) if pack.is_dir() else _sign_tarball(pack, signer)
    except OSError as error:
        raise BadInput.of(f"cannot be written: {error.strerror}", str(error.filename or pack)) from error
    for path in paths:
        print(f"wrote {path}")
    print(f'To trust this signer: [openwop] trusted_keys = ["{signer.public_key}"]')
    return 0


def _sign_tarball(pack: Path, signer: Signer) -> list[Path]:
    signature = pack.with_name(f"{pack.name}.sig")
    signature.write_bytes(signer.sign(pack.read_bytes()))
    return [signature]


def _sign_folder(folder: Path, pack: Pack, signer: Signer) -> list[Path]:
    """Sign a folder and return the written files. Nothing is written before all content is checked. A manifest without `signatureRef` gets one."""
    files = pack.read_used_files()
    signing = pack.manifest.signing
    signature_name = signing.signature_ref if signing is not None and signing.method != "sigstore" else None
    contents: dict[str, bytes] = {}
    if signature_name is None:
        document: dict[str, Any] = codec.decode(files[MANIFEST])
        document["signing"] = {"method": "manual", "signatureRef": DEFAULT_SIGNATURE_FILE}
        contents[MANIFEST] = files[MANIFEST] = codec.pretty_json(codec.encode(document)) + b"\n"
    signature, digests = _check_file_inside(folder, signature_name or DEFAULT_SIGNATURE_FILE), format_digests(files)
    if signature in (*files, DIGESTS, f"{DIGESTS}.sig"):
        raise BadInput.of(
            f"{signature!r} cannot hold the signature: the pack uses this file for something else; rename signatureRef",
            str(folder),
        )
    contents |= {signature: signer.sign(files[MANIFEST]), DIGESTS: digests, f"{DIGESTS}.sig": signer.sign(digests)}
    for name in contents:
        _check_file_inside(folder, name)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def _check_file_inside(folder: Path, name: str) -> str:
    """Return a file name inside the pack; BadInput for one that leads outside, since the pack may be foreign."""
    try:
        name = check_pack_path(name)
        if any((folder / part).is_symlink() for part in (name, *Path(name).parents[:-1])):
            raise ValueError("is a link or behind a link; a pack must hold regular files only")
        if (folder / name).exists() and not (folder / name).is_file():
            raise ValueError("is not a file; move it away")
    except ValueError as error:
        raise BadInput.of(f"{name!r} {error}", str(folder)) from error
    return name
