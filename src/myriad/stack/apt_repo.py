"""A small apt repository: the packages that the roles install on nodes, with all that these need, frozen in a bundle.

What is needed is resolved by apt itself against an *empty* package status, so that the set is closed: it installs on
any base of its distribution, however old or small. apt checks the archive's signature; the stanzas of the signed index
are taken over word for word, but for the path. Nothing of the machine that resolves is touched: lists, status and
sources lie in a folder of the cache.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Protocol

import yaml

from myriad.errors import InputError, MyriadError
from myriad.stack.lock import Lock
from myriad.stack.settings import Settings

_KEYRINGS = {"Debian": "debian-archive-keyring.gpg", "Ubuntu": "ubuntu-archive-keyring.gpg"}
_UPDATE_TIMEOUT_S = 600


class AptError(MyriadError):
    """The packages could not be resolved, or the index could not be signed."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Where a distribution's packages come from.

    Attributes:
        name: ID and version, as `debian12`.
        family: Debian or Ubuntu.
        suite: its code name.
        components: of its archive.
    """

    name: str
    family: str
    suite: str
    components: tuple[str, ...]


DISTRIBUTIONS = {
    item.name: item
    for item in (
        *(
            Distribution(
                name=name,
                family="Debian",
                suite=suite,
                components=("main", "contrib", "non-free", "non-free-firmware"),
            )
            for name, suite in (("debian12", "bookworm"), ("debian13", "trixie"))
        ),
        *(
            Distribution(
                name=name, family="Ubuntu", suite=suite, components=("main", "universe", "restricted", "multiverse")
            )
            for name, suite in (("ubuntu22.04", "jammy"), ("ubuntu24.04", "noble"))
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """One package that was resolved: its stanza of the signed index, and where it lies.

    `sha256` is hex, `size` in bytes, `url` of the archive or its mirror.
    """

    name: str
    version: str
    arch: str
    sha256: str
    size: int
    url: str
    stanza: str


def distribution(name: str) -> Distribution:
    """A distribution by ID and version. Raises InputError with those that there are."""
    if name not in DISTRIBUTIONS:
        raise InputError(
            f"{name!r} is no distribution that packages are known of", hint=f"one of {', '.join(DISTRIBUTIONS)}"
        )
    return DISTRIBUTIONS[name]


def wanted_packages(
    lock: Lock, roles: Path, name: str, *, channel: str = "distribution", extra: Iterable[str] = ()
) -> list[list[str]]:
    """The packages that roles install on nodes of a distribution, in groups that apt resolves one by one.

    Args:
        lock: its package sets carry exact versions.
        roles: the folder of the roles; node_base's defaults name what every node gets.
        name: the distribution.
        channel: whose driver; the distribution's own are in its archive, the vendor's are not.
        extra: further packages, `name` or `name=version`.

    Returns:
        `name` or `name=version` each.
    """
    path = roles / "node_base" / "defaults" / "main.yml"
    try:
        defaults = yaml.safe_load(path.read_text(encoding="utf-8"))
        base = [str(package) for package in defaults["node_base_packages"]]
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise InputError(f"does not tell node_base_packages: {error}", where=str(path)) from error
    groups = [[*base, "chrony"]]
    for component in lock.components.values():
        for item in component.package_sets:
            if item.distribution == name and item.channel == channel:
                groups.append([f"{package}={version}" for package, version in item.packages.items()])
    if more := sorted(extra):
        groups.append(more)
    return groups


class Resolver:
    """apt with a root of its own, for one distribution and architecture.

    Args:
        item: the distribution.
        settings: cache, mirrors, architecture.
        keyring: the archive's keys; by default those of the distribution's keyring package.
    """

    def __init__(self, item: Distribution, settings: Settings, *, keyring: Path | None = None) -> None:
        self._item = item
        self._settings = settings
        self._root = settings.cache / "apt" / f"{item.name}-{settings.arch}"
        self._keyring = keyring or Path("/usr/share/keyrings") / _KEYRINGS[item.family]
        self.date = ""

    def update(self) -> None:
        """Fetch the archive's signed lists.

        Raises:
            AptError: apt is not here, the keys are not here, or the archive does not answer as it should.
        """
        for program in ("apt-get", "apt-cache"):
            if shutil.which(program) is None:
                raise AptError(
                    f"{program} is not here, and resolves which packages belong together",
                    hint="build on Debian or Ubuntu, or leave the packages out: --no-packages",
                )
        if not self._keyring.is_file():
            package = self._keyring.name.removesuffix(".gpg")
            raise AptError(
                f"the keys of {self._item.family}'s archive are not here",
                where=str(self._keyring),
                hint=f"apt-get install {package} (it is in Debian and in Ubuntu)",
            )
        for folder in ("lists/partial", "cache/archives/partial"):
            (self._root / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "status").write_text("", encoding="utf-8")
        (self._root / "sources.list").write_text("\n".join(self.sources()) + "\n", encoding="utf-8")
        self._run("apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any", timeout_s=_UPDATE_TIMEOUT_S)
        self.date = self._newest_date()

    def sources(self) -> list[str]:
        """Lines of sources.list, for the archive itself or its mirrors."""
        item, mirrors = self._item, self._settings.mirrors
        options = f"[arch={self._settings.arch} signed-by={self._keyring}]"
        components = " ".join(item.components)
        if item.family == "Debian":
            main = (mirrors.apt or "http://deb.debian.org/debian").rstrip("/")
            security = (mirrors.apt_security or "http://deb.debian.org/debian-security").rstrip("/")
        else:
            here = "archive.ubuntu.com/ubuntu" if self._settings.arch == "amd64" else "ports.ubuntu.com/ubuntu-ports"
            main = f"http://{here}"
            security = mirrors.apt_security or main
        return [
            f"deb {options} {main} {item.suite} {components}",
            f"deb {options} {main} {item.suite}-updates {components}",
            f"deb {options} {security} {item.suite}-security {components}",
        ]

    def resolve(self, packages: Iterable[str]) -> list[Resolved]:
        """Everything that these packages need, themselves included, as a closed set.

        Args:
            packages: `name` or `name=version`.

        Raises:
            AptError: a package or version is not in the archive, or they do not go together; in apt's words.
        """
        wanted = list(packages)
        command = ("apt-get", "install", "-q", "--yes", "--no-install-recommends", "--print-uris")
        output = self._run(*command, *wanted)
        found = {}
        for url, filename in re.findall(r"^'([^']+)' (\S+\.deb) \d+", output, re.M):
            # The file name carries name, version and architecture; an epoch's colon is written %3a there.
            name, version, _ = filename.removesuffix(".deb").split("_")
            found[f"{name}={version.replace('%3a', ':')}"] = url
        if not found:
            raise AptError(f"apt resolves {', '.join(wanted)} to nothing", where=self._item.name)
        shown = self._run("apt-cache", "show", "--no-all-versions", *found)
        resolved = []
        for stanza in filter(None, (part.strip("\n") for part in re.split(r"\n\n+", shown))):
            fields = parse_stanza(stanza)
            key = f"{fields['Package']}={fields['Version']}"
            if key not in found:
                continue
            resolved.append(
                Resolved(
                    name=fields["Package"],
                    version=fields["Version"],
                    arch=fields["Architecture"],
                    sha256=fields["SHA256"],
                    size=int(fields["Size"]),
                    url=found.pop(key),
                    stanza=stanza,
                )
            )
        if found:
            raise AptError(f"apt shows no entry of {', '.join(found)}", where=self._item.name)
        return resolved

    def _newest_date(self) -> str:
        """The newest date of the signed lists: what the frozen set is as old as."""
        dates = []
        for path in (self._root / "lists").glob("*_InRelease"):
            match = re.search(r"^Date: (.+)$", path.read_text(encoding="utf-8", errors="replace"), re.M)
            if match:
                dates.append(parsedate_to_datetime(match.group(1)))
        if not dates:
            raise AptError("the archive's lists carry no date", where=str(self._root / "lists"))
        return format_datetime(max(dates), usegmt=True)

    def _run(self, *command: str, timeout_s: float = 120) -> str:
        root = self._root
        options = {
            "Dir::State::lists": f"{root}/lists",
            "Dir::State::status": f"{root}/status",
            "Dir::State::extended_states": f"{root}/extended_states",
            "Dir::Cache": f"{root}/cache",
            "Dir::Etc::sourcelist": f"{root}/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": self._settings.arch,
            "APT::Architectures": self._settings.arch,
            "APT::Cmd::Disable-Script-Warning": "true",
            # Translations and descriptions of programs are for people in front of the archive.
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Debug::NoLocking": "true",
            # The sandbox's user may not enter a cache below somebody's home.
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        }
        arguments = [part for key, value in options.items() if value for part in ("-o", f"{key}={value}")]
        environment = os.environ | {"LC_ALL": "C.UTF-8"} | self._settings.mirrors.proxy_environment()
        try:
            done = subprocess.run(
                [command[0], *arguments, *command[1:]],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AptError(
                f"{' '.join(command[:2])} took longer than {timeout_s:.0f} s", where=self._item.name
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))] or [
                line for line in (done.stderr or done.stdout).splitlines() if line.strip()
            ]
            raise AptError(
                f"{' '.join(command[:2])} failed:\n  " + "\n  ".join(lines[-6:]),
                where=self._item.name,
                hint="a version that left the archive is named by the lock: correct it there, or set MYRIAD_MIRROR_APT",
            )
        return done.stdout


def parse_stanza(stanza: str) -> dict[str, str]:
    """The fields of one stanza of a Packages index; of folded ones the first line."""
    pairs = (line.partition(":") for line in stanza.splitlines() if not line.startswith((" ", "\t")))
    return {name: value.strip() for name, _, value in pairs}


class _Package(Protocol):
    """What names a package file."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def sha256(self) -> str: ...


