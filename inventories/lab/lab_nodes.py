#!/usr/bin/env python3
"""Dynamic half of the lab's inventory: addresses, ssh settings and detected facts of the nodes that `make lab` made.

Reads `.lab/state.json` of this clone (or the file that MYRIAD_LAB_STATE names). Standard library only. Where no lab is
up it says nothing, so that the description still validates and renders.
"""

import json
import os
import sys
from pathlib import Path


def inventory(state_file: Path) -> dict:
    """Ansible's inventory JSON for the recorded nodes.

    Args:
        state_file: `.lab/state.json`; may be missing.
    """
    try:
        state = json.loads(state_file.read_text())
    except FileNotFoundError:
        return {"_meta": {"hostvars": {}}}
    lab = state_file.parent
    detected = state.get("detected", {})
    hosts = state.get("hosts", {})
    first = next(iter(hosts.values()), {}).get("address", "")
    shared = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(lab / "ssh" / "id_ed25519"),
        "ansible_ssh_common_args": (
            f"-o UserKnownHostsFile={lab / 'known_hosts'} -o StrictHostKeyChecking=yes"
            " -o IdentitiesOnly=yes -o GlobalKnownHostsFile=/dev/null"
        ),
        "lab_name": state.get("name", ""),
        "lab_subnet": state.get("subnet", ""),
        "lab_state_dir": str(lab),
        "lab_kubeconfig": str(lab / "kubeconfig"),
        "lab_bundle_dir": state.get("bundle", ""),
        "lab_registry_address": f"{first}:5000",
        "lab_cgroup_version": detected.get("cgroup_version", 2),
        "lab_cap_sys_resource": detected.get("cap_sys_resource", True),
        "lab_dev_kmsg": detected.get("dev_kmsg", True),
        "lab_runc_wrapper": "" if detected.get("cap_sys_resource", True) else "/usr/local/lib/myriad-lab/runc-lab",
        "lab_sysfs_pci_dir": "/var/lib/myriad-lab/sys/bus/pci/devices",
        "lab_sysfs_dir": "/var/lib/myriad-lab/sys",
        "lab_procfs_dir": "/var/lib/myriad-lab/proc",
        "lab_addresses": {name: record["address"] for name, record in hosts.items()},
    }
    hostvars = {
        name: {**shared, "ansible_host": record["address"], "lab_address": record["address"]}
        for name, record in hosts.items()
    }
    return {"_meta": {"hostvars": hostvars}, "all": {"hosts": sorted(hosts)}}


def main() -> None:
    """Answer Ansible's `--list` and `--host NAME`."""
    default = Path(__file__).resolve().parents[2] / ".lab" / "state.json"
    answer = inventory(Path(os.environ.get("MYRIAD_LAB_STATE") or default))
    if "--host" in sys.argv:
        answer = answer["_meta"]["hostvars"].get(sys.argv[-1], {})
    json.dump(answer, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
