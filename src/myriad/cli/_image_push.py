"""`myriad image push`: an image and the documents attached to it into a registry; prints the reference by digest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_shared as shared
from myriad.cli._image_source import PASSWORD, USER, layout_of, registry_for
from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError
from myriad.images.context import BuildEvent
from myriad.images.oci import Layout
from myriad.images.refs import Ref, parse_ref
from myriad.images.registry import Pushed


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="push")
    def push(
        name: Annotated[
            str, typer.Argument(metavar="NAME|LAYOUT", help="An image of images/, or a folder from build --out.")
        ],
        to: Annotated[str, typer.Option(help="registry[:port]/repository[:tag]; http:// before it without TLS.")],
        ref: Annotated[str, typer.Option("--ref", help="Which image, where a layout holds several.")] = "",
        tag: shared.TagOption = "",
        ca: shared.CaOption = None,
        images: shared.ImagesOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Push an image. Only what the registry lacks is sent."""
        begun = time.monotonic()
        with layout_of(name, images=images, tag=tag, as_json=False) as layout:
            target, pushed = push_to(layout, to, ref=ref, ca=ca)
        if as_json:
            emit_json(
                {
                    "ref": target,
                    "digest": pushed.digest,
                    "sent": pushed.sent,
                    "sent_bytes": pushed.sent_bytes,
                    "mounted": pushed.mounted,
                    "present": pushed.present,
                    "documents": pushed.documents,
                    "seconds": round(time.monotonic() - begun, 2),
                }
            )
            return
        told(pushed, time.monotonic() - begun)
        console.print(target, markup=False)


def target_of(to: str) -> Ref:
    """Where `--to` leads. Asked before anything is built.

    Raises:
        InputError: it is no place in a registry.
    """
    scheme, separator, rest = to.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise InputError(f"--to {to}: a registry is reached by http or https, not {scheme}")
    if "/" not in rest:
        raise InputError(f"--to {to} names no repository", hint=f"for example {to}/team/image:1.0")
    parsed = parse_ref(rest)
    if parsed.digest:
        raise InputError(f"--to {to} names a digest, which follows from the image", hint="give a tag, or nothing")
    if ("." not in parsed.host and ":" not in parsed.host and parsed.host != "localhost") or parsed.host == "docker.io":
        raise InputError(f"--to {to} names no registry", hint="write registry.example.com/team/image")
    return parsed


def push_to(
    layout: Layout, to: str, *, ref: str = "", ca: Path | None = None, mount_from: str = ""
) -> tuple[str, Pushed]:
    """Push a layout's image. Returns its reference by digest, ready for a pod, and what was done.

    Raises:
        InputError: `to` is no place in a registry.
        RegistryUnreachableError, RegistryDeniedError, RegistryError.
    """
    scheme, separator, _ = to.rpartition("://")
    parsed = target_of(to)
    with registry_for(f"{scheme}{separator}{parsed.host}", ca) as registry, shared.progress(False) as show:

        def sent(digest: str, done: int, total: int) -> None:
            step = f"sending {digest[:19]}"
            if done <= 1 << 20:
                show(BuildEvent(step, "started", total=total))
            show(BuildEvent(step, "finished" if done >= total else "progress", size=done, total=total))

        pushed = registry.push_layout(layout, parsed.repo, parsed.tag, ref=ref, mount_from=mount_from, on_bytes=sent)
    return f"{parsed.host}/{parsed.repo}@{pushed.digest}", pushed


def told(pushed: Pushed, seconds: float) -> None:
    """One line on what a push did."""
    parts = [f"{len(pushed.sent)} blobs sent ({shared.megabytes(pushed.sent_bytes)})"]
    if pushed.mounted:
        parts.append(f"{len(pushed.mounted)} taken over from another repository")
    parts.append(f"{pushed.present} were there")
    if pushed.documents:
        parts.append(f"with {len(pushed.documents)} attached documents")
    err_console.print(f"{', '.join(parts)}, {shared.listed_seconds(seconds)}", markup=False)


__all__ = ["PASSWORD", "USER", "add", "push_to", "target_of", "told"]
