"""The Python inside images: run from an unpacked copy without a container, for bytecode; and Myriad's own source.

Bytecode is compiled by the Python of the base itself, so that it does not depend on the Python of the building machine.
It is hash-based and unchecked (PEP 552): no time stamp in it, and none needed to trust it. Without it every start of a
pod would compile thousands of modules again, as its user may not write beside them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from myriad.errors import InputError, MyriadError
from myriad.images.closure import needed_files
from myriad.images.context import BuildContext
from myriad.images.definition import DEBIAN_PYTHON, Source
from myriad.images.definition import Python as ExternalPython
from myriad.images.layer import Entry, extract, file_from_path, from_tree
from myriad.images.oci import Blob, Layer, open_layer, sha256_digest, write_layer
from myriad.images.plan import SOURCE
from myriad.images.requirements import advice
from myriad.stack.settings import read_mirrors
from myriad.stack.store import sha256_of

#: Where Debian and Ubuntu keep what the machine trusts; uv brings certificates of its own otherwise.
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PYTHON = DEBIAN_PYTHON
_UV_HINT = "make sets up the locked environment with uv in it; or: pip install uv"
_LOADER = "ld-linux-x86-64.so.2"
_LIBRARY_FOLDERS = r"(usr/local/|usr/)?lib(64)?(/x86_64-linux-gnu)?/[^/]*\.so[^/]*"


@dataclass(frozen=True)
class Interpreter:
    """A base's Python, runnable on this machine through the base's own loader and libraries.

    Attributes:
        command: how to run it.
        home: what PYTHONHOME must be.
        version: its first two parts.
        identity: sha256 of the program; what it compiles depends on nothing else.
    """

    command: tuple[str, ...]
    home: str
    version: str
    identity: str

    def compile(self, root: Path) -> list[str]:
        """Write hash-based bytecode beside every module below `root`, with the paths that they have in the image.

        Returns:
            What does not compile, as the compiler says it; templates and old test data are like that.
        """
        command = [*self.command, "-S", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
        # -s and -p: tracebacks name /opt/myriad/..., never the building machine's folders. One process, files in sorted
        # order: what is shared between objects in a .pyc depends on what the process compiled before.
        result = subprocess.run(
            [*command, "-s", str(root), "-p", "/", str(root)],
            env={"PYTHONHOME": self.home, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        told = (result.stdout + result.stderr).strip()
        if result.returncode not in (0, 1) or (result.returncode and not told):
            raise MyriadError(f"the base's Python {self.version} cannot compile modules: {told[-2000:]}")
        return told.splitlines() if result.returncode else []


def debian_interpreter(ctx: BuildContext, base: Layer) -> Interpreter:
    """The Python of the Debian base."""
    command = base_python(ctx, base)
    home = Path(command[-1]).parents[1]
    return Interpreter(tuple(command), str(home), PYTHON, sha256_of(Path(command[-1])))


def external_interpreter(ctx: BuildContext, layers: Sequence[Layer], python: ExternalPython) -> Interpreter:
    """The Python of an external base.

    Raises:
        InputError: the base has no such interpreter, another version of it, or no glibc.
    """
    key = sha256_digest("".join(layer.digest for layer in layers).encode()).removeprefix("sha256:")
    home = ctx.cache_dir / "python" / key
    prefix = PurePosixPath(python.interpreter).parents[1].as_posix().lstrip("/")
    below = f"{prefix}/" if prefix else ""
    wanted = re.compile(
        rf"(?:{_LIBRARY_FOLDERS}|{re.escape(below)}lib/python{re.escape(python.version)}/(?!site-packages|dist-packages|test/).*"
        rf"|{re.escape(below)}bin/python[0-9.]*|lib|lib64|bin|usr/lib64)$"
    )
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with _folder_beside(home) as scratch:
            for layer in layers:
                _unpack(ctx, layer, scratch, wanted)
            if not home.is_dir():
                scratch.rename(home)
    program = _inside(home, python.interpreter)
    loaders = [path for path in sorted(home.rglob(_LOADER)) if path.is_file() and not path.is_symlink()]
    if not program.is_file():
        raise InputError(
            f"the base has no {python.interpreter}", where="image.yml: python.interpreter", hint="name the one it has"
        )
    if not loaders:
        raise InputError(
            "the base has no glibc, which wheels from an index need", hint="use a base of Debian, Ubuntu or RHEL"
        )
    folders = sorted(
        {
            str(path.parent)
            for path in home.rglob("*.so*")
            if re.fullmatch(_LIBRARY_FOLDERS, path.relative_to(home).as_posix())
        }
    )
    command = (str(loaders[0]), "--library-path", ":".join(folders), str(program))
    own_home = str(home / prefix) if prefix else str(home)
    result = subprocess.run(
        [*command, "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        env={"PYTHONHOME": own_home},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.stdout.strip() != python.version:
        raise InputError(
            f"the base's {python.interpreter} is Python {result.stdout.strip() or result.stderr.strip()[-300:]}, "
            f"image.yml says {python.version}",
            where="image.yml: python.version",
        )
    return Interpreter(command, own_home, python.version, sha256_of(program))


def _inside(home: Path, path: str) -> Path:
    """A path of the image below its unpacked copy, with links followed inside it."""
    found = home / path.lstrip("/")
    for _ in range(8):
        if not found.is_symlink():
            break
        target = found.readlink()
        found = home / str(target).lstrip("/") if target.is_absolute() else found.parent / target
    return found


def bytecode(interpreter: Interpreter, modules: Iterable[Entry], scratch: Path) -> tuple[list[Entry], list[str]]:
    """The bytecode of modules as entries beside them; and what does not compile.

    Args:
        scratch: an empty folder; the entries are read from it, so it must outlive them.
    """
    any_module = False
    for entry in modules:
        if entry.content is None or not entry.path.endswith(".py"):
            continue
        target = scratch / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with entry.content() as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
        any_module = True
    if not any_module:
        return [], []
    failed = interpreter.compile(scratch)
    found = [
        file_from_path(path.relative_to(scratch).as_posix(), path, mode=0o644)
        for path in sorted(scratch.rglob("*.pyc"))
    ]
    return found, failed


def source_layer(ctx: BuildContext, interpreter: Callable[[], Interpreter], source: Source) -> Layer:
    """Myriad's own code at `/opt/myriad/src`, with the metadata that tells its version."""
    root = ctx.repository / "src"
    files = needed_files(root, source.modules)
    version = project_version(ctx.repository)
    inputs = {
        "files": [[path.as_posix(), sha256_digest((root / path).read_bytes())] for path in files],
        "python": interpreter().identity,
        "revision": 2,
        "version": version,
    }
    step = "source-" + "-".join(source.modules)
    return ctx.cached_layer(step, inputs, lambda: _copy_source(ctx, interpreter(), root, files, version))


