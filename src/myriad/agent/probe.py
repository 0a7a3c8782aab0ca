"""The probe: a pod on the node that asks for all of its GPUs and opens every one of them.

That nvidia-smi answers on the node proves little for a container: the device plugin, the toolkit or CDI, the device
cgroup and file modes, and CUDA's own start-up (a fabric that is not complete gives error 802 there only) stand
between. So the probe is an ordinary pod without privileges. It goes through the device plugin, opens each device file
that it was given and, where the driver's library is there, makes a CUDA context on each GPU.

`python -m myriad.agent.probe` is what runs in the pod; `pod`, `read` and `blocked` are the agent's side. Its answer
travels as the container's termination message: no log has to be read.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NAMESPACE = "myriad-system"
NAME_PREFIX = "myriad-gate-probe-"
TIMEOUT_S = 90
_TERMINATION_LOG = "/dev/termination-log"
_MESSAGE_MOST = 4000  # The kubelet keeps 4,096 bytes.

DEVICE_FILES = {"nvidia.com": r"nvidia\d+", "huawei.com": r"davinci\d+"}
"""Names of a GPU's own device file below /dev, by the vendor's resource domain."""
_SHARED_FILES = ("nvidiactl", "nvidia-uvm", "davinci_manager")

CUDA_ERRORS = {
    3: "not initialized", 35: "the driver is older than the CUDA runtime", 100: "no device", 101: "invalid device",
    802: "system not ready", 803: "system driver mismatch", 804: "compatibility not supported on device",
    999: "unknown",
}  # fmt: skip
"""https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html, CUresult."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a container on the node found.

    Attributes:
        wanted: GPUs that it asked for.
        opened: device files that it opened.
        failures: what could not be opened, name to reason.
        cuda: fault of CUDA as a sentence; empty where there is none, None where the library is not in the image.
        done: False while it runs.
        skipped: why nothing was tried; the answer is then neither good nor bad.
    """

    wanted: int = 0
    opened: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    cuda: str | None = None
    done: bool = True
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """All GPUs were opened and CUDA, where it is, has no objection."""
        return self.done and not self.skipped and not self.fault

    @property
    def fault(self) -> str:
        """What is wrong, as a sentence."""
        if not self.done or self.skipped:
            return ""
        parts = [f"{name}: {reason}" for name, reason in sorted(self.failures.items())]
        if self.opened != self.wanted:
            parts.insert(0, f"a container opened {self.opened} of {self.wanted} GPUs")
        if self.cuda:
            parts.append(self.cuda)
        return "; ".join(parts[:5]) + (f" and {len(parts) - 5} more" if len(parts) > 5 else "")

    def as_json(self) -> Json:
        """For the annotation; `from_json` reads it."""
        body = asdict(self)
        return {
            key: value for key, value in body.items() if value not in (None, {}) and (key, value) != ("skipped", "")
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ProbeResult:
        """Raises TypeError or ValueError where it is no result."""
        known = {"wanted", "opened", "failures", "cuda", "done", "skipped"}
        result = cls(**{key: value for key, value in body.items() if key in known})
        if not isinstance(result.opened, int) or not isinstance(result.failures, Mapping):
            raise ValueError("no result of a probe")
        return result


# In the container


def look(
    dev: Path, domain: str, wanted: int, cuda: Callable[[], str | None], open_file: Callable[[Path], None]
) -> Json:
    """Open every GPU that the container was given.

    Args:
        dev: the folder of device files.
        domain: the vendor's resource domain.
        wanted: GPUs that were asked for.
        cuda: tries CUDA.
        open_file: opens a device file and closes it again; raises OSError.
    """
    pattern = re.compile(DEVICE_FILES.get(domain, DEVICE_FILES["nvidia.com"]))
    names = sorted(entry.name for entry in dev.iterdir() if pattern.fullmatch(entry.name))
    shared = [name for name in _SHARED_FILES if (dev / name).exists()]
    failures: dict[str, str] = {}
    for name in [*names, *shared]:
        try:
            open_file(dev / name)
        except OSError as error:
            failures[name] = f"{errno.errorcode.get(error.errno or 0, 'error')}: {os.strerror(error.errno or 0)}"
    if not names:
        failures["device files"] = f"none of the {wanted} GPUs is in the container"
    opened = sum(name not in failures for name in names)
    return ProbeResult(wanted, opened, failures, cuda() if opened else None).as_json()


def open_device(path: Path) -> None:
    """Open a device file for reading and writing, as the driver's library does."""
    os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))


