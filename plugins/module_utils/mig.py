#!/usr/bin/python3
"""The MIG layout of this node's GPUs: read, compared, planned, applied with everything put back on a failure.

The module `mig` and the unit that applies the layout at boot, before the kubelet starts, run this file; the role
installs it as /usr/local/lib/myriad/mig, so it needs the standard library only. The module writes what the unit reads,
/var/lib/myriad/mig/layout.json::

    {"layouts": {"0": ["3g.40gb", "3g.40gb"], "1": []},
     "units": ["kubelet.service", "nvidia-dcgm.service"], "pods": ["myriad-device-plugin"],
     "refresh": ["myriad-gpu-cdi.service"], "deadline_s": 60, "nvidia_smi": "/usr/bin/nvidia-smi"}

An empty layout is a whole card. GPUs that are not named are left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time

CONFIG = "/var/lib/myriad/mig/layout.json"
PROGRAM = "/usr/local/lib/myriad/mig"
CRICTL = "/usr/local/bin/crictl"
QUERY = "index,uuid,pci.bus_id,name,compute_cap,mig.mode.current,mig.mode.pending"
# A MIG device as `nvidia-smi -L` lists it below its GPU.
GPU_LINE = re.compile(r"^GPU (\d+): ")
DEVICE_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)")
# From this compute capability on (Hopper) a change of the mode resets nothing. MIG user guide, "Enable MIG Mode".
NO_RESET_FROM = 9.0


class MigFault(Exception):
    """What is wrong, where, and what to do next, as a sentence. `reboot` lists GPUs whose mode waits for a reboot."""

    def __init__(self, text, reboot=()):
        super().__init__(text)
        self.text = text
        self.reboot = list(reboot)


class Gpu:
    """One GPU as found.

    Attributes:
        index, uuid, bus, name: of the driver.
        resets: whether a change of its mode resets it.
        current, pending: MIG modes, Enabled, Disabled or [N/A].
        profiles: of its MIG devices, in their order.
    """

    def __init__(self, index, uuid, bus, name, capability, current, pending):
        self.index, self.uuid, self.bus, self.name = index, uuid, bus, name
        try:
            self.resets = float(capability) < NO_RESET_FROM
        except ValueError:
            self.resets = True
        self.current, self.pending = current, pending
        self.profiles = []

    @property
    def is_cut(self):
        return self.current == "Enabled"

    @property
    def text(self):
        if self.pending != self.current:
            return f"MIG {self.current.lower()}, {self.pending.lower()} after a reset"
        if not self.is_cut:
            return "whole"
        return described(self.profiles) if self.profiles else "MIG enabled, no slice"


def described(profiles):
    """`7 x 1g.10gb`, or whole."""
    counts = {}
    for name in profiles:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items(), reverse=True)) or "whole"


def numbers(indices):
    """`0-3, 6`."""
    spans, rest = [], sorted(indices)
    for number in rest:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def call(command, timeout_s):
    """(exit code, what it said). A command that does not end or is not there has exit code -1."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"it did not end within {timeout_s:.0f} s"
    except OSError as error:
        return -1, f"it cannot be started: {error.strerror}"
    return done.returncode, done.stdout.strip()


