"""Debian root file systems by mmdebstrap: the base that all of Myriad's images share, and the lab's nodes.

Both are Debian bookworm. mmdebstrap needs no daemon, and no root where unprivileged user namespaces are allowed. Its
tar is not used as it
is: it is read back, what a recipe does not want is left out, and the rest is written by `layer`, so the result is the
    same bits each time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, cast

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent, read_record, write_record
from myriad.images.frozen import Deb, deb_of, frozen_sources, read_frozen
from myriad.images.layer import Entry, Kind, directory, file_from_bytes, from_tar, write_tar
from myriad.images.oci import Blob, Layer, canonical_json, open_layer, sha256_digest, write_layer
from myriad.images.rootfs_advice import KEYRING_HINT, advice
from myriad.stack.fetch import FetchError
from myriad.stack.store import Store

SUITE = "bookworm"
DPKG_STATUS = "var/lib/dpkg/status"
DEBIAN_SOURCES = (
    "deb http://deb.debian.org/debian bookworm main",
    "deb http://deb.debian.org/debian bookworm-updates main",
    "deb http://deb.debian.org/debian-security bookworm-security main",
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Left by every installation, different each time or for each machine, or made anew by what runs the image.
# Directories stay.
_NEVER = (
    "dev/*",
    "proc/*",
    "run/*",
    "sys/*",
    "tmp/*",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/ssh/ssh_host_*",
    "etc/group-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow-",
    "etc/subgid-",
    "etc/subuid-",
    "var/backups/*",
    "var/cache/*",
    "var/lib/apt/lists/*",
    "var/lib/apt/extended_states",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "var/log/*",
    "var/tmp/*",
)
_DOCUMENTS = (
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/lintian/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "usr/share/bug/*",
    "usr/share/menu/*",
    "usr/share/pixmaps/*",
)
# Nothing but bytecode that a later start would write anyway, and with a time in it: replaced by hash-based files (see
# _HOOK_BYTECODE).
_HOOK_BYTECODE = (
    'chroot "$1" env PYTHONHASHSEED=0 python3 -I -m compileall -q -f --invalidation-mode unchecked-hash'
    " /usr/lib/python3.11 /usr/lib/python3"
)


@dataclass(frozen=True)
class Recipe:
    """What a root file system holds.

    `purge` names packages that the installation needs and the image does not: their files and their lines in dpkg's
    status are left out.
    `drop` are patterns of paths (`*` spans directories). `revision` grows when the code here changes what comes out.
    `frozen` packages are those of images/debian12.lock, not the mirror's newest.
    """

    name: str
    packages: tuple[str, ...]
    purge: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    setuid_allowed: bool = True
    revision: int = 1
    frozen: bool = False


BASE = Recipe(
    name="base",
    packages=("python3", "ca-certificates", "iptables", "conntrack", "kmod", "iproute2"),
    purge=(
        *("adduser", "apt", "bsdutils", "debconf", "debian-archive-keyring", "dpkg", "e2fsprogs", "gpgv"),
        *("init-system-helpers", "libapt-pkg6.0", "libdebconfclient0", "libext2fs2", "libgnutls30"),
        *("libhogweed6", "libidn2-0", "libnettle8", "libp11-kit0", "libpam-modules", "libpam-modules-bin"),
        *("libpam-runtime", "libsemanage-common", "libsemanage2", "libsepol2", "libss2", "libtasn1-6", "libunistring2"),
        *("login", "logsave", "mount", "passwd", "perl-base", "sysvinit-utils", "usr-is-merged", "util-linux-extra"),
    ),
    drop=(
        *_DOCUMENTS,
        "etc/apt/*",
        "etc/systemd/*",
        "etc/pam.d/*",
        "usr/lib/init/*",
        "usr/lib/python3*/test/*",
        "usr/lib/python3*/pydoc_data/*",
        "usr/lib/systemd/*",
        "usr/lib/valgrind/*",
        "usr/lib/x86_64-linux-gnu/tc/q_atm.so",
        "usr/sbin/update-passwd",
        "usr/share/bash-completion/*",
        "usr/share/debconf/*",
        "usr/share/polkit-1/*",
        "usr/share/perl*/*",
        "usr/share/zoneinfo/posix/*",
        "usr/share/zoneinfo/right/*",
        "var/lib/dpkg/info/*",
        "var/lib/dpkg/alternatives/*",
        "var/lib/apt/*",
    ),
    setuid_allowed=False,
    frozen=True,
)

NODE = Recipe(
    name="node",
    packages=(
        *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "chrony"),
        *("python3", "python3-apt", "ca-certificates", "curl", "libseccomp2", "socat"),
        *("iproute2", "iptables", "nftables", "conntrack", "ethtool", "kmod", "procps", "util-linux", "mount"),
    ),
    drop=_DOCUMENTS,
)


@dataclass(frozen=True)
class Rootfs:
    """A root file system as a tar in the store. `packages` maps each Debian package to its version."""

    path: Path
    sha256: str
    size: int
    packages: dict[str, str]


def build_base_layer(ctx: BuildContext) -> Layer:
    """The layer that every Python image and kube-proxy start from."""
    return _frozen_or_newest(
        ctx, BASE, lambda recipe: ctx.cached_layer("base", _inputs(ctx, recipe), lambda: _base_layer(ctx, recipe))
    )


def _frozen_or_newest(ctx: BuildContext, recipe: Recipe, build: Callable[[Recipe], Layer]) -> Layer:
    """A layer from the frozen packages.

    Without `strict`, frozen packages that cannot be had any more are replaced by the mirror's newest, and that is said:
    a lab comes up in any case.
    """
    try:
        return build(recipe)
    except FetchError as error:
        if ctx.strict or not recipe.frozen:
            raise
        text = f"the mirror's newest packages instead of the frozen ones: {error.message}"
        ctx.on_event(BuildEvent(recipe.name, "progress", text))
        return build(replace(recipe, frozen=False))


def known_base_layer(ctx: BuildContext) -> Layer | None:
    """The base where the cache has it."""
    return ctx.known_layer("base", _inputs(ctx, BASE))


def _base_layer(ctx: BuildContext, recipe: Recipe) -> Layer:
    with _installed(ctx, recipe) as archive:
        return write_layer(
            ctx.blobs, recipe_entries(archive, recipe), comment="base (Debian bookworm)", epoch=ctx.epoch
        )


def build_packages_layer(ctx: BuildContext, base: Layer, packages: Sequence[str]) -> Layer:
    """What an installation with further Debian packages has beyond the base, as a layer on top of it.

    The base's own packages stay without what its recipe leaves out, except for what the new ones need.
    """
    step = "packages " + " ".join(packages)

    def build(lower: Recipe) -> Layer:
        recipe, inputs = _packages_recipe(ctx, lower, base, packages)
        return ctx.cached_layer(step, inputs, lambda: _packages_layer(ctx, base, recipe, packages))

    return _frozen_or_newest(ctx, BASE, build)


def known_packages_layer(ctx: BuildContext, base: Layer, packages: Sequence[str]) -> Layer | None:
    """That layer where the cache has it."""
    return ctx.known_layer("packages " + " ".join(packages), _packages_recipe(ctx, BASE, base, packages)[1])


def _packages_recipe(
    ctx: BuildContext, lower: Recipe, base: Layer, packages: Sequence[str]
) -> tuple[Recipe, dict[str, Any]]:
    recipe = replace(lower, name="packages", packages=(*lower.packages, *packages))
    return recipe, {**_inputs(ctx, recipe), "base": base.digest, "packages": list(packages)}


def _packages_layer(ctx: BuildContext, base: Layer, recipe: Recipe, packages: Sequence[str]) -> Layer:
    with _installed(ctx, recipe) as archive, tempfile.TemporaryDirectory(prefix="myriad-base-") as scratch:
        needed = needed_packages(_read(archive, DPKG_STATUS).decode(), packages)
        purge = tuple(one for one in recipe.purge if one not in needed)
        drop = recipe.drop if "perl-base" in purge else tuple(one for one in recipe.drop if "perl" not in one)
        lower = Path(scratch) / "base.tar"
        with (
            open_layer(Blob(ctx.blobs.path(base.digest), base.size, base.media_type)) as source,
            lower.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
        known = {entry.path: _fingerprint(entry) for entry in from_tar(lower)}
        entries = list(recipe_entries(archive, replace(recipe, purge=purge, drop=drop)))
        added = [entry for entry in entries if known.get(entry.path) != _fingerprint(entry)]
        return write_layer(
            ctx.blobs, _whole_links(added, entries), comment="packages " + " ".join(packages), epoch=ctx.epoch
        )


def _whole_links(added: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a layer with every hard link's first name in the same layer."""
    by_path = {entry.path: entry for entry in entries}
    found = {entry.path: entry for entry in added}
    for entry in added:
        if entry.kind is Kind.HARDLINK:
            found.setdefault(entry.target, by_path[entry.target])
    return list(found.values())


