"""How a pipeline's file names its token and the files of TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import read
from tidelog.spark.pipelines.run import Run
from tidelog.spark.pipelines.security import Security, secrets_of, without_secrets


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(" secret\n")
    monkeypatch.setenv("OURS", "other\n")
    from_file = Security(token_file="token", ca="ca.pem", cert="/c.pem", key="k.pem")
    assert from_file.identity(tmp_path, {}) == {
        "token": "secret",
        "ca": str(tmp_path / "ca.pem"),
        "cert": "/c.pem",
        "key": str(tmp_path / "k.pem"),
    }
    assert Security(token_env="OURS").identity(tmp_path, {}) == {"token": "other"}
    assert Security(token="plain").identity(tmp_path, {}) == {"token": "plain"}
    assert Security().identity(tmp_path, {}) == {}


def test_what_is_given_goes_before_and_the_file_is_not_needed_then(tmp_path: Path) -> None:
    declared = Security(token_file="gone", ca="ca.pem")
    assert declared.identity(tmp_path, {"token": "mine", "ca": "/mine"}) == {"token": "mine", "ca": "/mine"}


def test_a_missing_token_is_an_error_and_not_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv("EMPTY", "")
    for settings, why in (
        (Security(token_file="gone"), "no token can be read there"),
        (Security(token_file="empty"), "is empty"),
        (Security(token_env="EMPTY"), "the environment has no EMPTY"),
    ):
        with pytest.raises(ConfigError, match=why):
            settings.identity(tmp_path, {})


def test_the_token_is_not_in_texts() -> None:
    assert "secret" not in repr(Security(token="secret"))
    assert without_secrets("with secret, twice secret, and other", ["", "secret", "other"]) == (
        "with ***, twice ***, and ***"
    )
    assert without_secrets("the longer", ["long", "longer"]) == "the ***"


def test_secrets_are_known_by_the_names_of_their_options() -> None:
    options = {"Token": "a", "s3.secret-access-key": "b", "credential": "c", "s3.session-token": "d"}
    assert secrets_of(options | {"s3.region": "e", "token-refresh-enabled": "true"}) == ["a", "b", "c", "d"]


def test_a_run_shows_no_secret_of_its_declaration_and_no_value_of_a_variable() -> None:
    text = """
        name = "p"
        [in.t]
        topic = "t"
        options = { token = "of-input" }
        [out.a]
        from = "t"
        iceberg = "a.b"
        catalog = { type = "rest", uri = "http://${HOST}", credential = "of-catalog" }
        options = { "s3.secret-access-key" = "of-store" }
    """
    reading = read(text, {"HOST": "user:word@host"})
    spark: Any = None
    run = Run(reading.pipeline, spark, Path(), identity={"token": "mine"}, variables=reading.secrets)
    said = "of-input of-catalog of-store mine http://user:word@host"
    assert run.without_secrets(said) == "*** *** *** *** http://${HOST}"