class Driver:
    """The node's GPUs through nvidia-smi."""

    def __init__(self, program="/usr/bin/nvidia-smi", timeout_s=60):
        self.program = program
        self.timeout_s = timeout_s

    def smi(self, *arguments):
        return call([self.program, *arguments], self.timeout_s)

    def ask(self, *arguments):
        code, said = self.smi(*arguments)
        if code != 0:
            raise MigFault(f"`nvidia-smi {' '.join(arguments)}` ended with {code}: {one_line(said)}")
        return said

    def read(self):
        """GPUs by index."""
        gpus = {}
        for line in self.ask(f"--query-gpu={QUERY}", "--format=csv,noheader").splitlines():
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == 7 and cells[0].isdigit():
                gpus[int(cells[0])] = Gpu(int(cells[0]), *cells[1:])
        current = None
        for line in self.ask("-L").splitlines():
            gpu, device = GPU_LINE.match(line), DEVICE_LINE.match(line)
            if gpu:
                current = gpus.get(int(gpu.group(1)))
            elif device and current is not None:
                current.profiles.append(device.group(1))
        return gpus

    def clear(self, gpu):
        """Destroy all instances of a GPU."""
        for option in ("-dci", "-dgi"):
            code, said = self.smi("mig", "-i", str(gpu.index), option)
            if code != 0 and "Not Found" not in said and "No MIG-enabled" not in said:
                raise MigFault(f"GPU {gpu.index}: its slices could not be destroyed: {one_line(said)}")

    def set_mode(self, gpu, wanted):
        """Enabled or Disabled, with a reset where the driver asks for one.

        Raises:
            MigFault: the mode is not there now; with `reboot` where only a reboot brings it.
        """
        said = self.ask("-i", str(gpu.index), "-mig", "1" if wanted == "Enabled" else "0")
        found = self.read()[gpu.index]
        if found.current == wanted:
            return
        if "In use by another client" in said:
            raise MigFault(
                f"GPU {gpu.index}: its MIG mode cannot change while somebody uses it; name the unit or pod that holds "
                "it in mig_client_units or mig_client_pods (`fuser -v /dev/nvidia*` shows it)"
            )
        code, answer = self.smi("--gpu-reset", "-i", str(gpu.index))
        if code != 0 or self.read()[gpu.index].current != wanted:
            raise MigFault(f"GPU {gpu.index}: {one_line(answer or said)}", reboot=[gpu.index])

    def create(self, gpu, profiles):
        code, said = self.smi("mig", "-i", str(gpu.index), "-cgi", ",".join(profiles), "-C")
        if code != 0:
            last = [line for line in said.splitlines() if not line.startswith("Successfully")]
            raise MigFault(f"GPU {gpu.index}: {described(profiles)} could not be made: {one_line(' '.join(last))}")


def one_line(text):
    return " ".join(text.split())[:300] or "it said nothing"


def differing(wanted, gpus):
    """Indices whose GPU is not cut as wanted.

    Raises:
        MigFault: a GPU is not there, or cannot be cut.
    """
    absent = [index for index in wanted if index not in gpus]
    if absent:
        raise MigFault(
            f"GPU {numbers(absent)} has a layout and nvidia-smi does not list it ({len(gpus)} GPUs are there); "
            "see `nvidia-smi -L` and the kernel's log, or correct the pool's gpus_per_node"
        )
    unable = [
        index for index, profiles in wanted.items() if profiles and gpus[index].current not in ("Enabled", "Disabled")
    ]
    if unable:
        raise MigFault(
            f"GPU {numbers(unable)} ({gpus[unable[0]].name}) has no MIG, and the description cuts it; "
            "take mig out of this pool, or correct its model"
        )
    found = []
    for index, profiles in sorted(wanted.items()):
        gpu = gpus[index]
        is_right = gpu.is_cut == bool(profiles) and sorted(gpu.profiles) == sorted(profiles)
        if not is_right or (gpu.pending != gpu.current and gpu.pending in ("Enabled", "Disabled")):
            found.append(index)
    return found


def plan(wanted, gpus, pods=()):
    """What applying `wanted` would do, the whole of its reach: GPUs that are reset, cut anew, left alone; pods that
    hold GPUs; and the sentences for it."""
    changed = differing(wanted, gpus)
    resets = [index for index in changed if gpus[index].is_cut != bool(wanted[index]) and gpus[index].resets]
    recut = [index for index in changed if index not in resets]
    untouched = [index for index in sorted(gpus) if index not in changed]
    lines = []
    for index in changed:
        how = "is reset, and everything on it ends" if index in resets else "is not reset; its slices are made anew"
        if index not in resets and not gpus[index].profiles and not gpus[index].is_cut:
            how = "is not reset (no reset is needed from Hopper on)"
        lines.append(f"GPU {index}: {gpus[index].text} -> {described(wanted[index])}; it {how}")
    if changed:
        if untouched:
            lines.append(f"GPU {numbers(untouched)}: not touched, not reset")
        lines.append(
            "the whole node: kubelet and GPU clients stop for the change; pods that hold GPUs: "
            + (", ".join(pods) if pods else "none")
        )
    return {
        "change": changed,
        "reset": resets,
        "recut": recut,
        "untouched": untouched,
        "pods": list(pods),
        "lines": lines,
    }


