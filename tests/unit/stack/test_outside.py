"""Addresses outside the site: all that the lock names, none with a whole bundle, and the table of docs/security.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from typer.testing import CliRunner

from myriad.cli import lock as lock_verbs
from myriad.images.wheels_index import PYPI
from myriad.stack.apt_repo import DISTRIBUTIONS
from myriad.stack.build import write_bundle
from myriad.stack.bundle import AptRepository, FileEntry, Manifest, Origin, WheelEntry
from myriad.stack.lock import default_lock_path, load_lock
from myriad.stack.outside import of_build, of_site
from myriad.stack.settings import Mirrors
from myriad.stack.store import Store

ROOT = Path(__file__).parents[3]


def hosts_of_the_lock() -> set[str]:
    """Every host that the text of the lock names, found without its model."""
    lines = (line.partition(" #")[0] for line in default_lock_path().read_text().splitlines())
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    references = re.findall(r"ref: [\"']?([a-z0-9.-]+\.[a-z]+)/", text)
    return {urlsplit(url).netloc for url in re.findall(r"https?://[^\s\"',}]+", text)} | set(references)


def test_every_host_of_the_lock_is_among_them() -> None:
    named = hosts_of_the_lock()
    assert {"dl.k8s.io", "github.com", "registry.k8s.io"} <= named
    assert named <= {address.host for address in of_build(load_lock())}


def test_and_every_host_that_the_programs_ask_of_their_own_accord() -> None:
    asked = {address.host for address in of_build(load_lock())}
    own = {urlsplit(PYPI).netloc, urlsplit(Mirrors.model_validate({}).apt_url("x")).netloc, "proxy.golang.org"}
    assert own <= asked
    families = {item.family for item in DISTRIBUTIONS.values()}
    assert families == {"Debian", "Ubuntu"}, "another family has another archive"


def test_the_table_of_the_page_is_what_is_computed() -> None:
    text = (ROOT / "docs/security.md").read_text()
    part = text.split("## Addresses outside the site", 1)[1].split("\n## ", 1)[0]
    shown = {cell for row in re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE) for cell in row.split("`, `")}
    assert shown == {address.host for address in of_build(load_lock())}


def test_a_site_with_a_whole_bundle_asks_nobody() -> None:
    assert of_site(distributions=["debian12"], has_wheels=True) == []
    assert {address.by for address in of_site(distributions=["debian12"])} == {"controller"}
    assert {address.by for address in of_site(has_wheels=True)} == {"nodes"}


def bundle(folder: Path, **more: Any) -> Path:
    store = Store(folder / "store")
    digest = store.put_bytes(b"program")
    origin = Origin(source="local", folder="x")
    entry = FileEntry(name="t", component="t", version="1", kind="binary", sha256=digest, size=7, origin=origin)
    manifest = Manifest(myriad="0", arch="amd64", lock_sha256="0" * 64, versions={}, files=[entry], images=[], **more)
    return write_bundle(manifest, folder / "bundle", store).directory


def asked(*arguments: str) -> list[dict[str, str]]:
    app = typer.Typer()
    lock_verbs.register(app)
    done = CliRunner().invoke(app, ["lock", "outside", "--json", *arguments])
    assert done.exit_code == 0, done.output
    return list(json.loads(done.stdout)["outside"])


def test_the_verb_looks_into_the_bundle(tmp_path: Path) -> None:
    for name in ("bare", "whole"):
        (tmp_path / name).mkdir()
    wheel = Store(tmp_path / "whole/store").put_bytes(b"wheel")
    whole = bundle(
        tmp_path / "whole",
        apt=AptRepository(suites={"debian12": "bookworm"}, wanted={}),
        wheels=[WheelEntry(name="w", version="1", filename="w.whl", sha256=wheel, size=5, url="https://pypi.org/w")],
    )
    assert asked("--bundle", str(whole)) == []
    assert {row["by"] for row in asked("--bundle", str(bundle(tmp_path / "bare")))} == {"controller", "nodes"}
    assert "dl.k8s.io" in {row["host"] for row in asked()}
