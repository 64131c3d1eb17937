"""Copy the lines of files into a topic and back: Tidelog from ordinary threads.

    python docs/examples/lines_sync.py ws://127.0.0.1:9292 FILE...

Each file is sent by a thread of its own, over one connection, as a key of its own: so its lines stay in order. Then
all are read back and compared.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tidelog
import tidelog.sync

TOPIC = "lines"


def send(log: tidelog.sync.Log, path: Path) -> int:
    """Send the lines of a file; how many. Raises ``DeliveryFailed`` where some are not acknowledged."""
    options = tidelog.ProducerOptions(compression="zstd", linger_s=0.02)
    count = 0
    with log.producer(TOPIC, options) as producer, path.open("rb") as lines:
        for count, line in enumerate(lines, start=1):
            producer.submit(line, key=path.name.encode(), headers={"line": str(count).encode()})
    return count


def main(url: str, paths: list[Path]) -> None:
    with tidelog.sync.connect(url) as log:
        log.topics.create(TOPIC, partitions=3, exist_ok=True)
        with log.consume(TOPIC, start="latest") as now:
            before = now.positions
        with ThreadPoolExecutor() as threads:
            counts = list(threads.map(lambda path: send(log, path), paths))
        copies = {path.name.encode(): b"" for path in paths}
        for record in log.consume(TOPIC, start=before, end="latest"):
            copies[record.key] += record.value
    for path, count in zip(paths, counts, strict=True):
        same = copies[path.name.encode()] == path.read_bytes()
        print(f"{path.name}: {count} lines, {'the same' if same else 'DIFFERENT'} when read back")


if __name__ == "__main__":
    main(sys.argv[1], [Path(name) for name in sys.argv[2:]])
