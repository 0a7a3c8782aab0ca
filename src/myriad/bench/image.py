"""`make bench-image`: how long an image takes to build, and how long a node takes for it.

In one run on one machine, one JSON object a line: a cold build (wheels at hand, no layer made yet), a warm one after a
one-line change of the application, a plain `docker build` with pip of the same wheels, and the pull of the image in its
layers against the same content in one layer.

The node of the pull is containerd from a bundle in a network namespace of its own, with an empty content store, dropped
page caches and a link to the registry that is capped at 1 Gbit/s.
"""

from __future__ import annotations

import argparse
import ensurepip
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, cast

from myriad.bench.image_node import Node, serving
from myriad.bench.lines import emit
from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.definition import File
from myriad.images.find import find_image
from myriad.images.oci import (
    BuiltImage,
    ImageConfig,
    Layer,
    compressed,
    export_docker_archive,
    export_layout,
    open_layer,
    write_image,
)
from myriad.images.plan import predict
from myriad.images.registry import Registry
from myriad.images.runtime import RuntimeImage, build_runtime
from myriad.images.wheels_layers import fetch_wheels, locked_wheels
from myriad.stack.settings import cache_root
from myriad.stack.store import Store, link_or_copy

PARTS = ("build", "docker", "pull")


def say(text: str) -> None:
    """A sentence for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def bench_build(user: BuildContext, name: str, scratch: Path) -> tuple[BuildContext, RuntimeImage]:
    """The cold and the warm build. Returns the context with its layers, and the image."""
    found = find_image(name, user.repository / "images")
    wheels = locked_wheels(user, found.folder, found.definition)
    fetch_wheels(user, wheels)
    heard: list[BuildEvent] = []
    cold = BuildContext(
        store=scratch / "store", cache_dir=scratch / "cache", repository=user.repository, on_event=heard.append
    )
    for wheel in wheels:
        link_or_copy(Store(user.store).path(wheel.sha256), Store(cold.store).path(wheel.sha256))
    # Downloads are left out of both ways: what is measured is the making.
    for deb in (user.cache_dir / "debs").glob("*.deb"):
        link_or_copy(deb, cold.cache_dir / "debs" / deb.name)
    say(f"cold build of {name}: {len(wheels)} wheels, {sum(wheel.size for wheel in wheels):,} bytes")
    begun = time.monotonic()
    image = build_runtime(cold, found.folder, "bench", definition=found.definition)
    seconds = time.monotonic() - begun
    largest = max(image.layers, key=lambda layer: layer.size)
    told = predict(image.plan)
    emit(
        part="build",
        state="cold",
        image=name,
        seconds=round(seconds, 1),
        system_s=round(sum(event.seconds for event in heard if event.state == "finished" and event.step == "base"), 1),
        digest=image.built.manifest_digest,
        bytes=image.built.size,
        layers=len(image.layers),
        largest_bytes=largest.size,
        largest=largest.comment,
        predicted_s=round(told.total_s, 1),
        predicted_one_layer_s=round(told.one_layer_s, 1),
    )
    changed = scratch / "images" / found.folder.name
    shutil.copytree(found.folder, changed)
    (changed / "bench.py").write_text("print('one')\n", encoding="utf-8")
    own = File.model_validate({"from": "bench.py", "to": "/opt/bench.py"})
    definition = found.definition.model_copy(update={"files": (*found.definition.files, own)})
    build_runtime(cold, changed, "bench", definition=definition)
    (changed / "bench.py").write_text("print('another')\n", encoding="utf-8")
    heard.clear()
    begun = time.monotonic()
    build_runtime(cold, changed, "bench", definition=definition)
    emit(
        part="build",
        state="warm",
        image=name,
        change="one line of the application",
        seconds=round(time.monotonic() - begun, 2),
        made=sum(event.state == "finished" for event in heard),
        cached=sum(event.state == "cached" for event in heard),
    )
    return cold, image


def bench_docker(ctx: BuildContext, name: str, image: RuntimeImage, scratch: Path) -> None:
    """A plain `docker build` on the same base with pip of the same wheels from a server on this machine."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "version"], capture_output=True, check=False).returncode
    ):
        emit(part="docker", skipped="no Docker engine answers")
        return
    found = find_image(name, ctx.repository / "images")
    wheels = locked_wheels(ctx, found.folder, found.definition)
    folder, offered = scratch / "docker", scratch / "wheels"
    folder.mkdir()
    for wheel in wheels:
        link_or_copy(Store(ctx.store).path(wheel.sha256), offered / wheel.filename)
    pip = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    shutil.copyfile(pip, folder / "pip.whl")
    lock = found.definition.wheels.lock if found.definition.wheels is not None else None
    if lock is None:
        raise InputError(f"{name} has no lock of its own, so pip has nothing to compare with")
    shutil.copyfile(found.folder / lock, folder / "requirements.txt")
    tag = f"myriad-bench:{os.getpid()}"
    base = write_image(
        ctx.blobs, ref=f"myriad-bench-base:{os.getpid()}", layers=image.root, config=ImageConfig(entrypoint=["/bin/sh"])
    )
    export_docker_archive(base, scratch / "base.tar")
    subprocess.run(["docker", "load", "--quiet", "--input", str(scratch / "base.tar")], check=True, capture_output=True)
    (scratch / "base.tar").unlink()
    with _file_server(offered) as port:
        options = f"--no-index --find-links http://127.0.0.1:{port}/ --no-cache-dir --no-deps --require-hashes"
        (folder / "Dockerfile").write_text(
            f"FROM {base.ref}\nCOPY pip.whl requirements.txt /tmp/\n"
            f"RUN python3 /tmp/pip.whl/pip install --break-system-packages --root-user-action ignore {options} "
            "-r /tmp/requirements.txt\n",
            encoding="utf-8",
        )
        say("docker build with pip of the same wheels")
        begun = time.monotonic()
        result = subprocess.run(
            ["docker", "build", "--no-cache", "--network", "host", "--tag", tag, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - begun
    try:
        if result.returncode:
            raise MyriadError(f"docker build failed: {(result.stdout + result.stderr)[-1500:]}")
        shown = subprocess.run(
            ["docker", "image", "inspect", tag, "--format", "{{.Size}} {{len .RootFS.Layers}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        size, layers = shown.stdout.split()
        emit(part="docker", image=name, seconds=round(seconds, 1), unpacked_bytes=int(size), layers=int(layers))
    finally:
        subprocess.run(["docker", "image", "rm", "--force", tag, base.ref], capture_output=True, check=False)


@contextmanager
def _file_server(folder: Path) -> Iterator[int]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def one_layer(ctx: BuildContext, image: RuntimeImage) -> BuiltImage:
    """The same content as a single layer with the same compression."""
    seen: set[str] = set()
    with ctx.blobs.writer() as blob, compressed(blob, "zstd") as stream:
        counted = _Counted(stream)
        with tarfile.open(
            fileobj=cast(IO[bytes], counted), mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20
        ) as out:
            for layer in image.layers:
                with (
                    open_layer(image.built.blobs[layer.digest]) as source,
                    tarfile.open(fileobj=source, mode="r|") as tar,
                ):
                    for member in tar:
                        if member.isdir() and member.name in seen:
                            continue
                        seen.add(member.name)
                        out.addfile(member, tar.extractfile(member) if member.isreg() else None)
    layer = Layer(blob.digest, counted.digest, blob.size, counted.size, image.layers[0].media_type, "everything")
    config = json.loads(image.built.blobs[image.built.config_digest].path.read_bytes())["config"]
    env = dict(entry.partition("=")[::2] for entry in config["Env"])
    return write_image(
        ctx.blobs, ref="bench/one:1", layers=[layer], config=ImageConfig(entrypoint=config["Entrypoint"], env=env)
    )


class _Counted:
    """Hashes and counts the tar stream."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._hash, self.size = stream, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return int(self._stream.write(data))

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def bench_pull(ctx: BuildContext, image: RuntimeImage, scratch: Path, *, rounds: int, link_gbit: float) -> None:
    """Pull and unpack: in layers, and as one layer, in turn."""
    say("the same content as one layer")
    single = one_layer(ctx, image)
    with Node(scratch / "node", link_gbit=link_gbit) as node, serving(node.host_address, scratch / "registry") as url:
        for built, repo in ((image.built, "bench/many"), (single, "bench/one")):
            export_layout([built], scratch / repo)
            with Registry(url) as registry:
                registry.push_layout(scratch / repo, repo, "1")
            shutil.rmtree(scratch / repo)
        host = url.partition("://")[2]
        times: dict[str, list[float]] = {"many": [], "one": []}
        for number in range(rounds):
            for what in ("many", "one") if number % 2 == 0 else ("one", "many"):
                say(f"pull {number + 1} of {rounds}: {what}")
                seconds = node.pull(f"{host}/bench/{what}:1")
                times[what].append(seconds)
                emit(part="pull", layers=len(image.layers) if what == "many" else 1, seconds=round(seconds, 1))
    many, one = min(times["many"]), min(times["one"])
    emit(
        part="pull",
        link_gbit=link_gbit,
        many_s=round(many, 1),
        one_s=round(one, 1),
        times_faster=round(one / many, 2),
        predicted_times=round(predict(image.plan).one_layer_s / predict(image.plan).total_s, 2),
        cores=os.cpu_count(),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="make bench-image", description=main.__doc__)
    parser.add_argument("--image", default="pytorch")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=2, help="pulls of each kind")
    parser.add_argument("--link-gbit", type=float, default=1.0)
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    root = cache_root()
    user = BuildContext(store=root / "store", cache_dir=root / "images")
    scratch = Path(tempfile.mkdtemp(prefix="bench-image-", dir=root))
    try:
        if "build" in parts:
            ctx, image = bench_build(user, options.image, scratch)
        else:
            found = find_image(options.image, user.repository / "images")
            ctx, image = user, build_runtime(user, found.folder, "bench", definition=found.definition)
        if "docker" in parts:
            bench_docker(ctx, options.image, image, scratch)
        if "pull" in parts:
            bench_pull(ctx, image, scratch, rounds=options.rounds, link_gbit=options.link_gbit)
    except MyriadError as error:
        say(str(error))
        return error.exit_code
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
