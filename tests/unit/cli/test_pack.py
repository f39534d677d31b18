"""`viva pack sign`, and what a config with trusted keys runs."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from openwop import pack_files, tarball
from project import Project

STRICT = "def agent(messages, options):\n    open('ran', 'w').close()\n    return messages[-1]['content']\n"


@pytest.fixture
def signer(project: Project) -> str:
    """A project with an unsigned pack, and the key of its signer; gives the line that trusts it."""
    key = Ed25519PrivateKey.generate()
    project.write("signer.pem", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for name, content in pack_files().items():
        project.write(f"pack/{name}", content)
    project.write("agent.py", STRICT)
    tarball(project.folder / "pack.tgz", pack_files())
    message = project.viva("pack", "sign", "pack.tgz", "--key", "signer.pem", code=0)
    (project.folder / "pack.tgz.sig").unlink()
    return message.out[message.out.index("ed25519:") :].partition('"')[0]


def trust(project: Project, key: str, more: str = "") -> None:
    project.write("viva.toml", f'[openwop]\ntrusted_keys = ["{key}"]\n{more}')


def refused(project: Project, what: str, message: str) -> None:
    assert message in project.test("-i", what, code=4).err
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize("what", ["pack", "pack.tgz"])
def test_a_signed_pack_runs_and_the_first_line_says_what_was_verified(project: Project, signer: str, what: str):
    # W6: with -q too
    trust(project, signer)
    refused(project, what, "it is not signed")
    assert project.viva("pack", "sign", what, "--key", "signer.pem").code == 0
    for flags in ((), ("-q",)):
        ended = project.test("-i", what, *flags)
        assert ended.code in (0, 1), ended
        covers = "evals.sha256" if what == "pack" else "pack.tgz.sig, which covers the whole of pack.tgz"
        first = ended.out.splitlines()[0]
        assert "signature verified" in first
        assert covers in first
    started = json.loads(project.test("-i", what, "--json").out.splitlines()[0])
    assert "signature verified" in started["verified"][0]


def test_what_was_changed_after_it_was_signed_is_refused(project: Project, signer: str):
    trust(project, signer)
    assert project.viva("pack", "sign", "pack", "--key", "signer.pem").code == 0
    name = next(name for name in pack_files() if name.startswith("evals/"))
    before = (project.folder / "pack" / name).read_bytes()
    project.write(f"pack/{name}", before + b" ")
    refused(project, "pack", "is not the file that was signed")
    refused(project, f"pack/{name}", "is not the file that was signed")
    assert project.viva("check", "pack").code == 4


def test_a_pack_is_signed_again_with_the_names_that_it_has(project: Project, signer: str):
    trust(project, signer)
    for _ in range(2):
        assert project.viva("pack", "sign", "pack", "--key", "signer.pem").code == 0
    signing = json.loads((project.folder / "pack" / "pack.json").read_text())["signing"]
    assert signing == {"method": "manual", "signatureRef": "pack.json.sig"}
    listed = (project.folder / "pack" / "evals.sha256").read_text()
    assert {line.split("  ")[1] for line in listed.splitlines()} >= {"pack.json"}
    assert project.test("-i", "pack").code in (0, 1)


@pytest.mark.usefixtures("signer")
def test_signing_writes_nothing_outside_of_the_pack(project: Project):
    manifest = json.loads(pack_files()["pack.json"]) | {"signing": {"signatureRef": "../out.sig"}}
    project.write("pack/pack.json", json.dumps(manifest))
    assert "leaves the pack" in project.viva("pack", "sign", "pack", "--key", "signer.pem", code=4).err
    manifest["signing"]["signatureRef"] = "s.sig"
    project.write("pack/pack.json", json.dumps(manifest))
    (project.folder / "pack" / "s.sig").symlink_to(project.folder / "out.sig")
    assert "is a link" in project.viva("pack", "sign", "pack", "--key", "signer.pem", code=4).err
    assert not (project.folder / "out.sig").exists()


@pytest.mark.usefixtures("signer")
def test_a_key_that_cannot_sign_is_named(project: Project):
    project.write("junk.pem", "junk")
    assert "is not a private key in PEM" in project.viva("pack", "sign", "pack", "--key", "junk.pem", code=4).err
    assert "is not a pack" in project.viva("pack", "sign", "agent.py", "--key", "signer.pem", code=4).err


def test_require_signature_without_keys_is_a_mistake_in_the_config(project: Project, signer: str):
    # W6
    project.write("viva.toml", "[openwop]\nrequire_signature = true\n")
    ended = project.test("-i", "pack")
    assert (ended.code, "viva.toml:2: " in ended.err, "trusted_keys" in ended.err) == (4, True, True), ended
    trust(project, signer, "require_signature = true\n")
    name = next(name for name in pack_files() if name.startswith("evals/"))
    project.write("alone.json", pack_files()[name])
    refused(project, "alone.json", "require_signature")


def test_the_tarball_is_not_unpacked_anywhere(project: Project, signer: str, tmp_path: Path):
    trust(project, signer)
    assert project.viva("pack", "sign", "pack.tgz", "--key", "signer.pem").code == 0
    before = {path for path in tmp_path.rglob("*") if ".viva" not in path.parts and "__pycache__" not in path.parts}
    project.test("-i", "pack.tgz")
    after = {path for path in tmp_path.rglob("*") if ".viva" not in path.parts and "__pycache__" not in path.parts}
    assert after - before <= {tmp_path / "ran"}


@pytest.mark.parametrize("taken", ["pack.json.sig", "evals.sha256", "evals.sha256.sig"])
@pytest.mark.parametrize("by", ["link", "folder"])
@pytest.mark.usefixtures("signer")
def test_a_pack_that_cannot_be_signed_whole_is_left_as_it_was(project: Project, taken: str, by: str):  # W6
    place = project.folder / "pack" / taken
    if by == "link":
        place.symlink_to(project.folder / "out")
    else:
        place.mkdir()
    before = {path: path.read_bytes() for path in (project.folder / "pack").rglob("*") if path.is_file()}
    assert repr(taken) in project.viva("pack", "sign", "pack", "--key", "signer.pem", code=4).err
    assert {path: path.read_bytes() for path in (project.folder / "pack").rglob("*") if path.is_file()} == before
    assert not (project.folder / "out").exists()


@pytest.mark.usefixtures("signer")
def test_a_signature_takes_the_place_of_no_file_that_is_signed(project: Project):  # W6
    listed = next(name for name in pack_files() if name.startswith("evals/"))
    for named in ("pack.json", listed, "evals.sha256", "evals.sha256.sig"):
        manifest = json.loads(pack_files()["pack.json"]) | {"signing": {"signatureRef": named}}
        before = project.write("pack/pack.json", json.dumps(manifest)).read_bytes()
        assert repr(named) in project.viva("pack", "sign", "pack", "--key", "signer.pem", code=4).err
        assert (project.folder / "pack" / "pack.json").read_bytes() == before
        assert (project.folder / "pack" / listed).read_bytes() == pack_files()[listed]
        assert not (project.folder / "pack" / "evals.sha256").exists()
