"""`myriad image node`: node images, built, read, booted and compared."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError, MyriadError
from myriad.fleet.names import did_you_mean
from myriad.nodeimage.definition import NodeImage, load_node_image
from myriad.stack.bundle import Bundle

NameArgument = Annotated[str, typer.Argument(help="A folder of images/ with a node image, or its path.")]
ImagesOption = Annotated[Path, typer.Option("--images", help="Folder with the images' definitions.")]
BundleOption = Annotated[
    Path | None,
    typer.Option("--bundle", help="The bundle whose programs and images go in; by default that of the lock."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def add(app: typer.Typer) -> None:
    """Add the group."""
    node = typer.Typer(no_args_is_help=True, help="Node images: a disk with the install half of the roles.")
    node.command("build")(build_)
    node.command("template")(template_)
    node.command("manifest")(manifest_)
    node.command("diff")(diff_)
    node.command("boot")(boot_)
    app.add_typer(node, name="node")


def build_(
    name: NameArgument,
    out: Annotated[Path, typer.Option(help="Folder of the result: disk, manifest.json and logs.")],
    bundle: BundleOption = None,
    images: ImagesOption = Path("images"),
    work: Annotated[
        Path | None, typer.Option(help="Folder for the tree and the disks while it runs; needs 12 GB.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the work folder as it is, to look at.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a node image with packer and check what came out. Needs root; no engine, no KVM."""
    from myriad.nodeimage.build import BuildStep, Request, build
    from myriad.stack.settings import read_settings

    folder, image = named(name, images)
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="myriad-node-", dir=work) as scratch:
        where = work if work is not None else Path(scratch)
        free = shutil.disk_usage(where).free
        wanted = image.disk.size_gb * 10**9 + 3 * 10**9
        if free < wanted:
            raise InputError(
                f"has {free / 1e9:.0f} GB free, the build needs {wanted / 1e9:.0f}",
                where=str(where),
                hint="--work names a folder on a larger disk",
            )

        def report(step: BuildStep) -> None:
            if as_json:
                return
            if step.seconds is not None:
                console.print(f"{step.stage:18} {step.seconds:6.1f} s", markup=False)
            elif step.text and err_console.is_terminal:
                err_console.print(f"  {step.text}"[: err_console.width], style="dim", markup=False)

        begun = time.monotonic()
        request = Request(
            image=image,
            folder=folder,
            bundle=the_bundle(bundle),
            out=out,
            cache=read_settings().cache,
            work=where,
            keep=keep,
            on_step=report,
        )
        built = build(request)
    manifest = built.manifest
    if as_json:
        emit_json(
            {
                "disk": str(built.disk),
                "size": built.size,
                "seconds": built.seconds,
                "kernel": manifest.kernel,
                "modules": [module.model_dump() for module in manifest.modules],
                "images": [one.model_dump() for one in manifest.images],
                "left_out": manifest.left_out,
                "files": [str(path) for path in built.files],
            }
        )
        return
    console.print(
        f"{built.disk}: {built.size / 1e6:,.0f} MB of {image.budget_mb:,} allowed, kernel {manifest.kernel}, "
        f"{len(manifest.packages)} packages, {len(manifest.images)} images pinned, {time.monotonic() - begun:.0f} s",
        markup=False,
    )
    for what, why in manifest.left_out.items():
        console.print(f"  without {what}: {why}", markup=False)


def template_(
    name: NameArgument,
    out: Annotated[Path, typer.Option(help="Folder for the template and its variables.")],
    bundle: BundleOption = None,
    images: ImagesOption = Path("images"),
    registry: Annotated[
        str, typer.Option(help="Address of the registry that holds the bundle, as the cloud's machine reaches it.")
    ] = "http://registry.example:5000",
    as_json: JsonOption = False,
) -> None:
    """Write the packer template of the cloud targets, ready for `packer build`."""
    import json

    from myriad.images.layer import SOURCE_DATE_EPOCH
    from myriad.nodeimage import packer
    from myriad.nodeimage.build import cloud_inputs
    from myriad.nodeimage.provision import Site, variables
    from myriad.nodeimage.template import render

    folder, image = named(name, images)
    if image.targets.names == ["qemu"]:
        raise InputError("describes no cloud under targets", where=str(folder / "image.yml"))
    out.mkdir(parents=True, exist_ok=True)
    extra = out / "variables.json"
    site = Site(the_bundle(bundle).directory, registry)
    extra.write_text(json.dumps(variables(image, site), indent=1), encoding="utf-8")
    path = out / "node.pkr.hcl"
    inputs = cloud_inputs(image, folder, extra.resolve(), SOURCE_DATE_EPOCH, packer.version())
    path.write_text(render(folder, image, inputs), encoding="utf-8")
    packer.validate(path, syntax_only=True)
    if as_json:
        emit_json({"template": str(path), "variables": str(extra), "targets": list(inputs.targets)})
        return
    console.print(f"{path}: {', '.join(inputs.targets)}", markup=False)
    console.print(f"next: packer build -only={inputs.targets[0]}.node {path}", markup=False)


