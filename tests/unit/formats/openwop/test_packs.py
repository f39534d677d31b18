"""Packs: only plain files from inside, of a bearable size, and an honest word on the signature."""

import base64
import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from openwop import manifest, official, pack_files, suite, tarball, task
from viva.errors import BadInput
from viva.formats.load_options import LoadOptions
from viva.formats.openwop.modes import EvalOptions
from viva.formats.openwop.pack_files import MAX_ENTRIES
from viva.formats.openwop.packs import load_pack, open_pack
from viva.formats.openwop.signatures import format_digests
from viva.formats.sources import load_files, parse_input
from viva.model.case import Suite


def folder(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def loaded(path: Path, *trusted_keys: str) -> list[Suite]:
    return load_pack(path, path.name, LoadOptions(eval_options=EvalOptions(trusted_keys=trusted_keys)))


def refused(path: Path, *trusted_keys: str) -> str:
    with pytest.raises(BadInput) as error:
        loaded(path, *trusted_keys)
    return str(error.value)


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize("form", ["folder", "tarball", "dotted tarball", "tarball with one folder"])
def test_the_suite_of_a_pack_is_found(tmp_path: Path, form: str):
    """R1: the manifest only points to it."""
    files = pack_files()
    prefix = {"dotted tarball": "./", "tarball with one folder": "package/"}.get(form, "")
    if form == "folder":
        path = folder(tmp_path / "pack", files)
    else:
        path = tarball(tmp_path / "pack.tgz", {prefix + name: content for name, content in files.items()})
    (found,) = loaded(path)
    assert (found.id, found.version, found.count) == ("acme.support.evals.demo", "1.0.0", 1)
    assert found.notes == (f"{path.name}: vendor.acme.support@1.0.0: not signed",)
    assert str(found.origin) == f"{path.name}/evals/suite.json:1"


def test_a_tarball_made_by_tar_itself_loads(tmp_path: Path):
    folder(tmp_path / "pack", pack_files())
    subprocess.run(["tar", "czf", "pack.tgz", "-C", "pack", "."], cwd=tmp_path, check=True)
    assert len(loaded(tmp_path / "pack.tgz")) == 1


LEAVING = [
    ("../evil.json", "leaves the pack by '..'"),
    ("evals/../../evil.json", "leaves the pack by '..'"),
    ("/etc/passwd", "absolute"),
    ("C:\\evil.json", "absolute"),
    ("..\\evil.json", "absolute"),
]


@pytest.mark.parametrize(("name", "what"), LEAVING)
def test_an_entry_that_leaves_the_root_is_refused(tmp_path: Path, name: str, what: str):
    path = tarball(tmp_path / "p.tgz", {**pack_files(), name: b"{}"})
    assert what in refused(path)


KINDS = [
    (entry("link", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
    (entry("link", tarfile.LNKTYPE, "pack.json"), "is a link"),
    (entry("null", tarfile.CHRTYPE), "is a device"),
    (entry("disk", tarfile.BLKTYPE), "is a device"),
    (entry("pipe", tarfile.FIFOTYPE), "is a pipe"),
]


@pytest.mark.parametrize(("odd", "what"), KINDS, ids=lambda each: getattr(each, "name", "")[:8])
def test_an_entry_that_is_not_a_plain_file_is_refused(tmp_path: Path, odd: tarfile.TarInfo, what: str):
    assert what in refused(tarball(tmp_path / "p.tgz", {**pack_files(), odd.name: odd}))


def test_a_bomb_is_refused_long_before_it_is_unpacked(tmp_path: Path):
    """A gigabyte of nothing in a megabyte: it is read up to the limit, and no further."""
    path = tmp_path / "p.tgz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        big = tarfile.TarInfo("big")
        big.size = 1 << 30
        out.write(big.tobuf())
        for _ in range(1 << 10):
            out.write(bytes(1 << 20))
    assert "holds more than 50 MB" in refused(path)


def test_a_bomb_in_a_header_is_refused_too(tmp_path: Path):
    """An extended header is read whole by those who do not look."""
    path = tmp_path / "p.tgz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        header = entry("x", tarfile.XHDTYPE)
        header.size = 1 << 30
        out.write(header.tobuf())
        for _ in range(80):
            out.write(bytes(1 << 20))
    assert "p.tgz" in refused(path)


def test_too_many_entries_are_refused(tmp_path: Path):
    files = {f"f{n}": b"" for n in range(MAX_ENTRIES + 1)}
    assert f"more than {MAX_ENTRIES} entries" in refused(tarball(tmp_path / "p.tgz", files))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_that_announce_headers_are_refused(tmp_path: Path, kind: bytes):
    """Thousands in a row are no reason to fall over."""
    header = entry("x", kind)
    header.size = 11
    (tmp_path / "p.tgz").write_bytes(gzip.compress((header.tobuf() + b"11 path=ab\n".ljust(512, b"\0")) * 5000))
    assert "cannot be read as .tgz" in refused(tmp_path / "p.tgz")


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path):
    path = tmp_path / "p.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for content in (b"{}", pack_files()["pack.json"]):
            made = tarfile.TarInfo("pack.json")
            made.size = len(content)
            archive.addfile(made, io.BytesIO(content))
    assert "is there twice" in refused(path)


@pytest.mark.parametrize(
    "content", [b"", b"not a tarball", gzip.compress(b"not a tarball", mtime=0), gzip.compress(b"", mtime=0)[:10]]
)
def test_what_is_not_a_tarball_says_so(tmp_path: Path, content: bytes):
    path = tmp_path / "p.tgz"
    path.write_bytes(content)
    assert "p.tgz: " in refused(path)


def test_a_tarball_without_a_manifest_says_so(tmp_path: Path):
    assert "does not contain pack.json at its root" in refused(tarball(tmp_path / "p.tgz", {"a.json": b"{}"}))


REFERENCES = [
    ("../outside.json", "leaves the pack by '..'"),
    ("/etc/passwd", "absolute"),
    ("https://acme.com/suite.json", "absolute, or a URL"),
    ("evals/missing.json", "does not exist"),
    ("evals", "does not exist"),
]


@pytest.mark.parametrize(("reference", "what"), REFERENCES)
@pytest.mark.parametrize("form", ["folder", "tarball"])
def test_a_reference_stays_inside_the_pack(tmp_path: Path, form: str, reference: str, what: str):
    files = pack_files(evalSuiteRef=reference)
    (tmp_path / "outside.json").write_text(json.dumps(suite()))
    path = folder(tmp_path / "p", files) if form == "folder" else tarball(tmp_path / "p.tgz", files)
    message = refused(path)
    assert what in message
    assert "$.agents[0].evalSuiteRef" in message


def test_a_link_in_a_folder_is_not_followed(tmp_path: Path):
    path = folder(tmp_path / "p", pack_files())
    (tmp_path / "outside.json").write_text(json.dumps(suite()))
    (path / "evals" / "suite.json").unlink()
    (path / "evals" / "suite.json").symlink_to(tmp_path / "outside.json")
    assert "is a link" in refused(path)


def test_a_manifest_that_is_a_link_is_not_followed_either(tmp_path: Path):
    path = folder(tmp_path / "p", pack_files())
    (path / "pack.json").rename(tmp_path / "elsewhere.json")
    (path / "pack.json").symlink_to("../elsewhere.json")
    assert refused(path).startswith("p/pack.json: is a link")


def test_an_unreadable_file_is_an_error(tmp_path: Path):
    message = refused(folder(tmp_path / "p", pack_files(evalSuiteRef="x" * 300)))
    assert "cannot be read: File name too long" in message


def test_a_suite_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path):
    files = {**pack_files(), "evals/suite.json": b'{\n"suiteId": "\xff"}'}
    assert "p/evals/suite.json:2: is not UTF-8" in refused(folder(tmp_path / "p", files))


def test_problems_of_the_manifest_and_of_the_suite_have_their_places(tmp_path: Path):
    assert "p/pack.json:1: $: is missing 'name'" in refused(folder(tmp_path / "p", {"pack.json": b"{}"}))
    files = {**pack_files(), "evals/suite.json": json.dumps(suite(task("B")), indent=1).encode()}
    assert "q/evals/suite.json:9: $.tasks[0].taskId" in refused(folder(tmp_path / "q", files))
    assert "no agent of it refers to an eval suite" in refused(
        folder(tmp_path / "r", {"pack.json": json.dumps({**manifest(), "agents": []}).encode()})
    )


def test_what_the_manifest_says_of_an_agent_comes_along(tmp_path: Path):
    schema = json.dumps({"type": "string"}).encode()
    files = {
        **pack_files(handoff={"taskSchemaRef": "t.json", "returnSchemaRef": "t.json"}, toolAllowlist=["a:b"]),
        "t.json": schema,
    }
    terms = open_pack(folder(tmp_path / "p", files), "p").read_manifest_info(0)
    assert terms.agent_id == "vendor.acme.support.resolver"
    assert (terms.task_schema, terms.return_schema) == ({"type": "string"}, {"type": "string"})
    assert (terms.prompts, terms.allowed_tools) == (("Be kind.",), ("a:b",))
    files["t.json"] = b'{"type": 5}'
    assert "$.agents[0].handoff.taskSchemaRef" in refused(folder(tmp_path / "q", files))


def test_the_manifests_of_the_tests_are_official_ones(capsys: pytest.CaptureFixture[str]):
    validator = official("node-pack-manifest", capsys)
    if validator is not None:
        assert validator.is_valid(manifest())


KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()


def pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def inline(key: Ed25519PrivateKey) -> str:
    return "ed25519:" + base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def signed(path: Path, by: Ed25519PrivateKey = KEY, own: Ed25519PrivateKey | None = KEY, **signing: Any) -> Path:
    """A pack whose manifest is signed, and the list of what is run, with the public key in it."""
    written = {**manifest(), "signing": {"signatureRef": "s.sig", "method": "manual", **signing}}
    if own is not None:
        written["signing"]["publicKeyRef"] = "k.pem"
    raw = json.dumps(written, indent=1).encode()
    files = {**pack_files(), "pack.json": raw, "s.sig": by.sign(raw)}
    made = folder(path, files | ({"k.pem": pem(own)} if own is not None else {}))
    return listed(made, {name: files[name] for name in pack_files()}, by)


def listed(path: Path, files: Mapping[str, bytes], by: Ed25519PrivateKey = KEY, more: str = "") -> Path:
    """The pack with a signed list of these files."""
    raw = format_digests(files) + more.encode()
    return folder(path, {"evals.sha256": raw, "evals.sha256.sig": by.sign(raw)})


def note(path: Path, *trusted: str) -> str:
    return loaded(path, *trusted)[0].notes[0]


def verified(path: Path, *trusted: str) -> str:
    found = loaded(path, *trusted)[0]
    assert found.verified
    return found.verified


def test_without_trusted_keys_a_signature_is_present_and_no_more(tmp_path: Path):
    assert "signature present, not verified" in note(signed(tmp_path / "p"))
    assert "not signed" in note(folder(tmp_path / "q", pack_files()))


def test_a_signature_of_the_manifest_and_of_the_list_is_verified_by_a_trusted_key(tmp_path: Path):
    # W6
    (tmp_path / "acme.pem").write_bytes(pem(KEY))
    path = signed(tmp_path / "p")
    message = verified(path, inline(OTHER), str(tmp_path / "acme.pem"))
    assert "signature verified (acme.pem): pack.json and the" in message
    assert "evals.sha256" in message
    assert "signature verified" in verified(path, inline(KEY))
    assert "signature verified" in verified(tarball(tmp_path / "p.tgz", _content(path)), inline(KEY))


def _content(path: Path) -> dict[str, bytes]:
    return {each.relative_to(path).as_posix(): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("coded", [base64.b64encode, lambda raw: raw.hex().encode(), lambda raw: raw])
def test_a_signature_may_be_raw_or_in_base64_or_hexadecimal(tmp_path: Path, coded: Any):
    path = signed(tmp_path / "p")
    (path / "s.sig").write_bytes(coded((path / "s.sig").read_bytes()))
    assert "signature verified" in verified(path, inline(KEY))


def test_a_pack_that_no_trusted_key_signed_is_refused(tmp_path: Path):
    # W6: neither removing the signature nor shipping another key helps
    assert "it is not signed" in refused(folder(tmp_path / "unsigned", pack_files()), inline(KEY))
    assert "it is not signed" in refused(tarball(tmp_path / "unsigned.tgz", pack_files()), inline(KEY))
    other = signed(tmp_path / "other", by=OTHER, own=OTHER)
    assert "pack.json is signed with a key that [openwop] trusted_keys does not name" in refused(other, inline(KEY))
    assert "matches no key" in refused(signed(tmp_path / "unknown", by=OTHER, own=None), inline(KEY))
    assert "Sigstore" in refused(signed(tmp_path / "sigstore", method="sigstore"), inline(KEY))
    gone = signed(tmp_path / "gone")
    (gone / "s.sig").unlink()
    assert "is refused" in refused(gone, inline(KEY))


@pytest.mark.parametrize("missing", ["evals.sha256", "evals.sha256.sig"])
def test_a_signature_of_the_manifest_alone_is_not_enough(tmp_path: Path, missing: str):
    # W6
    path = signed(tmp_path / "p")
    (path / missing).unlink()
    assert "covers pack.json alone, not the suite" in refused(path, inline(KEY))


def test_a_list_that_another_key_signed_is_refused(tmp_path: Path):
    path = signed(tmp_path / "p")
    listed(path, pack_files(), by=OTHER)
    assert "the signature of evals.sha256 matches no key" in refused(path, inline(KEY))


def test_a_suite_that_was_changed_or_is_not_listed_is_refused(tmp_path: Path):
    # W6
    path = signed(tmp_path / "p")
    name = next(name for name in pack_files() if name.startswith("evals/"))
    (path / name).write_bytes(b" " + (path / name).read_bytes())
    assert "is not the file that was signed" in refused(path, inline(KEY))
    files = {name: content for name, content in _content(signed(tmp_path / "q")).items() if name in pack_files()}
    listed(tmp_path / "q", {each: content for each, content in files.items() if each != name})
    assert f"{name!r} is not listed in evals.sha256" in refused(tmp_path / "q", inline(KEY))


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{DIGEST}  gone.json", "'gone.json', which evals.sha256 lists, does not exist"),
        (f"{DIGEST}  ../outside.json", "leaves the pack"),
        (f"{DIGEST}  /etc/passwd", "is absolute"),
        (f"{DIGEST}  ./evals/x.json", "is not a SHA-256 digest"),
        (f"{DIGEST}  evals//x.json", "is not a SHA-256 digest"),
        (f"{DIGEST} evals/x.json", "is not a SHA-256 digest"),
        ("abc  evals/x.json", "is not a SHA-256 digest"),
        (f"{DIGEST}  PACK.JSON", "differs from another path only in case"),
        (f"{DIGEST}  pack.json", "is listed twice"),
        (f"{DIGEST}  link.json", "is a link"),
    ],
)
def test_a_list_with_tricks_in_its_paths_is_refused(tmp_path: Path, line: str, message: str):
    # W6
    path = signed(tmp_path / "p")
    (tmp_path / "outside.json").write_text("{}")
    (path / "link.json").symlink_to(tmp_path / "outside.json")
    listed(path, {name: content for name, content in _content(path).items() if name in pack_files()}, more=line + "\n")
    assert message in refused(path, inline(KEY))