def _copy_source(ctx: BuildContext, interpreter: Interpreter, root: Path, files: Sequence[Path], version: str) -> Layer:
    with tempfile.TemporaryDirectory(prefix="myriad-source-") as scratch:
        target = Path(scratch) / SOURCE
        for path in files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, target / path)
        metadata = target / f"myriad-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: myriad\nVersion: {version}\n", encoding="utf-8")
        failed = interpreter.compile(Path(scratch))
        if failed:
            raise MyriadError(f"Myriad's own modules do not compile with Python {interpreter.version}: {failed[0]}")
        return write_layer(ctx.blobs, from_tree(Path(scratch)), comment=f"myriad {version}", epoch=ctx.epoch)


def project_version(repository: Path) -> str:
    """Myriad's version in pyproject.toml."""
    return str(tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def base_python(ctx: BuildContext, base: Layer) -> list[str]:
    """The command that runs the Debian base's Python on this machine, through the base's own loader and libraries."""
    home = ctx.cache_dir / "python" / base.digest.removeprefix("sha256:")
    libraries = "usr/lib/x86_64-linux-gnu"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        wanted = re.compile(rf"(?:usr/bin/python{PYTHON}$|usr/lib/python{PYTHON}/|{libraries}/[^/]*\.so[^/]*$)")
        with _folder_beside(home) as scratch:
            _unpack(ctx, base, scratch, wanted)
            if not home.is_dir():
                scratch.rename(home)
    return [
        str(home / libraries / _LOADER),
        "--library-path",
        str(home / libraries),
        str(home / "usr/bin" / f"python{PYTHON}"),
    ]


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A temporary folder on the same disk; it is gone afterwards unless it was renamed."""
    scratch = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack(ctx: BuildContext, layer: Layer, target: Path, wanted: re.Pattern[str]) -> None:
    blob = Blob(ctx.blobs.path(layer.digest), layer.size, layer.media_type)
    with open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if wanted.match(name) and (member.isreg() or member.issym() or member.islnk() or member.isdir()):
                place = target / name
                if place.is_symlink() or place.is_file():
                    place.unlink()  # a higher layer's file replaces a lower one's
                if not (member.isdir() and place.is_dir()):
                    extract(tar, member, target)


def export_requirements(ctx: BuildContext, group: str) -> str:
    """The group's packages with versions and hashes, as uv.lock has them. Touches no network."""
    lock = ctx.repository / "uv.lock"
    if not lock.is_file():
        raise InputError("uv.lock is missing", where=str(ctx.repository), hint="build images in a checkout")
    command = [
        "export",
        "--quiet",
        "--only-group",
        group,
        "--no-emit-project",
        "--frozen",
        "--no-header",
        "--no-annotate",
    ]
    return run_uv(ctx, command, what=f"exporting the dependency group {group!r}", where=str(lock))


def run_uv(ctx: BuildContext, arguments: Sequence[str], *, what: str, where: str, folder: Path | None = None) -> str:
    """Run uv and return what it prints.

    Raises:
        InputError: uv is missing.
        MyriadError: it failed; its own words are in the message.
    """
    program = ctx.program("uv", hint=_UV_HINT)
    environment = {**os.environ, **read_mirrors().python_environment(), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    if SYSTEM_CERTIFICATES.is_file() and not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(environment):
        environment["SSL_CERT_FILE"] = str(SYSTEM_CERTIFICATES)
    # The environment of the caller must not decide what is exported or how it is resolved.
    for name in (
        "VIRTUAL_ENV",
        "UV_PROJECT_ENVIRONMENT",
        "UV_COMPILE_BYTECODE",
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_PRERELEASE",
    ):
        environment.pop(name, None)
    result = subprocess.run(
        [str(program), *arguments],
        cwd=folder or ctx.repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise MyriadError(
            f"{what} failed: {result.stderr.strip()[-2000:]}",
            where=where,
            hint=advice(result.stderr),
        )
    return result.stdout
