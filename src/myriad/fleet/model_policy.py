"""Parts of the description that say who waits, for how long, who is told, and which jobs are let in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BeforeValidator, Field

from myriad.fleet import names
from myriad.fleet.fields import Part, faultless, items, one_of, positive, refuse, whole

RULES: Mapping[str, str] = {
    "queue": "a job with GPUs names the queue of a pool",
    "gpu-limits": "requests and limits of GPUs are equal",
    "whole-gpus": "a training job asks for whole GPUs",
    "grace": "a job that may be preempted has the grace time of the policy",
    "stop-signal": "a job that may be preempted says how it stops",
    "gang": "all pods of a gang are wanted at once",
    "inference-queue": "a batch job in an inference pool says that it is inference",
    "time-limit": "a job has a time limit where its pool refuses jobs without one",
    "time-limit-default": "a job without a time limit is told which one it gets",
    "image-tag": "images are not named by a tag that moves",
    "image-registry": "images come from the site's registry",
    "image-digest": "images are named by digest",
}
"""Admission rules, and what each of them asks."""

Unlimited = Literal["default", "refuse", "allow"]
Effect = Literal["deny", "warn", "ignore"]

# Where a path of these hosts is the password: whoever knows the URL may post.
_SECRET_PATHS = ("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "chat.googleapis.com")
# Schemes of apprise whose URL names a place and no password: https://github.com/caronc/apprise/wiki
_OPEN_SCHEMES = frozenset({"http", "https", "json", "jsons", "xml", "xmls", "form", "forms", "mailto", "syslog"})
_SECRET_WORDS = ("token", "key", "secret", "password", "pass", "sig", "auth", "pwd")
_SECRET_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._A-Za-z0-9]+\Z")


def level_fault(value: Any) -> str | None:
    """Why a topology level cannot be called so; None when it can."""
    fault = names.label_name_fault(value)
    if fault is None and value in {"hostname", "pool", "gpu-model", "gpu-expected", "gpu-count", "gpu-driver"}:
        return f'"{value}" is a label that Myriad sets itself; a topology level is a place, for example rack'
    return fault


def subject_fault(value: Any) -> str | None:
    """Why a group or user cannot be bound to a team; None when it can."""
    if not isinstance(value, str) or not value.strip() or value != value.strip():
        return f"is {names.show(value)}; write the name as the cluster's login gives it, for example oidc:vision"
    if value.startswith("system:"):
        return f'"{value}" belongs to Kubernetes itself: it would give the team to every program or to all who log in'
    return None


def _secret_fault(value: Any) -> str | None:
    if not isinstance(value, str) or not _SECRET_NAME.match(value):
        # What was written there may be the secret itself, so it is not repeated.
        return "is not NAME/KEY: name a Secret of namespace myriad-system and its key, for example notify/vision-oncall"
    return None


def _url_fault(value: Any) -> str | None:
    """Why an address cannot stand in the description. It is never repeated: it may hold a password."""
    aside = "put it into a Secret of namespace myriad-system and write secret: NAME/KEY instead"
    if not isinstance(value, str) or "://" not in value:
        return "is no URL, for example https://alerts.example.com/myriad"
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
    except ValueError:
        return "cannot be read as one, for example https://alerts.example.com/myriad"
    if parts.scheme == "mailto" and not parts.password and not parts.query:
        return None
    if not host:
        return "names no host, for example https://alerts.example.com/myriad"
    if parts.username or parts.password:
        return f"holds a user's password; {aside}"
    if parts.scheme not in _OPEN_SCHEMES or any(host == one or host.endswith(f".{one}") for one in _SECRET_PATHS):
        return f"lets everybody post who reads it; {aside}"
    if any(word in name.lower() for name, _ in parse_qsl(parts.query) for word in _SECRET_WORDS):
        return f"holds a token; {aside}"
    return None


def _percent(value: Any) -> int:
    return whole("a threshold is a percentage from 0 to 100", low=0, high=100)(value)


Seconds = Annotated[
    int, BeforeValidator(whole("seconds are a whole number from 0 to 604800 (a week)", low=0, high=604800))
]
Level = Annotated[str, BeforeValidator(faultless(level_fault))]
Hours = Annotated[Fraction, BeforeValidator(positive("hours are a number above 0, up to 8760 (a year)", most=8760))]


class Protection(Part):
    """A gang that waits too long gets a domain of its own: others leave it as they end, and none comes in.

    Attributes:
        after_s: seconds of waiting, from the moment when it could have run by its quota.
        max_domains: domains that may be protected at the same time.
        max_share: part of a pool's GPUs that may be protected at the same time.
        level: how large a domain is; by itself the level above the innermost one.
    """

    after_s: Seconds = 7200
    max_domains: Annotated[
        int, BeforeValidator(whole("max_domains is a whole number from 0 (protect nobody) to 1000", low=0, high=1000))
    ] = 1
    max_share: Annotated[
        Fraction, BeforeValidator(positive("max_share is a part of a pool above 0, up to 1, such as 0.25", most=1))
    ] = Fraction(1, 4)
    level: Level | None = None


def _cpus_fault(value: Any) -> str | None:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", value):
        return f'is {names.show(value)}; write CPUs by number in quotes, for example "0-1,64-65"'
    for low, _, high in (part.partition("-") for part in value.split(",")):
        if int(high or low) < int(low):
            return f'has the range "{low}-{high}", which ends before it begins'
    return None


class Alignment(Part):
    """How the kubelet of a pool's nodes keeps the CPUs and devices of one pod on one NUMA node.

    https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/

    Attributes:
        topology_manager: what it does with a pod that fits on no single NUMA node. `restricted` and `single-numa-node`
            refuse it on that node, for good.
        scope: whether each container is looked at by itself, or the pod as one.
        cpu_manager: `static` gives whole CPUs of their own to pods whose requests equal their limits in whole CPUs.
        reserved_cpus: CPUs by number that the system keeps and no pod gets; `static` needs some.
    """

    topology_manager: Annotated[
        Literal["none", "best-effort", "restricted", "single-numa-node"],
        BeforeValidator(one_of("none", "best-effort", "restricted", "single-numa-node")),
    ] = "none"
    scope: Annotated[Literal["container", "pod"], BeforeValidator(one_of("container", "pod"))] = "container"
    cpu_manager: Annotated[Literal["none", "static"], BeforeValidator(one_of("none", "static"))] = "none"
    reserved_cpus: Annotated[str, BeforeValidator(faultless(_cpus_fault))] | None = None


class Idle(Part):
    """When GPUs that a job holds count as idle: below a utilisation for a time."""

    threshold_percent: Annotated[int, BeforeValidator(_percent)] = 5
    after_s: Seconds = 1800


class NotifyTarget(Part):
    """Where notices go: a webhook, or what apprise knows (mail, chat).

    An address that is a password itself, or holds one, stands in a Secret of myriad-system and is named by `secret`.
    Beside a webhook's `url`, `secret` is the key that signs what is sent.
    """

    kind: Annotated[Literal["webhook", "apprise"], BeforeValidator(one_of("webhook", "apprise"))] = "webhook"
    secret: Annotated[str, BeforeValidator(faultless(_secret_fault))] | None = None
    url: Annotated[str, BeforeValidator(faultless(_url_fault))] | None = None


def _effects(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refuse(f"is {names.show(value)}; write rule: deny, warn or ignore, for example {{image-digest: deny}}")
    for name in value:
        if name not in RULES:
            offer = names.did_you_mean(str(name), RULES)
            raise refuse(f"names the rule {names.show(name)}, which is none{offer}")
    return dict(value)


def _effect(value: Any) -> Any:
    # `off` and `no` without quotes are false in YAML.
    if value is False:
        raise refuse("is false; allowed: deny, warn or ignore")
    return one_of("deny", "warn", "ignore")(value)


def _registry_fault(value: Any) -> str | None:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?", value):
        return f"is {names.show(value)}; write how an image's name begins, for example registry.example.com"
    return None


class Admission(Part):
    """Which jobs are let into the namespaces of teams.

    Attributes:
        rules: what each rule does: `deny` refuses, `warn` lets in and tells, `ignore` does nothing. A rule that is not
            named does what ADR 28 says.
        registries: registries that images may come from.
    """

    rules: Annotated[dict[str, Annotated[Effect, BeforeValidator(_effect)]], BeforeValidator(_effects)] = Field(
        default_factory=dict
    )
    registries: Annotated[
        tuple[Annotated[str, BeforeValidator(faultless(_registry_fault))], ...],
        BeforeValidator(items("registries", "[registry.example.com]")),
    ] = ("registry.myriad.internal",)
