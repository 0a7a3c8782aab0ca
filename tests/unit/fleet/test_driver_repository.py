"""apt's files of the driver's repository, as text."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from myriad.fleet.driver_repository import REPOSITORY_FILES, armored, preferences, sources
from myriad.stack.lock import load_lock

FIXTURES = Path(__file__).parents[2] / "fixtures" / "driver"
MIRROR = {
    "distribution": "http://mirror.example/debian",
    "security": "http://mirror.example/debian-security",
    "vendor": "http://mirror.example/cuda/",
}


def test_the_distribution_is_enabled_with_what_holds_the_driver() -> None:
    assert sources("distribution", MIRROR, "Debian", "bookworm").split("\n\n") == [
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
        "Components: contrib non-free non-free-firmware\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n"
        "Components: contrib non-free non-free-firmware\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
    ]


def test_ubuntu_has_one_archive_and_one_component() -> None:
    text = sources("distribution", {**MIRROR, "security": ""}, "Ubuntu", "noble")
    assert "Components: restricted\n" in text
    assert text.count("Types:") == 1


def test_the_vendor_has_a_flat_repository_with_the_keys_of_the_site() -> None:
    text = sources("vendor", MIRROR, "Debian", "bookworm")
    assert (
        text == f"Types: deb\nURIs: http://mirror.example/cuda/\nSuites: ./\nSigned-By: {REPOSITORY_FILES['keyring']}\n"
    )


@pytest.mark.parametrize(
    ("channel", "mirror", "distribution", "words"),
    [
        ("vendor", {**MIRROR, "vendor": ""}, "Debian", "gpu_driver_mirror.vendor is empty"),
        ("distribution", {**MIRROR, "distribution": ""}, "Debian", "gpu_driver_mirror.distribution is empty"),
        ("distribution", MIRROR, "Rocky", "knows Debian and Ubuntu, this host runs Rocky"),
    ],
)
def test_what_is_missing_is_named(channel: str, mirror: dict[str, str], distribution: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sources(channel, mirror, distribution, "x")


def test_pins_name_each_package_and_let_the_rest_of_the_family_follow() -> None:
    text = preferences({"nvidia-smi": "2-1", "libcuda1": "2-1", "nvidia-persistenced": "1-1"})
    assert text.count("Pin-Priority: 1001") == 4
    assert "Package: nvidia-persistenced\nPin: version 1-1\n" in text
    # The first record that names a package wins (apt_preferences(5)), so the family stands last.
    assert text.rstrip().endswith(
        "Package: *nvidia* libcuda* cuda-drivers* libnv*\nPin: version 2-1\nPin-Priority: 1001"
    )


def key() -> str:
    sys.path.insert(0, str(FIXTURES))
    try:
        from openpgp import Key
    finally:
        sys.path.remove(str(FIXTURES))
    return str(Key("a test").public())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_binary_keyring_becomes_the_armor_that_gpg_would_write() -> None:
    text = key()
    binary = base64.b64decode("".join(line for line in text.splitlines()[2:-1] if not line.startswith("=")))
    assert armored(binary, sha256(binary), where="vendor.gpg") == text
    assert armored(text.encode(), sha256(text.encode()), where="vendor.asc") == text


def test_b7_a_keyring_with_another_digest_is_refused_with_both() -> None:
    data = key().encode()
    with pytest.raises(ValueError, match=f"hashes to {sha256(data)}, gpu_driver_keyring_sha256 says {'0' * 64}"):
        armored(data, "0" * 64, where="vendor.asc")
    with pytest.raises(ValueError, match="is no sha256"):
        armored(data, "", where="vendor.asc")
    page = b"<html>404</html>"
    with pytest.raises(ValueError, match="holds no OpenPGP public key"):
        armored(page, sha256(page), where="vendor.asc")


def test_the_lock_has_a_set_for_each_channel_whose_module_is_the_driver() -> None:
    sets = {(found.channel, found.distribution): found for found in load_lock().component("nvidia-driver").package_sets}
    assert {("distribution", "debian12"), ("vendor", "debian12")} <= set(sets)
    for found in sets.values():
        modules = {name: version for name, version in found.packages.items() if name.endswith("dkms")}
        assert modules, found
        assert all(version.startswith(f"{found.driver}-") for version in modules.values())
    vendor = sets["vendor", "debian12"]
    assert vendor.driver == load_lock().component("nvidia-driver").version
