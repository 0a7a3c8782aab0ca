"""Makes the locked Python environment: `make env`.

Runs as a file, with the Python that the preflight picked and before any package is there: standard library only.
uv itself is pinned by uv.lock and put into the cache once; everything else is what uv.lock says, by hash. A mirror
(MYRIAD_MIRROR_PYTHON, or the variables that pip and uv read) changes where files come from and never what they are:
uv.lock names its index, so behind a mirror the lock is exported with its hashes and installed from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Variables that name an index for Python packages, the first that is set counts.
MIRROR_VARIABLES = ("MYRIAD_MIRROR_PYTHON", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
#: They would make uv compare uv.lock with another index; taken out of its environment.
_INDEX_VARIABLES = (*MIRROR_VARIABLES, "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
STAMP = ".myriad-environment"
#: Where Debian and Ubuntu keep what the machine trusts.
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class SetupError(Exception):
    """The environment could not be made; the text says what to do."""


def mirror(environ: Mapping[str, str]) -> str:
    """The index to install from, or an empty string for the one that uv.lock names.

    The variables come first, then `python:` in the file that holds all mirrors (MYRIAD_MIRRORS_FILE, else
    ~/.config/myriad/mirrors.yml), read without a YAML library because none is there yet.
    """
    named = next((environ[name] for name in MIRROR_VARIABLES if environ.get(name)), "")
    if named:
        return named
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    path = Path(environ.get("MYRIAD_MIRRORS_FILE") or config / "myriad" / "mirrors.yml")
    try:
        found = re.search(r"""^python:\s*["']?([^\s"'#]+)""", path.read_text(), re.M)
    except OSError:
        return ""
    return found.group(1) if found else ""


def locked_uv(lock_text: str) -> tuple[str, list[tuple[str, str]]]:
    """The uv that uv.lock pins: its version and its wheels as (file name, sha256).

    Raises:
        SetupError: when the lock has no uv.
    """
    block = re.search(
        r'\[\[package\]\]\nname = "uv"\nversion = "([^"]+)"(.*?)(?=\n\[\[package\]\]|\Z)', lock_text, re.S
    )
    if not block:
        raise SetupError("uv.lock pins no uv; run `uv lock` in a clone that is not changed by hand")
    wheels = re.findall(r'url = "[^"]*/([^/"]+\.whl)", hash = "sha256:([0-9a-f]{64})"', block.group(2))
    return block.group(1), wheels


def fingerprint(root: Path, python: str) -> str:
    """Changes when the environment must be made again. A mirror is not part of it."""
    digest = hashlib.sha256()
    for name in ("uv.lock", "pyproject.toml"):
        digest.update((root / name).read_bytes())
    digest.update(f"{os.path.realpath(python)} {root}".encode())
    return digest.hexdigest()


def uv_environment(environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Environment for uv: its own cache, this machine's certificates, no index of the caller's.

    uv brings certificates of its own and would not know the authority of a site's proxy, which the machine trusts.
    """
    clean = {key: value for key, value in environ.items() if key not in _INDEX_VARIABLES and key != "VIRTUAL_ENV"}
    if SYSTEM_CERTIFICATES.is_file() and not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(clean):
        clean["SSL_CERT_FILE"] = str(SYSTEM_CERTIFICATES)
    return {**clean, "UV_CACHE_DIR": str(cache / "uv"), "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}


def find_uv(root: Path, python: str, cache: Path, environ: Mapping[str, str]) -> Path:
    """The locked uv, made ready in the cache when it is not there.

    Tries pip through a throw-away venv, which honours every setting that the user made for pip, and then the index
    itself: a Debian without python3-venv has neither.

    Raises:
        SetupError: when uv cannot be had.
    """
    version, wheels = locked_uv((root / "uv.lock").read_text())
    uv = cache / "tools" / f"uv-{version}" / "bin" / "uv"
    if uv.exists():
        return uv
    uv.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for attempt in (_uv_by_pip, _uv_by_index):
        try:
            attempt(uv, version, wheels, python, environ)
            return uv
        except (OSError, subprocess.SubprocessError, SetupError, ValueError) as error:
            reasons.append(str(error).strip().splitlines()[-1] if str(error).strip() else repr(error))
    raise SetupError(
        f"uv {version} could not be had: {'; '.join(reasons)}. "
        "Check the network, or set MYRIAD_MIRROR_PYTHON to a package index that this machine reaches."
    )


def _uv_by_pip(uv: Path, version: str, wheels: list[tuple[str, str]], python: str, environ: Mapping[str, str]) -> None:
    venv = uv.parent.parent / "venv"
    subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True, capture_output=True, text=True)
    pins = uv.parent.parent / "uv.txt"
    pins.write_text(f"uv=={version} " + " ".join(f"--hash=sha256:{digest}" for _, digest in wheels) + "\n")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--only-binary", ":all:", "-r", str(pins)]
    if mirror(environ):
        pip += ["--index-url", mirror(environ)]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode != 0:
        raise SetupError(done.stderr or "pip failed")
    uv.unlink(missing_ok=True)
    uv.symlink_to(venv / "bin" / "uv")


def _uv_by_index(
    uv: Path, version: str, wheels: list[tuple[str, str]], python: str, environ: Mapping[str, str]
) -> None:
    """Fetch the wheel over the simple index and take the program out of it; a wheel is a zip file."""
    index = (mirror(environ) or "https://pypi.org/simple").rstrip("/")
    wanted = {name: digest for name, digest in wheels if "x86_64" in name and "manylinux" in name}
    request = urllib.request.Request(  # noqa: S310 (the user's own index)
        f"{index}/uv/", headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        text = answer.read().decode()
    name, url = find_link(text, f"{index}/uv/", wanted)
    with urllib.request.urlopen(url, timeout=300) as answer:  # noqa: S310
        body = answer.read()
    if hashlib.sha256(body).hexdigest() != wanted[name]:
        raise SetupError(f"{name} from {index} is not the file that uv.lock names")
    archive = uv.parent.parent / name
    archive.write_bytes(body)
    with zipfile.ZipFile(archive) as wheel:
        member = next(item for item in wheel.namelist() if item.endswith("/scripts/uv"))
        uv.write_bytes(wheel.read(member))
    uv.chmod(0o755)
    archive.unlink()


def find_link(text: str, base: str, wanted: Mapping[str, str]) -> tuple[str, str]:
    """(file name, address) of the first wanted wheel in a simple index page, JSON or HTML.

    Raises:
        SetupError: when the page lists none of them.
    """
    links: list[tuple[str, str]]
    try:
        links = [(entry["filename"], entry["url"]) for entry in json.loads(text)["files"]]
    except (ValueError, KeyError):
        links = [
            (url.split("#")[0].rsplit("/", 1)[-1], url.split("#")[0]) for url in re.findall(r'href="([^"]+)"', text)
        ]
    for name, url in links:
        if name in wanted:
            return name, urllib.parse.urljoin(base, url)
    raise SetupError(f"{base} lists no {next(iter(wanted), 'fitting wheel of uv')}")


def sync(root: Path, uv: Path, python: str, cache: Path, environ: Mapping[str, str], log: Path) -> None:
    """Bring `.venv` to what uv.lock says.

    Raises:
        SetupError: with uv's own last lines.
    """
    clean = uv_environment(environ, cache)
    index = mirror(environ)
    with log.open("w") as output:

        def run(*arguments: str) -> None:
            done = subprocess.run(
                [str(uv), *arguments], cwd=root, env=clean, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                output.flush()
                tail = "\n  ".join(log.read_text().strip().splitlines()[-6:])
                raise SetupError(
                    f"uv did not make the environment:\n  {tail}\n"
                    "Check the network, or set MYRIAD_MIRROR_PYTHON to a package index that this machine reaches."
                )

        if not index:
            run("sync", "--locked", "--extra", "build", "--python", python)
            return
        pins = root / ".venv" / "locked.txt"
        if not (root / ".venv" / "bin" / "python").exists():
            run("venv", "--python", python, "--allow-existing", ".venv")
        run("export", "--frozen", "--extra", "build", "--no-emit-project", "--output-file", str(pins))
        target = ("--python", str(root / ".venv" / "bin" / "python"), "--default-index", index)
        run("pip", "sync", "--require-hashes", *target, str(pins))
        run("pip", "install", "--no-deps", *target, "--editable", ".")


#: Parts of the collection; the folder itself is no link, because it would then hold `.venv` again.
COLLECTION = ("meta", "playbooks", "plugins", "roles", "galaxy.yml")


def unlink_collection(root: Path) -> None:
    """Take the links away before uv works: removing a package follows them and would delete the clone's own files."""
    for folder in _collection_folders(root):
        for name in COLLECTION:
            if (folder / name).is_symlink():
                (folder / name).unlink()


def link_collection(root: Path) -> None:
    """Let Ansible find this clone as the collection `myriad.gpu`, wherever it lies.

    The editable package brings copies of the collection's files. They are replaced by links, and its list of installed
    files no longer names them, so that no installer follows a link and deletes what it leads to.
    """
    for folder in _collection_folders(root):
        folder.mkdir(parents=True, exist_ok=True)
        for name in COLLECTION:
            link, target = folder / name, root / name
            if link.is_symlink() and link.resolve() == target.resolve():
                continue
            if link.is_symlink() or link.is_file():
                link.unlink()
            elif link.is_dir():
                shutil.rmtree(link)
            link.symlink_to(target)
        for record in folder.parents[2].glob("myriad-*.dist-info/RECORD"):
            lines = record.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not line.startswith("ansible_collections/")]
            if kept != lines:
                record.write_text("".join(kept))


def _collection_folders(root: Path) -> list[Path]:
    libraries = (root / ".venv" / "lib").glob("python3.*")
    return [library / "site-packages" / "ansible_collections" / "myriad" / "gpu" for library in libraries]


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two `make` calls in one clone do not make the environment at once."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Make the environment if it is not the locked one; prints one line."""
    root = Path(__file__).resolve().parents[3]
    started = time.monotonic()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "myriad"
    python = sys.executable
    stamp = root / ".venv" / STAMP
    quiet = "--quiet" in sys.argv
    try:
        with _alone(root / ".lab" / "environment.lock"):
            wanted = fingerprint(root, python)
            version = locked_uv((root / "uv.lock").read_text())[0]
            fresh = stamp.exists() and stamp.read_text() == wanted
            if not fresh:
                stamp.unlink(missing_ok=True)
                unlink_collection(root)
                uv = find_uv(root, python, cache, os.environ)
                sync(root, uv, python, cache, os.environ, root / ".lab" / "environment.log")
            link_collection(root)
            stamp.write_text(wanted)
    except SetupError as error:
        print(f"environment      {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nenvironment      stopped; the next run goes on", file=sys.stderr)
        return 130
    if not (quiet and fresh):
        count = len(list((root / ".venv").glob("lib/python3.*/site-packages/*.dist-info")))
        elapsed = f"{time.monotonic() - started:.0f} s"
        print(f"{'environment':<16} {f'uv {version}, {count} locked packages':<68} {elapsed:>6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
