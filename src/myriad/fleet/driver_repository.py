"""Where a host gets its GPU driver's packages from: apt's files for a channel, as text. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

#: apt's files that the driver's repository consists of, by what they are.
REPOSITORY_FILES = {
    "sources": "/etc/apt/sources.list.d/myriad-gpu-driver.sources",
    "preferences": "/etc/apt/preferences.d/myriad-gpu-driver.pref",
    "keyring": "/etc/apt/keyrings/myriad-gpu-driver.asc",
}
#: Components beyond main that hold the driver, and the keyring of the distribution that signs them.
_DISTRIBUTIONS = {
    "debian": ("contrib non-free non-free-firmware", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": ("restricted", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
_ARMOR = "-----BEGIN PGP PUBLIC KEY BLOCK-----"


def sources(channel: str, mirror: Mapping[str, str], distribution: str, codename: str) -> str:
    """The deb822 text of the repository, without the line that says who manages it; empty where the channel has none.

    Args:
        channel: distribution or vendor.
        mirror: URLs by what they serve: distribution (the archive), security (its security updates; may be empty),
            vendor (a flat repository, as NVIDIA's are).
        distribution: ID of os-release (debian, ubuntu).
        codename: codename of its release (bookworm).

    Raises:
        ValueError: the mirror names no URL for the channel, or the distribution is not one that the channel knows.
    """
    if channel == "vendor":
        if not mirror.get("vendor"):
            raise ValueError(
                "gpu_driver_mirror.vendor is empty: name the site's mirror of NVIDIA's repository for this "
                "distribution, or use the channel distribution"
            )
        return stanza(mirror["vendor"], "./", "", REPOSITORY_FILES["keyring"])
    if channel != "distribution":
        return ""
    known = _DISTRIBUTIONS.get(distribution.lower())
    if known is None:
        raise ValueError(
            f"the channel distribution knows Debian and Ubuntu, this host runs {distribution or 'something else'}; "
            "use the channel vendor with a mirror for it"
        )
    components, keyring = known
    if not mirror.get("distribution"):
        raise ValueError("gpu_driver_mirror.distribution is empty: name the archive or the site's mirror of it")
    parts = [stanza(mirror["distribution"], f"{codename} {codename}-updates", components, keyring)]
    if mirror.get("security"):
        parts.append(stanza(mirror["security"], f"{codename}-security", components, keyring))
    return "\n".join(parts)


def stanza(uri: str, suites: str, components: str, keyring: str) -> str:
    """One repository in deb822 form."""
    lines = ["Types: deb", f"URIs: {uri}", f"Suites: {suites}"]
    if components:
        lines.append(f"Components: {components}")
    return "\n".join([*lines, f"Signed-By: {keyring}", ""])


def preferences(packages: Mapping[str, str]) -> str:
    """Pins that make the locked versions the only ones apt chooses.

    1001 outweighs an installed newer version (apt_preferences(5)), so a package that moved on comes back. What the
    set depends on by exact version and does not name itself follows the version that most of the set has: without that
    apt takes the newest of it, which does not fit.
    """
    exact = [("Package: " + name, version) for name, version in sorted(packages.items())]
    counts: dict[str, int] = {}
    for version in packages.values():
        counts[version] = counts.get(version, 0) + 1
    common = sorted(counts, key=lambda version: (-counts[version], version))[:1]
    family = [("Package: *nvidia* libcuda* cuda-drivers* libnv*", version) for version in common]
    return "\n".join(f"{package}\nPin: version {version}\nPin-Priority: 1001\n" for package, version in exact + family)


def armored(data: bytes, sha256: str, *, where: str) -> str:
    """A keyring as ASCII armor, whose digest was compared first.

    Args:
        data: the keyring, armored or binary.
        sha256: what it must hash to; empty is refused.
        where: name of the file, for messages.

    Raises:
        ValueError: no digest, another digest, or no OpenPGP public key.
    """
    found = hashlib.sha256(data).hexdigest()
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(
            f"gpu_driver_keyring_sha256 is no sha256 ({sha256!r}); {where} hashes to {found}: compare it with what the "
            "repository's owner publishes before you write it down"
        )
    if found != sha256:
        raise ValueError(
            f"{where} hashes to {found}, gpu_driver_keyring_sha256 says {sha256}: somebody changed the keyring. "
            "Compare its fingerprint with what the repository's owner publishes before you write the new digest down"
        )
    if data.lstrip().startswith(_ARMOR.encode()):
        return data.decode("ascii").strip() + "\n"
    # First byte of an OpenPGP packet: bit 7 is set; tag 6 is a public key (RFC 4880, 4.2 and 4.3).
    if not data or not (data[0] & 0x80) or (data[0] & 0x3F if data[0] & 0x40 else (data[0] & 0x3C) >> 2) != 6:
        raise ValueError(f"{where} holds no OpenPGP public key")
    text = base64.b64encode(data).decode()
    body = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    checksum = base64.b64encode(_crc24(data).to_bytes(3, "big")).decode()
    return f"{_ARMOR}\n\n{body}\n={checksum}\n-----END PGP PUBLIC KEY BLOCK-----\n"


def _crc24(data: bytes) -> int:
    """The checksum of ASCII armor (RFC 4880, 6.1)."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc
