"""Shows what raftos 0.2.6 does where Raft's safety is at stake; run as ``0001-own-raft-instead-of-raftos.md`` says.

Drives raftos's own role objects with messages, through a stand-in for its UDP server that keeps what is sent.
"""

import asyncio
import tempfile

import raftos
from raftos.state import State
from raftos.storage import Log

A, B = ("127.0.0.1", 8001), ("127.0.0.1", 8002)


class Server:
    """What raftos.state.State wants of raftos.server.Node."""

    def __init__(self, peers: int) -> None:
        self.host, self.port, self.loop = "127.0.0.1", 8000, asyncio.get_running_loop()
        self.cluster = {("127.0.0.1", 8001 + n) for n in range(peers)}
        self.cluster_count = len(self.cluster)  # as in raftos.server.Node
        self.sent: list[dict] = []

    async def send(self, data: dict, destination: object) -> None:
        self.sent.append(data)

    def broadcast(self, data: dict) -> None:
        self.sent.append(data)


def start(peers: int = 2) -> tuple[State, Server]:
    """A node; a second one on the same folder is the first one restarted."""
    server = Server(peers)
    state = State(server)
    state.start()
    return state, server


async def tell(node: tuple[State, Server], message: dict) -> list[dict]:
    """Give the node a message; its answers."""
    state, server = node
    server.sent.clear()
    state.request_handler(message)
    for _ in range(3):
        await asyncio.sleep(0)
    return list(server.sent)


def new_folder() -> None:
    raftos.configure({"log_path": tempfile.mkdtemp() + "/"})


def ask(term: int, candidate: tuple[str, int]) -> dict:
    name = f"{candidate[0]}:{candidate[1]}"
    position = {"last_log_index": 0, "last_log_term": 0}
    return {"type": "request_vote", "term": term, "candidate_id": name, "sender": candidate, **position}


def append(prev: int, entries: list[dict]) -> dict:
    place = {"prev_log_index": prev, "prev_log_term": 1 if prev else 0, "commit_index": 0, "request_id": 1}
    return {"type": "append_entries", "term": 1, "leader_id": "A", "sender": A, "entries": entries, **place}


async def main() -> None:
    new_folder()
    first = (await tell(start(), ask(5, A)))[0]["vote_granted"]
    second = (await tell(start(), ask(5, B)))[0]["vote_granted"]
    print(f"term 5: votes for A: {first}; after a restart for B: {second}")

    new_folder()
    node = start()
    await tell(node, ask(5, A))
    print(f"voted in term 5, then asked in term 6: answers {await tell(node, ask(6, B))}")

    new_folder()
    node = start()
    for prev in range(3):
        answer = (await tell(node, append(prev, [{"term": 1, "command": {"x": prev}}])))[0]
    delayed = (await tell(node, append(0, [{"term": 1, "command": {"x": 0}}])))[0]
    acknowledged, left = answer["last_log_index"], delayed["last_log_index"]
    print(f"acknowledged up to {acknowledged}; after the first message again: {left}")

    new_folder()
    node = start(peers=3)
    node[0].to_candidate()
    await tell(node, {"type": "request_vote_response", "term": 1, "vote_granted": True, "sender": A})
    print(f"four nodes, one vote besides its own: {type(node[0].state).__name__}")

    new_folder()
    Log("A").write(10, {"x": 1})
    try:
        print(f"a log with one entry of term 10, read back: {Log('A').cache}")
    except Exception as error:
        print(f"a log with one entry of term 10, read back: {type(error).__name__}: {error}")


asyncio.run(main())
