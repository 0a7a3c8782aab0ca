"""Images broken on purpose: each is caught by the proof with one sentence that says what, where and what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.images.compat import require_cuda
from myriad.images.layer import Entry, file_from_bytes, symlink
from myriad.images.oci import BlobStore, sha256_digest
from myriad.images.proof import Report, declared_of, look, prove
from myriad.images.proof_layout import LayoutImage, open_image
from myriad.images.proof_types import Finding
from tests.unit.images import proof_images as small

TODAY = date(2026, 11, 30)
VENDORED = "libnccl-1a2b3c4d.so.2.27.3"
# In two parts, so that nobody takes this file for one that holds a key.
KEY = (
    b"-----BEGIN PRIVATE " + b"KEY-----\n"
    b"MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2\n-----END PRIVATE KEY-----\n"
)


def proven(
    tmp_path: Path,
    *layers: dict[str, bytes] | list[Entry],
    env: dict[str, str] | None = None,
    yml: str = small.IMAGE_YML,
    locked: str | None = None,
    labels: dict[str, str] | None = None,
    proof: str = "",
    today: date = TODAY,
    **more: object,
) -> Report:
    folder = small.definition(tmp_path, yml, locked)
    if proof:
        (folder / "proof.yml").write_text(proof)
    declared, rules, _ = declared_of(folder)
    env = {"NVIDIA_REQUIRE_CUDA": require_cuda(declared.facts) if declared.facts else "", **(env or {})}
    image = small.layout(tmp_path, *layers, env=env, labels=labels, **more)  # type: ignore[arg-type]
    return prove(look(image, declared), rules, today=today)


def wheels(changed: dict[str, bytes] | None = None) -> dict[str, bytes]:
    return {**small.pytorch(), **(changed or {})}


def only(report: Report, *rules: str) -> list[Finding]:
    """Findings; there are none but of these checks."""
    assert {one.rule for one in report.findings} == set(rules), [one.what for one in report.findings]
    assert all(one.what and one.where and one.hint for one in report.findings)
    return list(report.findings)


def test_a_good_image_is_proven(tmp_path: Path) -> None:
    report = proven(tmp_path, small.system(), wheels())
    assert report.ok, report.findings
    assert not any(one.skipped for one in report.outcomes)
    told = {one.rule: one.detail for one in report.outcomes}
    assert told["pins"] == "cuda 13.0.96, cudnn 9.20.0.48, nccl 2.29.7, python 3.11.2, torch 2.12.1+cu130"
    assert told["one-copy"] == "5 libraries of CUDA, one copy each"


# The eight of the issue


def test_1_a_wheel_of_another_cuda(tmp_path: Path) -> None:
    other = small.wheel("flash-attn", "2.8.0+cu126", {"flash_attn/__init__.py": b""})
    locked = small.lock(
        {**small.HASHES, "flash-attn": small.file_hash("flash-attn")}, {**small.VERSIONS, "flash-attn": "2.8.0+cu126"}
    )
    (two, one) = only(proven(tmp_path, small.system(), wheels(other), locked=locked), "cuda")
    assert two.what.startswith("CUDA 12 (flash-attn 2.8.0+cu126) and CUDA 13 (")
    assert one.what.startswith("flash-attn 2.8.0+cu126 is for CUDA 12.6, ") and one.what.endswith("says CUDA 13.0")


def test_1_torch_itself_of_another_cuda_has_every_witness_against_it(tmp_path: Path) -> None:
    version = {f"{small.SITE}/torch/version.py": small.TORCH_VERSION.replace("13.0", "12.6").encode()}
    found = only(proven(tmp_path, small.system(), wheels(version)), "cuda", "wheels")
    assert any("/torch/version.py is for CUDA 12.6" in one.what for one in found)


def test_1_a_cu12_wheel_beside_cu13(tmp_path: Path) -> None:
    old = small.wheel(
        "nvidia-cublas-cu12", "12.8.4.1", {"nvidia/cublas/lib/libcublas.so.12": small.library("libcublas.so.12")}
    )
    locked = small.lock(
        {**small.HASHES, "nvidia-cublas-cu12": small.file_hash("nvidia-cublas-cu12")},
        {**small.VERSIONS, "nvidia-cublas-cu12": "12.8.4.1"},
    )
    found = only(proven(tmp_path, small.system(), wheels(old), locked=locked), "cuda", "one-copy")
    assert any(one.what.startswith("CUDA 12 (nvidia-cublas-cu12 12.8.4.1") for one in found)
    assert any("libcublas can be loaded from 2 places" in one.what for one in found)


@pytest.mark.parametrize(
    ("files", "env", "word"),
    [
        ({"opt/a/libnccl.so.2": small.nccl("2.27.3", "12.9")}, {"LD_LIBRARY_PATH": "/opt/a"}, "LD_LIBRARY_PATH"),
        (
            {
                "opt/other/lib/libnccl.so.2.27.3": small.nccl("2.27.3"),
                "etc/ld.so.conf.d/other.conf": b"/opt/other/lib\n",
            },
            {},
            "/etc/ld.so.conf.d/other.conf",
        ),
        ({"usr/lib/x86_64-linux-gnu/libnccl.so.2": small.nccl("2.27.3")}, {}, "the loader's own folders"),
        (
            {
                "opt/other/lib/libnccl.so.2": small.nccl("2.27.3"),
                "opt/other/ext.so": small.library("ext.so", needed=("libnccl.so.2",), runpath="$ORIGIN/lib"),
            },
            {},
            "RUNPATH of /opt/other/ext.so",
        ),
        (
            {
                "opt/other/lib/libnccl.so.2": small.nccl("2.27.3"),
                "opt/other/ext.so": small.library("ext.so", needed=("libnccl.so.2",), rpath="${ORIGIN}/lib"),
            },
            {},
            "RPATH of /opt/other/ext.so",
        ),
        ({"opt/other/libnccl.so.2": small.nccl("2.27.3")}, {"LD_PRELOAD": "/opt/other/libnccl.so.2"}, "LD_PRELOAD"),
        (
            {"opt/other/libnccl.so.2": small.nccl("2.27.3"), "etc/ld.so.preload": b"/opt/other/libnccl.so.2\n"},
            {},
            "/etc/ld.so.preload",
        ),
        (
            {
                "opt/other/libnccl.so.2": small.nccl("2.27.3"),
                "etc/ld.so.cache": b"glibc-ld.so.cache1.1\0\0libnccl.so.2\0/opt/other/libnccl.so.2\0",
            },
            {},
            "/etc/ld.so.cache",
        ),
        (
            # auditwheel's name for a library that a wheel brings along
            {
                f"{small.SITE}/ext.libs/{VENDORED}": small.library(VENDORED, extra=b"NCCL version 2.27.3+cuda12.9\0"),
                f"{small.SITE}/ext.so": small.library("ext.so", needed=(VENDORED,), rpath="$ORIGIN/ext.libs"),
            },
            {},
            "RPATH of /opt/myriad/site/ext.so",
        ),
    ],
    ids=["LD_LIBRARY_PATH", "ld.so.conf.d", "default", "RUNPATH", "RPATH", "LD_PRELOAD", "preload", "cache", "wheel"],
)  # fmt: skip
def test_2_a_second_libnccl_that_can_be_loaded(
    tmp_path: Path, files: dict[str, bytes], env: dict[str, str], word: str
) -> None:
    found = proven(tmp_path, small.system(), wheels(files), env=env).findings
    told = next(one for one in found if one.rule == "one-copy")
    assert told.what.startswith("libnccl can be loaded from 2 places: ")
    assert "2.27.3" in told.what and "2.29.7+cuda13.0" in told.what and f"by {word}" in told.what
    assert "/opt/myriad/site/nvidia/nccl/lib/libnccl.so.2" in told.what
    # The library's own word against the package's.
    assert any(
        one.rule == "pins" and "the library is NCCL 2.27.3, the package says 2.29.7" in one.what for one in found
    )


def test_2_a_second_libcudnn_by_a_debian_package_names_the_package(tmp_path: Path) -> None:
    system = small.system()
    system["var/lib/dpkg/status"] += (
        b"\nPackage: libcudnn9-cuda-13\nStatus: install ok installed\nVersion: 9.20.0.48-1\n"
    )
    system["var/lib/dpkg/info/libcudnn9-cuda-13.list"] = b"/usr/lib/x86_64-linux-gnu/libcudnn.so.9.20.0\n"
    system["usr/lib/x86_64-linux-gnu/libcudnn.so.9.20.0"] = small.library("libcudnn.so.9")
    (told,) = only(proven(tmp_path, system, wheels()), "one-copy")
    assert told.hint == "leave the Debian package libcudnn9-cuda-13 out: the wheel brings its own"
    assert told.what.endswith("they are the same bytes, loaded twice")


def test_2_links_to_one_file_are_one_copy_and_an_unreachable_second_is_a_note(tmp_path: Path) -> None:
    links = [
        *small.entries_of(wheels({"opt/tool/lib/libnccl.so.2": small.nccl()})),
        symlink(f"{small.SITE}/nvidia/nccl/lib/libnccl.so", "libnccl.so.2"),
        symlink("usr/local/lib/libnccl.so.2", f"/{small.SITE}/nvidia/nccl/lib/libnccl.so.2"),
    ]
    report = proven(tmp_path, small.system(), links, env={"LD_LIBRARY_PATH": "/usr/local/lib"})
    assert report.ok, report.findings
    (note,) = [one for one in report.notes if one.rule == "one-copy"]
    assert note.what.startswith("nothing loads this copy of libnccl")


def test_2_torch_installed_twice(tmp_path: Path) -> None:
    again = {
        path.replace(small.SITE, "usr/local/lib/python3.11/dist-packages"): data
        for path, data in small.pytorch().items()
        if "/torch" in path
    }
    found = proven(tmp_path, small.system(), wheels(again)).findings
    assert any(one.hint == "torch is installed twice; keep one" for one in found)


def test_3_a_pin_that_nothing_installs(tmp_path: Path) -> None:
    yml = small.IMAGE_YML.replace("pins: {", 'pins: {nvshmem4py: "0.1.2", ')
    (told,) = only(proven(tmp_path, small.system(), wheels(), yml=yml), "pins")
    assert told.what == "nvshmem4py is pinned to 0.1.2, but nothing in the image installs it"
    assert told.where.endswith("image.yml: pins.nvshmem4py")
    held = {path: data for path, data in wheels().items() if "nvidia/nccl" not in path and "nvidia_nccl" not in path}
    found = proven(tmp_path / "2", small.system(), held).findings
    assert any(one.what == "nccl is pinned to 2.29.7, but nothing in the image installs it" for one in found)
    assert any("needs libnccl.so.2, and nothing in the image answers for it" in one.what for one in found)
    assert any("locks nvidia-nccl-cu13 2.29.7, and nothing of it is in the image" in one.what for one in found)


def test_3_a_pin_of_another_version_and_a_version_is_no_prefix(tmp_path: Path) -> None:
    yml = small.IMAGE_YML.replace('nccl: "2.29.7"', 'nccl: "2.29"').replace('cudnn: "9.20.0.48"', 'cudnn: "9.2"')
    (told,) = only(proven(tmp_path, small.system(), wheels(), yml=yml), "pins")
    assert told.what == "cudnn is pinned to 9.2, the image has 9.20.0.48 (nvidia-cudnn-cu13)"


def test_4_an_architecture_is_missing(tmp_path: Path) -> None:
    without = small.library("libtorch_cuda.so", needed=small.NEEDS, runpath=small.RUNPATH, code=("sm_80", "sm_90"))
    report = proven(tmp_path, small.system(), wheels({f"{small.SITE}/torch/lib/libtorch_cuda.so": without}))
    told = next(one for one in report.findings if one.rule == "archs")
    assert told.what == "libtorch_cuda.so has no code for sm_120; it has sm_80, sm_90"
    extension = small.wheel(
        "flash-attn", "2.8.0", {"flash_attn_cuda.so": small.library("f.so", code=("sm_80", "compute_80"))}
    )
    locked = small.lock(
        {**small.HASHES, "flash-attn": small.file_hash("flash-attn")}, {**small.VERSIONS, "flash-attn": "2.8.0"}
    )
    assert proven(tmp_path / "ptx", small.system(), wheels(extension), locked=locked).ok, "PTX reaches newer cards"
    extension = small.wheel("flash-attn", "2.8.0", {"flash_attn_cuda.so": small.library("f.so", code=("sm_80",))})
    (told,) = only(proven(tmp_path / "ext", small.system(), wheels(extension), locked=locked), "archs")
    assert told.what == "flash_attn_cuda.so has no code for sm_90, sm_120; it has sm_80"


def test_4_no_code_for_any_gpu(tmp_path: Path) -> None:
    plain = {
        path: small.library(path.rpartition("/")[2], needed=(), runpath="")
        if path.endswith((".so", ".so.2", ".so.13"))
        else data
        for path, data in wheels().items()
    }
    told = next(one for one in proven(tmp_path, small.system(), plain).findings if one.rule == "archs")
    assert told.what == "GPUs of 8.0, 9.0, 12.0 are to be covered, and no library has code for any GPU"


def test_5_the_budget_is_exceeded_by_one_byte(tmp_path: Path) -> None:
    # Layers of nearly 1 MB that do not compress; the configuration, which never is, takes the rest to the byte.
    noise = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(30_500))

    def made(pad: int) -> Report:
        labels = {"pad": "x" * pad}
        return proven(tmp_path / str(pad), small.system(), {**wheels(), "opt/noise": noise}, labels=labels)

    pad = 10_000 + 10**6 - made(10_000).subject.image.size
    fits, over = made(pad), made(pad + 1)
    assert fits.subject.image.size == 10**6 and fits.ok
    assert over.subject.image.size == 10**6 + 1
    (told,) = only(over, "budget")
    assert "the image is 1,000,001 bytes, 1 over its budget of 1,000,000; largest layers: layer 1 " in told.what
    assert "largest packages, unpacked: torch 2.12.1+cu130" in told.what


def test_5_to_the_byte(tmp_path: Path) -> None:
    from dataclasses import replace

    from myriad.images.proof_files import budget

    subject = proven(tmp_path, small.system(), wheels()).subject
    assert subject.declared is not None
    exact = replace(subject, declared=replace(subject.declared, budget_bytes=subject.image.size))
    assert not budget(exact).findings
    (told,) = budget(replace(subject, declared=replace(subject.declared, budget_bytes=subject.image.size - 1))).findings
    assert f"{subject.image.size:,} bytes, 1 over its budget" in told.what


def test_5_a_package_over_its_own_budget(tmp_path: Path) -> None:
    report = proven(tmp_path, small.system(), wheels(), proof="package_budgets_mb: {torch: 0.001, pandas: 5}\n")
    heavy, gone = sorted(only(report, "budget"), key=lambda one: "pandas" in one.what)
    size = report.subject.packages.named("torch")[0].size
    assert heavy.what == f"torch 2.12.1+cu130 is {size:,} bytes unpacked, {size - 1000:,} over its own budget of 1,000"
    assert gone.what == "the image has no package pandas"


def test_6_a_mutable_base_tag(tmp_path: Path) -> None:
    yml = small.IMAGE_YML + 'base: {image: "nvcr.io/nvidia/cuda:13.0.2-base-ubuntu24.04"}\npython: {version: "3.12"}\n'
    with pytest.raises(InputError, match="can name other bits tomorrow"):
        proven(tmp_path, small.system(), wheels(), yml=yml)
    labels = {"org.opencontainers.image.base.name": "nvcr.io/nvidia/cuda:13.0.2-base"}
    (told,) = only(proven(tmp_path, small.system(), wheels(), labels=labels), "base")
    assert told.what.startswith("the image stands on nvcr.io/nvidia/cuda:13.0.2-base, and no digest says which bits")


def test_6_another_base_than_image_yml_names(tmp_path: Path) -> None:
    yml = small.IMAGE_YML + f'base: {{image: "nvcr.io/cuda@sha256:{"a" * 64}"}}\npython: {{version: "3.11"}}\n'
    labels = {
        "org.opencontainers.image.base.name": "nvcr.io/cuda",
        "org.opencontainers.image.base.digest": f"sha256:{'b' * 64}",
    }
    (told,) = only(proven(tmp_path, small.system(), wheels(), yml=yml, labels=labels), "base")
    assert "stands on sha256:bbbb" in told.what and "names sha256:aaaa" in told.what


def test_7_a_changed_wheel_hash(tmp_path: Path) -> None:
    locked = small.lock({**small.HASHES, "numpy": "f" * 64})
    (told,) = only(proven(tmp_path, small.system(), wheels(), locked=locked), "wheels")
    own = small.HASHES["numpy"][:12]
    assert told.what.startswith(f"numpy 2.2.1 was installed from a file with sha256 {own}..., ")
    assert told.what.endswith("requirements.lock allows ffffffffffff...")


def test_7_a_file_of_a_wheel_that_was_changed(tmp_path: Path) -> None:
    changed = {f"{small.SITE}/numpy/__init__.py": b"import os; os.system('id')\n"}
    (told,) = only(proven(tmp_path, small.system(), wheels(changed)), "wheels")
    assert told.what == (
        "/opt/myriad/site/numpy/__init__.py is not what numpy 2.2.1's RECORD says: changed after the wheel was built"
    )


def test_7_packages_that_the_lock_does_not_have(tmp_path: Path) -> None:
    stray = {**small.wheel("leftpad", "1.0"), **small.wheel("numpy", "2.3.0")}
    without = {path: data for path, data in wheels(stray).items() if "numpy-2.2.1" not in path}
    found = [one.what for one in only(proven(tmp_path, small.system(), without), "wheels")]
    assert any(one.startswith("leftpad 1.0 is installed, and ") for one in found)
    assert any(one.startswith("numpy 2.3.0 is installed, ") and one.endswith("has 2.2.1") for one in found)


def test_what_other_packages_carry_inside_is_theirs_and_cusparse_12_is_of_cuda_13(tmp_path: Path) -> None:
    inside = small.wheel("packaging", "26.0", {"packaging/x.py": b""}, site=f"{small.SITE}/setuptools/_vendor")
    sparse = {f"{small.SITE}/nvidia/cu13/lib/libcusparse.so.12": small.library("libcusparse.so.12")}
    assert proven(tmp_path, small.system(), wheels({**inside, **sparse})).ok


def test_8_an_embedded_key_also_where_an_upper_layer_deletes_it(tmp_path: Path) -> None:
    lower = {**small.system(), "opt/app/server.pem": KEY, "opt/app/old.pem": KEY}
    upper = [*small.entries_of(wheels()), file_from_bytes("opt/app/.wh.old.pem", b"")]
    here, gone = sorted(only(proven(tmp_path, lower, upper), "secrets"), key=lambda one: "deletes" in one.what)
    assert here.what == "/opt/app/server.pem has a private key (private key)"
    assert gone.what == (
        "/opt/app/old.pem has a private key (private key); layer 2 deletes it, but layer 1 still holds it"
    )


# Others of their kinds


def test_a_setuid_program_and_one_that_an_upper_layer_hides(tmp_path: Path) -> None:
    rights = [
        *small.entries_of(small.system()),
        file_from_bytes("usr/bin/su", b"su", mode=0o4755),
        file_from_bytes("usr/bin/wall", b"wall", mode=0o2755),
        file_from_bytes("usr/bin/old", b"old", mode=0o4755),
        file_from_bytes("etc/open", b"", mode=0o666),
    ]
    upper = [*small.entries_of(wheels()), file_from_bytes("usr/bin/.wh.old", b"")]
    report = proven(tmp_path, rights, upper)
    assert [one.what.partition(" runs")[0].partition(" can")[0] for one in only(report, "setuid")] == [
        "/etc/open", "/usr/bin/su", "/usr/bin/wall"
    ]  # fmt: skip
    (note,) = [one for one in report.notes if one.rule == "setuid"]
    assert note.what.startswith("/usr/bin/old (setuid): layer 2 deletes it; layer 1 still holds it")


def test_an_opaque_folder_and_a_replaced_folder_hide_what_was_below(tmp_path: Path) -> None:
    lower = {**small.system(), "opt/a/one": b"1", "opt/a/b/two": b"2", "opt/c/three": b"3"}
    upper = [
        *small.entries_of(wheels()),
        file_from_bytes("opt/a/.wh..wh..opq", b""),
        file_from_bytes("opt/a/new", b"n"),
        file_from_bytes("opt/c", b"a file now"),
    ]
    tree = proven(tmp_path, lower, upper).subject.tree
    assert sorted(path for path in tree.files if path.startswith(("opt/a/", "opt/c"))) == ["opt/a/new", "opt/c"]
    assert sorted(one.file.path for one in tree.hidden) == ["opt/a/b/two", "opt/a/one", "opt/c/three"]


def test_a_layer_that_writes_through_a_link_of_a_lower_one(tmp_path: Path) -> None:
    lower = [*small.entries_of(small.system()), symlink("lib", "usr/lib"), symlink("loop", "loop")]
    image = small.layout(tmp_path, lower, {"opt/x": b"x"})
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        out.addfile(tarfile.TarInfo("lib/through"), io.BytesIO())
    tree = look(with_layers(image, image.layers[0].digest, tar.getvalue())).tree
    assert "usr/lib/through" in tree.files and tree.files["lib"].kind == "symlink"
    assert tree.resolve("loop/x") == "loop/x"


def test_a_folder_where_a_lower_layer_has_a_link(tmp_path: Path) -> None:
    lower = [*small.entries_of(small.system()), symlink("lib", "usr/lib")]
    (told,) = only(proven(tmp_path, lower, {**wheels(), "lib/own": b"x"}), "integrity")
    assert told.what.startswith("layer 2 puts a folder where the lower layers have the link /lib -> usr/lib")


def with_layers(image: LayoutImage, *layers: str | bytes) -> LayoutImage:
    """The image with other layers: a digest keeps one, bytes are one as they are."""
    manifest = json.loads(image.layout.read(image.digest))
    config = json.loads(image.layout.read(manifest["config"]["digest"]))
    known = {one.digest: (one.diff_id, one.size) for one in image.layers}
    rows, diff_ids = [], []
    for layer in layers:
        if isinstance(layer, str):
            digest, (diff_id, size) = layer, known[layer]
        else:
            plain = gzip.decompress(layer) if layer[:2] == b"\x1f\x8b" else layer
            digest, diff_id, size = image.layout.put(layer), sha256_digest(plain), len(layer)
        rows.append({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": size})
        diff_ids.append(diff_id)
    config["rootfs"]["diff_ids"] = diff_ids
    raw = json.dumps(config).encode()
    manifest["config"] |= {"digest": image.layout.put(raw), "size": len(raw)}
    manifest["layers"] = rows
    image.layout.add_manifest(json.dumps(manifest).encode(), ref="other:1")
    return open_image(image.root, "other:1")


def test_caches_logs_and_bytecode_with_times(tmp_path: Path) -> None:
    files = {
        "var/cache/apt/pkgcache.bin": b"x" * 5000,
        "root/.cache/pip/http/a": b"x",
        "var/log/dpkg.log": b"installed\n",
        "var/log/empty.log": b"",
        "usr/lib/python3.11/a.pyc": b"\xa7\x0d\x0d\x0a" + (0).to_bytes(4, "little") + b"time" + b"size" + b"code",
        "usr/lib/python3.11/b.pyc": b"\xa7\x0d\x0d\x0a" + (1).to_bytes(4, "little") + b"hashhash" + b"code",
        "usr/lib/python3.11/ensurepip/_bundled/pip-1.whl": b"PK",
    }
    found = only(proven(tmp_path, {**small.system(), **files}, wheels()), "leftovers")
    assert len(found) == 4
    assert any("apt's cache: 1 file, 5 kB" in one.what for one in found)
    assert any("a log of the build: 1 file" in one.what for one in found)
    assert any(
        one.what.startswith("1 file of bytecode with the time of the build, such as /usr/lib/python3.11/a.pyc")
        for one in found
    )


@pytest.mark.parametrize(
    "path", ["usr/lib/x86_64-linux-gnu/libcuda.so.1", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126.20"]
)
def test_a_drivers_library_in_the_image(tmp_path: Path, path: str) -> None:
    files = {path: small.library(path.rpartition("/")[2])}
    (told,) = only(proven(tmp_path, small.system(), wheels(files)), "driver-libraries")
    assert "hides the node's own (error 803)" in told.what


def test_cuda_compat_that_nobody_declared_and_stubs_on_the_loaders_path(tmp_path: Path) -> None:
    compat = {"usr/local/cuda-13.0/compat/libcuda.so.580.65.06": small.library("libcuda.so.1")}
    (told,) = only(proven(tmp_path, small.system(), wheels(compat)), "driver-libraries")
    assert "error 804" in told.what
    yml = small.IMAGE_YML.replace("archs:", "cuda_compat: true, archs:")
    assert proven(tmp_path / "said", small.system(), wheels(compat), yml=yml).ok
    stubs = {"usr/local/cuda/lib64/stubs/libcuda.so": small.library("libcuda.so.1")}
    assert proven(tmp_path / "stubs", small.system(), wheels(stubs)).ok
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"}
    (told,) = only(proven(tmp_path / "path", small.system(), wheels(stubs), env=env), "driver-libraries")
    assert told.what.startswith("LD_LIBRARY_PATH leads to stubs for linking")


def test_a_variable_that_names_another_version(tmp_path: Path) -> None:
    env = {"NCCL_VERSION": "2.15.5-1", "CUDA_VERSION": "13.0.2", "PYTHON_VERSION": "3.11.2"}
    found = [one.what for one in only(proven(tmp_path, small.system(), wheels(), env=env), "env-versions")]
    assert found == ["CUDA_VERSION says 13.0.2, the image has 13.0.96 (nvidia-cuda-runtime)",
                     "NCCL_VERSION says 2.15.5-1, the image has 2.29.7 (nvidia-nccl-cu13)"]  # fmt: skip


def test_a_build_for_cpus(tmp_path: Path) -> None:
    plain = small.TORCH_VERSION.replace("'13.0'", "None").replace("+cu130", "+cpu")
    found = proven(tmp_path, small.system(), wheels({f"{small.SITE}/torch/version.py": plain.encode()})).findings
    assert any(one.what.startswith("torch is a build for CPUs: torch.cuda.is_available() is False") for one in found)


def test_a_condition_for_the_runtime_that_is_stricter_than_the_need(tmp_path: Path) -> None:
    (told,) = only(
        proven(tmp_path, small.system(), wheels(), env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.3"}), "require-cuda"
    )
    assert told.what.startswith("NVIDIA_REQUIRE_CUDA is 'cuda>=13.3', the image needs 'cuda>=13.0,driver>=580.65.6")


def test_the_configuration_differs_from_image_yml(tmp_path: Path) -> None:
    yml = small.IMAGE_YML + 'env: {A: "1"}\nlabels: {team: vision}\n'
    report = proven(tmp_path, small.system(), wheels(), yml=yml, user="", entrypoint=["python9"])
    found = {one.where.rpartition(": ")[2]: one.what for one in only(report, "config")}
    assert set(found) == {"user", "entrypoint", "env.A", "labels.team", "Entrypoint"}
    assert found["user"] == "user is 'root' in the image, '65532:65532' in image.yml"
    assert found["Entrypoint"] == "the entrypoint 'python9' is not in the image, or may not be run"


def test_a_damaged_layer_is_told_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    report = proven(tmp_path, small.system(), wheels())
    image = report.subject.image
    other = BlobStore(tmp_path / "store").path(image.layers[0].digest).read_bytes()
    path = image.layers[1].path
    path.unlink()
    path.write_bytes(other)
    found = prove(look(open_image(image.root)), today=TODAY).findings
    assert {one.where for one in found if one.rule == "integrity"} == {"layer 2"}
    path.write_bytes(other[:-20])
    with pytest.raises(InputError, match=r"layer 2 (cannot be decompressed|is no tar stream)"):
        look(open_image(image.root))


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_gzip_and_plain_layers_of_other_builders_are_read(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        member = tarfile.TarInfo("./b")
        member.size = 3
        out.addfile(member, io.BytesIO(b"two"))
    subject = look(with_layers(small.layout(tmp_path, {"a": b"one"}), compress(tar.getvalue())))
    assert list(subject.tree.files) == ["b"] and not subject.tree.damage


# Exceptions

EXCEPTION = """\
exceptions:
  - {rule: setuid, path: "/usr/bin/s*", reason: the job switches users by itself, until: 2026-11-30}
