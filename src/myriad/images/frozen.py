"""The frozen set of Debian packages that images are made of: `images/debian12.lock`, one line a package.

A mirror changes every day; an image must not. The packages are taken by hash, from the store, else from the archive's
pool or from Debian's own snapshots, and installed from a repository that holds nothing else. `myriad image lock
--system` takes the newest and writes the file anew.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.oci import sha256_digest
from myriad.stack.fetch import Fetcher, FetchError, Wanted
from myriad.stack.settings import Settings, read_mirrors
from myriad.stack.store import Store, link_or_copy, sha256_of

LOCK_FILE = "images/debian12.lock"
_SUITE = "bookworm"
_LINE = re.compile(
    r"(?P<file>[a-z0-9][a-z0-9.+-]*_[^_\s]+_(?:all|amd64)\.deb) (?P<sha>[0-9a-f]{64}) (?P<size>\d+) (?P<path>pool/\S+)"
)
_TAKEN = re.compile(r"^# taken: (\d{8}T\d{6}Z)$", re.M)
_ARCHIVES = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
_SNAPSHOTS = ("https://snapshot.debian.org/archive/debian", "https://snapshot.debian.org/archive/debian-security")


@dataclass(frozen=True, order=True)
class Deb:
    """A package file: its name, sha256 as hex, bytes, and path below an archive."""

    file: str
    sha256: str
    size: int
    path: str

    @property
    def name(self) -> str:
        """The package's name."""
        return self.file.partition("_")[0]


@dataclass(frozen=True)
class Frozen:
    """A lock's packages. `taken` is when, as Debian's snapshots name times; `digest` that of the set."""

    debs: tuple[Deb, ...]
    taken: str
    digest: str


def read_frozen(repository: Path) -> Frozen | None:
    """The frozen set of a checkout; None where it has none.

    Raises:
        InputError: a line is no package.
    """
    path = repository / LOCK_FILE
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    debs = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{line[:60]!r} is not `file sha256 bytes path`",
                where=f"{path}:{number}",
                hint="`myriad image lock --system`",
            )
        debs.append(Deb(match["file"], match["sha"], int(match["size"]), match["path"]))
    taken = _TAKEN.search(text)
    ordered = tuple(sorted(debs))
    digest = sha256_digest("\n".join(f"{one.file} {one.sha256}" for one in ordered).encode())
    return Frozen(ordered, taken[1] if taken else "", digest)


def frozen_text(debs: Iterable[Deb], taken: str) -> str:
    """The lock file's text."""
    lines = [
        "# The Debian packages that images are made of; `myriad image lock --system` writes the newest.",
        f"# taken: {taken}",
        *(f"{one.file} {one.sha256} {one.size} {one.path}" for one in sorted(debs)),
    ]
    return "\n".join(lines) + "\n"


def deb_of(file: Path) -> Deb:
    """A package file as a line of the lock. Its path in an archive follows from its source package."""
    fields = control(file)
    source = re.sub(r"\s.*", "", fields.get("Source") or fields["Package"])
    version = fields["Version"].partition(":")[2] or fields["Version"]
    name = f"{fields['Package']}_{version}_{fields['Architecture']}.deb"
    prefix = source[:4] if source.startswith("lib") else source[0]
    return Deb(name, sha256_of(file), file.stat().st_size, f"pool/main/{prefix}/{source}/{name}")


def control(file: Path) -> dict[str, str]:
    """The control fields of a package file."""
    result = subprocess.run(["dpkg-deb", "--field", str(file)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise MyriadError(f"is no Debian package: {result.stderr.strip()}", where=str(file))
    fields: dict[str, str] = {}
    key = ""
    for line in result.stdout.splitlines():
        if line[:1].isspace():
            fields[key] += "\n" + line
        else:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
    return fields


def frozen_sources(ctx: BuildContext, frozen: Frozen) -> tuple[str, ...]:
    """A repository of the frozen packages on this machine, as a line of apt's sources.

    Raises:
        FetchError: a package is nowhere any more; it is never replaced by another.
    """
    folder = ctx.cache_dir / "frozen" / frozen.digest.removeprefix("sha256:")
    if not (folder / "Packages").is_file():
        _fetch(ctx, frozen)
        store = Store(ctx.store)
        folder.mkdir(parents=True, exist_ok=True)
        stanzas = []
        for deb in frozen.debs:
            link_or_copy(store.need(deb.sha256), folder / deb.file)
            fields = control(folder / deb.file) | {
                "Filename": f"./{deb.file}",
                "Size": str(deb.size),
                "SHA256": deb.sha256,
            }
            stanzas.append("".join(f"{key}: {value}\n" for key, value in fields.items()))
        index = "\n".join(stanzas).encode()
        # mmdebstrap looks for essential packages in the suite of that name.
        sums = f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
        release = f"Suite: {_SUITE}\nCodename: {_SUITE}\n{sums}"
        (folder / "Release").write_text(release, encoding="utf-8")
        (folder / ".Packages").write_bytes(index)
        (folder / ".Packages").replace(folder / "Packages")
    # Trusted: each file was checked against the lock's hash, which is what signs it here.
    return (f"deb [trusted=yes] copy:{shlex.quote(str(folder.resolve()))} ./",)


def _fetch(ctx: BuildContext, frozen: Frozen) -> None:
    store = Store(ctx.store)
    missing = []
    for deb in frozen.debs:
        kept = ctx.cache_dir / "debs" / deb.file
        if store.has(deb.sha256):
            continue
        if kept.is_file() and sha256_of(kept) == deb.sha256:
            store.put_file(kept)
        else:
            missing.append(deb)
    if not missing:
        return
    ctx.on_event(
        BuildEvent("packages", "started", f"{len(missing)} Debian packages", total=sum(deb.size for deb in missing))
    )
    settings = Settings(cache=ctx.cache_dir, mirrors=read_mirrors(), retries=1)
    with Fetcher(store=store, settings=settings) as fetcher:
        for deb in missing:
            _fetch_one(fetcher, deb, _places(frozen))
    ctx.on_event(
        BuildEvent("packages", "finished", f"{len(missing)} Debian packages", size=sum(deb.size for deb in missing))
    )


def _places(frozen: Frozen) -> Sequence[str]:
    return (*_ARCHIVES, *(f"{base}/{frozen.taken}" for base in _SNAPSHOTS if frozen.taken))


def _fetch_one(fetcher: Fetcher, deb: Deb, places: Sequence[str]) -> None:
    reasons = []
    for base in places:
        # The archive of security fixes keeps its pool one folder lower.
        path = deb.path.replace("pool/", "pool/updates/", 1) if "security" in base else deb.path
        try:
            fetcher.fetch(Wanted(name=deb.file, url=f"{base}/{path}", sha256=deb.sha256))
            return
        except FetchError as error:
            reasons.append(f"{base}: {error.message}")
    raise FetchError(
        f"{deb.file} cannot be had any more: {'; '.join(reasons)}",
        where=LOCK_FILE,
        hint="`myriad image lock --system` takes the newest packages instead; images then get other digests",
    )
