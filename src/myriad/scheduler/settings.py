"""What the extension is told from outside: environment variables, read once, passed on as one object."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from myriad.errors import InputError

_PREFIX = "MYRIAD_SCHEDULER_"
ATTACH_MODES = ("waiting", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Inputs of the extension; each is the variable MYRIAD_SCHEDULER_<NAME IN CAPITALS>.

    Attributes:
        namespace: where the Lease stands.
        identity: this replica's name in the Lease.
        port: HTTP port, 0 = any free one.
        admission_check: the AdmissionCheck that the extension answers.
        controller_name: the controller named by that AdmissionCheck.
        lease: the Lease of the leader election.
        lease_duration_s: another replica takes over this long after the leader's last sign of life.
        renew_deadline_s: a leader that could not renew for this long stops writing.
        retry_period_s: time between attempts to take or renew the Lease.
        replan_interval_s: waiting gangs are looked at again at least this often.
        settle_s: changes are gathered this long before gangs are planned.
        planned_per_queue: how many waiting gangs of one ClusterQueue are planned in a pass, in queue order.
        nudge_after_s: a gang that fits now but that Kueue parked is left this long before Kueue is asked to look again.
        nudge_interval_s: the least time between two such requests for one ClusterQueue; doubles up to sixteen times.
        lost_limit_s: a watch broken for longer means that the cache is not in step.
        decisions: the file of decision records.
        decisions_max_bytes: the file is rotated to `.1` beyond this size.
        ledger_url: database of the ledger (postgresql://user:password@host/database); empty: SQLite beside `decisions`.
        timezone: in which budget periods begin, an IANA name such as Europe/Berlin.
        brake_settle_s: nothing is evicted or tainted so long after a change of leader, twice as long after an outage.
        brake: whether evictions and taints of Myriad's own wait while many nodes are silent (docs/preemption.md). False
            is for comparing the two where nobody's work is at stake; whatever shows the extension's state says so.
        prometheus: address of the Prometheus that scrapes the node agents or DCGM: for idle GPUs. Empty: nobody looks.
        event_interval_s: the least time between two Events of one reason on one object.
        reason_writes_per_s: how fast first causes are written on jobs and Workloads at best.
        auth: how callers of the page and the API say who they are: "token", "proxy" (a token, or the word of a proxy
            that has logged people in) or "off" (nobody is asked, everything is shown). See docs/page.md.
        auth_user_header, auth_groups_header: where such a proxy writes the user and, separated by commas, the groups.
        auth_user_prefix, auth_groups_prefix: put before its names, as the API server does with those of OIDC.
        auth_proxy_secret: the file with the secret that the proxy sends in X-Myriad-Proxy-Secret.
        peer_token: the file with the token that this replica shows the other one.
        attach: when a ClusterQueue asks the check: "waiting" (while a gang waits in it, or a domain of its pool is
            kept for one) or "always". See docs/adr/0051.
        detach_after_s: with "waiting" it goes on asking so long after the last gang waited.
        shadow: plan, record and explain, and change nothing: no check is attached, no selector set, no node tainted, no
            job told, shielded or held. What an earlier run without it has set is taken back.
        page_url: where people reach the page; notices lead there. Empty: they name the command instead.
    """

    namespace: str = "myriad-system"
    identity: str = ""
    port: int = 8088
    admission_check: str = "myriad"
    controller_name: str = "myriad.dev/scheduler"
    lease: str = "myriad-scheduler"
    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0
    replan_interval_s: float = 10.0
    settle_s: float = 0.1
    planned_per_queue: int = 50
    nudge_after_s: float = 3.0
    nudge_interval_s: float = 10.0
    lost_limit_s: float = 30.0
    decisions: Path = Path("/var/lib/myriad-scheduler/decisions.jsonl")
    decisions_max_bytes: int = 64 * 1024 * 1024
    ledger_url: str = ""
    timezone: str = "UTC"
    brake_settle_s: float = 60.0
    brake: bool = True
    prometheus: str = ""
    event_interval_s: float = 60.0
    reason_writes_per_s: float = 50.0
    auth: str = "token"
    auth_user_header: str = "X-Forwarded-User"
    auth_groups_header: str = "X-Forwarded-Groups"
    auth_user_prefix: str = "oidc:"
    auth_groups_prefix: str = "oidc:"
    auth_proxy_secret: str = ""
    peer_token: Path = Path("/var/run/secrets/myriad.dev/page/token")
    page_url: str = ""
    attach: str = "waiting"
    detach_after_s: float = 300.0
    shadow: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment. Raises InputError that names the variable."""
        env = os.environ if env is None else env
        values: dict[str, Any] = {
            "namespace": env.get("POD_NAMESPACE") or "myriad-system",
            "identity": env.get("POD_NAME") or socket.gethostname(),
        }
        readers: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "Path": Path, "bool": _flag}
        for field in fields(cls):
            name = _PREFIX + field.name.upper()
            if name in env:
                try:
                    values[field.name] = readers[str(field.type)](env[name])
                except ValueError as error:
                    raise InputError(
                        f"{env[name]!r} is not a value for it ({field.type} is expected)", where=name
                    ) from error
        settings = cls(**values)
        if not settings.retry_period_s < settings.renew_deadline_s < settings.lease_duration_s:
            raise InputError(
                "retry_period_s < renew_deadline_s < lease_duration_s does not hold",
                hint="two leaders could write at once; the defaults are 2, 10 and 15 seconds",
            )
        if settings.attach not in ATTACH_MODES:
            raise InputError(
                f'{settings.attach!r} is not a value for it ("waiting" or "always")', where=f"{_PREFIX}ATTACH"
            )
        return settings


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def own_version() -> str:
    """The version of the installed package; "source" where it runs from a tree without metadata."""
    try:
        return version("myriad")
    except PackageNotFoundError:
        return "source"