def manifest_(
    image: Annotated[Path, typer.Argument(help="A folder that a build wrote, or its manifest.json.")],
    files: Annotated[bool, typer.Option("--files", help="List every file with its digest.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is in a node image: packages, programs, images, modules with their digests. Exit 2: hygiene is bad."""
    from myriad.nodeimage.manifest import load

    manifest = load(image)
    bad = manifest.findings()
    if as_json:
        value = manifest.model_dump(mode="json", exclude_defaults=True)
        if not files:
            value.pop("files", None)
        value["findings"] = [str(one) for one in bad]
        emit_json(value)
    else:
        kinds = Counter(entry.kind for entry in manifest.files.values())
        console.print(
            f"{manifest.name}: kernel {manifest.kernel}, {len(manifest.packages)} packages, "
            + ", ".join(f"{count:,} {kind} entries" for kind, count in sorted(kinds.items())),
            markup=False,
        )
        for module in manifest.modules:
            told = f"module   {Path(module.path).name} {module.version} for {module.vermagic}  sha256:{module.sha256}"
            console.print(told, markup=False)
        for path, digest in manifest.programs.items():
            console.print(f"program  {path}  sha256:{digest}", markup=False)
        for one in manifest.images:
            console.print(f"image    {one.ref}  {one.digest}", markup=False)
        for what, why in manifest.left_out.items():
            console.print(f"without  {what}: {why}", markup=False)
        for path, entry in manifest.files.items() if files else ():
            console.print(f"{entry.mode} {entry.owner} {path} {entry.sha256 or entry.target}", markup=False)
        for finding in bad:
            err_console.print(f"must not be there: {finding}", markup=False)
    if bad:
        raise typer.Exit(2)


def diff_(
    a: Annotated[Path, typer.Argument(help="A folder that a build wrote, or its manifest.json.")],
    b: Annotated[Path, typer.Argument(help="The other one.")],
    images: ImagesOption = Path("images"),
    as_json: JsonOption = False,
) -> None:
    """List what differs between two node images. Exit 0: nothing, or what image.yml explains; 2: something else."""
    from myriad.nodeimage.difference import compare
    from myriad.nodeimage.manifest import load

    one, other = load(a), load(b)
    explained: dict[str, str] = {}
    if one.name == other.name and (images / one.name / "image.yml").is_file():
        explained = load_node_image(images / one.name).explained
    found = compare(one, other, explained)
    if as_json:
        emit_json(found.as_dict())
    else:
        for kind, name, left, right in found.values:
            console.print(f"{kind:9} {name}: {left or 'not in A'} -> {right or 'not in B'}", markup=False)
        for file in found.files:
            console.print(f"{'file' if file.reason else 'FILE':9} {file.path}: {file.what}", markup=False)
        for reason in dict.fromkeys(file.reason for file in found.files if file.reason):
            console.print(f"explained  {reason}", markup=False)
        console.print(
            f"{len(one.files):,} and {len(other.files):,} paths: {len(found.files)} differ, "
            f"{len(found.unexplained)} of them without an explanation",
            markup=False,
        )
    if found.unexplained or found.values:
        raise typer.Exit(2)


def boot_(
    name: NameArgument,
    disk: Annotated[Path, typer.Argument(help="The folder that the build wrote, or its disk.")],
    bundle: BundleOption = None,
    images: ImagesOption = Path("images"),
    uefi: Annotated[bool, typer.Option("--uefi", help="Boot by UEFI firmware instead of BIOS.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Boot a node image in QEMU and prove it: ssh, kernel, module, runtime, images, the configure halves twice."""
    from myriad.nodeimage.proof import Proof, prove

    folder, image = named(name, images)
    file = disk / f"{image.name}.qcow2" if disk.is_dir() else disk
    if not file.is_file():
        raise InputError("there is no disk of this image", where=str(file), hint="myriad image node build makes one")
    with tempfile.TemporaryDirectory(prefix="myriad-boot-") as scratch:

        def report(proof: Proof) -> None:
            if not as_json:
                console.print(f"{'ok' if proof.ok else 'FAILED':7} {proof.what}: {proof.told}", markup=False)

        proofs = prove(image, folder, file, the_bundle(bundle), Path(scratch), uefi=uefi, on_proof=report)
    failed = [one for one in proofs if not one.ok]
    if as_json:
        emit_json({"ok": not failed, "proofs": [one.as_dict() for one in proofs]})
    if failed:
        first = failed[0]
        raise MyriadError(f"{len(failed)} of {len(proofs)} proofs failed: {first.what}: {first.told}", where=str(file))


def named(name: str, images: Path) -> tuple[Path, NodeImage]:
    """The folder and definition of a node image.

    Raises:
        InputError: there is none of this name.
    """
    folder = images / name if (images / name / "image.yml").is_file() else Path(name)
    if not (folder / "image.yml").is_file():
        known = sorted(path.parent.name for path in images.glob("node-*/image.yml"))
        raise InputError(
            f'there is no node image "{name}"{did_you_mean(name, known)}',
            where=str(images),
            hint="run it in a checkout of Myriad, or name the folder with --images",
        )
    return folder, load_node_image(folder)


def the_bundle(directory: Path | None) -> Bundle:
    """The bundle that is named, or that of this checkout's lock."""
    from myriad.cli.bundle import default_bundle_dir
    from myriad.stack.build import lock_digest
    from myriad.stack.lock import load_lock
    from myriad.stack.settings import read_settings

    return Bundle.load(directory or default_bundle_dir(read_settings(), lock_digest(load_lock(None))))
