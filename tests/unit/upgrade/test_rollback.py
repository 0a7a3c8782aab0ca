"""What is kept of a cluster before an upgrade, and when. What a set applied is read from an API server in tests/api."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from myriad.errors import InputError
from myriad.kube.client import Api
from myriad.kube.objects import SET_LABEL
from myriad.upgrade import rollback
from myriad.upgrade.rollback import back, keep, newest_kept, read_kept, target_of


class Cluster:
    """A set whose one object has the version that was applied last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.version, self.folder = "1", folder
        monkeypatch.setattr(rollback, "applied", lambda api, name: [{"kind": "ConfigMap", "version": self.version}])

    def keep(self, target: str) -> None:
        keep(None, "kueue", self.folder, target)  # type: ignore[arg-type]

    def way_back(self) -> Any:
        path = newest_kept(self.folder, "kueue")
        return json.loads(path.read_text())[0]["version"] if path else None


def test_a_run_that_is_repeated_after_the_cluster_was_upgraded_keeps_the_way_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nodes that were left for their jobs are upgraded by another run, days after the site run."""
    cluster = Cluster(monkeypatch, tmp_path / "rollback")
    cluster.keep("to-2")
    cluster.version = "2"
    cluster.keep("to-2")
    assert cluster.way_back() == "1"


def test_an_upgrade_that_changed_nothing_of_it_before_it_began_has_a_way_back_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = Cluster(monkeypatch, tmp_path)
    (tmp_path / "kueue-20260101T000000Z.json").write_text('[{"version": "1"}]')
    assert cluster.way_back() == "1", "as an older version of Myriad named it"
    cluster.version = "1"
    cluster.keep("to-2")
    cluster.version = "2"
    cluster.keep("to-2")
    assert cluster.way_back() == "1"
    cluster.keep("to-3")
    assert cluster.way_back() == "2"


def test_a_target_is_its_images(tmp_path: Path) -> None:
    images = {"kueue": {"digest": "sha256:a", "tag": "1"}, "etcd": {"digest": "sha256:b", "tag": "3"}}
    assert target_of(images) == target_of(dict(reversed(images.items())))
    assert target_of(images) != target_of({**images, "kueue": {"digest": "sha256:c", "tag": "1"}})


def kept_object(set_name: str, name: str = "a") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {SET_LABEL: set_name}}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "holds no kept objects: "),
        ("", "holds no kept objects: "),
        ("[]", "a list, with one object at least"),
        ("{}", "a list, with one object at least"),
        ("[3]", "entry 1 is no object"),
        (json.dumps([kept_object("kueue"), {"kind": "ConfigMap"}]), "entry 2 is no object"),
        (json.dumps([kept_object("volcano")]), "ConfigMap a is of volcano, not of kueue"),
        (json.dumps([kept_object("kueue") | {"metadata": {"name": "a"}}]), "ConfigMap a is of no set, not of kueue"),
        (None, "cannot be read: "),
    ],
)
def test_a_file_that_is_not_what_was_kept_removes_nothing(tmp_path: Path, content: str | None, said: str) -> None:
    """What a way back does not name is removed: an empty list would take Kueue out of the cluster."""
    path = tmp_path / "kueue-20260101T000000Z.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        # An address at which nobody answers: it is refused before anybody is asked.
        back(Api("http://127.0.0.1:1"), "kueue", path)
    assert said in caught.value.message and caught.value.where == str(path)
    assert "files are named kueue-TIME.json" in (caught.value.hint or "")


def test_what_was_kept_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kueue-20260101T000000Z.json"
    path.write_text(json.dumps([kept_object("kueue", "a"), kept_object("kueue", "b")]))
    assert [obj["metadata"]["name"] for obj in read_kept(path, "kueue")] == ["a", "b"]