def test_a_suite_beside_those_of_a_pack_is_refused_where_keys_are_trusted(tmp_path: Path):
    # W6: also by itself, in whatever format it is asked for, and where the manifest refers to it no more
    path = signed(tmp_path / "p")
    name = next(name for name in pack_files() if name.startswith("evals/"))
    (path / "evals" / "more.json").write_bytes((path / name).read_bytes())
    asked = EvalOptions(trusted_keys=(inline(KEY),))
    for format_ in (None, "openwop"):
        (found,) = load_files([path / name], LoadOptions(eval_options=asked), tmp_path, format_)
        assert found.verified
        with pytest.raises(BadInput, match="no agent of the pack refers to it"):
            load_files([path / "evals" / "more.json"], LoadOptions(eval_options=asked), tmp_path, format_)
    alone = tmp_path / "alone.json"
    alone.write_bytes((path / name).read_bytes())
    assert load_files([alone], LoadOptions(eval_options=asked), tmp_path)  # in no pack: it is the user's own
    (path / "evals" / "more.json").unlink()
    (path / "evals" / "more.json").symlink_to(alone)
    with pytest.raises(BadInput, match="no agent of the pack refers to it"):
        load_files([path / "evals" / "more.json"], LoadOptions(eval_options=asked), tmp_path)
    with pytest.raises(BadInput, match="require_signature"):
        load_files(
            [alone],
            LoadOptions(eval_options=EvalOptions(trusted_keys=(inline(KEY),), require_signature=True)),
            tmp_path,
        )


