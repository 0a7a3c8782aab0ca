"""`myriad image sign`: signatures as cosign makes them. Exit 0: signed, or holds; 1: wrong key; 2: does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from myriad.cli import _image_subject as subjects
from myriad.cli.output import console, emit_json
from myriad.errors import InputError
from myriad.images import signing
from myriad.images.proof_layout import open_image
from myriad.images.proof_pull import signature_tag


def add(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command(name="sign")
    def sign(
        target: Annotated[
            str | None, typer.Argument(metavar="LAYOUT|REF", help="A layout; with --check also registry/repo:tag.")
        ] = None,
        key: Annotated[Path | None, typer.Option(help="Private key (PEM, P-256); COSIGN_PASSWORD opens it.")] = None,
        check: Annotated[
            Path | None, typer.Option(metavar="PUBLIC_KEY", help="Check instead, with this public key.")
        ] = None,
        new_key: Annotated[
            Path | None, typer.Option(metavar="DIR", help="Make cosign.key and cosign.pub in DIR.")
        ] = None,
        reference: Annotated[
            str, typer.Option(help="The name to sign it under, or that it must be signed under.")
        ] = "",
        annotation: Annotated[
            list[str] | None, typer.Option("-a", metavar="KEY=VALUE", help="Add to the signature.")
        ] = None,
        ref: subjects.RefOption = "",
        ca: subjects.CaOption = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        """Sign an image of a layout with a key file, or check a signature; `cosign verify --key` reads the same."""
        if sum(one is not None for one in (key, check, new_key)) != 1:
            raise InputError(
                "say one of --key, --check and --new-key", hint="--key signs, --check checks, --new-key makes a pair"
            )
        if new_key is not None:
            private, public = signing.generate(new_key)
            if as_json:
                emit_json({"private": str(private), "public": str(public)})
            else:
                console.print(
                    f"{private}  keep it secret: whoever has it can sign\n{public}  for those who check", markup=False
                )
            return
        if target is None:
            raise InputError("say which image", hint="myriad image sign LAYOUT --key cosign.key")
        if check is not None:
            held = signing.verify(target, check, ref=ref, ca=ca, reference=reference)
            if as_json:
                emit_json(
                    {"digest": held.digest, "reference": held.reference, "annotations": held.annotations, "ok": True}
                )
            else:
                console.print(f"{held.digest} is signed by {check}, as {held.reference}", markup=False)
            return
        if key is None:
            return
        if not Path(target).is_dir():
            raise InputError("a layout on disk is signed, and the push takes the signature along", where=target)
        image = open_image(Path(target), ref)
        signature = signing.sign(image, key, reference=reference, annotations=_pairs(annotation or ()))
        if as_json:
            emit_json({"digest": image.digest, "signature": signature, "tag": signature_tag(image.digest)})
        else:
            console.print(f"{image.digest} signed\n{signature}  {signature_tag(image.digest)}", markup=False)


def _pairs(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InputError(f"-a {one}", hint="write -a KEY=VALUE, as commit=abc123")
        found[name] = value
    return found
