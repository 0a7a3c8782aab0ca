"""The site's authority and the certificates of its registries."""

from __future__ import annotations

import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.registry_site import ca

NAMES = ["registry.myriad.internal", "reg1", "10.0.0.10", "fd00::10"]


def _openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True).stdout


def test_made_once_kept_for_its_owner_and_found_good_by_openssl(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = ca.ensure(folder, "reg1", NAMES, site="hall1")
    assert [line.split()[0] for line in made.changed] == ["authority", "certificate"]
    again = ca.ensure(folder, "reg1", NAMES, site="hall1")
    assert again.changed == () and again.ca == made.ca
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes["registry-ca.key"] == modes["registry-reg1.key"] == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "private key" in (folder / "README").read_text()
    authority = str(folder / "registry-ca.crt")
    assert "OK" in _openssl("verify", "-x509_strict", "-CAfile", authority, str(made.certificate))
    text = _openssl("x509", "-in", str(made.certificate), "-noout", "-text")
    assert "DNS:registry.myriad.internal" in text and "IP Address:10.0.0.10" in text
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)


def test_a_second_registry_has_the_same_authority(tmp_path: Path) -> None:
    first = ca.ensure(tmp_path, "reg1", NAMES)
    second = ca.ensure(tmp_path, "reg2", ["10.0.0.11"])
    assert second.ca == first.ca and second.certificate != first.certificate
    assert len(second.changed) == 1


def test_issued_anew_before_it_ends_and_when_it_names_too_little(tmp_path: Path) -> None:
    start = datetime.now(UTC)
    ca.ensure(tmp_path, "reg1", ["10.0.0.10"], now=start)
    (named,) = ca.ensure(tmp_path, "reg1", ["10.0.0.10", "10.0.0.12"], now=start).changed
    assert "does not name 10.0.0.12" in named
    # Fewer names are covered by what is there.
    assert ca.ensure(tmp_path, "reg1", ["10.0.0.10"], now=start).changed == ()
    later = start + ca.VALID - ca.RENEW_BEFORE - timedelta(hours=2)
    assert ca.ensure(tmp_path, "reg1", ["10.0.0.10"], now=later).changed == ()
    (ends,) = ca.ensure(tmp_path, "reg1", ["10.0.0.10"], now=later + timedelta(hours=4)).changed
    assert "it ends on" in ends


def test_a_new_authority_or_a_swapped_key_is_noticed(tmp_path: Path) -> None:
    ca.ensure(tmp_path, "reg1", NAMES)
    other = ca.ensure(tmp_path / "other", "reg1", NAMES)
    (tmp_path / "registry-reg1.key").write_bytes(other.key.read_bytes())
    assert "do not belong together" in ca.ensure(tmp_path, "reg1", NAMES).changed[0]
    for name in (ca.CA_CERTIFICATE, ca.CA_KEY):
        (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert "another authority" in ca.ensure(tmp_path, "reg1", NAMES).changed[0]


def test_check_mode_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = ca.ensure(folder, "reg1", NAMES, check=True)
    assert made.changed and made.ca == "" and not folder.exists()


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_an_authority_of_the_operator(tmp_path: Path, kind: str) -> None:
    key, certificate = tmp_path / "own.key", tmp_path / "own.crt"
    new = ["-newkey", "rsa:2048"] if kind == "rsa" else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    _openssl("req", "-x509", *new, "-nodes", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=Our CA")
    made = ca.ensure(tmp_path / "secrets", "reg1", NAMES, given_ca=(certificate, key))
    assert made.ca == certificate.read_text()
    assert not (tmp_path / "secrets" / ca.CA_KEY).exists()
    assert "OK" in _openssl("verify", "-CAfile", str(certificate), str(made.certificate))
    assert ca.ensure(tmp_path / "secrets", "reg1", NAMES, given_ca=(certificate, key)).changed == ()


def test_files_that_are_not_what_they_should_be_are_named(tmp_path: Path) -> None:
    ca.ensure(tmp_path, "reg1", NAMES)
    good = (tmp_path / ca.CA_KEY).read_bytes()
    (tmp_path / ca.CA_KEY).write_text("nonsense")
    with pytest.raises(InputError, match=r"registry-ca.key: is no private key"):
        ca.ensure(tmp_path, "reg1", NAMES)
    (tmp_path / ca.CA_KEY).unlink()
    with pytest.raises(InputError, match=r"registry-ca.key: cannot be read"):
        ca.ensure(tmp_path, "reg1", NAMES)
    (tmp_path / ca.CA_KEY).write_bytes((tmp_path / "registry-reg1.key").read_bytes())
    with pytest.raises(InputError, match="is not the certificate of the key"):
        ca.ensure(tmp_path, "reg1", NAMES)
    (tmp_path / ca.CA_KEY).write_bytes(good)
    with pytest.raises(InputError, match="the authority expired on"):
        ca.ensure(tmp_path, "reg1", NAMES, now=datetime.now(UTC) + timedelta(days=4000))
    with pytest.raises(InputError, match="is no authority"):
        ca.ensure(
            tmp_path / "x", "reg1", NAMES, given_ca=(tmp_path / "registry-reg1.crt", tmp_path / "registry-reg1.key")
        )
    with pytest.raises(InputError, match="cannot be read"):
        ca.ensure(tmp_path / "x", "reg1", NAMES, given_ca=(tmp_path / "none.crt", tmp_path / "none.key"))
