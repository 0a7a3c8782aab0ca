"""What may leave a registry: decided by value, then tried on a real one, with real deletions and a real sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from myriad.cli import registry as verbs
from myriad.errors import InputError, UnreachableError
from myriad.inventory import read_inventory
from myriad.registry_site import naming
from myriad.registry_site.contents import Contents
from myriad.registry_site.retention import Entry, Named, Plan, plan
from myriad.stack.push import files_tag, push_bundle
from tests.unit.registry_site.programs import free_port, registry_config, registry_program, running
from tests.unit.stack.offline_bundle import OCI, make_bundle


def _digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def _names(made: Plan) -> tuple[list[str], list[str]]:
    return sorted(entry.names for entry, _ in made.keep), sorted(entry.names for entry in made.delete)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("registry.myriad.internal/app:v1", "v1"),
        ("app:v1", "v1"),
        ("registry.myriad.internal/app@" + _digest("b"), "v2"),
        ("registry.myriad.internal/app:v9@" + _digest("b"), "v2"),
        (_digest("a"), "v1"),
        ("docker.io/library/app:v2", "v2"),
    ],
)
def test_one_reference_keeps_what_it_names(text: str, kept: str) -> None:
    entries = [
        Entry(repo="app", digest=_digest("a"), tags=("v1",)),
        Entry(repo="app", digest=_digest("b"), tags=("v2",)),
    ]
    named = Named()
    named.add_text(text, "somebody")
    made = plan(entries, named)
    assert [entry.tags for entry, _ in made.keep] == [(kept,)]


def test_a_name_without_tag_keeps_all_of_it_and_nothing_of_a_longer_name() -> None:
    entries = [
        Entry(repo="myriad/gang-check", digest=_digest("a"), tags=("1",)),
        Entry(repo="myriad/gang-check", digest=_digest("b"), tags=("2",)),
        Entry(repo="myriad/gang-check-old", digest=_digest("c"), tags=("1",)),
    ]
    named = Named()
    named.add_text("gang-check", "description")
    assert _names(plan(entries, named)) == (
        ["myriad/gang-check:1", "myriad/gang-check:2"],
        ["myriad/gang-check-old:1"],
    )


def test_one_kept_tag_keeps_the_manifest_with_its_other_tags() -> None:
    entries = [Entry(repo="app", digest=_digest("a"), tags=("latest", "v1"))]
    named = Named()
    named.add_text("app:v1", "node gpu1")
    assert plan(entries, named).delete == []


def test_an_index_keeps_its_images_and_an_image_its_documents() -> None:
    index = Entry(repo="app", digest=_digest("1"), tags=("v1",), children=(_digest("2"), _digest("9")))
    image = Entry(repo="app", digest=_digest("2"))
    signature = Entry(repo="app", digest=_digest("3"), tags=(f"sha256-{'2' * 64}.sig",))
    sbom = Entry(repo="app", digest=_digest("4"), subject=_digest("2"))
    of_sbom = Entry(repo="app", digest=_digest("5"), subject=_digest("4"))
    stranger = Entry(repo="app", digest=_digest("6"), subject=_digest("7"))
    other = Entry(repo="app", digest=_digest("8"), tags=(f"sha256-{'7' * 64}",))
    named = Named(digests={_digest("1"): "lock"})
    made = plan([of_sbom, sbom, signature, image, index, stranger, other], named)
    assert {entry.digest for entry in made.delete} == {stranger.digest, other.digest}
    reasons = {entry.digest: why for entry, why in made.keep}
    assert reasons[image.digest] == "part of app:v1"
    assert reasons[of_sbom.digest].startswith("attached to")


def test_a_child_that_is_named_does_not_keep_its_index() -> None:
    index = Entry(repo="app", digest=_digest("1"), tags=("v1",), children=(_digest("2"),))
    image = Entry(repo="app", digest=_digest("2"))
    made = plan([index, image], Named(digests={_digest("2"): "node gpu1"}))
    assert made.delete == [index]


def test_teams_are_left_alone_and_shared_layers_are_not_counted() -> None:
    shared, own = {_digest("a"): 100}, {_digest("b"): 7}
    entries = [
        Entry(repo="teams/vision/x", digest=_digest("1"), tags=("v1",), blobs=shared),
        Entry(repo="old", digest=_digest("2"), tags=("v1",), blobs=shared | own),
    ]
    made = plan(entries, Named())
    assert _names(made) == (["teams/vision/x:v1"], ["old:v1"]) and made.freed_bytes == 7
    assert len(plan(entries, Named(), protected=()).delete) == 2


def test_images_of_workloads_are_found_however_deep() -> None:
    job = {
        "spec": {"template": {"spec": {"initContainers": [{"image": "a:1"}], "containers": [{"image": "b:2"}]}}},
        "status": {"containerStatuses": [{"imageID": "docker-pullable://reg/c@" + _digest("c")}]},
        "volumes": [{"image": {"reference": "d:4"}}],
    }
    assert sorted(naming._images(job)) == ["a:1", "b:2", "d:4", "reg/c@" + _digest("c")]


def test_what_a_runtime_says_and_what_is_no_answer() -> None:
    answer = {
        "images": [
            {
                "repoTags": ["registry.myriad.internal/app:v1"],
                "repoDigests": ["registry.myriad.internal/app@" + _digest("a")],
            },
            {"repoTags": [], "repoDigests": ["<none>@<none>"]},
        ]
    }
    named = Named()
    assert naming.name_nodes(named, {"gpu1": json.dumps(answer)}, "registry.myriad.internal") == 2
    assert named.refs == {"app:v1": "node gpu1"} and named.digests == {_digest("a"): "node gpu1"}
    for text in ("", "[]", '{"images": 3}', '{"nothing": []}'):
        with pytest.raises(InputError, match=r"gpu2: its runtime's list"):
            naming.name_nodes(Named(), {"gpu2": text}, "registry.myriad.internal")


# --- on a real registry ---


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    port = free_port()
    config = registry_config(tmp_path, port)
    with running([str(registry_program()), "serve", str(config)], port, tmp_path / "registry.log"):
        yield f"http://127.0.0.1:{port}", config


def _inventory(folder: Path, bundle: Path, *, images: str = "{}") -> Path:
    site = folder / "inventory"
    (site / "group_vars" / "all").mkdir(parents=True)
    (site / "hosts.yml").write_text(
        "all:\n  vars: {ansible_connection: local, ansible_python_interpreter: " + sys.executable + "}\n"
        "  children:\n    control_plane: {hosts: {cp1: {ansible_host: 127.0.0.1}}}\n"
        "    gpu_nodes: {hosts: {gpu1: {}, gpu2: {}}}\n"
    )
    (site / "group_vars" / "all" / "site.yml").write_text(f"site_bundle: {bundle}\nmyriad_images: {images}\n")
    return site


def _crictl(folder: Path, monkeypatch: pytest.MonkeyPatch, digest: str, *, code: int = 0) -> None:
    program = folder / "crictl"
    answer = json.dumps({"images": [{"repoDigests": [f"registry.myriad.internal/held@{digest}"], "repoTags": []}]})
    program.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(naming, "CRICTL", str(program))


def _ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of a test do not change, and each ansible takes seconds: the real answer is asked for once."""
    real, known = naming.crictl_answers, {}

    def once(*arguments: object) -> dict[str, str]:
        if repr(arguments) not in known:
            known[repr(arguments)] = real(*arguments)  # type: ignore[arg-type]
        return known[repr(arguments)]

    monkeypatch.setattr(naming, "crictl_answers", once)


