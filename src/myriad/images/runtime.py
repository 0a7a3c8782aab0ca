"""A runtime image from its definition: base, packages, wheels, loader configuration, source and files, each a layer
from the cache or made now, side by side where there are cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from myriad.errors import InputError, MyriadError
from myriad.images.closure import needed_files
from myriad.images.compat import image_facts, require_cuda
from myriad.images.compat_require import VARIABLE as REQUIRE_CUDA
from myriad.images.context import BuildContext
from myriad.images.definition import ExternalBase, ImageDefinition, OwnBase, load_definition
from myriad.images.definition_errors import report
from myriad.images.external import Base, pull_base
from myriad.images.files import layer_of
from myriad.images.installed import BasePackages, of_layers, of_wheels, whiteouts
from myriad.images.layer import Entry, file_from_path
from myriad.images.oci import (
    BuiltImage,
    ImageConfig,
    Layer,
    recompress,
    write_image,
)
from myriad.images.plan import CHECK, Change, PlannedLayer, pin_problems, plan_layers, python_path
from myriad.images.python import Interpreter, debian_interpreter, external_interpreter, source_layer
from myriad.images.rootfs import build_base_layer, build_packages_layer, known_base_layer, known_packages_layer
from myriad.images.wheels import OpenWheel, Wheel
from myriad.images.wheels_layers import (
    contents_of,
    fetch_wheels,
    loader_layer,
    locked_wheels,
    opened,
    scheme_of,
    wheel_layer,
)
from myriad.stack.store import Store

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What the NVIDIA container runtime mounts of the driver. Which devices a pod sees is the device plugin's business: an
#: image that says "all" would show every GPU of the node to pods that asked for none.
_CAPABILITIES = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@dataclass(frozen=True)
class RuntimeImage:
    """A built image, with what it was made of.

    Attributes:
        built: its blobs.
        definition: its image.yml.
        plan: its layers as planned, with the sizes that they got.
        layers: its layers, lowest first.
        wheels: the wheels in it, those of its base included.
        base: what it stands on.
        root: the lowest layers, which hold the system: Debian's, or those of an external base.
    """

    built: BuiltImage
    definition: ImageDefinition
    plan: tuple[PlannedLayer, ...]
    layers: tuple[Layer, ...]
    wheels: tuple[Wheel, ...]
    base: Base
    root: tuple[Layer, ...]


def build_runtime(
    ctx: BuildContext, folder: Path, tag: str, *, definition: ImageDefinition | None = None
) -> RuntimeImage:
    """Build the image that `folder/image.yml` describes.

    Args:
        folder: the image's folder; own bases are its neighbours.
        tag: for its reference and its version label.
        definition: instead of the folder's image.yml, for a variant.

    Raises:
        InputError: image.yml, a lock or a file that it names is wrong.
        MyriadError: a wheel or package cannot be had, two parts write one path, or the image is over its budget.
    """
    definition = definition or load_definition(folder)
    below = _own_base(ctx, folder, definition, tag)
    if below is not None:
        definition = definition.model_copy(update={"python": below.definition.python})
    base = _base(ctx, definition, below)
    root = base.layers if below is None else below.root
    python = _Once(partial(_interpreter, ctx, definition, root))
    locked = locked_wheels(ctx, folder, definition)
    under = below.wheels if below is not None and locked else ()
    with opened(ctx, under, below.definition if below is not None else definition) as lower:
        there = _packages_below(ctx, definition, below, base, lower) if locked else BasePackages({})
        own = [one for one in locked if one.name not in there.found or there.differ(one.name, one.version)]
        kept = [one for one in under if one.name not in {each.name for each in own}]
        wheels = (*(kept if locked else below.wheels if below is not None else ()), *own)
        check_pins(folder, definition, wheels, below.definition.packages if below is not None else ())
        fetch_wheels(ctx, own)
        with opened(ctx, own, definition) as files:
            contents_of([*kept, *own], {**{one.name: lower[one.name] for one in kept}, **files})
            planned = plan_layers(definition, contents_of(own, files), below=below.plan if below is not None else ())
            if check_file().path in there.paths:  # an image of a registry that Myriad made
                planned = tuple(one for one in planned if one.below or one.change is not Change.TOOLS)
            written = frozenset(file.path for one in files.values() for file in one.files)
            hidden = {
                one.name: whiteouts(there.found[one.name], there, written) for one in own if one.name in there.found
            }
            parts = _Parts(folder, definition, root, files, [lower[one.name] for one in kept], hidden)
            made = _make(ctx, planned, parts, python.get)
    layers = (*base.layers, *made)
    if definition.compression == "gzip":
        layers = tuple(
            ctx.cached_layer("gzip", {"layer": one.digest}, partial(recompress, ctx.blobs, one, "gzip"))
            for one in layers
        )
    image = write_image(
        ctx.blobs,
        ref=f"{definition.repo}:{tag}",
        layers=layers,
        config=_config(folder, definition, planned, base, below, tag),
        epoch=ctx.epoch,
    )
    _check_budget(image, layers, budget=definition.budget_mb * 10**6, where=folder / "image.yml")
    return RuntimeImage(image, definition, _measured(planned, base, layers), layers, wheels, base, root)


def _packages_below(
    ctx: BuildContext, definition: ImageDefinition, below: RuntimeImage | None, base: Base, lower: dict[str, OpenWheel]
) -> BasePackages:
    """The Python packages of what an image stands on."""
    if below is not None:
        scheme = scheme_of(below.definition)
        packages = of_wheels(lower.values(), scheme.site, scheme.python)
        if not isinstance(below.definition.base, ExternalBase):
            return packages
        upper = of_layers(ctx, base.layers)
        return BasePackages({**upper.found, **packages.found}, upper.paths | packages.paths)
    return of_layers(ctx, base.layers) if isinstance(definition.base, ExternalBase) else BasePackages({})


@dataclass(frozen=True)
class _Parts:
    """What the layers above the base are made from.

    Attributes:
        folder, definition: the image.
        root: the lowest layers, with the system.
        files: its wheels, opened.
        lower: those of its own base, opened.
        hidden: by wheel, the entries that hide an older release of it in the base.
    """

    folder: Path
    definition: ImageDefinition
    root: tuple[Layer, ...]
    files: dict[str, OpenWheel]
    lower: Sequence[OpenWheel]
    hidden: Mapping[str, Sequence[Entry]]


def plan_image(ctx: BuildContext, folder: Path, definition: ImageDefinition) -> tuple[PlannedLayer, ...]:
    """The layers that a build would make, with what is known of their sizes. Builds and fetches nothing.

    Sizes come from the layer cache, from wheels in the store, and from the lock.

    Raises:
        InputError: image.yml, a lock or a pin is wrong.
    """
    below: tuple[PlannedLayer, ...] = ()
    lower: ImageDefinition | None = None
    lower_wheels: list[Wheel] = []
    if isinstance(definition.base, OwnBase):
        neighbour = _lowest_checked(folder, definition)
        lower = load_definition(neighbour)
        below = plan_image(ctx, neighbour, lower)
        lower_wheels = [wheel for layer in below for wheel in layer.wheels]
        definition = definition.model_copy(update={"python": lower.python})
    wheels = locked_wheels(ctx, folder, definition)
    check_pins(folder, definition, [*lower_wheels, *wheels], lower.packages if lower is not None else ())
    store = Store(ctx.store)
    with opened(ctx, [wheel for wheel in wheels if store.has(wheel.sha256)], definition) as files:
        contents = contents_of(wheels, files)
    sizes = {
        Change.FILES: _file_sizes(own_files(folder, definition)),
        Change.TOOLS: _file_sizes([check_file()]),
    }
    if definition.source is not None:
        root = ctx.repository / "src"
        found = [(root / path).stat().st_size for path in needed_files(root, definition.source.modules)]
        # Source and its bytecode, which is about as large.
        sizes[Change.SOURCE] = (sum(found) // 2, 2 * sum(found))
    base = known_base_layer(ctx)
    if base is not None:
        sizes[Change.SYSTEM] = (base.size, base.tar_size)
        if definition.packages and (more := known_packages_layer(ctx, base, definition.packages)) is not None:
            sizes[Change.PACKAGES] = (more.size, more.tar_size)
    return plan_layers(definition, contents, below=below, sizes=sizes)


def _file_sizes(entries: Sequence[Entry]) -> tuple[int, int]:
    size = sum(entry.size for entry in entries)
    return (size // 2 + 200, size + 1024 * (len(entries) + 1)) if entries else (0, 0)


class _Once:
    """A value that is made when it is first asked for, by one thread."""

    def __init__(self, make: Callable[[], Interpreter]) -> None:
        self._make, self._value, self._lock = make, cast("Interpreter | None", None), threading.Lock()

    def get(self) -> Interpreter:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value


def _own_base(ctx: BuildContext, folder: Path, definition: ImageDefinition, tag: str) -> RuntimeImage | None:
    if not isinstance(definition.base, OwnBase):
        return None
    return build_runtime(ctx, _lowest_checked(folder, definition), tag)


def _lowest_checked(folder: Path, definition: ImageDefinition) -> Path:
    """The folder of an own base, after all bases below it were looked at.

    Raises:
        InputError: one of them does not exist, or they go round in a circle.
    """
    seen = [folder.resolve()]
    current, at = definition, folder
    while isinstance(current.base, OwnBase):
        lower = at.parent / current.base.name
        if not (lower / "image.yml").is_file():
            raise InputError(
                f'base.name is "{current.base.name}", but there is no {lower}/image.yml', where=str(at / "image.yml")
            )
        if lower.resolve() in seen:
            names = " on ".join(one.name for one in seen)
            raise InputError(f"base: {names} on {lower.name} goes round in a circle", where=str(folder / "image.yml"))
        seen.append(lower.resolve())
        current, at = load_definition(lower), lower
    return seen[1]


def check_pins(
    folder: Path, definition: ImageDefinition, wheels: Sequence[Wheel], packages: Sequence[str] = ()
) -> None:
    """Raises InputError where a pin is met by nothing that the image installs.

    Args:
        packages: Debian packages of the base, which pins may name as well.
    """
    known = definition.model_copy(update={"packages": (*packages, *definition.packages)})
    problems = pin_problems(known, wheels)
    if problems:
        raise InputError(report(problems), where=str(folder / "image.yml"), hint="nothing was built")


def _base(ctx: BuildContext, definition: ImageDefinition, below: RuntimeImage | None) -> Base:
    if below is not None:
        return Base(below.layers, below.built.ref, below.built.manifest_digest, below.base.env)
    if isinstance(definition.base, ExternalBase):
        return pull_base(ctx, definition.base.image)
    return Base((build_base_layer(ctx),))


def _interpreter(ctx: BuildContext, definition: ImageDefinition, root: tuple[Layer, ...]) -> Interpreter:
    if definition.python is not None:
        return external_interpreter(ctx, root, definition.python)
    return debian_interpreter(ctx, root[0])


def _make(
    ctx: BuildContext, planned: Sequence[PlannedLayer], parts: _Parts, python: Callable[[], Interpreter]
) -> list[Layer]:
    """The layers above the base, in order; made side by side, the largest first."""
    tasks: list[Callable[[], Layer]] = []
    order: list[tuple[int, int]] = []
    folder, definition, wheels = parts.folder, parts.definition, parts.definition.wheels
    scheme, exclude = scheme_of(definition), wheels.exclude if wheels is not None else ()
    for one in planned:
        if one.below or one.change is Change.SYSTEM:
            continue
        if one.change is Change.PACKAGES:
            task: Callable[[], Layer] = partial(build_packages_layer, ctx, parts.root[0], definition.packages)
        elif one.change is Change.LOADER:
            task = partial(loader_layer, ctx, parts.root, [*parts.lower, *parts.files.values()])
        elif one.change is Change.TOOLS:
            task = partial(layer_of, ctx, CHECK, [check_file()], comment=CHECK)
        elif one.change is Change.SOURCE and definition.source is not None:
            task = partial(source_layer, ctx, python, definition.source)
        elif one.change is Change.FILES:
            task = partial(layer_of, ctx, folder.name, own_files(folder, definition), comment=f"files of {folder.name}")
        else:
            first = one.part is None or one.part[0] == 1 or len(one.wheels) > 1
            hidden = [entry for wheel in one.wheels for entry in parts.hidden.get(wheel.name, ())] if first else []
            task = partial(wheel_layer, ctx, one, parts.files, python, scheme=scheme, exclude=exclude, hidden=hidden)
        order.append((-one.size, len(tasks)))
        tasks.append(task)
    made: dict[int, Layer] = {}
    with ThreadPoolExecutor(max_workers=max(1, min(os.cpu_count() or 1, 8))) as pool:
        futures = {number: pool.submit(tasks[number]) for _, number in sorted(order)}
        try:
            for number, future in futures.items():
                made[number] = future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [made[number] for number in range(len(tasks))]


def own_files(folder: Path, definition: ImageDefinition) -> list[Entry]:
    """The files of an image's folder as entries."""
    entries = []
    for file in definition.files:
        source = folder / file.source
        if not source.is_file():
            raise InputError(f"files: {file.source} is missing", where=str(folder / "image.yml"))
        entries.append(file_from_path(file.target, source, mode=int(file.mode, 8)))
    return entries