def _fingerprint(entry: Entry) -> tuple[Any, ...]:
    """What makes two entries the same."""
    value = ""
    if entry.content is not None:
        digest = hashlib.sha256()
        with entry.content() as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        value = digest.hexdigest()
    return entry.kind, entry.mode, entry.uid, entry.gid, entry.target, value


def needed_packages(status: str, roots: Sequence[str]) -> set[str]:
    """Packages that these need, directly or not, by Depends and Pre-Depends in dpkg's status; themselves included."""
    depends: dict[str, set[str]] = {}
    provided: dict[str, str] = {}
    for paragraph in status.strip().split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Depends|Pre-Depends|Provides): (.*)$", paragraph))
        names = ", ".join((fields.get("Depends", ""), fields.get("Pre-Depends", "")))
        depends[fields["Package"]] = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", names))
        for name in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9+.-]+)", fields.get("Provides", "")):
            provided[name] = fields["Package"]
    found: set[str] = set()
    queue = list(roots)
    while queue:
        name = queue.pop()
        name = name if name in depends else provided.get(name, name)
        if name not in found:
            found.add(name)
            queue += depends.get(name, ())
    return found


def newest_packages(ctx: BuildContext, packages: Sequence[str]) -> tuple[list[Deb], str]:
    """The files of the base's packages and further ones, with all that they need, as the mirrors have them now; and
    when that was, as Debian's snapshots name times."""
    recipe = replace(BASE, name="frozen", packages=tuple(dict.fromkeys((*BASE.packages, *packages))), frozen=False)
    taken = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    with _installed(ctx, recipe) as archive:
        status = _read(archive, DPKG_STATUS).decode()
    found = []
    for paragraph in status.strip().split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version|Architecture): (.*)$", paragraph))
        escaped = fields["Version"].replace(":", "%3a")
        file = ctx.cache_dir / "debs" / f"{fields['Package']}_{escaped}_{fields['Architecture']}.deb"
        if not file.is_file():
            raise MyriadError(f"apt kept no file of {fields['Package']} {fields['Version']}", where=str(file.parent))
        deb = deb_of(file)
        Store(ctx.store).put_file(file, expect=deb.sha256)
        found.append(deb)
    return found, taken


