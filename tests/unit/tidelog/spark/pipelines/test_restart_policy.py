"""Which errors are worth a restart, and what ``[restart]`` may say."""

from __future__ import annotations

import pytest
from tidelog.spark.errors import CODES
from tidelog.spark.pipelines.restart_policy import RestartPolicy, RestartSettings, is_worth_restart

STREAM_FAILED = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: {} SQLSTATE: XXKST\n"
    "=== Streaming Query ===\nTraceback (most recent call last):\n"
)


@pytest.mark.parametrize(
    "cause",
    [
        "[TIDELOG_UNREACHABLE] no gateway answered (UNREACHABLE)",
        "[TIDELOG_FAILED] this server does not lead the partition (NOT_LEADER)",
        "[TIDELOG_FAILED] too few (NOT_ENOUGH_REPLICAS)",
        "[TIDELOG_NOT_WRITTEN] the transaction timed out (TRANSACTION_ABORTED)",
        "[TIDELOG_NOT_WRITTEN] orders/0: not acknowledged in 120 s",
        "Python worker failed to connect back.",
        "java.net.SocketTimeoutException: Accept timed out",
        "Python worker exited unexpectedly (crashed)",
        "ExecutorLostFailure (executor 1 exited)",
        "java.io.IOException: No space left on device",
    ],
)
def test_what_may_pass_is_worth_a_restart(cause: str) -> None:
    assert is_worth_restart(STREAM_FAILED.format(cause))


@pytest.mark.parametrize(
    "cause",
    [
        "[TIDELOG_OPTION] there is no option topics",
        "[TIDELOG_SCHEMA] the sink takes value",
        "[TIDELOG_DATA_LOSS] orders/0: offsets 3 to 39 cannot all be read",
        "[TIDELOG_TOPIC_CHANGED] orders was deleted and created again",
        "[TIDELOG_UNKNOWN_TOPIC] no such topic (UNKNOWN_TOPIC)",
        "[TIDELOG_VALUE] orders/0 offset 3: the value is not json",
        "[TIDELOG_CORRUPT] orders/0 cannot be read",
        "[TIDELOG_GROUP] the group has members",
        "[TIDELOG_FAILED] not allowed (FORBIDDEN)",
        "[TIDELOG_FAILED] no valid credentials (UNAUTHENTICATED)",
        "[TIDELOG_NOT_WRITTEN] other bytes than before (SEQUENCE_CONFLICT)",
        "[TIDELOG_NOT_WRITTEN] not allowed (FORBIDDEN)",
        "[CAST_INVALID_INPUT] The value 'x' cannot be cast to INT. SQLSTATE: 22018",
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column cannot be resolved. SQLSTATE: 42703",
        "[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601",
        "[TIDELOG_UNREACHABLE] no answer; before: [TIDELOG_DATA_LOSS] orders/0",
        "Cannot call methods on a stopped SparkContext.",
        "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources requested",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match. SQLSTATE: XXKST",
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] SQLSTATE: 42K03",
    ],
)
def test_what_would_fail_again_is_not(cause: str) -> None:
    assert not is_worth_restart(STREAM_FAILED.format(cause))


def test_every_code_is_decided() -> None:
    lasting = {code for code in CODES if not is_worth_restart(f"[{code}] x")}
    assert set(CODES) - lasting == {"TIDELOG_UNREACHABLE", "TIDELOG_NOT_WRITTEN"}


def test_delays_double_up_to_a_limit() -> None:
    policy = RestartPolicy(delay_s=0.5, max_delay_s=5.0)
    assert [policy.delay(n) for n in (0, 1, 2, 3, 4, 1000)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_an_output_overrides_some_settings_of_its_pipeline() -> None:
    policy = RestartSettings(3, "10 minutes", "500ms", "1 second", "1h", "go-on").over(RestartPolicy())
    assert policy == RestartPolicy(3, 600.0, 0.5, 1.0, 3600.0, "go-on")
    assert RestartSettings(times=0).over(policy) == RestartPolicy(0, 600.0, 0.5, 1.0, 3600.0, "go-on")
    assert RestartSettings().over(policy) == policy
