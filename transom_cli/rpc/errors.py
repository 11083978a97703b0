"""How a call can fail, for the caller. Pure."""

from transom_cli.errors import TransomError


class RpcError(TransomError):
    """The call has no result. The connection is closed, except after `Failed`."""

    kind = "rpc_failed"


class Unreachable(RpcError):
    """There is no connection, it was lost, or the reply was not complete in time."""


class Refused(RpcError):
    """A process answers there, but rejects the client, is not the expected server, or sends something unexpected.

    A server closes without a message if the host is not allowed or too many clients are connected. A server that dies
    during the handshake looks the same: retry before you believe it.
    """


class Damaged(Refused):
    """The reply was altered on its way. Do not use any of it, nor anything in the ``into`` buffer."""


class Failed(RpcError):
    """The server reports why it could not do it, or the request cannot be sent. The connection remains usable."""