def build_node_rootfs(ctx: BuildContext, recipe: Recipe = NODE) -> Rootfs:
    """The root file system of a node: a lab node for `docker import`, or what a node image starts from.

    It holds no ssh host keys and an empty machine-id: whoever starts a node makes them (`ssh-keygen -A`; systemd does
    the id).
    """
    inputs = _inputs(ctx, recipe)
    key = sha256_digest(canonical_json({"epoch": ctx.epoch, "inputs": inputs})).removeprefix("sha256:")
    record = ctx.cache_dir / "rootfs" / f"{key}.json"
    known = read_record(record)
    if known is not None and ctx.blobs.has(f"sha256:{known['sha256']}", size=known["size"]):
        ctx.on_event(BuildEvent(recipe.name, "cached", known["sha256"], size=known["size"]))
        return Rootfs(path=ctx.blobs.path(f"sha256:{known['sha256']}"), **known)
    begun = time.monotonic()
    ctx.on_event(BuildEvent(recipe.name, "started"))
    with _installed(ctx, recipe) as archive:
        packages = installed_packages(archive)
        with ctx.blobs.writer() as blob:
            write_tar(recipe_entries(archive, recipe), cast(IO[bytes], blob), epoch=ctx.epoch)
    result = Rootfs(ctx.blobs.path(blob.digest), blob.digest.removeprefix("sha256:"), blob.size, packages)
    write_record(record, {"sha256": result.sha256, "size": result.size, "packages": packages})
    ctx.on_event(BuildEvent(recipe.name, "finished", result.sha256, seconds=time.monotonic() - begun, size=result.size))
    return result


def _inputs(ctx: BuildContext, recipe: Recipe) -> dict[str, Any]:
    frozen = read_frozen(ctx.repository) if recipe.frozen else None
    source: dict[str, Any] = {"frozen": frozen.digest} if frozen else {"sources": list(apt_sources(ctx))}
    described = {key: value for key, value in asdict(recipe).items() if key != "frozen"}
    inputs = {"recipe": described, **source, "hook": _HOOK_BYTECODE}
    return {**inputs, "stamp": ctx.system_stamp} if ctx.system_stamp else inputs


