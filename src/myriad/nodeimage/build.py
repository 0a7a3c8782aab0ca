"""Builds a node image: a tree, a disk, a boot by packer, a seal, and a manifest of what came out."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from myriad.errors import MyriadError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.layer import SOURCE_DATE_EPOCH
from myriad.images.rootfs import NODE, Recipe, build_node_rootfs
from myriad.nodeimage import disk, hygiene, packer, seed, store
from myriad.nodeimage.chroot import forbid_services, run_in_tree
from myriad.nodeimage.contents import build_manifest
from myriad.nodeimage.definition import NodeImage
from myriad.nodeimage.guest import accelerator
from myriad.nodeimage.manifest import MANIFEST, NodeManifest, Stored, save
from myriad.nodeimage.provision import Site, provision_tree, repository_of
from myriad.nodeimage.template import CloudFiles, Inputs, QemuFiles, render
from myriad.nodeimage.tools import need, need_root, run
from myriad.stack.bundle import Bundle
from myriad.stack.serve import BundleServer

PROGRAMS = ("mmdebstrap", "mke2fs", "sfdisk", "mkfs.vfat", "mcopy", "packer", "qemu-img", "qemu-system-x86_64")
_BOOT_PACKAGES = ("initramfs-tools", "grub-pc-bin", "grub-efi-amd64-bin", "grub2-common")
_UNITS_ON = ("systemd-networkd.service", "systemd-resolved.service", "ssh.service")
_UNITS_MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer")


@dataclass(frozen=True)
class BuildStep:
    """Something that happened: the stage, what, and how long the stage took when it is over."""

    stage: str
    text: str
    seconds: float | None = None


OnStep = Callable[[BuildStep], None]


@dataclass(frozen=True)
class Request:
    """What to build, and where.

    Attributes:
        image: the definition, and `folder` where it stands.
        bundle: the bundle whose programs and images go in.
        out: folder of the result.
        cache: what makes a repeated build faster: root file systems, packages; may be deleted.
        work: folder for the tree and disks while it runs; emptied afterwards unless `keep`.
    """

    image: NodeImage
    folder: Path
    bundle: Bundle
    out: Path
    cache: Path
    work: Path
    keep: bool = False
    epoch: int = SOURCE_DATE_EPOCH
    on_step: OnStep = lambda step: None


@dataclass
class Built:
    """What a build made.

    Attributes:
        disk: the image's disk.
        size: its bytes.
        seconds: by stage.
        files: further formats.
    """

    disk: Path
    size: int
    manifest: NodeManifest
    seconds: dict[str, float] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def recipe(image: NodeImage) -> Recipe:
    """What is installed before the roles: a bootable Debian with the image's kernel and its headers."""
    kernel = (f"linux-image-{image.kernel}", f"linux-headers-{image.kernel}")
    return replace(NODE, name=image.name, packages=(*NODE.packages, *kernel, *_BOOT_PACKAGES, *image.packages))


def build(request: Request) -> Built:
    """Build the qemu target and its manifest.

    Raises:
        InputError: programs, rights or the definition are not there.
        MyriadError: a stage failed; with its name, the cause and what to do.
    """
    need(PROGRAMS)
    need_root("building a node image")
    return _Build(request).run()


