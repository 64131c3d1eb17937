"""From a replica server that registers to the command that begins its life, or to the refusal.

A data directory that does not know the server's present life is another server's, or was wiped. As long as somebody
is heard of in that life it is another's: two processes have one id, and the one that came first keeps it. A wiped
server has to wait so for the end of the session that it had, which its death has made short.

A server whose registration was committed, but whose answer was lost, registers again in the same life. It has lost
nothing since the first registration counted, whatever it may have lost before it."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId
from tidelog.wire.messages import Register

from tidelog_controller.metadata.commands import RegisterServer
from tidelog_controller.metadata.state import MetadataState


def plan_registration(
    state: MetadataState, message: Register, wall_ms: int, is_live: Callable[[NodeId], bool]
) -> RegisterServer | TidelogError:
    """``is_live``: the session of that server's present life has not ended."""
    node = message.node
    if message.cluster not in ("", state.cluster):
        text = f"the data of {node} belongs to cluster {message.cluster}, this is {state.cluster}"
        return refuse("WRONG_CLUSTER", text)
    if not node or not message.url:
        return refuse("MALFORMED", "a replica server registers with its node id and its url")
    known = state.servers.get(node)
    if (
        known is not None
        and known.life not in ("", *message.lives, *message.older_lives, *message.uncertain_lives)
        and is_live(node)
    ):
        text = f"another process is {node}, at {known.url}, with a data directory of its own: choose another id"
        return refuse("NODE_IN_USE", f"{text}; or, if this one was wiped, wait for the end of the other's session")
    lives = (*message.uncertain_lives, *message.older_lives, *message.lives)
    certain = known is None or known.life not in message.uncertain_lives
    again = known is not None and known.life != "" and message.lives[-1:] == (known.life,)
    clean = (message.clean and certain) or again
    return RegisterServer(wall_ms, node, message.url, lives, clean, message.rack)


def went_back(state: MetadataState, node: NodeId, index: int) -> TidelogError:
    """The refusal of a server that has seen newer metadata. The active controller holds all that is committed: so the
    stores of the controllers were restored from an old copy, or the cluster was founded anew."""
    text = (
        f"the metadata have gone back: {node} has seen index {index}, the controllers are at {state.index}; stop"
        f" them and let the one that knows most go on alone: 'tidelog controllers rescue --beyond {index}'"
    )
    return refuse("METADATA_WENT_BACK", text, index=index)
