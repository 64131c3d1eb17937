"""Requests to a Kafka cluster: for its topics and their settings, the offsets at which logs begin and end, and the
positions of groups."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.backup.group_positions import Positions
from tidelog.backup.kafka.batches import ImportFailed
from tidelog.backup.kafka.reader import KafkaReader, Key, NullHeaders
from tidelog.backup.kafka.topic_settings import KafkaSetting
from tidelog.errors import ConfigError, TidelogError, Unreachable
from tidelog.extras import install_hint
from tidelog.types import INTERNAL_PREFIX

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata

T = TypeVar("T")
ANSWER_S = 30.0
"""Longest wait in seconds for an answer of Kafka."""
CONNECT_S = 10.0
"""Longest wait in seconds for the first answer."""
ASKED_AT_ONCE = 100
"""Number of groups whose positions are requested at a time."""
OURS = {
    "group.id": "tidelog-import",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
"""Settings of the consumer that the import depends on. It is a member of no group, but librdkafka wants a name."""
OTHERS = {
    "client.id": "tidelog-import",
    "log_level": 0,
    "fetch.queue.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
}
"""Settings that properties of the user may replace. librdkafka's own log would go to stderr; errors contain what it
says."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic of Kafka: its name, the number of its partitions, and of the replicas of each."""

    name: str
    partitions: int
    replicas: int

    @property
    def keys(self) -> list[Key]:
        """Return topic and number of each partition."""
        return [(self.name, partition) for partition in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The topics that the user wants: by name, and those whose whole name a regular expression matches ("": none).
    Kafka's internal topics, which begin with ``__``, are not matched."""

    names: Sequence[str] = ()
    regex: str = ""


@dataclass(slots=True)
class KafkaCluster:
    """A Kafka cluster, reached through ``brokers`` (HOST:PORT,…) with further settings of librdkafka in
    ``properties``. Its methods block. ``committed``: read only what is committed. Making it raises ``ConfigError`` if
    confluent-kafka is not installed or refuses a setting."""

    brokers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    committed: bool = True
    null_headers: NullHeaders = "refuse"
    trouble: str = ""
    """The last error of librdkafka about a connection that it cannot open; "" if there was none."""
    _all_down: bool = False
    _admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError:
            raise ConfigError(f"an import from Kafka needs confluent-kafka: {install_hint('kafka')}") from None
        if taken := sorted({*OURS, "bootstrap.servers", "isolation.level"} & {*self.properties}):
            raise ConfigError(f"--properties: {', '.join(taken)} is set by the import itself: leave it out")
        self._admin = self._made(lambda: AdminClient(self._settings()))

    def _settings(self, **more: Any) -> dict[str, Any]:
        reached = {"bootstrap.servers": self.brokers, "error_cb": self._on_error}
        return OTHERS | dict(self.properties) | reached | more

    def _on_error(self, error: KafkaError) -> None:
        """Keep what librdkafka says about connections, for messages. Called by librdkafka."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self.trouble = error.str()

    def _made(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns. Raises ``ConfigError`` if librdkafka refuses a setting."""
        from confluent_kafka import KafkaException

        try:
            return make()
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else error
            raise ConfigError(f"librdkafka refuses a setting of --brokers or --properties: {reason}") from error

    def connect(self) -> None:
        """Wait until a broker answers. Raises ``ImportFailed`` if none does within ``CONNECT_S`` seconds, or as soon
        as all of them have refused."""
        until = time.monotonic() + CONNECT_S
        while True:
            try:
                self._metadata(0.5)
                return
            except Unreachable as error:
                self._admin.poll(0)
                if self._all_down or time.monotonic() >= until:
                    why = self.trouble or error.message
                    raise ImportFailed(
                        f"no broker of Kafka answers at {self.brokers}: {why}. Is the address one that clients use,"
                        " and does the listener need TLS or a password (--properties)?"
                    ) from error

    def _metadata(self, timeout: float) -> ClusterMetadata:
        with _errors():
            return self._admin.list_topics(timeout=timeout)

    def topics(self, wanted: Wanted) -> list[KafkaTopic]:
        """Return the topics that the user wants, ordered by name. Raises ``ImportFailed`` if Kafka does not have one
        of the named topics, or if there is none at all; and ``Unreachable`` if Kafka gives no answer."""
        known = self._metadata(ANSWER_S).topics
        if missing := sorted(set(wanted.names) - set(known)):
            others = [name for name in sorted(known) if not name.startswith(INTERNAL_PREFIX)]
            shown = ", ".join(others[:20]) + (" …" if len(others) > 20 else "")
            raise ImportFailed(f"Kafka has no topic {', '.join(missing)}, or hides it; it shows: {shown or 'none'}")
        matched = {
            name
            for name in known
            if wanted.regex and not name.startswith(INTERNAL_PREFIX) and re.fullmatch(wanted.regex, name)
        }
        chosen = sorted({*wanted.names, *matched})
        if not chosen:
            raise ImportFailed(f"no topic of Kafka matches --topic-regex {wanted.regex}")
        for name in chosen:
            if (error := known[name].error) is not None:
                raise Unreachable(f"Kafka: {name}: {error.str()}")
        return [
            KafkaTopic(
                name, len(known[name].partitions), max(len(p.replicas) for p in known[name].partitions.values())
            )
            for name in chosen
        ]

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, KafkaSetting]]:
        """Return the settings of topics, by topic and name. Raises ``ImportFailed`` if Kafka refuses to return
        them."""
        from confluent_kafka.admin import ConfigResource, ConfigSource

        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        found: dict[str, dict[str, KafkaSetting]] = {}
        with _errors():
            answers = self._admin.describe_configs(resources, request_timeout=ANSWER_S) if resources else {}
        for resource, answer in answers.items():
            try:
                entries = _result(answer)
            except TidelogError as error:
                raise ImportFailed(
                    f"the settings of {resource.name} cannot be read: {error.message}. Grant the right to describe"
                    " them, or create the topic in Tidelog first, with the settings that it is to have"
                ) from error
            default = ConfigSource.DEFAULT_CONFIG.value
            found[resource.name] = {
                name: KafkaSetting(entry.value or "", entry.source == default) for name, entry in entries.items()
            }
        return found

    def offsets(self, keys: Iterable[Key], place: str, *, stable: bool = False) -> dict[Key, int]:
        """Return the offset of a place, ``earliest`` or ``latest``, in each partition. ``latest`` is the offset after
        the last record; with ``stable`` and if only committed records are read, the last stable offset. Raises
        ``Unreachable`` and ``ImportFailed``."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        spec = OffsetSpec.earliest() if place == "earliest" else OffsetSpec.latest()
        level = IsolationLevel.READ_COMMITTED if stable and self.committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*key): spec for key in keys}
        if not asked:
            return {}
        with _errors():
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_S)
        return {(at.topic, at.partition): int(_result(answer).offset) for at, answer in answers.items()}

    def groups(self, topics: Iterable[KafkaTopic], names: Sequence[str] = ()) -> dict[str, Positions]:
        """Return the committed positions of consumer groups, by topic; topics and groups without positions are left
        out. ``names``: the groups; none: all that Kafka lists. Raises ``Unreachable`` and ``ImportFailed``."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        wanted = list(names) or self._group_names()
        keys = [key for topic in topics for key in topic.keys]
        found: dict[str, Positions] = {}
        for first in range(0, len(wanted), ASKED_AT_ONCE):
            answers: dict[str, Future[Any]] = {}
            for group in wanted[first : first + ASKED_AT_ONCE]:
                asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*key) for key in keys])
                with _errors():
                    answers |= self._admin.list_consumer_group_offsets([asked], request_timeout=ANSWER_S)
            for group, answer in answers.items():
                for at in _result(answer).topic_partitions:
                    if at.error is None and at.offset >= 0:
                        found.setdefault(at.topic, {}).setdefault(group, {})[at.partition] = at.offset
        return found

    def _group_names(self) -> list[str]:
        with _errors():
            listed = _result(self._admin.list_consumer_groups(request_timeout=ANSWER_S))
        if listed.errors:
            raise ImportFailed(f"Kafka does not list its groups: {listed.errors[0]}. --group NAME names them")
        return sorted(group.group_id for group in listed.valid)

    def reader(self, starts: Mapping[Key, int]) -> KafkaReader:
        """Return a reader of these partitions from these offsets on; the caller closes it."""
        from confluent_kafka import Consumer

        level = {"isolation.level": "read_committed" if self.committed else "read_uncommitted"}
        consumer = self._made(lambda: Consumer(self._settings(**OURS, **level)))
        return KafkaReader(consumer, starts, self.null_headers)


def _result(answer: Future[Any]) -> Any:
    """Return the result of a request to Kafka, after waiting for it. Raises ``Unreachable`` and ``ImportFailed``."""
    with _errors():
        return answer.result(ANSWER_S + 5)


@contextmanager
def _errors() -> Iterator[None]:
    """Turn the errors that confluent-kafka raises in the block into ``Unreachable`` if they may pass, and otherwise
    into ``ImportFailed``."""
    from confluent_kafka import KafkaError, KafkaException

    passing = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
    try:
        yield
    except KafkaException as error:
        found = error.args[0]
        if found.retriable() or found.code() in passing:
            raise Unreachable(f"Kafka: {found.str()}") from error
        raise ImportFailed(f"Kafka: {found.str()}") from error