"""


def test_an_exception_holds_until_its_day_and_then_the_finding_is_back(tmp_path: Path) -> None:
    lower = [*small.entries_of(small.system()), file_from_bytes("usr/bin/su", b"su", mode=0o4755)]
    report = proven(tmp_path / "1", lower, wheels(), proof=EXCEPTION)
    assert report.ok
    ((finding, rule),) = report.applied.accepted
    assert finding.where == "/usr/bin/su" and rule.reason == "the job switches users by itself"
    (told,) = only(proven(tmp_path / "2", lower, wheels(), proof=EXCEPTION, today=date(2026, 12, 1)), "setuid")
    assert told.what.endswith('(accepted until 2026-11-30 because "the job switches users by itself"; that has ended)')


def test_an_exception_that_nothing_needs_is_named(tmp_path: Path) -> None:
    report = proven(tmp_path, small.system(), wheels(), proof=EXCEPTION)
    assert report.ok and [one.rule for one in report.applied.unused] == ["setuid"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exceptions: [{rule: setuid, reason: because, until: 2026-12-01}]", "reason"),
        ("exceptions: [{rule: setuid, reason: a reason that is long enough}]", "until"),
        ("exceptions: [{rule: setuid, reason: a reason that is long enough, until: soon}]", "until"),
        ("exceptions: [{rule: setuidd, reason: a reason that is long enough, until: 2026-12-01}]", '"setuid"'),
        ("exceptions: [{rul: setuid, reason: a reason that is long enough, until: 2026-12-01}]", "rul"),
        ("exception: []", "exception"),
        ("package_budgets_mb: {torch: -1}", "torch"),
        ("- a", "mapping"),
    ],
)  # fmt: skip
def test_a_proof_yml_that_is_wrong_names_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        proven(tmp_path, small.system(), wheels(), proof=text)
    assert "proof.yml" in str(caught.value)