UNKNOWN = b"-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n" % base64.b64encode(
    bytes.fromhex("300b300406022a030303000102")
)
"""A key of an unknown algorithm."""


@pytest.mark.parametrize("own", [b"junk", UNKNOWN])
def test_a_key_of_the_packs_own_that_is_none_proves_nothing(tmp_path: Path, own: bytes):
    path = signed(tmp_path / "p", by=OTHER, own=OTHER)
    (path / json.loads((path / "pack.json").read_text())["signing"]["publicKeyRef"]).write_bytes(own)
    assert "matches no key" in refused(path, inline(KEY))
    (tmp_path / "odd.pem").write_bytes(own)
    assert f"trusted_keys: {tmp_path / 'odd.pem'}: is " in refused(path, str(tmp_path / "odd.pem"))


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path):
    path = signed(tmp_path / "p")
    raw = (path / "pack.json").read_bytes()
    (path / "pack.json").write_bytes(raw.replace(b"Be kind.", b"Be evil."))
    assert "the signature of pack.json matches no key" in refused(path, inline(KEY))


def test_a_signature_beside_a_tarball_is_one_of_the_whole(tmp_path: Path):
    # W6
    path = tarball(tmp_path / "demo-1.0.0.tgz", pack_files())
    beside = tmp_path / "demo-1.0.0.sig"
    beside.write_bytes(KEY.sign(path.read_bytes()))
    assert "signature present, not verified" in note(path)
    assert "demo-1.0.0.sig, which covers the whole of demo-1.0.0.tgz" in verified(path, inline(KEY))
    beside.write_bytes(KEY.sign(b"something else"))
    assert "matches no key" in refused(path, inline(KEY))


