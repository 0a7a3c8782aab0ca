"""The node agent: measures a node's GPUs and opens or closes its gate.

`gate` judges and says what to write (pure); `measure` asks the driver and the PCI bus; `__main__` follows the node.
"""