def check_file() -> Entry:
    """gpu-check, as every image for workloads has it."""
    return file_from_path(f"usr/local/bin/{CHECK}", Path(__file__).parent / "data" / "gpu_check.py", mode=0o755)


def _config(
    folder: Path,
    definition: ImageDefinition,
    planned: Sequence[PlannedLayer],
    base: Base,
    below: RuntimeImage | None,
    tag: str,
) -> ImageConfig:
    env = {"PATH": PATH, "LANG": "C.UTF-8", **(base.env or {}), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if below is not None:
        env |= below.definition.env
    if search_path := python_path(planned):
        env["PYTHONPATH"] = search_path
    gpu = definition if definition.gpu is not None or below is None else below.definition
    if gpu.gpu is not None:
        env |= {**_CAPABILITIES, REQUIRE_CUDA: _require(folder.name, gpu)}
    labels = {"org.opencontainers.image.title": definition.title, "org.opencontainers.image.version": tag}
    if base.digest:
        labels |= {"org.opencontainers.image.base.name": base.name, "org.opencontainers.image.base.digest": base.digest}
    inherited = below.definition.labels if below is not None else base.labels or {}
    return ImageConfig(
        entrypoint=definition.entrypoint,
        command=definition.command,
        env={**env, **definition.env},
        user=definition.user,
        working_dir=definition.working_dir or "",
        labels={**inherited, **labels, **definition.labels},
    )


def _require(name: str, definition: ImageDefinition) -> str:
    """NVIDIA_REQUIRE_CUDA, from what the image really needs."""
    try:
        return require_cuda(image_facts(definition, name, python=definition.python_version))
    except ValueError as error:
        raise InputError(str(error), where=f"images/{name}/image.yml: gpu") from error


def _measured(planned: Sequence[PlannedLayer], base: Base, layers: Sequence[Layer]) -> tuple[PlannedLayer, ...]:
    """The plan with the sizes that its layers got. An external base is one line of the plan and several layers."""
    own = [one for one in planned if not (one.below or one.change is Change.SYSTEM)]
    lower = [one for one in planned if one.below or one.change is Change.SYSTEM]
    if len(lower) != len(base.layers):
        size, tar_size = sum(one.size for one in base.layers), sum(one.tar_size for one in base.layers)
        lower = [replace(lower[0], size=size, tar_size=tar_size, known="built")]
        measured = list(lower)
    else:
        measured = [_sized(one, layer) for one, layer in zip(lower, layers, strict=False)]
    measured += [_sized(one, layer) for one, layer in zip(own, layers[len(base.layers) :], strict=True)]
    return tuple(measured)


def _sized(planned: PlannedLayer, layer: Layer) -> PlannedLayer:
    return replace(planned, size=layer.size, tar_size=layer.tar_size, known="built")


def _check_budget(image: BuiltImage, layers: Sequence[Layer], *, budget: int, where: Path) -> None:
    if image.size > budget:
        sizes = ", ".join(f"{layer.comment} {layer.size:,}" for layer in layers)
        raise MyriadError(
            f"{image.ref} is {image.size:,} bytes, {image.size - budget:,} over its budget_mb ({sizes})",
            where=str(where),
            hint="leave files out by wheels.exclude, or raise budget_mb and say why",
        )
