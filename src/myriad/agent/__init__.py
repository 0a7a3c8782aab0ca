"""The node agent: looks at one node, publishes what it is, keeps its labels and its gate true.

`collect` asks the node's tools and files; `steady` and `myriad.fleet.portrait` make a quiet portrait of it; `publish`,
`asserted` and `keeper` write what differs; `loop` does all of that again and again.
"""
