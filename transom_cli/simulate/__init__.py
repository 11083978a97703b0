"""A discrete-event cluster on which the real deciders of `core/` run: `transom simulate` and `transom advise`."""
