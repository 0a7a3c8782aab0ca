#!/usr/bin/python
"""Images on a node before a job asks for them: by digest, pinned and proven."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_prewarm
short_description: Images on a node before a job asks for them
description:
  - Brings images to a node by digest, from one registry, and pins them, so that the kubelet's image collection spares them.
  - Before any byte it is checked that the disk holds them - compressed, unpacked, and what the kubelet keeps free; layers that are there are deducted.
  - A pull is judged by what it moves. One that is slow goes on, one that stands still is given up. After the runtime went away in the middle of
    it, it is taken up again, and what was fetched is not fetched again.
  - An image counts as warm when the runtime reports it with its digest and as pinned, and when a container starts from it.
  - What is warm is written to C(warm.json) in I(folder); the node agent makes the Node's labels of it.
  - With C(state=planned) and C(state=judged) the action plugin plans waves and decides on the controller whether the next one begins. With
    C(state=signed) it checks that every image was signed with a key.
options:
  state:
    description: C(check) looks and changes nothing. C(planned), C(judged) and C(signed) are done on the controller.
    type: str
    choices: [present, check, planned, judged, signed]
    default: present
  images:
    description: The images, in the order in which they are fetched.
    type: list
    elements: dict
    default: []
    suboptions:
      ref:
        description: Name with registry, without tag and digest.
        type: str
        required: true
      digest:
        description: Digest of its manifest, as C(sha256:<hex>).
        type: str
        required: true
      tags:
        description: Tags under which pods may ask for it as well.
        type: list
        elements: str
        default: []
      layers:
        description: Its layers from the lowest, each with digest, chain, size and unpacked (bytes).
        type: list
        elements: dict
        default: []
  runtime:
    description: What runs containers on this host.
    type: str
    choices: [containerd, docker, podman]
    default: containerd
  registry:
    description: Address of the registry to pull from, with scheme. Empty leaves the choice to the runtime's own settings.
    type: str
    default: ""
  registries:
    description: Registries to try one after the other, nearest first, each with C(url) and C(nodes), how many nodes it serves at a time.
    type: list
    elements: dict
    default: []
  rack:
    description: The rack of the node as C(name), and C(nodes), how many of it pull at a time.
    type: dict
    default: {}
  release:
    description: Images that an earlier run pinned and that are not in I(images) lose their pin.
    type: bool
    default: false
  fetch:
    description: Whether an image that is not there is pulled. Without, it is only told; pins and proofs are done either way.
    type: bool
    default: true
  full:
    description: Start a container also from images that were proven before.
    type: bool
    default: false
  stall_s:
    description: Seconds over which a pull is judged.
    type: int
    default: 120
  least_rate:
    description: Bytes a second that a pull has to move on average over I(stall_s).
    type: int
    default: 200000
  start_timeout_s:
    description: Seconds in which the runtime has to answer again after it went away.
    type: int
    default: 60
  parallel:
    description: Layers that are fetched at the same time; 0 leaves it to the runtime.
    type: int
    default: 0
  jitter_s:
    description: A node waits up to so many seconds before its pull, the same in every run.
    type: float
    default: 0
  socket:
    description: Where containerd listens.
    type: path
    default: /run/containerd/containerd.sock
  config:
    description: containerd's configuration file.
    type: path
    default: /etc/containerd/config.toml
  binaries:
    description: Folder with containerd, ctr and crictl; empty looks for them.
    type: str
    default: ""
  engine_options:
    description: Global options of Docker or podman.
    type: list
    elements: str
    default: []
  folder:
    description: Where the record of warm images lies.
    type: path
    default: /var/lib/myriad/images
  scratch:
    description: Where the files of one pull lie (settings for the registry, what the client said).
    type: path
    default: /run
  kubelet_version:
    description: Version of the kubelet; asked of it where empty.
    type: str
    default: ""
  journal:
    description: File on the controller that gets a line for every node as soon as it is done.
    type: path
  plan:
    description: With C(state=planned), nodes, limits and what was found on each; with C(state=judged), the plan and what came of it; with C(state=signed), the C(key).
    type: dict
    default: {}
extends_documentation_fragment: [myriad.gpu.state]
author: The developers of Myriad
"""

EXAMPLES = r"""
- name: The training image
  myriad.gpu.image_prewarm:
    images:
      - ref: registry.myriad.internal/myriad/pytorch
        digest: sha256:9f1c0c2f5d0e6a6b0e5c3e0b8f9d1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b
        tags: [2.12.1]
        layers: "{{ pytorch_layers }}"
    registries:
      - {url: http://10.1.0.2:5000, nodes: 16}
      - {url: http://10.2.0.2:5000, nodes: 16}
    rack: {name: hall1/b1/r1, nodes: 4}
"""

RETURN = r"""
images:
  description: For each image its outcome (warm, pulled, pinned, proven, cold, refused or failed), cause, sentence, bytes and seconds.
  returned: state is present or check
  type: list
  elements: dict
outcome:
  description: The worst of them.
  returned: state is present or check
  type: str
surplus:
  description: Images that an earlier run pinned and that nobody wants any more; with C(state=present) they were released.
  returned: state is present or check
  type: list
  elements: str
elsewhere:
  description: Whether another registry may have what this one did not give.
  returned: state is present or check
  type: bool
"""

import re
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.myriad.gpu.plugins.module_utils import warm_image, warm_keep, warm_kubelet
from ansible_collections.myriad.gpu.plugins.module_utils.record import STATE_OPTIONS, Record, RecordError, below
from ansible_collections.myriad.gpu.plugins.module_utils.warm_containerd import Containerd, RuntimeFault
from ansible_collections.myriad.gpu.plugins.module_utils.warm_engine import Engine

