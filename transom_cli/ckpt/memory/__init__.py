"""The memory that outlives the trainer: what the nodes of a job hold of a training state, and how each other's loss is
made good from it. Every node holds its ranks' shares, and parity of other nodes' shares, in groups that survive the
loss of some of their nodes (`protection`, `galois`, `coder`). No torch anywhere in it.
"""