def test_a_bad_trusted_key_is_named(tmp_path: Path):
    path = signed(tmp_path / "q")
    assert "trusted_keys: /nowhere.pem" in refused(path, "/nowhere.pem")
    assert "is not an Ed25519 public key" in refused(path, "ed25519:AAAA")


def test_without_cryptography_the_message_says_what_to_install(tmp_path: Path):
    """In a process that cannot import it, as where the extra is not installed."""
    path = signed(tmp_path / "p")
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from pathlib import Path\n"
        "from viva.formats.openwop.packs import load_pack; from viva.formats.load_options import LoadOptions\n"
        "from viva.formats.openwop.modes import EvalOptions; from viva.errors import BadInput\n"
        f"path = Path({str(path)!r})\n"
        "print(load_pack(path, 'p', LoadOptions())[0].notes[0])\n"
        "try: load_pack(path, 'p', LoadOptions(eval_options=EvalOptions(trusted_keys=('ed25519:AAAA',))))\n"
        "except BadInput as wrong: print(wrong)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "signature present, not verified" in ended.stdout, ended.stderr
    assert "pip install 'viva-eval[openwop]'" in ended.stdout


def test_a_folder_of_suites_keeps_packs_whole(tmp_path: Path):
    folder(tmp_path / "all" / "pack", pack_files())
    (tmp_path / "all" / "case.jsonl").write_text('{"id": "a", "input": "x"}')
    found = parse_input("all", tmp_path)
    assert [path.name for path in getattr(found, "paths", ())] == ["case.jsonl", "pack"]
    suites = load_files(getattr(found, "paths", ()), LoadOptions(), tmp_path)
    assert [suite.id for suite in suites] == ["all/case.jsonl", "acme.support.evals.demo"]


