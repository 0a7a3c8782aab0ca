"""GPU doubles: what a node shows of its GPUs, without GPUs.

One JSON file on each node says which GPUs it has and which faults are switched on. A device plugin (the real kubelet
socket, the real protocol), an `nvidia-smi` and a PCI tree all read it, so the three never disagree by accident. Only
the lab and its inventory know about them. This package needs the standard library, grpcio and protobuf, nothing else of
Myriad, because it is also what the double's container image holds.
"""
