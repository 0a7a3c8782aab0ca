"""The embedded default: nodes as containers on this machine, GPU doubles behind real sockets."""
