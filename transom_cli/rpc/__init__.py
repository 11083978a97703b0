"""The one authenticated transport between transom's processes. Standard library only.

Read in this order: `wire` (handshake and frames), `verbs` (requests and dispatch), `server` and `client` (TCP between
nodes), `bulk` and `throttle` (gigabytes beside the messages), `local` (Unix socket and descriptors within a node).
"""