class Clients:
    """Who holds the GPUs: units and pods that are stopped before a change and started after it.

    Args:
        units: names, in the order in which they stop.
        pods: beginnings of pod names.
        refresh: units that describe the GPUs to others (CDI): run again after a change, before the clients start.
        deadline_s: for all of them together.
    """

    def __init__(self, units, pods, refresh, deadline_s):
        self.units, self.pods, self.refresh, self.deadline_s = list(units), list(pods), list(refresh), deadline_s
        self.stopped = []

    def stop(self):
        """Stop those that run.

        Raises:
            MigFault: one did not stop in time; those that did are started again.
        """
        until = time.monotonic() + self.deadline_s
        try:
            for unit in self.units:
                if call(["systemctl", "is-active", "--quiet", unit], 10)[0] != 0:
                    continue
                self.stopped.append(unit)
                self._within(["systemctl", "stop", unit], until, unit)
            for sandbox, name in self._sandboxes():
                self._within([CRICTL, "--timeout", f"{self.deadline_s}s", "stopp", sandbox], until, f"pod {name}")
        except MigFault:
            self.start()
            raise

    def _within(self, command, until, what):
        left = until - time.monotonic()
        code, said = call(command, max(left, 0.1))
        if code != 0:
            raise MigFault(
                f"{what} did not stop within {self.deadline_s:.0f} s ({one_line(said)}); nothing was changed on the "
                "GPUs, and what had stopped runs again: see its journal, or raise mig_client_deadline_s"
            )

    def _sandboxes(self):
        if not self.pods or not os.access(CRICTL, os.X_OK):
            return []
        code, said = call([CRICTL, "--timeout", "10s", "pods", "--state", "Ready", "-o", "json"], 20)
        try:
            items = json.loads(said)["items"] if code == 0 else []
        except (ValueError, KeyError):
            items = []
        found = [(item["id"], item["metadata"]["name"]) for item in items]
        return [(sandbox, name) for sandbox, name in found if name.startswith(tuple(self.pods))]

    def start(self):
        """Start again what was stopped; returns what did not start."""
        failed = []
        for unit in self.refresh:
            if call(["systemctl", "is-active", "--quiet", unit], 10)[0] == 0:
                code, said = call(["systemctl", "restart", unit], 120)
                if code != 0:
                    failed.append(f"{unit} ({one_line(said)})")
        for unit in reversed(self.stopped):
            code, said = call(["systemctl", "start", unit], 120)
            if code != 0:
                failed.append(f"{unit} ({one_line(said)})")
        self.stopped = []
        return failed


def bring(driver, gpu, mode, profiles):
    """One GPU from what it is to a mode (Enabled, Disabled) and the slices in it."""
    keeps = gpu.is_cut and mode == "Enabled" and sorted(gpu.profiles) == sorted(profiles)
    if gpu.is_cut and not keeps:
        driver.clear(gpu)
    if gpu.current != mode:
        driver.set_mode(gpu, mode)
    elif gpu.pending != gpu.current:
        # Takes back a change that waits for a reset.
        driver.ask("-i", str(gpu.index), "-mig", "1" if mode == "Enabled" else "0")
    if profiles and not keeps:
        driver.create(gpu, profiles)


def apply(driver, wanted, clients, gpus=None, guard=None):
    """Make every GPU what is wanted and prove it by reading back. Nothing is reported done that is not there.

    Args:
        driver, wanted, clients: as their classes say; wanted is profiles by index.
        gpus: as read before, where that was done.
        guard: called once the clients have stopped (no pod can start then); raises MigFault to go no further.

    Returns:
        Indices that were changed.

    Raises:
        MigFault: with `reboot` where modes wait for a reboot (they stay pending, the unit finishes at boot); else
            everything was put back, and the sentence says why, and what could not be put back.
    """
    before = gpus if gpus is not None else driver.read()
    changed = differing(wanted, before)
    if not changed:
        return []
    clients.stop()
    touched, waiting = [], {}
    try:
        if guard is not None:
            guard()
        for index in changed:
            touched.append(index)
            try:
                bring(driver, before[index], "Enabled" if wanted[index] else "Disabled", wanted[index])
            except MigFault as fault:
                if not fault.reboot:
                    raise
                waiting[index] = fault.text
        if waiting:
            raise reboot_fault(waiting)
        left = differing(wanted, driver.read())
        if left:
            found = driver.read()
            shown = "; ".join(
                f"GPU {index} is {found[index].text}, wanted {described(wanted[index])}" for index in left
            )
            raise MigFault(f"the driver reported success and the layout is not there: {shown}")
    except MigFault as fault:
        if fault.reboot:
            fault.text += restarted(clients)
            raise MigFault(fault.text, fault.reboot) from fault
        back = put_back(driver, before, touched)
        raise MigFault(f"{fault.text}. {back}{restarted(clients)}") from fault
    failed = clients.start()
    if failed:
        raise MigFault(f"the layout is applied, and these clients did not start again: {', '.join(failed)}")
    return changed


