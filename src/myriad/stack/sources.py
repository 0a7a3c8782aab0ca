"""Which source gives each artifact: decided before anything is downloaded, built or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from myriad.stack.lock import OPEN, Arch, Component, Kind, Lock, ModuleSource, ReleaseFile, UpstreamImage

SourceMode = Literal["auto", "release", "modules"]
Unreachable = Callable[[str], "str | None"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The source of one artifact. Exactly one of `release`, `module`, or neither (`how` tells which) is set.

    Attributes:
        how: `release`, `module`, `package` or `local`.
        release: key of the release file, when how is `release`.
        module: the module, when how is `module`.
        fallback: what to use when the release turns out not to be had; None when nothing else gives it.
        why: why a release was not taken, in words; "" when it was.
    """

    artifact: str
    component: str
    kind: Kind
    how: Literal["release", "module", "package", "local"]
    release: str | None = None
    module: ModuleSource | None = None
    fallback: Choice | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a build will do.

    Attributes:
        choices: one per artifact that will be in the bundle.
        images: (component, repo) of the images to take from a registry.
        left_out: optional component -> why.
        refused: required artifact -> why it cannot be had; a build with any of these does not start.
    """

    choices: list[Choice] = field(default_factory=list)
    images: list[tuple[str, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def release_url(component: Component, key: str, *, arch: str) -> str:
    """The URL of a release file for an architecture."""
    return component.sources.release[key].url.format(version=component.version, arch=arch)


def origins(components: Mapping[str, Component], *, arch: str) -> list[str]:
    """The URLs of all releases and images of these components, as `plan_sources` asks about them."""
    urls = []
    for component in components.values():
        urls += [release_url(component, key, arch=arch) for key in component.sources.release]
        urls += [f"oci://{image.ref.format(version=component.version)}" for image in component.upstream_images.values()]
    return urls


def release_gives(key: str, file: ReleaseFile) -> list[str]:
    """The artifacts that a release file gives."""
    return list(file.members) or [file.gives or key]


def selected(lock: Lock, *, only: set[str] | None, also: set[str]) -> dict[str, Component]:
    """The components to build: all but those on request, or those named by `only`; `also` adds to either."""
    for name in (only or set()) | also:
        lock.component(name)
    return {
        name: component
        for name, component in lock.components.items()
        if name in also or (name in only if only is not None else not component.on_request)
    }


def plan_sources(
    lock: Lock,
    components: dict[str, Component],
    *,
    mode: SourceMode,
    arch: str,
    unreachable: Unreachable,
) -> Plan:
    """Choose a source for every artifact.

    Args:
        lock: the lock, for names in messages only.
        components: what to build.
        mode: `auto`: a release that is reachable and pinned, else a module, package or own source. `release`: releases
            only. `modules`: never a release, unless nothing else gives an optional artifact.
        arch: `amd64` or `arm64`.
        unreachable: URL (`oci://host/repo:tag` for an image) -> why its host is not reachable, or None when it is.
    """
    plan = Plan()
    for name, component in components.items():
        reasons: dict[str, str] = {}
        choices = []
        images = _images(component, mode)
        replaced = {image.replaces for image in images.values()}
        for artifact, kind in component.artifacts.items():
            if artifact in replaced:
                continue
            choice = _choose(name, component, artifact, kind, mode, cast(Arch, arch), unreachable)
            if isinstance(choice, str):
                reasons[artifact] = choice
            else:
                choices.append(choice)
        for repo, image in images.items():
            ref = image.ref.format(version=component.version)
            reason = unreachable(f"oci://{ref}")
            if reason is not None:
                reasons[repo] = f"in no bundle, and no registry answers: {reason}"
            elif image.sha256.get(cast(Arch, arch), OPEN) == OPEN:
                reasons[repo] = f"{ref} is reachable, but not pinned: record it with `myriad lock pin {name}`"
        if reasons and component.optional:
            plan.left_out[name] = f"left out: {next(iter(reasons.values()))}"
        else:
            plan.choices.extend(choices)
            plan.refused.update(reasons)
            plan.images.extend((name, repo) for repo in images if repo not in reasons)
    return plan


def _images(component: Component, mode: SourceMode) -> dict[str, UpstreamImage]:
    """The images to take from a registry: one that replaces a binary only where releases alone are asked for."""
    return {
        repo: image for repo, image in component.upstream_images.items() if image.replaces is None or mode == "release"
    }


def _choose(
    name: str, component: Component, artifact: str, kind: Kind, mode: SourceMode, arch: Arch, unreachable: Unreachable
) -> Choice | str:
    """The choice for one artifact, or why there is none."""
    other = _other_source(name, component, artifact, kind)
    released = _release_choice(name, component, artifact, kind, arch, unreachable)
    if mode == "modules":
        if other is not None:
            return other
        return "no Go module, package or own source gives it, and --source modules uses no release"
    if isinstance(released, Choice):
        if mode == "auto" and other is not None:
            return Choice(**(vars(released) | {"fallback": other}))
        return released
    if mode == "release":
        # Own source has no release; it is built in every mode.
        return other if other is not None and other.how == "local" else released
    if other is None:
        return released
    return Choice(**(vars(other) | {"why": released}))


def _release_choice(
    name: str, component: Component, artifact: str, kind: Kind, arch: Arch, unreachable: Unreachable
) -> Choice | str:
    for key, file in component.sources.release.items():
        if artifact not in release_gives(key, file):
            continue
        pin = file.sha256.get(arch)
        if pin is None:
            return f"the lock names no release of it for {arch}"
        url = release_url(component, key, arch=arch)
        reason = unreachable(url)
        if reason is not None:
            return f"in no bundle, and no release host answers: {reason}"
        if pin == OPEN:
            return f"{url} is reachable, but not pinned: record its checksum with `myriad lock pin {name}`"
        return Choice(artifact=artifact, component=name, kind=kind, how="release", release=key)
    return "the lock names no release of it"


def _other_source(name: str, component: Component, artifact: str, kind: Kind) -> Choice | None:
    sources = component.sources
    if sources.local is not None and sources.local.artifact == artifact:
        return Choice(artifact=artifact, component=name, kind=kind, how="local")
    for module in sources.modules:
        if artifact in module.packages or artifact in module.folders:
            return Choice(artifact=artifact, component=name, kind=kind, how="module", module=module)
    if sources.package is not None and artifact in sources.package.members:
        return Choice(artifact=artifact, component=name, kind=kind, how="package")
    return None
