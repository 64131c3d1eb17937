"""The blocking faces of consumers and of administration, made from the asynchronous classes. The methods and errors
are those of the classes in ``tidelog.client``, which document them.

A face is made when its name is first used, and its asynchronous class is imported then: a program that reads a topic
loads neither groups nor the administration of access.
"""

from importlib import import_module
from typing import Any

from tidelog.client.admin.old_names import CALLED, keep_old_call
from tidelog.sync.face import Face, blocking

CONSUMERS = {
    "Consumer": ("consumer", "records.Records"),
    "BackwardConsumer": ("backward_consumer", "records.Records"),
    "GroupConsumer": ("group_consumer", "member_records.MemberRecords"),
}
"""Face of a consumer -> module of its class in ``tidelog.client``, and its base class in ``tidelog.sync``."""
ADMINISTRATION = {
    "TopicAdmin": "topics",
    "PartitionAdmin": "partitions",
    "GroupAdmin": "groups",
    "TransactionAdmin": "transactions",
    "AccessAdmin": "access",
    "ClusterAdmin": "cluster",
}
"""Face of administration -> module of its class in ``tidelog.client.admin``, which is also the attribute of
``Log``."""


def __getattr__(name: str) -> Any:
    if name in CONSUMERS:
        home, base = CONSUMERS[name]
        face = blocking(_found(f"tidelog.client.{home}.{name}"), __name__, _found(f"tidelog.sync.{base}"))
    elif name in ADMINISTRATION:
        part = ADMINISTRATION[name]
        face = blocking(_found(f"tidelog.client.admin.{part}.{name}"), __name__, Face)
        if part in CALLED:
            face = keep_old_call(part)(face)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, face)  # another thread may have made it meanwhile


def _found(path: str) -> Any:
    """Import and return the class at ``module.name``."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
