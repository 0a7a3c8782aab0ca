"""Inputs of the agent, from its environment: where the node's files stand, how often it looks, where it reports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from myriad.agent.collect.source import Host
from myriad.errors import InputError
from myriad.fleet.portrait import LEASE_NAMESPACE


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them.

    Attributes:
        node: the Node's name ($NODE_NAME).
        host: the node's files ($HOST_ROOT, $SYSFS, $PROCFS, $DEVFS, $NVIDIA_SMI).
        kernel_log: the kernel's log as the node sees it ($KERNEL_LOG).
        interval_s: time between two looks ($INTERVAL_S).
        timeout_s: after this a tool counts as hanging ($TOOL_TIMEOUT_S).
        lease_s: time between two renewals of the Lease ($LEASE_S).
        namespace: of the Lease ($NAMESPACE).
        image: the agent's own image, for the probe ($IMAGE).
        metrics_port: 0 serves none ($METRICS_PORT).
    """

    node: str
    host: Host = field(default_factory=Host)
    kernel_log: str = "/dev/kmsg"
    interval_s: float = 15.0
    timeout_s: float = 20.0
    lease_s: int = 40
    namespace: str = LEASE_NAMESPACE
    image: str = ""
    metrics_port: int = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment. Raises InputError that names the variable."""
        env = os.environ if env is None else env
        if not env.get("NODE_NAME"):
            raise InputError("no node is named", where="NODE_NAME", hint="set it to the name of the Node to follow")
        programs = {"nvidia-smi": env["NVIDIA_SMI"]} if env.get("NVIDIA_SMI") else {}
        host = Host(
            root=Path(env.get("HOST_ROOT") or "/"),
            sysfs=env.get("SYSFS") or "/sys",
            procfs=env.get("PROCFS") or "/proc",
            devfs=env.get("DEVFS") or "/dev",
            programs=programs,
        )
        return cls(
            node=env["NODE_NAME"],
            host=host,
            kernel_log=env.get("KERNEL_LOG") or "/dev/kmsg",
            interval_s=_number(env, "INTERVAL_S", 15.0),
            timeout_s=_number(env, "TOOL_TIMEOUT_S", 20.0),
            lease_s=int(_number(env, "LEASE_S", 40.0)),
            namespace=env.get("NAMESPACE") or LEASE_NAMESPACE,
            image=env.get("IMAGE") or "",
            metrics_port=int(_number(env, "METRICS_PORT", 0.0)),
        )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0:
        raise InputError(f"{text!r} is no number of 0 or more", where=name)
    return number
