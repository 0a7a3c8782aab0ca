"""The golden node image: built by packer, booted in QEMU, built a second time and compared.

Root, packer and QEMU, but no engine and no KVM. Half an hour on two cores, most of it the compiler's and TCG's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from myriad.nodeimage.difference import compare
from myriad.nodeimage.manifest import load
from myriad.nodeimage.proof import Proof, prove

from .conftest import Golden

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(7200)]


def say(capsys: pytest.CaptureFixture[str]) -> Callable[[Proof], None]:
    def report(proof: Proof) -> None:
        with capsys.disabled():
            print(f"\n  {'ok' if proof.ok else 'FAILED'} {proof.what}: {proof.told}", end="")

    return report


def test_the_manifest_names_every_digest_and_nothing_is_in_it_that_must_not_be(golden: Golden) -> None:
    manifest = load(golden.out)
    assert manifest.findings() == []
    nvidia = [module for module in manifest.modules if Path(module.path).name == "nvidia-current.ko"]
    assert [module.vermagic for module in nvidia] == [golden.image.kernel]
    wanted = [golden.bundle.image(name) for name in golden.image.images]
    assert [(one.ref, one.digest) for one in manifest.images] == [(one.ref, one.digest) for one in wanted]
    assert {one.digest for one in wanted} <= set(manifest.blobs)
    for name in ("containerd", "kubelet", "kubeadm", "runc"):
        assert manifest.programs[f"/usr/local/bin/{name}"] == golden.bundle.file(name).sha256
    assert golden.disk.stat().st_size <= golden.image.budget_mb * 10**6


def test_it_boots_and_every_proof_holds(golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proofs = prove(golden.image, golden.folder, golden.disk, golden.bundle, tmp_path, on_proof=say(capsys))
    assert [one for one in proofs if not one.ok] == []
    assert {one.what for one in proofs} >= {
        "ssh", "identity", "units", "kernel", "module", "images in the store", "container", "configure",
        "configure again", "runtime after configure", "images after configure",
    }  # fmt: skip


@pytest.mark.skipif(not Path("/usr/share/ovmf/OVMF.fd").is_file(), reason="apt-get install ovmf")
def test_it_boots_by_uefi(golden: Golden, tmp_path: Path) -> None:
    from myriad.nodeimage import seed
    from myriad.nodeimage.guest import Guest, accelerator
    from myriad.nodeimage.proof import uefi_firmware

    key = seed.make_key(tmp_path / "key")
    seed.write_seed(tmp_path / "seed.img", name="uefi", public=key.public)
    guest = Guest(
        golden.disk,
        tmp_path,
        key.private,
        seed=tmp_path / "seed.img",
        accelerator=accelerator(),
        firmware=uefi_firmware(),
    )
    with guest:
        guest.wait(golden.image.deadlines_s.ssh)
        assert guest.run("test -d /sys/firmware/efi && uname -r").strip() == golden.image.kernel


def test_built_twice_the_files_are_the_same_but_for_those_that_are_explained(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = golden.build(tmp_path / "again", tmp_path / "work")
    again.disk.unlink()
    found = compare(load(golden.out), load(tmp_path / "again"), golden.image.explained)
    with capsys.disabled():
        print(f"\n{len(load(golden.out).files):,} paths, {len(found.files)} differ:")
        for one in found.files:
            print(f"  {one.path}: {one.what} ({one.reason or 'NOT EXPLAINED'})")
    assert found.values == []
    assert found.unexplained == []
