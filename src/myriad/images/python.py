"""The layers of Python images: wheels by the lock, Myriad's own source, both with bytecode.

Bytecode is compiled by the Python of the base layer itself, run from an unpacked copy without a container, so that it
does not depend on
the Python of the building machine. It is hash-based and unchecked (PEP 552): no time stamp in it, and none needed to
trust it. Without it
every start of a pod would compile a thousand modules again, which costs seconds of a node's CPU.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from myriad.errors import InputError, MyriadError
from myriad.images.closure import needed_files
from myriad.images.context import BuildContext
from myriad.images.definition import Source, Wheels
from myriad.images.layer import from_tree
from myriad.images.oci import Blob, Layer, open_layer, sha256_digest, write_layer
from myriad.images.plan import SITE, SOURCE

#: Where Debian and Ubuntu keep what the machine trusts; uv brings certificates of its own otherwise.
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_36"
_UV_HINT = "make sets up the locked environment with uv in it; or: pip install uv"

# What an installer leaves that depends on the building machine, or that nothing reads in an image.
_NOISE = (
    ".*",
    "bin/*",
    "*/__pycache__/*",
    "*.pyc",
    "*.pyi",
    "*.dist-info/RECORD",
    "*.dist-info/INSTALLER",
    "*.dist-info/REQUESTED",
    "*.dist-info/direct_url.json",
    "*.dist-info/uv_cache.json",
)
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


def wheels_layer(ctx: BuildContext, base: Layer, wheels: Wheels) -> Layer:
    """The wheels of a dependency group at `/opt/myriad/site`.

    Raises:
        InputError: uv is missing, or the group is not in the lock.
        MyriadError: a wheel cannot be had or has another hash.
    """
    requirements = export_requirements(ctx, wheels.group)
    inputs = {
        "base": base.digest,
        "exclude": list(wheels.exclude),
        "noise": list(_NOISE),
        "platform": [PYTHON, PLATFORM],
        "requirements": sha256_digest(requirements.encode()),
        "revision": 1,
    }
    return ctx.cached_layer(f"wheels-{wheels.group}", inputs, lambda: _install_wheels(ctx, base, wheels, requirements))


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
    return _uv(ctx, command, what=f"exporting the dependency group {group!r}")


def _install_wheels(ctx: BuildContext, base: Layer, wheels: Wheels, requirements: str) -> Layer:
    with tempfile.TemporaryDirectory(prefix="myriad-wheels-") as scratch:
        root = Path(scratch) / "root"
        site = root / SITE
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text(requirements, encoding="utf-8")
        command = ["pip", "install", "--target", str(site), "--python-version", PYTHON, "--python-platform", PLATFORM]
        command += ["--only-binary", ":all:", "--require-hashes", "--no-deps", "--link-mode", "copy", "--quiet"]
        _uv(ctx, [*command, "--requirements", str(wanted)], what=f"installing the wheels of {wheels.group!r}")
        _remove(site, (*_NOISE, *wheels.exclude))
        compile_bytecode(ctx, base, root)
        return write_layer(ctx.blobs, from_tree(root), comment=f"wheels ({wheels.group})", epoch=ctx.epoch)


def _remove(root: Path, patterns: Sequence[str]) -> None:
    """Delete the files that match, and the folders that are empty then."""
    for path in sorted(root.rglob("*"), reverse=True):
        relative = path.relative_to(root).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif any(fnmatch.fnmatchcase(relative, pattern) for pattern in patterns):
            path.unlink()


def source_layer(ctx: BuildContext, base: Layer, source: Source) -> Layer:
    """Myriad's own code at `/opt/myriad/src`, with the metadata that tells its version."""
    root = ctx.repository / "src"
    files = needed_files(root, source.modules)
    version = project_version(ctx.repository)
    inputs = {
        "base": base.digest,
        "files": [[path.as_posix(), sha256_digest((root / path).read_bytes())] for path in files],
        "revision": 1,
        "version": version,
    }
    step = "source-" + "-".join(source.modules)
    return ctx.cached_layer(step, inputs, lambda: _copy_source(ctx, base, root, files, version))


def _copy_source(ctx: BuildContext, base: Layer, root: Path, files: Sequence[Path], version: str) -> Layer:
    with tempfile.TemporaryDirectory(prefix="myriad-source-") as scratch:
        target = Path(scratch) / SOURCE
        for path in files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, target / path)
        metadata = target / f"myriad-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: myriad\nVersion: {version}\n", encoding="utf-8")
        compile_bytecode(ctx, base, Path(scratch))
        return write_layer(ctx.blobs, from_tree(Path(scratch)), comment=f"myriad {version}", epoch=ctx.epoch)


def project_version(repository: Path) -> str:
    """Myriad's version in pyproject.toml."""
    return str(tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def compile_bytecode(ctx: BuildContext, base: Layer, root: Path) -> None:
    """Write hash-based bytecode beside every module below `root`, with the paths that the modules have in the image."""
    python = base_python(ctx, base)
    command = [*python, "-S", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    # -s and -p: tracebacks name /opt/myriad/..., never the building machine's folders.
    result = subprocess.run(
        [*command, "-s", str(root), "-p", "/", str(root)],
        env={"PYTHONHOME": str(Path(python[-1]).parents[1]), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise MyriadError(
            f"some modules do not compile with Python {PYTHON}: {(result.stdout + result.stderr).strip()[-2000:]}",
            hint="leave them out by wheels.exclude in image.yml if they are not meant for this Python",
        )


def base_python(ctx: BuildContext, base: Layer) -> list[str]:
    """The command that runs the base layer's Python on this machine, through the base's own loader and libraries."""
    home = ctx.cache_dir / "python" / base.digest.removeprefix("sha256:")
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with _folder_beside(home) as scratch:
            _unpack_python(ctx, base, scratch)
            if not home.is_dir():
                scratch.rename(home)
    libraries = home / _LIBRARIES
    return [
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
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


def _unpack_python(ctx: BuildContext, base: Layer, target: Path) -> None:
    wanted = re.compile(rf"usr/bin/python{PYTHON}$|usr/lib/python{PYTHON}/|{_LIBRARIES}/[^/]*\.so[^/]*$")
    blob = Blob(ctx.blobs.path(base.digest), base.size, base.media_type)
    with open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if wanted.match(member.name):
                tar.extract(member, target, filter="tar")


def _uv(ctx: BuildContext, arguments: Sequence[str], *, what: str) -> str:
    """Run uv in the repository and return what it prints."""
    program = ctx.program("uv", hint=_UV_HINT)
    environment = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    if SYSTEM_CERTIFICATES.is_file() and not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(environment):
        environment["SSL_CERT_FILE"] = str(SYSTEM_CERTIFICATES)
    # The environment of the caller must not decide what is exported or where it is installed.
    for name in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_COMPILE_BYTECODE"):
        environment.pop(name, None)
    result = subprocess.run(
        [str(program), *arguments], cwd=ctx.repository, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise MyriadError(
            f"{what} failed: {result.stderr.strip()[-2000:]}",
            where=str(ctx.repository / "uv.lock"),
            hint="set a mirror by UV_DEFAULT_INDEX; another hash means that the index serves another file than locked",
        )
    return result.stdout
