"""The real images: built twice in different surroundings, loaded into an engine and run.

The Debian base and the wheels come from their mirrors once, into the folder that pytest keeps for the session; the
tests that
install twice on purpose are marked slow.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.images.build import BuildContext, BuiltImage, base_layer, build_node_rootfs, component_image, python_image
from myriad.images.oci import Blob, export_docker_archive, read_layer_paths
from myriad.images.python import base_python, project_version

REPOSITORY = Path(__file__).parents[3]
IMAGES = REPOSITORY / "images"
VERSION = project_version(REPOSITORY)

pytestmark = [pytest.mark.network]


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad"


@pytest.fixture(scope="session")
def ctx() -> BuildContext:
    """The user's own store and cache: what a bundle has built already is not built again."""
    return BuildContext(store=user_cache() / "store", cache_dir=user_cache() / "images", repository=REPOSITORY)


@contextmanager
def surroundings(*, umask: int, zone: str, locale: str) -> Iterator[None]:
    """Another user's umask, time zone and locale, for this process and those that it starts."""
    saved = {name: os.environ.get(name) for name in ("TZ", "LC_ALL")}
    previous = os.umask(umask)
    os.environ.update(TZ=zone, LC_ALL=locale)
    time.tzset()
    try:
        yield
    finally:
        os.umask(previous)
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        time.tzset()


@pytest.mark.parametrize("name", [pytest.param("extension", marks=pytest.mark.slow), "lab-gpu-double", "gang-check"])
def test_two_builds_in_different_surroundings_are_one_image(ctx: BuildContext, tmp_path: Path, name: str) -> None:
    base = base_layer(ctx)
    digests = []
    for number, (umask, zone, locale) in enumerate([(0o022, "UTC", "C"), (0o077, "Pacific/Auckland", "C.UTF-8")]):
        place = tmp_path / str(number)
        (place / "store" / "sha256" / base.digest[7:9]).mkdir(parents=True)
        # The base is taken over: test_the_base_is_the_same_bits_again installs it twice.
        (place / "store" / "sha256" / base.digest[7:9] / base.digest[7:]).hardlink_to(ctx.blobs.path(base.digest))
        own = replace(ctx, store=place / "store", cache_dir=place / "cache")
        records = [record for record in (ctx.cache_dir / "layers").iterdir() if base.digest in record.read_text()]
        (place / "cache" / "layers").mkdir(parents=True)
        for record in records:
            (place / "cache" / "layers" / record.name).write_bytes(record.read_bytes())
        with surroundings(umask=umask, zone=zone, locale=locale):
            digests.append(python_image(own, IMAGES / name, VERSION).manifest_digest)
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_the_base_is_the_same_bits_again(ctx: BuildContext, tmp_path: Path) -> None:
    with surroundings(umask=0o077, zone="Pacific/Auckland", locale="C.UTF-8"):
        again = base_layer(replace(ctx, store=tmp_path / "store", cache_dir=tmp_path / "cache"))
    assert again == base_layer(ctx)


@pytest.mark.slow
def test_the_node_is_the_same_bits_again(ctx: BuildContext, tmp_path: Path) -> None:
    with surroundings(umask=0o077, zone="Pacific/Auckland", locale="C.UTF-8"):
        again = build_node_rootfs(replace(ctx, store=tmp_path / "store", cache_dir=tmp_path / "cache"))
    first = build_node_rootfs(ctx)
    assert (again.sha256, again.packages) == (first.sha256, first.packages)


def test_the_base_is_small_and_holds_nothing_of_the_building_machine(ctx: BuildContext) -> None:
    layer = base_layer(ctx)
    paths = read_layer_paths(Blob(ctx.blobs.path(layer.digest), layer.size, layer.media_type))
    assert layer.size < 60 * 10**6
    assert {
        "usr/bin/python3.11",
        "usr/sbin/iptables",
        "usr/sbin/conntrack",
        "etc/ssl/certs/ca-certificates.crt",
    } <= set(paths)
    unwanted = ("etc/resolv.conf", "etc/hostname", "var/log/", "var/cache/apt/archives/", "usr/share/man/", "etc/ssh/")
    assert [path for path in paths if path.startswith(unwanted) and not path.endswith(("log/apt", "archives"))] == []