def reboot_fault(waiting):
    first = next(iter(waiting.values())).partition(": ")[2]
    return MigFault(
        f"reboot required: the MIG mode of GPU {numbers(waiting)} is pending ({first}). No slice exists until then. "
        "Keep the node drained and reboot it (`myriad reboot NODE`): the layout is applied at boot, before the kubelet "
        "advertises devices",
        reboot=waiting,
    )


def put_back(driver, before, touched):
    """Bring GPUs back to what they were; says how that went."""
    failed = []
    for index in reversed(touched):
        try:
            was = before[index]
            bring(driver, driver.read()[index], "Enabled" if was.is_cut else "Disabled", was.profiles)
            now = driver.read()[index]
            if (now.current, now.pending, sorted(now.profiles)) != (was.current, was.pending, sorted(was.profiles)):
                failed.append(f"GPU {index} is {now.text}, before {was.text}")
        except MigFault as fault:
            failed.append(fault.text)
    if failed:
        return f"Not everything could be put back: {'; '.join(failed)}"
    return f"GPU {numbers(touched)} is as it was before" if touched else "Nothing was changed on the GPUs"


def restarted(clients):
    failed = clients.start()
    return f". These clients did not start again: {', '.join(failed)}" if failed else ""


def load(path=CONFIG):
    """The configuration, with layouts by number."""
    with open(path, encoding="utf-8") as stream:
        config = json.load(stream)
    config["layouts"] = {int(index): list(profiles) for index, profiles in config["layouts"].items()}
    return config


def dump(wanted, units, pods, refresh, deadline_s, nvidia_smi):
    """The configuration as it is written; the same one always reads the same."""
    config = {
        "layouts": {str(index): list(profiles) for index, profiles in sorted(wanted.items())},
        "units": list(units),
        "pods": list(pods),
        "refresh": list(refresh),
        "deadline_s": deadline_s,
        "nvidia_smi": nvidia_smi,
    }
    return (json.dumps(config, sort_keys=True, indent=1) + "\n").encode()


def check(driver, wanted):
    """What differs from the layout, as sentences; empty when nothing does."""
    gpus = driver.read()
    return [
        f"GPU {index}: {gpus[index].text}; the layout is {described(wanted[index])}"
        for index in differing(wanted, gpus)
    ]


def main(arguments):
    """`mig check [SHA256]`, `mig plan`, or `mig apply` (at boot: no pod runs yet, and no pod is stopped)."""
    verb = arguments[0] if arguments else ""
    if verb not in ("check", "plan", "apply") or len(arguments) > (2 if verb == "check" else 1):
        print("usage: mig check [SHA256]|plan|apply", file=sys.stderr)
        return 2
    try:
        config = load()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        print(f"{CONFIG} holds no layout ({error}); a run of the site writes it")
        return 1
    if len(arguments) == 2:
        with open(CONFIG, "rb") as stream:
            if hashlib.sha256(stream.read()).hexdigest() != arguments[1]:
                print(f"{CONFIG} is not what the last run of the site wrote")
                return 1
    driver = Driver(config["nvidia_smi"])
    wanted = config["layouts"]
    try:
        if verb == "plan":
            print("\n".join(plan(wanted, driver.read())["lines"]) or "nothing to do")
            return 0
        if verb == "apply":
            units = [unit for unit in config["units"] if unit != "kubelet.service"]
            changed = apply(driver, wanted, Clients(units, [], [], config["deadline_s"]))
            print(f"applied to GPU {numbers(changed)}" if changed else "the layout is there")
        differences = check(driver, wanted)
    except MigFault as fault:
        print(fault.text)
        return 3 if fault.reboot else 1
    if differences:
        print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
