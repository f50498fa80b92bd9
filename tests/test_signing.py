"""A signature covers every file of a folder, and names the first that is not as it was signed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from editor import signing
from editor.baking import SCHEMA_VERSION
from editor.cli import main
from editor.errors import CheckFailed, EditorError, ModelError, UsageError
from editor.records import FileDigest, Manifest

pytest.importorskip("model_signing", reason="needs the extra `signing`")

PASSWORD = "correct horse"
FILES = ("README.md", "config.json", "editor.json", "model.safetensors", "sub/extra.json")


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def make_key(folder: Path, name: str = "key", curve: str = "prime256v1") -> Path:
    """A private key; its public half lies beside it as `.pub`."""
    key = folder / f"{name}.pem"
    openssl("ecparam", "-name", curve, "-genkey", "-noout", "-out", str(key))
    openssl("pkey", "-in", str(key), "-pubout", "-out", str(key.with_suffix(".pub")))
    return key


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys that can be used (key, other, large, locked) and keys that cannot."""
    folder = tmp_path_factory.mktemp("keys")
    make_key(folder)
    make_key(folder, "other")
    make_key(folder, "large", "secp521r1")
    make_key(folder, "bitcoin", "secp256k1")
    locked = ("-aes256", "-passout", f"pass:{PASSWORD}")
    openssl(
        "pkcs8", "-topk8", "-in", f"{folder}/key.pem", "-out", f"{folder}/pkcs8.pem", "-nocrypt"
    )
    openssl("ec", "-in", f"{folder}/key.pem", "-out", f"{folder}/locked.pem", *locked)
    openssl("genrsa", "-out", f"{folder}/rsa.pem", "2048")
    openssl("rsa", "-in", f"{folder}/rsa.pem", "-pubout", "-out", f"{folder}/rsa.pub")
    (folder / "garbage.pem").write_text("-----BEGIN PRIVATE KEY-----\nnot one\n")
    (folder / "garbage.pub").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the editor could have written; the digests in its manifest are right."""
    folder = tmp_path / "edited"
    (folder / "sub").mkdir(parents=True)
    weights = os.urandom(3000)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "extra.json").write_text("[]")
    (folder / "README.md").write_text("# a card\n")
    digest = FileDigest(
        name="model.safetensors", n_bytes=3000, sha256=hashlib.sha256(weights).hexdigest()
    )
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        tool="capability-editor",
        model="base",
        base="base",
        revision=None,
        base_files=(),
        heads=(),
        edits=(),
        written=(),
        files=(digest,),
        bytes_changed=0,
        bytes_total=3000,
        times={},
    )
    (folder / "editor.json").write_text(manifest.model_dump_json())
    return folder


@pytest.fixture
def signed(folder: Path, keys: Path) -> Path:
    signing.sign(folder, key=keys / "key.pem")
    return folder


def check(folder: Path, keys: Path) -> signing.Signed:
    return signing.check(folder, public_key=keys / "key.pub")


def test_the_signed_set_is_every_file(folder: Path, keys: Path) -> None:
    made = signing.sign(folder, key=keys / "key.pem")
    assert made.files == FILES
    assert made.key == hashlib.sha256((keys / "key.pub").read_bytes()).hexdigest()
    digests = (hashlib.sha256((folder / name).read_bytes()).digest() for name in FILES)
    assert made.digest == hashlib.sha256(b"".join(digests)).hexdigest()
    assert made.signature == folder.resolve() / "model.sig"
    assert sorted(os.listdir(folder)) == sorted({*(n.split("/")[0] for n in FILES), "model.sig"})
    assert check(folder, keys) == made


def test_the_name_of_the_folder_does_not_matter(signed: Path, keys: Path) -> None:
    elsewhere = signed.with_name("elsewhere")
    signed.rename(elsewhere)
    (elsewhere.parent / "link").symlink_to(elsewhere)
    assert check(elsewhere, keys).files == FILES
    assert check(elsewhere.parent / "link", keys).files == FILES


def test_the_library_reads_ours_and_we_read_its(folder: Path, keys: Path) -> None:
    def model_signing(verb: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "model_signing", verb, "key", str(folder)]
        command += ["--signature", str(folder / "model.sig"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    signing.sign(folder, key=keys / "key.pem")
    model_signing("verify", "--public_key", str(keys / "key.pub"))
    (folder / "model.sig").unlink()
    model_signing("sign", "--private_key", str(keys / "key.pem"))
    assert check(folder, keys).files == FILES


@pytest.mark.parametrize(
    ("name", "password"), [("large", None), ("pkcs8", None), ("locked", PASSWORD)]
)
def test_other_keys_that_work(folder: Path, keys: Path, name: str, password: str | None) -> None:
    made = signing.sign(folder, key=keys / f"{name}.pem", password=password)
    public = keys / ("large.pub" if name == "large" else "key.pub")
    assert signing.check(folder, public_key=public) == made


def change(name: str) -> Callable[[Path], None]:
    def one_byte(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / name).write_bytes(raw)

    return one_byte


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def add(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("new")

    return write


def swap(one: str, other: str) -> Callable[[Path], None]:
    def exchange(folder: Path) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return exchange


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (change("model.safetensors"), "model.safetensors is not the file that was signed"),
        (change("editor.json"), "editor.json is not the file that was signed"),
        (change("README.md"), "README.md is not the file that was signed"),
        (change("sub/extra.json"), "sub/extra.json is not the file that was signed"),
        (remove("config.json"), "config.json was signed, and is missing"),
        (remove("README.md"), "README.md was signed, and is missing"),
        (add("report.html"), "report.html is not signed"),
        (add("sub/code.py"), "sub/code.py is not signed"),
        (add("new/.hidden"), "new/.hidden is not signed"),
        (swap("config.json", "sub/extra.json"), "config.json is not the file"),
    ],
)
def test_tampering_is_named(
    signed: Path, keys: Path, tamper: Callable[[Path], None], named: str
) -> None:
    tamper(signed)
    with pytest.raises(CheckFailed, match=f"^{named}") as caught:
        check(signed, keys)
    assert caught.value.exit_code == 4 and caught.value.hint


def test_the_first_of_several_is_named(signed: Path, keys: Path) -> None:
    for tamper in (change("model.safetensors"), remove("config.json"), add("another.txt")):
        tamper(signed)
    with pytest.raises(CheckFailed, match=r"^another\.txt is not signed"):
        check(signed, keys)


def test_what_git_keeps_is_left_out(signed: Path, keys: Path) -> None:
    add(".gitattributes")(signed)
    add(".git/config")(signed)
    assert check(signed, keys).files == FILES
    add("sub/.gitattributes")(signed)
    with pytest.raises(CheckFailed, match=r"^sub/\.gitattributes is not signed"):
        check(signed, keys)


def test_empty_folders_do_not_matter(signed: Path, keys: Path) -> None:
    (signed / "empty").mkdir()
    assert check(signed, keys).files == FILES


def bundle_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.sig").read_text())


def with_statement(bundle: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> None:
    envelope = bundle["dsseEnvelope"]
    said = json.loads(base64.b64decode(envelope["payload"]))
    edit(said)
    envelope["payload"] = base64.b64encode(json.dumps(said).encode()).decode()


def test_a_forged_statement_is_found(signed: Path, keys: Path) -> None:
    """The weights change and the statement with them, but nobody has the key."""
    change("model.safetensors")(signed)
    raw = (signed / "model.safetensors").read_bytes()

    def forge(said: dict[str, Any]) -> None:
        for at in said["predicate"]["resources"]:
            if at["name"] == "model.safetensors":
                at["digest"] = hashlib.sha256(raw).hexdigest()

    bundle = bundle_of(signed)
    with_statement(bundle, forge)
    (signed / "model.sig").write_text(json.dumps(bundle))
    with pytest.raises(CheckFailed, match="the key did not sign"):
        check(signed, keys)


def test_a_forged_name_of_the_key_is_found(folder: Path, keys: Path) -> None:
    signing.sign(folder, key=keys / "other.pem")
    bundle = bundle_of(folder)
    right = hashlib.sha256((keys / "key.pub").read_bytes()).hexdigest()
    bundle["verificationMaterial"]["publicKey"]["hint"] = right
    (folder / "model.sig").write_text(json.dumps(bundle))
    with pytest.raises(CheckFailed, match="the key did not sign"):
        check(folder, keys)


def test_a_signature_that_passes_over_files_is_refused(folder: Path, keys: Path) -> None:
    """Another tool can sign a part of a folder, and say so in the signed statement."""
    command = [sys.executable, "-m", "model_signing", "sign", "key", str(folder)]
    command += ["--signature", str(folder / "model.sig"), "--private_key", str(keys / "key.pem")]
    command += ["--ignore-paths", str(folder / "model.safetensors")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with pytest.raises(CheckFailed, match=r"^model\.safetensors is not signed"):
        check(folder, keys)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"a": ' * 100_000,
        b'{"dsseEnvelope": {"payload": 3}}',
        b'{"dsseEnvelope": {"payload": "!"}}',
        b'{"dsseEnvelope": {"payload": "e30="}}',
    ],
)
def test_a_file_that_is_no_signature(signed: Path, keys: Path, raw: bytes) -> None:
    (signed / "model.sig").write_bytes(raw)
    with pytest.raises(CheckFailed, match=r"model\.sig is not a key's signature"):
        check(signed, keys)


def test_no_part_of_the_signature_may_be_missing(signed: Path, keys: Path) -> None:
    """Every key of the bundle is taken out, or given another type, in turn."""
    whole = bundle_of(signed)

    def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found: list[tuple[Any, ...]] = []
        for key, below in items:
            found.append((*at, key))
            if isinstance(below, dict | list):
                found += places(below, (*at, key))
        return found

    # The log of Sigstore is empty here, and no signature of a key depends on it or on the key's id.
    free = {"tlogEntries", "keyid", "timestampVerificationData"}
    for place in places(whole):
        for broken in (None, 7, "", [], {}):
            bundle = json.loads(json.dumps(whole))
            holder = bundle
            for key in place[:-1]:
                holder = holder[key]
            if broken is None:
                del holder[place[-1]]
            else:
                holder[place[-1]] = broken
            (signed / "model.sig").write_text(json.dumps(bundle))
            try:
                check(signed, keys)
            except CheckFailed:
                continue
            assert free & set(place), (place, broken)


def test_another_key(signed: Path, keys: Path) -> None:
    with pytest.raises(CheckFailed, match="was made with another key"):
        signing.check(signed, public_key=keys / "other.pub")


def test_no_signature(folder: Path, keys: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.sig is missing"):
        check(folder, keys)


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("missing.pem", None, "expected a file"),
        (".", None, "expected a file"),
        ("rsa.pem", None, "not an elliptic-curve key"),
        ("bitcoin.pem", None, "on the curve secp256k1"),
        ("garbage.pem", None, "not a private key"),
        ("key.pub", None, "not a private key"),
        ("locked.pem", None, "is encrypted"),
        ("locked.pem", "wrong", "cannot be decrypted"),
        ("key.pem", "needless", "is not encrypted"),
    ],
)
def test_a_key_that_cannot_sign(
    folder: Path, keys: Path, name: str, password: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        signing.sign(folder, key=keys / name, password=password)
    assert caught.value.exit_code == 2
    assert not (folder / "model.sig").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.pub", "expected a file"),
        ("rsa.pub", "not an elliptic-curve key"),
        ("garbage.pub", "not a public key"),
        ("key.pem", "not a public key"),
    ],
)
def test_a_key_that_cannot_check(signed: Path, keys: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        signing.check(signed, public_key=keys / name)


def test_a_key_in_the_folder_is_not_published(folder: Path, keys: Path) -> None:
    key = shutil.copy(keys / "key.pem", folder / "sub" / "key.pem")
    with pytest.raises(UsageError, match="lies in the folder"):
        signing.sign(folder, key=Path(key))


@pytest.mark.parametrize("name", ["editor.json", "README.md"])
def test_a_folder_that_says_nothing_is_not_signed(folder: Path, keys: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name} is missing"):
        signing.sign(folder, key=keys / "key.pem")


@pytest.mark.parametrize("target", ["../keys", "config.json", "nowhere"])
def test_links_are_refused(folder: Path, keys: Path, target: str) -> None:
    (folder / "sub" / "link").symlink_to(target)
    with pytest.raises(ModelError, match="sub/link is a link"):
        signing.sign(folder, key=keys / "key.pem")
    assert not (folder / "model.sig").exists()
    (folder / "sub" / "link").unlink()
    signing.sign(folder, key=keys / "key.pem")
    (folder / "config.json").rename(folder.parent / "config.json")
    (folder / "config.json").symlink_to("../config.json")
    with pytest.raises(ModelError, match=r"config\.json is a link"):
        check(folder, keys)


def test_a_pipe_is_refused(folder: Path, keys: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError, match="neither a file nor a folder"):
        signing.sign(folder, key=keys / "key.pem")


def test_an_existing_signature_is_kept_without_force(signed: Path, keys: Path) -> None:
    before = (signed / "model.sig").read_bytes()
    with pytest.raises(UsageError, match="exists") as caught:
        signing.sign(signed, key=keys / "other.pem")
    assert "--force" in caught.value.hint
    assert (signed / "model.sig").read_bytes() == before
    signing.sign(signed, key=keys / "other.pem", force=True)
    assert signing.check(signed, public_key=keys / "other.pub").files == FILES


def test_a_signature_elsewhere(folder: Path, keys: Path) -> None:
    place = folder.parent / "signatures.sig"
    made = signing.sign(folder, key=keys / "key.pem", signature=place)
    assert not (folder / "model.sig").exists() and made.signature == place.resolve()
    assert signing.check(folder, public_key=keys / "key.pub", signature=place) == made


def test_what_the_manifest_does_not_record_is_not_signed(folder: Path, keys: Path) -> None:
    recorded = FileDigest(name="model.safetensors", n_bytes=3000, sha256="0" * 64)
    with pytest.raises(CheckFailed, match=r"^model\.safetensors is not the file"):
        signing.sign(folder, key=keys / "key.pem", recorded=[recorded])
    missing = recorded.model_copy(update={"name": "gone.safetensors"})
    with pytest.raises(CheckFailed, match=r"^gone\.safetensors is missing"):
        signing.sign(folder, key=keys / "key.pem", recorded=[missing])
    assert not (folder / "model.sig").exists()


@pytest.mark.parametrize("missing", ["model_signing", "OpenSSL"])
def test_without_the_extra(
    folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = signing.find_spec
    monkeypatch.setattr(signing, "find_spec", lambda name: real(name) if name != missing else None)
    for call in (
        lambda: signing.sign(folder, key=keys / "key.pem"),
        lambda: check(folder, keys),
    ):
        with pytest.raises(EditorError, match=missing) as caught:
            call()
        assert "[signing]" in caught.value.hint


class TestCommand:
    def run(self, *arguments: object, **env: str) -> Result:
        return CliRunner().invoke(main, ["sign", *map(str, arguments)], env=env)

    def test_says_who_signed_what(self, folder: Path, keys: Path) -> None:
        done = self.run(folder, "--key", keys / "key.pem", "--json")
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        made = check(folder, keys)
        assert said == {
            "output": str(folder),
            "signature": str(made.signature),
            "key": made.key,
            "digest": made.digest,
            "files": list(FILES),
        }

    def test_in_words(self, folder: Path, keys: Path) -> None:
        done = self.run(folder, "--key", keys / "key.pem")
        assert "5 files signed" in done.stdout and "model.sig" in done.stdout

    def test_takes_the_password_from_the_environment(self, folder: Path, keys: Path) -> None:
        given = (folder, "--key", keys / "locked.pem", "--password-env", "SECRET", "-vv", "--json")
        unset = self.run(*given)
        assert unset.exit_code == 2 and "SECRET is not set" in unset.stderr
        wrong = self.run(*given, SECRET="hush hush")
        assert wrong.exit_code == 2 and "hush" not in wrong.output
        right = self.run(*given, SECRET=PASSWORD)
        assert right.exit_code == 0 and PASSWORD not in right.output

    def test_never_shows_the_key(self, folder: Path, keys: Path) -> None:
        secret = (keys / "key.pem").read_text().splitlines()[1]
        for more in ((), ("--force",), ()):
            done = self.run(folder, "--key", keys / "key.pem", "-vv", "--json", *more)
            assert secret not in done.output
        assert done.exit_code == 2

    def test_changed_weights_are_not_signed(self, folder: Path, keys: Path) -> None:
        change("model.safetensors")(folder)
        done = self.run(folder, "--key", keys / "key.pem")
        assert done.exit_code == 4 and "editor.json records" in done.stderr

    def test_a_folder_of_others(self, tmp_path: Path, keys: Path) -> None:
        done = self.run(tmp_path, "--key", keys / "key.pem")
        assert done.exit_code == 3 and "editor.json" in done.stderr