def test_the_base_python_runs_without_a_container(ctx: BuildContext) -> None:
    command = base_python(ctx, base_layer(ctx))
    home = str(Path(command[-1]).parents[1])
    program = "import sys, zlib, json; print(sys.version_info[:2], json.__file__.startswith(sys.argv[1]))"
    result = subprocess.run(
        [*command, "-S", "-c", program, home], env={"PYTHONHOME": home}, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "(3, 11) True"


def test_a_warm_build_of_all_images_is_quick_and_builds_nothing(ctx: BuildContext) -> None:
    def build_all(on_event: list[str]) -> list[str]:
        own = replace(ctx, on_event=lambda event: on_event.append(event.state))
        return [python_image(own, IMAGES / name, VERSION).manifest_digest for name in ("extension", "gang-check")]

    states: list[str] = []
    first = build_all(states)
    states.clear()
    assert build_all(states) == first
    assert set(states) == {"cached"}


# --- in an engine ---------------------------------------------------------------------------------


@contextmanager
def loaded(image: BuiltImage, tmp_path: Path) -> Iterator[str]:
    """The image in the engine under a name of its own."""
    name = f"{image.ref.rpartition(':')[0]}:test-{os.getpid()}"
    archive = tmp_path / "image.tar"
    export_docker_archive(replace(image, ref=name), archive)
    subprocess.run(["docker", "load", "--quiet", "--input", str(archive)], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


def run_in(name: str, *command: str, options: tuple[str, ...] = ()) -> str:
    result = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", *options, "--entrypoint", command[0], name, *command[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


IMPORT_ALL = """
import importlib, importlib.metadata, pkgutil, myriad
found = [module.name for module in pkgutil.walk_packages(myriad.__path__, "myriad.") if "__main__" not in module.name]
for name in found:
    module = importlib.import_module(name)
    assert module.__cached__, name
    import os
    assert os.path.exists(module.__cached__), name + " has no bytecode"
print(len(found), importlib.metadata.version("myriad"))
"""


@pytest.mark.engine
@pytest.mark.parametrize("name", ["extension", "lab-gpu-double"])
def test_every_module_of_an_image_imports_from_bytecode(ctx: BuildContext, tmp_path: Path, name: str) -> None:
    with loaded(python_image(ctx, IMAGES / name, VERSION), tmp_path) as image:
        count, version = run_in(image, "python3", "-W", "error", "-c", IMPORT_ALL).split()
    assert int(count) >= 5
    assert version == VERSION


@pytest.mark.engine
def test_gang_check_runs_as_a_gang_of_one_without_rights(ctx: BuildContext, tmp_path: Path) -> None:
    options = ("--read-only", "--cap-drop", "ALL", "--env", "WORLD_SIZE=1", "--env", "RANK=0", "--env", "GANG_STEPS=3")
    with loaded(python_image(ctx, IMAGES / "gang-check", VERSION), tmp_path) as image:
        output = run_in(image, "python3", "/opt/gang-check/gang_check.py", options=options)
    assert "all-reduce ok: 3 steps, 1 ranks" in output


CHECK_BASE = r"""
set -u
for file in $(find /usr -type f \( -name '*.so*' -o -perm /111 \)); do
    ldd "$file" 2>/dev/null | grep -q 'not found' && echo "broken $file"
done
find / -xdev \( -perm -4000 -o -perm -2000 \) -type f | sed 's/^/setuid /'
iptables --version && conntrack --version && ip -V && python3 -c 'import ssl, sqlite3, ctypes, lzma, bz2, readline'
"""


@pytest.mark.engine
def test_the_base_has_all_libraries_and_no_setuid_programs(ctx: BuildContext, tmp_path: Path) -> None:
    with loaded(python_image(ctx, IMAGES / "gang-check", VERSION), tmp_path) as image:
        output = run_in(image, "sh", "-c", CHECK_BASE)
    assert "iptables v" in output
    assert [line for line in output.splitlines() if line.startswith(("broken", "setuid"))] == []


@pytest.mark.engine
def test_a_component_on_the_base_starts_as_root_and_as_nobody(ctx: BuildContext, tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_text("#!/usr/bin/python3\nimport os; print('hello from', os.getuid())\n")
    image = component_image(
        ctx, repo="hello", tag="1", binary=program, install_as="/usr/local/bin/hello", entrypoint=["hello"], base=True
    )
    with loaded(image, tmp_path) as name:
        assert run_in(name, "hello") == "hello from 0\n"
        assert run_in(name, "hello", options=("--user", "65532")) == "hello from 65532\n"