def pool_path(package: _Package) -> str:
    """Where a package lies in the repository, below its root: without a colon, which some servers refuse."""
    version = package.version.partition(":")[2] or package.version
    return f"pool/{package.sha256[:2]}/{package.name}_{version}_{package.arch}.deb"


def packages_index(packages: Iterable[Resolved]) -> bytes:
    """The index `Packages`: sorted, each stanza as the archive signed it but for its path."""
    parts = []
    for package in sorted(packages, key=lambda item: (item.name, item.version, item.sha256)):
        lines = [
            line for line in package.stanza.splitlines() if not re.match(r"(Filename|Size|MD5sum|SHA1|SHA256):", line)
        ]
        lines += [f"Filename: {pool_path(package)}", f"Size: {package.size}", f"SHA256: {package.sha256}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts).encode()


def repository_files(suite: str, arch: str, packages: Iterable[Resolved], *, date: str) -> dict[str, bytes]:
    """The unsigned indexes of one suite, by path below the repository's root. The same packages give the same bytes.

    Args:
        suite: code name, as bookworm.
        arch: amd64 or arm64.
        packages: what it holds.
        date: of the archive that they come from, as its Release file writes it.
    """
    index = packages_index(packages)
    below = {
        f"main/binary-{arch}/Packages": index,
        f"main/binary-{arch}/Packages.gz": gzip.compress(index, 9, mtime=0),
    }
    lines = [
        "Origin: Myriad",
        "Label: Myriad bundle",
        f"Suite: {suite}",
        f"Codename: {suite}",
        f"Date: {date}",
        f"Architectures: {arch}",
        "Components: main",
        "Description: Packages of a Myriad bundle",
        "Acquire-By-Hash: no",
        "SHA256:",
        *(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path}" for path, data in below.items()),
    ]
    files = {f"dists/{suite}/{path}": data for path, data in below.items()}
    return files | {f"dists/{suite}/Release": ("\n".join(lines) + "\n").encode()}


class Signer:
    """Signs indexes with a key of its own, which gpg makes once and keeps.

    Args:
        home: gpg's home directory; made when missing, readable by its owner only.
    """

    # Long ago, so that a signature that carries the archive's date never comes before its key.
    _MADE = "20200101T000000!"
    _NAME = "Myriad bundle"

    def __init__(self, home: Path) -> None:
        self._home = home

    @staticmethod
    def available() -> bool:
        """Is gpg here?"""
        return shutil.which("gpg") is not None

    def fingerprint(self) -> str:
        """The key's fingerprint; the key is made where there is none. Raises AptError."""
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        found = self._known()
        if not found:
            self._gpg("--faked-system-time", self._MADE, "--quick-gen-key", self._NAME, "ed25519", "sign", "never")
            found = self._known()
        if not found:
            raise AptError("gpg made no key", where=str(self._home))
        return found

    def public_key(self) -> str:
        """The public key in ASCII armour."""
        return self._gpg("--armor", "--no-emit-version", "--export", self.fingerprint()).decode()

    def sign(self, release: bytes, *, date: str) -> tuple[bytes, bytes]:
        """InRelease and Release.gpg of a Release file. The signature carries the file's own date, not today's."""
        moment = parsedate_to_datetime(date).strftime("%Y%m%dT%H%M%S!")
        common = ("--faked-system-time", moment, "--digest-algo", "SHA512", "--local-user", self.fingerprint())
        clear = self._gpg(*common, "--clear-sign", data=release)
        return clear, self._gpg(*common, "--armor", "--detach-sign", data=release)

    def close(self) -> None:
        """Stop the agent that gpg left behind."""
        subprocess.run(["gpgconf", "--homedir", str(self._home), "--kill", "all"], capture_output=True, check=False)

    def _known(self) -> str:
        listed = self._gpg("--list-secret-keys", "--with-colons").decode()
        match = re.search(r"^fpr:(?:[^:]*:){8}([0-9A-F]{40}):", listed, re.M)
        return match.group(1) if match else ""

    def _gpg(self, *arguments: str, data: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
        done = subprocess.run(
            [*command, "--passphrase", "", *arguments], input=data, capture_output=True, timeout=60, check=False
        )
        if done.returncode != 0:
            text = done.stderr.decode(errors="replace").strip().splitlines()
            raise AptError(f"gpg failed: {text[-1] if text else f'exit {done.returncode}'}", where=str(self._home))
        return done.stdout


def by_name(packages: Iterable[Resolved]) -> Mapping[tuple[str, str, str], Resolved]:
    """Packages once each, by name, version and architecture."""
    return {(item.name, item.version, item.arch): item for item in packages}
