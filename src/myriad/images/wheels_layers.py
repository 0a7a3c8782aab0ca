"""Layers made of wheels, straight from the wheel files; and how programs find the libraries in them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from myriad.errors import MyriadError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.definition import ImageDefinition
from myriad.images.layer import Entry, extract, file_from_bytes, file_from_path
from myriad.images.lock import check_fresh
from myriad.images.oci import Blob, Layer, open_layer, sha256_digest, write_layer
from myriad.images.plan import SITE, Contents, PlannedLayer
from myriad.images.python import Interpreter, bytecode, export_requirements
from myriad.images.wheels import OpenWheel, Scheme, Wheel, debian_scheme, parse_lock, read_lock
from myriad.images.wheels_index import Wheelhouse, project_wheels
from myriad.images.wheels_settings import wheel_settings
from myriad.stack.store import Store

#: Grows when the code here changes what comes out.
_REVISION = 1
_LIBRARY = re.compile(r"lib[^/]*\.so(\.[0-9.]+)?")
#: Bytes of a library that are read as they are: the names of its symbols stand there.
_ELF_HEAD = 32 << 20
LOADER_FILE = "etc/ld.so.conf.d/000-myriad-cuda.conf"


def scheme_of(definition: ImageDefinition) -> Scheme:
    """Where the wheels of an image go."""
    version = definition.python_version
    if definition.wheels is not None and definition.wheels.group is not None:
        return Scheme(SITE, "opt/myriad", "/usr/bin/python3", version, lean=True)
    if definition.python is None:
        return debian_scheme(version)
    prefix = PurePosixPath(definition.python.interpreter).parents[1].as_posix().lstrip("/")
    site = (definition.python.site or f"/{prefix}/lib/python{version}/site-packages").lstrip("/")
    return Scheme(site, prefix, definition.python.interpreter, version)


def locked_wheels(ctx: BuildContext, folder: Path, definition: ImageDefinition) -> list[Wheel]:
    """The wheels of an image, by its lock. Asks an index only where the lock does not name the files.

    Raises:
        InputError: there is no lock, a line has no hash, or nothing fits the image's Python.
    """
    wheels = definition.wheels
    if wheels is None:
        return []
    python = definition.python_version
    if wheels.group is not None:
        lock = parse_lock(export_requirements(ctx, wheels.group), where=str(ctx.repository / "uv.lock"), python=python)
        return project_wheels(ctx.repository, lock, python=python)
    check_fresh(folder, definition, folder.name)
    with Wheelhouse(Store(ctx.store), wheel_settings(ctx)) as house:
        return [house.choose(one, python=python) for one in read_lock(folder / str(wheels.lock), python=python)]


def fetch_wheels(ctx: BuildContext, wheels: Sequence[Wheel]) -> None:
    """Bring the wheels into the store."""
    store = Store(ctx.store)
    missing = [wheel for wheel in wheels if not store.has(wheel.sha256)]
    if not missing:
        return
    total = sum(wheel.size for wheel in missing)
    done: dict[str, int] = {}

    def told(file: object, have: int, _: int | None) -> None:
        done[str(getattr(file, "name", ""))] = have
        ctx.on_event(BuildEvent("wheels", "progress", f"{len(missing)} wheels", size=sum(done.values()), total=total))

    ctx.on_event(BuildEvent("wheels", "started", f"fetching {len(missing)} wheels", total=total))
    with Wheelhouse(store, wheel_settings(ctx)) as house:
        house.fetch(missing, progress=told)
    ctx.on_event(BuildEvent("wheels", "finished", f"{len(missing)} wheels fetched", size=total))


@contextmanager
def opened(ctx: BuildContext, wheels: Sequence[Wheel], definition: ImageDefinition) -> Iterator[dict[str, OpenWheel]]:
    """The wheel files by name. They must be in the store."""
    scheme = scheme_of(definition)
    exclude = definition.wheels.exclude if definition.wheels is not None else ()
    store = Store(ctx.store)
    found: dict[str, OpenWheel] = {}
    try:
        for wheel in wheels:
            found[wheel.name] = OpenWheel(store.need(wheel.sha256), wheel, scheme, exclude=exclude)
        yield found
    finally:
        for one in found.values():
            one.close()


def contents_of(wheels: Sequence[Wheel], files: dict[str, OpenWheel]) -> list[Contents]:
    """What a plan needs to know of wheels; those that are not at hand stay unknown inside.

    Raises:
        MyriadError: two wheels write one path with different content.
    """
    owners: dict[str, tuple[str, int]] = {}
    for wheel in wheels:
        for file in files[wheel.name].files if wheel.name in files else ():
            other = owners.setdefault(file.path, (wheel.name, file.size))
            if other != (wheel.name, file.size) and other[1] != file.size:
                raise MyriadError(
                    f"{other[0]} and {wheel.name} both write /{file.path}, with different content",
                    hint="only one of them can be in the image: change requirements.in, or leave it out by exclude",
                )
    return [Contents(wheel, files[wheel.name].files if wheel.name in files else None) for wheel in wheels]


def wheel_layer(
    ctx: BuildContext,
    planned: PlannedLayer,
    files: dict[str, OpenWheel],
    interpreter: Callable[[], Interpreter],
    *,
    scheme: Scheme,
    exclude: Sequence[str],
    hidden: Sequence[Entry] = (),
) -> Layer:
    """One layer of the plan that is made of wheels; `hidden` are entries that hide older releases in the base."""
    entries = [*_merged(planned, files), *hidden]
    modules = [entry for entry in entries if entry.path.endswith(".py")]
    inputs = {
        # Patterns that touch none of these wheels are another layer's business.
        "exclude": [one for one in exclude if any(one in files[wheel.name].excluded for wheel in planned.wheels)],
        **({"hidden": [entry.path for entry in hidden]} if hidden else {}),
        "paths": sha256_digest("\n".join(sorted(planned.paths)).encode()) if planned.paths is not None else "",
        # Only bytecode depends on the base's Python: a layer of libraries outlives a new base.
        "python": interpreter().identity if modules else "",
        "revision": _REVISION,
        "scheme": [scheme.site, scheme.prefix, scheme.interpreter, scheme.python, scheme.lean],
        "wheels": [[wheel.filename, wheel.sha256] for wheel in planned.wheels],
    }

    def build() -> Layer:
        with tempfile.TemporaryDirectory(prefix="myriad-wheels-") as scratch:
            compiled: list[Entry] = []
            if modules:
                compiled, failed = bytecode(interpreter(), modules, Path(scratch))
                if failed:
                    text = f"{len(failed)} modules are no Python {scheme.python} and stay without bytecode"
                    ctx.on_event(BuildEvent(planned.name, "progress", text))
            return write_layer(ctx.blobs, [*entries, *compiled], comment=planned.name, epoch=ctx.epoch)

    return ctx.cached_layer(planned.name, inputs, build)


def _merged(planned: PlannedLayer, files: dict[str, OpenWheel]) -> Iterator[Entry]:
    """The entries of a planned layer; a file that two wheels bring alike stands once."""
    seen: set[str] = set()

    def wanted(path: str) -> bool:
        return planned.paths is None or path in planned.paths

    for wheel in planned.wheels:
        for entry in files[wheel.name].entries(wanted):
            if entry.path not in seen:
                seen.add(entry.path)
                yield entry


def loader_layer(ctx: BuildContext, base: Sequence[Layer], files: Iterable[OpenWheel]) -> Layer:
    """`ld.so.conf.d` and the loader's cache for the CUDA libraries of wheels: programs without an RPATH find the same
    copies that torch loads.

    The cache is made by the base's own ldconfig over the base's and the wheels' libraries, so that a container needs no
    write access to be right. The container runtime's hook makes it anew when it brings the driver's libraries.
    """
    libraries: list[tuple[Entry, OpenWheel]] = []
    for wheel in files:
        if wheel.wheel.is_cuda:
            libraries += [
                (entry, wheel) for entry in wheel.entries(lambda path: _LIBRARY.fullmatch(Path(path).name) is not None)
            ]
    folders = sorted({str(PurePosixPath(entry.path).parent) for entry, _ in libraries})
    text = "".join(f"/{folder}\n" for folder in folders)
    inputs = {
        "base": [layer.digest for layer in base],
        "libraries": [[entry.path, wheel.wheel.sha256] for entry, wheel in libraries],
        "revision": _REVISION,
    }

    def build() -> Layer:
        with tempfile.TemporaryDirectory(prefix="myriad-loader-") as scratch:
            root = Path(scratch)
            for layer in base:
                _unpack_libraries(ctx, layer, root)
            for entry, _ in libraries:
                _elf_headers(entry, root / entry.path)
            (root / LOADER_FILE).parent.mkdir(parents=True, exist_ok=True)
            (root / LOADER_FILE).write_text(text, encoding="utf-8")
            cache = _run_ldconfig(root, folders)
            entries = [
                file_from_bytes(LOADER_FILE, text.encode()),
                file_from_path("etc/ld.so.cache", cache, mode=0o644),
            ]
            return write_layer(ctx.blobs, entries, comment="loader configuration", epoch=ctx.epoch)

    return ctx.cached_layer("loader configuration", inputs, build)


def _unpack_libraries(ctx: BuildContext, layer: Layer, root: Path) -> None:
    """The libraries, the loader's configuration and ldconfig of a layer."""
    wanted = re.compile(
        r"(lib|lib64|usr/lib64|sbin|bin|usr/s?bin/ldconfig.*|etc/ld\.so\.conf.*|(usr/)?(local/)?lib(64)?/.*\.so[^/]*|usr/lib/ld-linux.*)$"
    )
    blob = Blob(ctx.blobs.path(layer.digest), layer.size, layer.media_type)
    with open_layer(blob) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if wanted.match(member.name.removeprefix("./")) and not member.isdev():
                extract(tar, member, root)