# --- the installation -----------------------------------------------------------------------------


class _installed:
    """Runs mmdebstrap and gives the path of its tar, which is gone afterwards."""

    def __init__(self, ctx: BuildContext, recipe: Recipe) -> None:
        self._ctx, self._recipe = ctx, recipe

    def __enter__(self) -> Path:
        self._scratch = tempfile.TemporaryDirectory(prefix="myriad-rootfs-")
        archive = Path(self._scratch.name) / "rootfs.tar"
        try:
            _run_mmdebstrap(self._ctx, self._recipe, archive)
        except BaseException:
            self._scratch.cleanup()
            raise
        return archive

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()


def _sources(ctx: BuildContext, recipe: Recipe) -> tuple[str, ...]:
    """Where apt installs from: the frozen packages, else the mirrors."""
    frozen = read_frozen(ctx.repository) if recipe.frozen else None
    return frozen_sources(ctx, frozen) if frozen is not None else apt_sources(ctx)


def _run_mmdebstrap(ctx: BuildContext, recipe: Recipe, archive: Path) -> None:
    """Install the recipe's packages into a tar. Downloaded packages are kept in the cache, so a second run needs the
    index only."""
    program = ctx.program("mmdebstrap", hint="apt-get install mmdebstrap")
    debs = ctx.cache_dir / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    quoted = shlex.quote(str(debs.resolve()))
    command = [
        str(program),
        "--variant=minbase",
        "--format=tar",
        # apt by name: only the archive's own index calls it required, not the package itself.
        # usr-is-merged instead of usrmerge, which would bring 40 MB of Perl; the hook merges /usr before the first
        # package is unpacked.
        f"--include={','.join(('usr-is-merged', 'apt', *recipe.packages))}",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/{pattern}" for pattern in _DOCUMENTS),
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=Acquire::Retries "3"',
        "--skip=download/empty,essential/unlink",
        '--setup-hook=mkdir -p "$1"/var/cache/apt/archives/',
        f"--setup-hook=sync-in {quoted} /var/cache/apt/archives/",
        f"--customize-hook=sync-out /var/cache/apt/archives {quoted}",
        f"--customize-hook={_HOOK_BYTECODE}",
        SUITE,
        str(archive),
        *_sources(ctx, recipe),
    ]
    log = ctx.cache_dir / "logs" / f"rootfs-{recipe.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    last: deque[str] = deque(maxlen=12)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(ctx.epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
            umask=0o022,  # maintainer scripts write files without saying their mode
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - for the type checker; PIPE was asked for above
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line.rstrip())
                if line.startswith("I: "):
                    seconds = time.monotonic() - begun
                    ctx.on_event(BuildEvent(recipe.name, "progress", line[3:].strip(), seconds=seconds))
        except BaseException:
            # Interrupted: mmdebstrap unmounts and removes what it made, and that must be over before we are. It waits
            # for its children, so they must hear of it too, as they do when Ctrl-C is typed at it.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            process.stdout.read()
            process.wait()
            raise
    if process.returncode != 0:
        raise MyriadError(
            f"mmdebstrap could not make the root file system {recipe.name!r} (exit {process.returncode}): "
            + " | ".join(last),
            where=str(log),
            hint=advice(last, user=os.environ.get("USER", str(os.getuid()))),
        )


def apt_sources(ctx: BuildContext, *, etc: Path = Path("/etc")) -> tuple[str, ...]:
    """The apt sources in one-line form: those given, else this machine's own mirrors when it runs bookworm, else
    Debian's.

    Raises:
        InputError: no keyring that could verify them.
    """
    sources = ctx.apt_sources or tuple(machine_sources(etc)) or DEBIAN_SOURCES
    keyring = ctx.apt_keyring or KEYRING
    if not keyring.is_file():
        raise InputError(
            "the keyring that verifies Debian's packages is missing", where=str(keyring), hint=KEYRING_HINT
        )
    return tuple(
        source if "[" in source else source.replace("deb ", f"deb [signed-by={keyring}] ", 1) for source in sources
    )


def machine_sources(etc: Path) -> list[str]:
    """Debian bookworm's sources as this machine is told to reach them; other suites and vendors are left alone."""
    found: list[str] = []
    files = [etc / "apt" / "sources.list", *sorted((etc / "apt" / "sources.list.d").glob("*"))]
    for path in files:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".sources":
            found += _deb822_sources(text)
        elif path.suffix == ".list":
            found += _one_line_sources(text)
    return list(dict.fromkeys(found))