class _Build:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.image = request.image
        self.work = request.work.resolve()
        self.logs = request.out.resolve() / "logs"
        self.tree = self.work / "tree"
        self.seconds: dict[str, float] = {}
        self.identity = disk.Identity(f"{self.image.name}/{self.image.kernel}/{request.epoch}")

    def run(self) -> Built:
        request = self.request
        request.out.mkdir(parents=True, exist_ok=True)
        self._empty()
        try:
            with self._stage("root file system"):
                archive = self._root_file_system()
            with self._stage("unpack"):
                self._unpack(archive)
            with BundleServer(request.bundle) as server:
                site = Site(request.bundle.directory, server.url("127.0.0.1"))
                with self._stage("roles"):
                    self._roles(site)
                with self._stage("images"):
                    self._images(site)
            with self._stage("disk"):
                source = self._disk()
            with self._stage("packer"):
                result = self._packer(source)
            with self._stage("manifest"):
                return self._finish(result)
        finally:
            if not request.keep:
                self._empty()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        self._say(name, "")
        try:
            yield
        except MyriadError as error:
            error.message = f"{name}: {error.message}"
            raise
        self.seconds[name] = round(time.monotonic() - begun, 1)
        self.request.on_step(BuildStep(name, "done", self.seconds[name]))

    def _say(self, stage: str, text: str) -> None:
        self.request.on_step(BuildStep(stage, text))

    def _empty(self) -> None:
        for path in (self.tree, self.work / "packer", self.work / "read"):
            shutil.rmtree(path, ignore_errors=True)
        for name in ("disk.raw", "seed.img", "node.pkr.hcl"):
            (self.work / name).unlink(missing_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)

    # --- the tree --------------------------------------------------------------------------------------------------

    def _root_file_system(self) -> Path:
        def tell(event: BuildEvent) -> None:
            if event.detail:
                self._say("root file system", f"{event.state} {event.detail}")

        cache = self.request.cache
        context = BuildContext(
            store=cache / "store", cache_dir=cache / "images", epoch=self.request.epoch, on_event=tell
        )
        return build_node_rootfs(context, recipe(self.image)).path

    def _unpack(self, archive: Path) -> None:
        self.tree.mkdir(parents=True)
        command = ["tar", "--extract", "--numeric-owner", "--same-permissions", "--directory", self.tree]
        run([*command, "--file", archive], what="the root file system could not be unpacked")
        files = self.request.folder / "files"
        if files.is_dir():
            _overlay(files, self.tree)
        forbid_services(self.tree)
        for verb, units in (("enable", _UNITS_ON), ("mask", _UNITS_MASKED)):
            command = ["systemctl", verb, *units]
            run_in_tree(self.tree, command, what=f"systemctl {verb} failed", epoch=self.request.epoch)

    def _roles(self, site: Site) -> None:
        debs = self.request.cache / "images" / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "update"]
        run_in_tree(
            self.tree,
            command,
            what="the package lists could not be fetched",
            epoch=self.request.epoch,
            log=self.logs / "apt.log",
        )
        provision_tree(
            self.image,
            self.request.folder,
            self.tree,
            site,
            epoch=self.request.epoch,
            log=self.logs / "roles.log",
            apt_cache=debs,
            on_line=lambda line: self._say("roles", line),
        )

    def _images(self, site: Site) -> None:
        if self.image.images:
            store.fill(
                self.tree,
                site.registry,
                [store.StoredImage(one.ref, one.digest) for one in self._stored()],
                epoch=self.request.epoch,
                log=self.logs / "images.log",
                on_line=lambda line: self._say("images", line),
            )

    def _stored(self) -> list[Stored]:
        entries = [self.request.bundle.image(name) for name in self.image.images]
        return [Stored(ref=entry.ref, digest=entry.digest) for entry in entries]

    # --- the disk --------------------------------------------------------------------------------------------------

    def _disk(self) -> Path:
        epoch = self.request.epoch
        disk.boot_files(self.tree, self.image.kernel, self.image.title, self.identity, epoch)
        hygiene.seal(self.tree, epoch)
        raw = self.work / "disk.raw"
        disk.assemble(
            self.tree,
            raw,
            size_gb=self.image.disk.size_gb,
            identity=self.identity,
            epoch=epoch,
            on_step=lambda text: self._say("disk", text),
        )
        shutil.rmtree(self.tree)
        return raw

    # --- packer ----------------------------------------------------------------------------------------------------

    def _packer(self, source: Path) -> Path:
        key = seed.make_key(self.work / "packer" / "key")
        seed.write_seed(self.work / "seed.img", name=self.image.name, public=key.public)
        console = self.logs / "console.log"
        console.parent.mkdir(parents=True, exist_ok=True)
        console.unlink(missing_ok=True)
        output = self.work / "packer" / "out"
        chosen = accelerator(self.image.targets.qemu.accelerator)
        self._say("packer", f"accelerator {chosen}")
        template = self.work / "node.pkr.hcl"
        files = QemuFiles(
            disk=source,
            output=output,
            key=key.private,
            accelerator=chosen,
            packer_manifest=self.work / "packer" / "manifest.json",
            arguments=qemu_arguments(self.image.name, output, self.work / "seed.img", console),
        )
        inputs = Inputs(
            targets=["qemu"],
            packer_version=packer.version(),
            epoch=self.request.epoch,
            stamp=self.stamp(),
            check=(self.request.folder / "check.sh").resolve(),
            hygiene=Path(hygiene.__file__).resolve(),
            qemu=files,
        )
        template.write_text(render(self.request.folder, self.image, inputs), encoding="utf-8")
        packer.validate(template)
        packer.build(
            template,
            target="qemu.node",
            deadlines=self.image.deadlines_s,
            on_event=lambda stage, event: self._say("packer", f"{stage}: {event.text}") if event.text.strip() else None,
            log=self.logs / "packer.log",
            console=console,
            env={"PACKER_CACHE_DIR": str(self.work / "packer" / "cache"), "TMPDIR": str(self.work)},
        )
        return output / f"{self.image.name}.qcow2"

    def stamp(self) -> str:
        """Twelve digits that name the inputs: for names of cloud images."""
        return hashlib.sha256(json.dumps(self.inputs(), sort_keys=True).encode()).hexdigest()[:12]

    def inputs(self) -> dict[str, str]:
        """What the image was made from."""
        definition = self.image.model_dump_json(exclude={"targets", "deadlines_s", "explained", "budget_mb"})
        return {
            "definition": hashlib.sha256(definition.encode()).hexdigest(),
            "bundle": self.request.bundle.digest,
            "lock": self.request.bundle.manifest.lock_sha256,
        }

    # --- what came out ---------------------------------------------------------------------------------------------

    def _finish(self, result: Path) -> Built:
        out = self.request.out / f"{self.image.name}.qcow2"
        shutil.move(result, out)
        with disk.mounted(out, self.work / "read") as root:
            manifest = build_manifest(
                root,
                name=self.image.name,
                kernel=self.image.kernel,
                epoch=self.request.epoch,
                inputs=self.inputs(),
                images=self._stored(),
                left_out=left_out(self.image),
                disk={"uuid": self.identity.uuid("disk"), "root": self.identity.uuid("root-fs")},
            )
            save(manifest, self.request.out / MANIFEST)
            built = Built(out, out.stat().st_size, manifest, self.seconds)
            if "tar" in self.image.targets.qemu.formats:
                built.files.append(self._tar(root))
        if "raw" in self.image.targets.qemu.formats:
            raw = out.with_suffix(".raw")
            run(["qemu-img", "convert", "-O", "raw", out, raw], what="qemu-img could not write the raw disk")
            built.files.append(raw)
        check(self.image, built)
        return built

    def _tar(self, root: Path) -> Path:
        """For installers of bare machines that make their own partitions (MAAS, Ironic, a PXE script)."""
        target = self.request.out / f"{self.image.name}.tar.zst"
        command = ["tar", "--create", "--zstd", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--sort=name"]
        run([*command, "--directory", root, "--file", target, "."], what="tar could not write the tree")
        return target


def check(image: NodeImage, built: Built) -> None:
    """Raises MyriadError when the image is not what it promises: hygiene, the module's kernel, the budget."""
    manifest = built.manifest
    problems = [str(one) for one in manifest.findings()]
    modules = [module for module in manifest.modules if Path(module.path).name.startswith("nvidia")]
    if image.driver is not None and not modules:
        problems.append(f"there is no NVIDIA module for {image.kernel}")
    problems += [f"{one.path} is for kernel {one.vermagic}" for one in modules if one.vermagic != image.kernel]
    if built.size > image.budget_mb * 10**6:
        problems.append(
            f"the disk has {built.size:,} bytes, budget_mb allows {image.budget_mb * 10**6:,}: "
            f"{built.size - image.budget_mb * 10**6:,} too many"
        )
    if problems:
        raise MyriadError(
            "the image must not be used:\n  " + "\n  ".join(problems[:40]),
            where=str(built.disk),
            hint="put right what is named; `myriad image node manifest` shows all of the image",
        )


def left_out(image: NodeImage) -> dict[str, str]:
    """Parts of a GPU node that the image has not, and why."""
    told = {}
    if "gpu_toolkit" in image.roles and image.role_vars.get("gpu_toolkit_packages") == []:
        told["nvidia-container-toolkit"] = "image.yml names no packages of it; the site run installs it on each node"
    return told


def qemu_arguments(name: str, output: Path, seed_disk: Path, console: Path) -> list[tuple[str, str]]:
    """Options that packer hands to QEMU. Naming one drive or device replaces all of packer's own, so all are named."""
    return [
        ("-display", "none"),
        ("-serial", f"file:{console}"),
        ("-cpu", "max"),
        ("-drive", f"file={output}/{name}.qcow2,if=virtio,cache=unsafe,discard=unmap,format=qcow2"),
        ("-drive", f"file={seed_disk},if=virtio,format=raw,readonly=on"),
        ("-device", "virtio-net-pci,netdev=user.0"),
        ("-device", "virtio-rng-pci"),
    ]


def cloud_inputs(image: NodeImage, folder: Path, variables: Path, epoch: int, version: tuple[int, int, int]) -> Inputs:
    """What the template of the cloud targets is rendered with."""
    playbook = (folder / "provision.yml").resolve()
    kernel = (f"linux-image-{image.kernel}", f"linux-headers-{image.kernel}")
    return Inputs(
        targets=[name for name in image.targets.names if name != "qemu"],
        packer_version=version,
        epoch=epoch,
        stamp=hashlib.sha256(image.model_dump_json().encode()).hexdigest()[:12],
        check=(folder / "check.sh").resolve(),
        hygiene=Path(hygiene.__file__).resolve(),
        cloud=CloudFiles(playbook, variables, repository_of(playbook) / "ansible.cfg"),
        cloud_packages=(*kernel, *image.packages, "python3-apt"),
    )


def _overlay(source: Path, tree: Path) -> None:
    """Lay the image's own files over the tree, owned by root and with the modes of files that everybody reads."""
    for path in sorted(source.rglob("*")):
        target = tree / path.relative_to(source)
        if path.is_symlink():
            target.unlink(missing_ok=True)
            target.symlink_to(path.readlink())
        elif path.is_dir():
            target.mkdir(exist_ok=True)
            target.chmod(0o755)
        else:
            target.write_bytes(path.read_bytes())
            target.chmod(0o644)