def _run(*arguments: str) -> str:
    app = typer.Typer()
    verbs.register(app)
    done = CliRunner().invoke(app, ["registry", "retention", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def _image(url: str, repo: str, tag: str, content: bytes) -> str:
    """Push a small image of its own; returns its digest."""
    import hashlib

    with httpx.Client(base_url=url, trust_env=False) as http:
        parts = []
        for blob in (content, b"{}"):
            digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
            begun = http.post(f"/v2/{repo}/blobs/uploads/")
            target = httpx.URL(begun.headers["Location"]).copy_add_param("digest", digest)
            assert http.put(target, content=blob).status_code == 201
            parts.append({"digest": digest, "size": len(blob), "mediaType": "application/octet-stream"})
        body = json.dumps({"schemaVersion": 2, "mediaType": OCI, "config": parts[1], "layers": parts[:1]}).encode()
        put = http.put(f"/v2/{repo}/manifests/{tag}", content=body, headers={"Content-Type": OCI})
        assert put.status_code == 201
        return str(put.headers["Docker-Content-Digest"])


def test_from_plan_to_sweep(registry: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, config = registry
    bundle = make_bundle(tmp_path / "content")
    push_bundle(bundle.directory, url)
    held = _image(url, "held", "v1", b"a node has this")
    described = _image(url, "described", "v1", b"myriad_images names this")
    old = _image(url, "old", "v1", b"x" * 50_000)
    _image(url, "teams/vision/own", "v1", b"a team's")
    _crictl(tmp_path, monkeypatch, held)
    _ask_once(monkeypatch)
    inventory = _inventory(tmp_path, bundle.directory, images="{warm: [{image: described}]}")
    common = ["-i", str(inventory), "--registry", url, "--no-cluster"]
    made = json.loads(_run("plan", *common, "--json"))["registries"][0]
    assert [item["digest"] for item in made["delete"]] == [old]
    reasons = {item["name"]: item["named_by"] for item in made["keep"]}
    assert reasons["held:v1"].startswith("node ")
    assert reasons["described:v1"] == "description, myriad_images"
    assert reasons["team/app:v1"].startswith("bundle ")
    assert reasons[f"artifacts:{files_tag(bundle)}"].startswith("bundle ")
    assert reasons["teams/vision/own:v1"] == "below teams/"
    assert described in {item["digest"] for item in made["keep"]}
    assert "delete  old:v1" in _run("plan", *common)

    # Asked first, and nothing goes on a no.
    app = typer.Typer()
    verbs.register(app)
    refused = CliRunner().invoke(app, ["registry", "retention", "run", *common, "--no-sweep"], input="n\n")
    assert isinstance(refused.exception, InputError)
    with Contents(url) as contents:
        assert old in {entry.digest for entry in contents.entries()}

    done = json.loads(_run("run", *common, "--yes", "--no-sweep", "--json"))["registries"][0]
    assert done["deleted"] == ["old:v1"] and done["freed_bytes"] >= 50_000
    with Contents(url) as contents:
        left = contents.entries()
    assert {entry.digest for entry in left} >= {held, described} and old not in {entry.digest for entry in left}
    assert json.loads(_run("run", *common, "--yes", "--no-sweep", "--json"))["registries"][0]["deleted"] == []

    # What the role's sweep then runs: the space comes back, and all that is left can still be read.
    data = config.parent / "data"
    before = sum(path.stat().st_size for path in data.rglob("data"))
    swept = subprocess.run(
        [str(registry_program()), "garbage-collect", str(config)], capture_output=True, text=True, check=True
    )
    assert "eligible for deletion" in swept.stdout
    assert before - sum(path.stat().st_size for path in data.rglob("data")) >= 50_000
    assert push_bundle(bundle.directory, url).sent == []


def test_a_host_that_cannot_be_asked_stops_everything(
    registry: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _config = registry
    bundle = make_bundle(tmp_path / "content")
    _image(url, "old", "v1", b"old")
    _crictl(tmp_path, monkeypatch, _digest("a"), code=1)
    inventory = _inventory(tmp_path, bundle.directory)
    common = ["-i", str(inventory), "--registry", url, "--no-cluster"]
    with pytest.raises(UnreachableError, match="3 hosts cannot be asked") as caught:
        _run("run", *common, "--yes")
    assert "gpu1" in str(caught.value) and "--without HOST" in str(caught.value)
    with Contents(url) as contents:
        assert [entry.repo for entry in contents.entries()] == ["old"]


def test_a_bundle_that_is_only_a_template_has_to_be_given(tmp_path: Path) -> None:
    inventory = _inventory(tmp_path, Path("{{ lab_bundle_dir }}"))
    with pytest.raises(InputError, match="give --bundle DIR"):
        _run("plan", "-i", str(inventory), "--registry", "http://127.0.0.1:1", "--no-cluster")


def test_addresses_of_the_registries(tmp_path: Path) -> None:
    inventory = _inventory(tmp_path, tmp_path)
    assert verbs.registry_addresses(read_inventory(inventory)) == ["http://127.0.0.1:5000"]
    hosts = inventory / "hosts.yml"
    hosts.write_text(hosts.read_text() + "    registry: {hosts: {reg1: {ansible_host: 10.0.0.2}, reg2: {}}}\n")
    (inventory / "group_vars" / "all" / "tls.yml").write_text("site_registry_tls: true\n")
    assert verbs.registry_addresses(read_inventory(inventory)) == ["https://10.0.0.2:5000", "https://reg2:5000"]