def _one_line_sources(text: str) -> Iterator[str]:
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.split("#")[0].strip())
        if match:
            yield from _source(match[1], match[2], match[3].split())


def _deb822_sources(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = {key.lower(): value for key, value in re.findall(r"(?m)^(\S+):[ \t]*(.*(?:\n[ \t]+.*)*)", paragraph)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").strip() == "no":
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield from _source(uri, suite, fields.get("components", "").split())


def _source(uri: str, suite: str, components: Sequence[str]) -> Iterator[str]:
    """Only main is used: the rest of the machine's components is not ours to put into images."""
    if suite in (SUITE, f"{SUITE}-updates", f"{SUITE}-security") and "main" in components:
        yield f"deb {uri.rstrip('/')} {suite} main"


# --- from what was installed to what is kept ------------------------------------------------------


def recipe_entries(archive: Path, recipe: Recipe) -> Iterator[Entry]:
    """The entries of a fresh installation that the recipe keeps, with owners and modes as installed."""
    status = _read(archive, DPKG_STATUS).decode()
    purged = _purged_paths(archive, recipe.purge)

    def keep(entry: Entry) -> bool:
        patterns = recipe.drop if entry.kind is Kind.DIRECTORY else (*_NEVER, *recipe.drop)
        return entry.path not in purged and not any(fnmatchcase(entry.path, pattern) for pattern in patterns)

    for entry in from_tar(archive, keep=keep):
        if entry.path == DPKG_STATUS:
            yield file_from_bytes(entry.path, _without_packages(status, recipe.purge).encode(), mode=entry.mode)
        elif entry.path == "var/cache/apt/archives":
            # It was filled from this machine's cache and took over the mode and the owner of that folder.
            yield directory(entry.path)
        elif entry.path == "etc/machine-id":
            yield file_from_bytes(entry.path, b"", mode=0o444)
        elif not recipe.setuid_allowed and entry.kind in (Kind.FILE, Kind.HARDLINK):
            yield replace(entry, mode=entry.mode & 0o777)
        else:
            yield entry


def installed_packages(archive: Path) -> dict[str, str]:
    """Package to version, from dpkg's status inside the tar."""
    return packages_of_status(_read(archive, DPKG_STATUS).decode())


def packages_of_status(status: str) -> dict[str, str]:
    """Package to version, from the text of dpkg's status."""
    packages = {}
    for paragraph in status.strip().split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Version): (.*)$", paragraph))
        packages[fields["Package"]] = fields["Version"]
    return dict(sorted(packages.items()))


def _without_packages(status: str, purge: Sequence[str]) -> str:
    """dpkg's status without the purged packages: a scanner must not report what is not there."""
    kept = [
        paragraph
        for paragraph in status.strip().split("\n\n")
        if re.search(r"(?m)^Package: (.*)$", paragraph)[1] not in purge  # type: ignore[index]
    ]
    return "\n\n".join(kept) + "\n"


def _purged_paths(archive: Path, purge: Sequence[str]) -> set[str]:
    """The files of the purged packages that no other package has, in merged-/usr spelling.

    Raises:
        MyriadError: a package to purge is not installed: the recipe is out of date.
    """
    owners: dict[str, set[str]] = {}
    wanted = set(purge)
    found = set()
    for entry in from_tar(archive, keep=lambda entry: fnmatchcase(entry.path, "var/lib/dpkg/info/*.list")):
        package = Path(entry.path).name.removesuffix(".list").split(":")[0]
        found.add(package)
        for line in _content(entry).decode().splitlines():
            owners.setdefault(_merged(line.lstrip("/")), set()).add(package)
    missing = sorted(wanted - found)
    if missing:
        raise MyriadError(f"packages to purge that are not installed: {', '.join(missing)}", hint="update the recipe")
    return {path for path, packages in owners.items() if packages <= wanted}


def _merged(path: str) -> str:
    """`bin/sh` is `usr/bin/sh`."""
    return f"usr/{path}" if re.match(r"(bin|sbin|lib|lib64)/", path) else path


def _read(archive: Path, wanted: str) -> bytes:
    for entry in from_tar(archive, keep=lambda entry: entry.path == wanted):
        return _content(entry)
    raise MyriadError(f"the root file system has no /{wanted}", where=str(archive))


def _content(entry: Entry) -> bytes:
    if entry.content is None:
        raise MyriadError(f"/{entry.path} is not a file")
    with entry.content() as file:
        return file.read()