def _elf_headers(entry: Entry, target: Path) -> None:
    """What ldconfig reads of a library: its beginning, with the program headers and names, and its dynamic segment.

    The rest (gigabytes of code for GPUs) becomes a hole in the file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.content is None:
        return
    with entry.content() as source, target.open("wb") as file:
        head = source.read(_ELF_HEAD)
        file.write(head)
        position = len(head)
        for start, size in _dynamic_segments(head):
            if start + size <= position:
                continue
            while position < start and (skipped := len(source.read(min(1 << 20, start - position)))):
                position += skipped
            file.seek(position)
            position += file.write(source.read(start + size - position))
        file.truncate(max(entry.size, position))


def _dynamic_segments(head: bytes) -> list[tuple[int, int]]:
    """(offset, bytes) of PT_DYNAMIC and what follows it in the file, by the program headers of a 64-bit library."""
    if head[:5] != b"\x7fELF\x02":
        return []
    offset, width, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    found = []
    for number in range(count):
        kind, _, at, _, _, size = struct.unpack_from("<IIQQQQ", head, offset + number * width)
        if kind == 2:  # PT_DYNAMIC
            found.append((at, size))
    return sorted(found)


def _run_ldconfig(root: Path, folders: Sequence[str]) -> Path:
    program = next(
        (
            path
            for path in (
                root / "usr/sbin/ldconfig.real",
                root / "usr/sbin/ldconfig",
                root / "sbin/ldconfig.real",
                root / "sbin/ldconfig",
            )
            if path.is_file()
        ),
        None,
    )
    if program is None:
        raise MyriadError("the base has no ldconfig, so its loader cannot be told of CUDA's libraries")
    (root / "etc").mkdir(exist_ok=True)
    main = root / "etc/ld.so.conf"
    if not main.is_file():
        main.write_text("include /etc/ld.so.conf.d/*.conf\n", encoding="utf-8")
    # -X: links are the packages' business. -i: no auxiliary cache, which holds inode numbers and times.
    result = subprocess.run(
        [str(program), "-X", "-i", "-r", str(root)],
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    cache = root / "etc/ld.so.cache"
    if result.returncode != 0 or not cache.is_file():
        raise MyriadError(f"ldconfig failed: {result.stderr.strip()[-500:]}")
    data = cache.read_bytes()
    lost = [folder for folder in folders if f"/{folder}/".encode() not in data]
    if lost:
        raise MyriadError(f"ldconfig found no library in /{lost[0]}: {result.stderr.strip()[-500:]}")
    return cache