ARGUMENTS = dict(
    STATE_OPTIONS,
    state={"type": "str", "choices": ["present", "check", "planned", "judged", "signed"], "default": "present"},
    images={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "ref": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "tags": {"type": "list", "elements": "str", "default": []},
            "layers": {"type": "list", "elements": "dict", "default": []},
        },
    },
    runtime={"type": "str", "choices": ["containerd", "docker", "podman"], "default": "containerd"},
    registry={"type": "str", "default": ""},
    registries={"type": "list", "elements": "dict", "default": []},
    rack={"type": "dict", "default": {}},
    release={"type": "bool", "default": False},
    fetch={"type": "bool", "default": True},
    full={"type": "bool", "default": False},
    stall_s={"type": "int", "default": 120},
    least_rate={"type": "int", "default": 200000},
    start_timeout_s={"type": "int", "default": 60},
    parallel={"type": "int", "default": 0},
    jitter_s={"type": "float", "default": 0},
    socket={"type": "path", "default": "/run/containerd/containerd.sock"},
    config={"type": "path", "default": "/etc/containerd/config.toml"},
    binaries={"type": "str", "default": ""},
    engine_options={"type": "list", "elements": "str", "default": []},
    folder={"type": "path", "default": warm_keep.FOLDER},
    scratch={"type": "path", "default": "/run"},
    kubelet_version={"type": "str", "default": ""},
    journal={"type": "path"},
    plan={"type": "dict", "default": {}},
)
WORST = ("failed", "refused", "cold", "pulled", "proven", "pinned", "warm")
CHECK = ["/usr/local/lib/myriad/images", "check"]


def faults(params):
    """What of the options cannot be meant, as sentences."""
    for image in params["images"]:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"]):
            yield f"{image['ref']}: {image['digest']!r} is no digest; images are prewarmed by sha256:<64 hexadecimal digits>"
        if "/" not in image["ref"] or "@" in image["ref"] or re.search(r":[^/]*$", image["ref"].split("/", 1)[-1]):
            yield f"{image['ref']!r} is no name of an image with its registry, such as registry.myriad.internal/myriad/pytorch"
        for layer in image["layers"]:
            missing = [key for key in ("digest", "size", "unpacked") if key not in layer]
            if missing:
                yield f"{image['ref']}: a layer lacks {', '.join(missing)}"
    if params["least_rate"] < 1 or params["stall_s"] < 1:
        yield "stall_s and least_rate are 1 or more"


def kubelet_version(given):
    """What the kubelet of this node says of itself; empty where there is none."""
    if given:
        return given
    for program in ("/usr/local/bin/kubelet", "/usr/bin/kubelet", "kubelet"):
        try:
            done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout.split()[-1] if done.stdout.split() else ""
    return ""


def main():
    # no_log: the layers of all images are no help in the node's journal.
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True, no_log=True)
    params = module.params
    slim = {
        "state": params["state"],
        "registry": params["registry"],
        "images": [one["ref"] for one in params["images"]],
    }

    def fail(text, **more):
        module.fail_json(msg=text, exception=None, invocation={"module_args": slim}, **more)

    if params["state"] in ("planned", "judged", "signed"):
        fail(
            f"state: {params['state']} is done by the action plugin on the controller; use the full name myriad.gpu.image_prewarm"
        )
    wrong = list(faults(params))
    if wrong:
        fail("; ".join(wrong))
    check = module.check_mode or params["state"] == "check"
    if params["runtime"] == "containerd":
        runtime = Containerd(params["socket"], params["config"], params["binaries"])
    else:
        runtime = Engine(params["runtime"], params["engine_options"])
    kubelet = warm_kubelet.read() if params["runtime"] == "containerd" else None
    if kubelet is not None:
        params["kubelet_version"] = kubelet_version(params["kubelet_version"])
    try:
        if check:
            work = warm_image.Warming(runtime, params, True, kubelet)
            results = work.run()
        else:
            with warm_keep.Locked(f"{params['folder']}/lock"):
                work = warm_image.Warming(runtime, params, False, kubelet)
                results = work.run()
        if not check and params["role"]:
            record = Record(below(params["root"], params["state_dir"]), params["role"], params["run_id"])
            for image in params["images"] if params["runtime"] == "containerd" else ():
                names = [f"{image['ref']}:{tag}" for tag in image["tags"]] or [f"{image['ref']}@{image['digest']}"]
                for name in names:
                    record.put("images", {"ref": name, "digest": image["digest"]})
            record.put("data", {"path": params["folder"]})
            record.put("checks", {"name": "warm images", "command": CHECK})
            record.save()
    except (RuntimeFault, RecordError, OSError, ValueError) as error:
        fail(str(error), outcome="failed", images=[], elsewhere=False, cause=getattr(error, "cause", "other"))
    outcomes = [one["outcome"] for one in results]
    bad = [one["sentence"] for one in results if one["outcome"] in ("failed", "refused")]
    answer = {
        "changed": bool(work.changed) and (check is False or module.check_mode),
        "changed_items": work.changed,
        "surplus": work.released,
        "images": results,
        "outcome": min(outcomes, key=WORST.index, default="warm"),
        "elsewhere": warm_image.elsewhere(results),
        "invocation": {"module_args": slim},
    }
    if bad and params["state"] == "present":
        answer.pop("invocation")
        fail("; ".join(bad), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