def try_cuda(count: int | None, library: str = "libcuda.so.1") -> str | None:
    """Start CUDA and make a context on each GPU. None: the library is not here. Empty: all is well.

    Args:
        count: GPUs that CUDA should see; None does not compare (MIG shows a process one slice).
        library: the driver's library.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None

    def call(name: str, *arguments: Any) -> str:
        code = int(getattr(cuda, name)(*arguments))
        return f"{name} gives CUDA error {code} ({CUDA_ERRORS.get(code, 'see CUresult')})" if code else ""

    fault = call("cuInit", 0)
    if fault:
        return fault
    seen = ctypes.c_int()
    fault = call("cuDeviceGetCount", ctypes.byref(seen))
    if fault:
        return fault
    if count is not None and seen.value != count:
        return f"CUDA sees {seen.value} of {count} GPUs"
    for index in range(seen.value):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        fault = call("cuDeviceGet", ctypes.byref(device), index) or call(
            "cuDevicePrimaryCtxRetain", ctypes.byref(context), device
        )
        if fault:
            return f"GPU {index}: {fault}"
        call("cuDevicePrimaryCtxRelease_v2", device)
    return ""


def main(environ: Mapping[str, str] | None = None) -> int:
    """Entry point of the pod. The exit code is 0 whatever was found: the answer is the termination message."""
    environ = os.environ if environ is None else environ
    wanted = int(environ.get("PROBE_GPUS") or 0)
    count = None if environ.get("PROBE_MIG") else wanted
    answer = look(
        Path(environ.get("PROBE_DEV") or "/dev"), environ.get("PROBE_DOMAIN") or "nvidia.com", wanted,
        lambda: try_cuda(count), open_device,
    )  # fmt: skip
    text = json.dumps(answer, separators=(",", ":"))
    if len(text) > _MESSAGE_MOST:
        answer["failures"] = dict(list(answer["failures"].items())[:20])
        text = json.dumps(answer, separators=(",", ":"))
    print(text)
    Path(environ.get("PROBE_ANSWER") or _TERMINATION_LOG).write_text(text)
    return 0


# The agent's side


def pod(node: Json, image: str, amounts: Mapping[str, int], *, gpus: int, mig: bool) -> Json:
    """The probe's pod for a node.

    It is put onto the node by name, past the scheduler and every taint; the kubelet still has to give it the devices.

    Args:
        node: the Node.
        image: the agent's own image, which the node therefore has.
        amounts: all that the kubelet counts, by resource.
        gpus: device files to expect.
        mig: whether GPUs are sliced.
    """
    name = node["metadata"]["name"]
    domain = next(iter(amounts)).partition("/")[0]
    requests = {resource: str(count) for resource, count in amounts.items()}
    env = {
        "PROBE_GPUS": str(gpus), "PROBE_DOMAIN": domain, "PROBE_MIG": "1" if mig else "",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }  # fmt: skip
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"].get("uid", "")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME_PREFIX + name,
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "myriad-gate-probe"},
            **({"ownerReferences": [owner]} if owner["uid"] else {}),
        },
        "spec": {
            "nodeName": name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": TIMEOUT_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}
            },
            "containers": [
                {
                    "name": "probe",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "myriad.agent.probe"],
                    "env": [{"name": key, "value": value} for key, value in env.items()],
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi", **requests}, "limits": requests},
                    "securityContext": {
                        "allowPrivilegeEscalation": False, "privileged": False, "capabilities": {"drop": ["ALL"]}
                    },
                }
            ],
        },
    }  # fmt: skip


def read(body: Json, wanted: int, *, age_s: float) -> ProbeResult:
    """What a probe's pod says by now.

    Args:
        body: the Pod.
        wanted: GPUs that it asked for.
        age_s: time since it was made.
    """
    status = body.get("status") or {}
    container: Json = next(iter(status.get("containerStatuses") or []), {})
    ended = (container.get("state") or {}).get("terminated")
    if ended is not None and ended.get("message"):
        try:
            return ProbeResult.from_json(json.loads(ended["message"]))
        except (ValueError, TypeError, AttributeError):
            return ProbeResult(wanted, failures={"probe": " ".join(str(ended["message"]).split())[:300]})
    if status.get("phase") in ("Failed", "Succeeded"):
        ended = ended or {}
        said = status.get("message") or ended.get("reason") or status.get("reason") or "it said nothing"
        return ProbeResult(wanted, failures={"probe pod": f"{status.get('reason') or 'ended'}: {said}"[:300]})
    if age_s > TIMEOUT_S:
        waiting = (container.get("state") or {}).get("waiting") or {}
        why = " ".join(filter(None, (waiting.get("reason"), waiting.get("message")))) or status.get("phase") or "?"
        return ProbeResult(wanted, failures={"probe pod": f"it did not end within {TIMEOUT_S} s: {why}"[:300]})
    return ProbeResult(wanted, done=False)


def blocked(pods: Sequence[Json], amounts: Mapping[str, int]) -> str:
    """Why a node's GPUs cannot be probed now, as a sentence: pods that hold some; empty where they are free."""
    holders = [
        f"{p['metadata'].get('namespace', '')}/{p['metadata']['name']}"
        for p in pods
        if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        and not p["metadata"]["name"].startswith(NAME_PREFIX)
        and any(
            resource in ((c.get("resources") or {}).get("limits") or {})
            for c in [*(p["spec"].get("containers") or []), *(p["spec"].get("initContainers") or [])]
            for resource in amounts
        )
    ]
    return f"GPUs in use by {len(holders)} pod{'s' if len(holders) != 1 else ''}" if holders else ""


if __name__ == "__main__":
    sys.exit(main())
