"""The tags of etcd and CoreDNS in kubeadm's own description of the cluster, which `kubeadm upgrade apply` reads."""

from __future__ import annotations

from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.kube.kinds import CONFIG_MAPS

_NAME, _NAMESPACE, _KEY = "kubeadm-config", "kube-system", "ClusterConfiguration"


def with_tags(text: str, *, etcd: str, coredns: str) -> str | None:
    """The ClusterConfiguration (YAML) with these image tags; None where it has them already."""
    config: dict[str, Any] = yaml.safe_load(text)
    local = (config.get("etcd") or {}).get("local")
    dns = config.setdefault("dns", {})
    if (local is None or local.get("imageTag") == etcd) and dns.get("imageTag") == coredns:
        return None
    if local is not None:
        local["imageTag"] = etcd
    dns["imageTag"] = coredns
    return yaml.safe_dump(config, sort_keys=False)


def describe(api: Api, *, etcd: str, coredns: str, dry_run: bool = False) -> bool:
    """Write the tags of the lock into the cluster. Returns whether they were others.

    Raises:
        MyriadError: the cluster was not made by kubeadm.
    """
    found = api.find(CONFIG_MAPS, _NAME, namespace=_NAMESPACE)
    text = ((found or {}).get("data") or {}).get(_KEY)
    if not text:
        raise MyriadError(
            "the cluster has no description of kubeadm's",
            where=f"ConfigMap {_NAMESPACE}/{_NAME}",
            hint="only clusters that kubeadm started are upgraded here",
        )
    wanted = with_tags(text, etcd=etcd, coredns=coredns)
    if wanted is None:
        return False
    if not dry_run:
        # As kubeadm itself, whose description it is.
        api.patch(CONFIG_MAPS, _NAME, {"data": {_KEY: wanted}}, namespace=_NAMESPACE, field_manager="kubeadm")
    return True