def test_what_stands_in_a_tarball_is_named_by_its_path(tmp_path: Path):
    path = tarball(tmp_path / "p.tgz", pack_files())
    assert getattr(parse_input("p.tgz/evals/suite.json", tmp_path), "paths", ()) == (path,)


def test_the_same_suite_twice_is_refused(tmp_path: Path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(suite()))
    with pytest.raises(BadInput, match=r"b\.json:1: suite 'acme\.support\.evals\.demo' is also in a\.json:1"):
        load_files([tmp_path / "a.json", tmp_path / "b.json"], LoadOptions(), tmp_path)


def test_a_suite_in_the_folder_of_a_pack_is_what_the_pack_makes_of_it(tmp_path: Path):
    """As reports name it, and as `-i` then finds it: with the terms of the agent; other files stand for themselves."""
    schema = {"returnSchemaRef": "schemas/return.json"}
    files = {**pack_files(handoff=schema), "schemas/return.json": b'{"type": "object"}'}
    path = folder(tmp_path / "p", {**files, "case.jsonl": b'{"id": "a", "input": "x"}'})
    (whole,) = load_files([path], LoadOptions(), tmp_path)
    (alone,) = load_files([path / "evals" / "suite.json"], LoadOptions(), tmp_path)
    assert (alone.notes, str(alone.origin)) == (whole.notes, "p/evals/suite.json:1")
    (plain,) = load_files([path / "evals" / "suite.json"], LoadOptions(), tmp_path, "openwop")
    assert plain.notes == ()
    assert [suite.id for suite in load_files([path / "case.jsonl"], LoadOptions(), tmp_path)] == ["p/case.jsonl"]
    (path / "pack.json").write_text("{}")
    (without,) = load_files([path / "evals" / "suite.json"], LoadOptions(), tmp_path)
    assert without.notes == ()


def test_a_manifest_is_its_pack_and_a_pack_inside_a_pack_is_a_part_of_it(tmp_path: Path):
    path = folder(tmp_path / "p", pack_files())
    folder(path / "inner", pack_files())
    for text in ("p", "p/pack.json"):
        assert getattr(parse_input(text, tmp_path), "paths", ()) == (path,)


def test_a_suite_that_two_agents_share_is_run_once_for_the_one_that_is_known(tmp_path: Path):
    both = manifest()
    both["agents"].append({**both["agents"][0], "agentId": "vendor.acme.support.second", "systemPrompt": "Be brief."})
    path = folder(tmp_path / "p", {**pack_files(), "pack.json": json.dumps(both).encode()})
    for known, target in (({}, None), ({"vendor.acme.support.second": "two"}, "two")):
        (found,) = load_pack(path, "p", LoadOptions(eval_options=EvalOptions(agent_names=known)))
        assert found.target == target
