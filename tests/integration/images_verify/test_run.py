"""A real image is run for its proof: in the kernel's namespaces and, where one answers, by a container engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from myriad.images.context import BuildContext
from myriad.images.definition import Smoke
from myriad.images.layer import file_from_bytes
from myriad.images.oci import Layer, export_layout, write_image, write_layer
from myriad.images.proof import declared_of, look
from myriad.images.proof_layout import open_image
from myriad.images.proof_run import run_image
from myriad.images.proof_sandbox import Engine, Namespaces, Sandbox, namespaces_refused
from myriad.images.proof_types import Subject
from myriad.images.runtime import build_runtime
from myriad.stack.settings import cache_root

REPOSITORY = Path(__file__).parents[3]
GANG_CHECK = REPOSITORY / "images" / "gang-check"
# It downloads Debian packages the first time.
pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BuildContext, Subject, list[Layer]]]:
    ctx = BuildContext(store=cache_root() / "store", cache_dir=cache_root() / "images", repository=REPOSITORY)
    image = build_runtime(ctx, GANG_CHECK, "test")
    root = tmp_path_factory.mktemp("layout")
    export_layout([image.built], root)
    declared, _, _ = declared_of(GANG_CHECK)
    yield ctx, look(open_image(root), declared), list(image.layers)
    shutil.rmtree(root)


def namespaces(subject: Subject, _gpu: bool) -> Sandbox:
    refused = namespaces_refused()
    if refused:
        pytest.skip(f"here {refused}")
    return Namespaces(subject)


def engine(subject: Subject, gpu: bool) -> Sandbox:
    import docker

    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        pytest.skip(f"no container engine answers: {error}")
    return Engine(subject, client, gpu=gpu)


SANDBOXES = [namespaces, pytest.param(engine, marks=pytest.mark.engine)]


@pytest.mark.parametrize("choose", SANDBOXES)
def test_its_own_python_answers_without_network(
    built: tuple[BuildContext, Subject, list[Layer]], choose: Callable[[Subject, bool], Sandbox]
) -> None:
    subject = built[1]
    smoke = [
        Smoke(run=("python3", "-c", "print('hello')"), expect="^hello$"),
        # lo at most: no other interface is in the container.
        Smoke(
            run=("python3", "-c", "import socket; print(sorted({name for _, name in socket.if_nameindex()} - {'lo'}))"),
            expect=r"\[\]",
        ),
        Smoke(run=("python3", "-c", "import sys; sys.exit(4)")),
    ]
    told = run_image(subject, smoke=smoke, gpu="no", choose=choose)
    assert [(one.rule, one.failed) for one in told] == [
        ("loaded", False), ("loaded-once", False), ("smoke", False), ("smoke", False), ("smoke", True)
    ]  # fmt: skip
    assert told[0].detail.startswith("python 3.11.")
    assert "ended with 4" in told[-1].findings[0].what


@pytest.mark.parametrize("choose", SANDBOXES)
def test_a_program_that_hangs_is_ended(
    built: tuple[BuildContext, Subject, list[Layer]], choose: Callable[[Subject, bool], Sandbox]
) -> None:
    with choose(built[1], False) as sandbox:
        done = sandbox.run(["python3", "-c", "import time; time.sleep(60)"], timeout_s=3)
    assert done.timed_out


@pytest.mark.parametrize("choose", SANDBOXES)
def test_an_image_whose_python_was_broken_is_a_finding(
    built: tuple[BuildContext, Subject, list[Layer]],
    choose: Callable[[Subject, bool], Sandbox],
    tmp_path: Path,
) -> None:
    ctx, subject, layers = built
    # A layer on top that deletes the library which every program needs.
    path = next(one for one in subject.tree.files if one.endswith("x86_64-linux-gnu/libm.so.6"))
    folder, _, name = path.rpartition("/")
    top = write_layer(ctx.blobs, [file_from_bytes(f"{folder}/.wh.{name}", b"")], comment="broken")
    config = subject.image.runtime
    from myriad.images.oci import ImageConfig

    image = write_image(
        ctx.blobs,
        ref="broken:1",
        layers=[*layers, top],
        config=ImageConfig(entrypoint=config["Entrypoint"], env=subject.image.env, user=config["User"]),
    )
    export_layout([image], tmp_path / "broken")
    broken = replace(look(open_image(tmp_path / "broken")), declared=subject.declared)
    (told,) = run_image(broken, gpu="no", choose=choose)
    assert told.failed and "libm.so.6" in told.findings[0].what
