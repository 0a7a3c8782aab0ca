"""Which addresses outside the site are contacted, by whom and for what: computed from the lock and a bundle. Pure.

Who builds a bundle contacts those that the lock names. A site that has a bundle contacts none: its controller, nodes
and pods take everything from the site's own registry and repository. What a site names itself (mirrors, a login,
targets of notices) is its own and not among these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from myriad.stack.lock import Lock

By = Literal["build", "controller", "nodes"]
#: Where servers of these names send their clients, as they document or do it themselves.
LEADS_TO: Mapping[str, tuple[str, ...]] = {
    "github.com": ("release-assets.githubusercontent.com", "objects.githubusercontent.com"),
    "pypi.org": ("files.pythonhosted.org",),
    "docker.io": ("registry-1.docker.io", "auth.docker.io", "production.cloudflare.docker.com"),
    # https://kubernetes.io/blog/2022/11/28/registry-k8s-io-faster-cheaper-ga/: a front of registries and buckets.
    "registry.k8s.io": ("*.pkg.dev", "*.amazonaws.com"),
    # https://go.dev/ref/mod#environment-variables: the defaults of GOPROXY and GOSUMDB.
    "proxy.golang.org": ("storage.googleapis.com",),
}
GO_PROXY, GO_SUMS, PYTHON = "proxy.golang.org", "sum.golang.org", "pypi.org"
#: Archives by ID of os-release; a node's own sources may name others, which are the site's.
ARCHIVES: Mapping[str, tuple[str, ...]] = {
    "debian": ("deb.debian.org",),
    "ubuntu": ("archive.ubuntu.com", "ports.ubuntu.com"),
}


@dataclass(frozen=True, kw_only=True, order=True)
class Address:
    """One host outside the site.

    Attributes:
        by: who asks: `build` (a bundle is built), `controller` (`make env`), `nodes` (a site run).
        host: its name, or a pattern of names that it leads to.
        purpose: what for, in words.
    """

    by: By
    host: str
    purpose: str


def of_build(lock: Lock) -> list[Address]:
    """Whom `myriad bundle build` asks where no mirror stands in between, sorted by name."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, component in lock.components.items():
        hosts = {(urlsplit(file.url).netloc, "releases") for file in component.sources.release.values()}
        if component.sources.modules:
            hosts |= {(GO_PROXY, "Go modules"), (GO_SUMS, "sums of Go modules")}
        if component.sources.package:
            hosts.add((ARCHIVES["debian"][0], "packages"))
        hosts |= {(image.ref.partition("/")[0], "images") for image in component.upstream_images.values()}
        for host, kind in hosts:
            found[host][kind].append(name)
    for archive in (host for hosts in ARCHIVES.values() for host in hosts):
        found[archive]["packages"].append("the nodes")
    found[PYTHON]["wheels"].append("the controller")
    found[PYTHON]["wheels"].append("Go")
    rows = []
    for host, kinds in sorted(found.items()):
        purpose = "; ".join(f"{kind} of {', '.join(names)}" for kind, names in sorted(kinds.items()))
        rows.append(Address(by="build", host=host, purpose=purpose))
        rows += [Address(by="build", host=to, purpose=f"where {host} leads") for to in LEADS_TO.get(host, ())]
    return rows


def of_site(*, distributions: Collection[str] = (), has_wheels: bool = False) -> list[Address]:
    """Whom a site contacts that has a bundle. Empty where that holds packages for its nodes, and wheels.

    Args:
        distributions: ID and version (debian12) of those for which the bundle has an apt repository; it is built for
            the distributions of the site's nodes.
        has_wheels: whether it has the controller's environment.
    """
    found = []
    if not has_wheels:
        found += [
            Address(by="controller", host=host, purpose="wheels of the controller")
            for host in (PYTHON, *LEADS_TO[PYTHON])
        ]
    if not distributions:
        found += [
            Address(by="nodes", host=host, purpose="packages, by the nodes' own sources")
            for host in (*(host for hosts in ARCHIVES.values() for host in hosts), "security.ubuntu.com")
        ]
    return found
