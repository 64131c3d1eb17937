"""Another authority takes the place of the first while the services run: the steps of docs/deployment.md. Tests
``net/tls.py`` and ``net/dev_certificates.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog.errors import TidelogError
from tidelog.net.dev_certificates import open_authority
from tidelog.net.tls import TlsOptions

from unit.tidelog.net.test_tls import C1, DAY, HERE, NOW, R1, asked, hello, serving


def put(source: str | Path, target: Path) -> None:
    """Beside, then renamed, as files of certificates are to be replaced."""
    new = target.with_suffix(".new")
    new.write_bytes(Path(source).read_bytes())
    new.replace(target)


async def test_an_authority_is_replaced_while_the_services_run(tmp_path: Path) -> None:
    old, new = (open_authority(tmp_path / name, NOW, DAY) for name in ("old", "new"))
    server = TlsOptions(*(str(tmp_path / name) for name in ("ca.pem", "c1.pem", "c1.key")))
    first, second = (one.issue("c1", [C1], HERE, NOW, DAY) for one in (old, new))
    mine, next_ = (one.issue("r1", [R1], (), NOW, DAY) for one in (old, new))
    both = tmp_path / "both.pem"
    both.write_bytes(old.ca.read_bytes() + new.ca.read_bytes())

    put(old.ca, tmp_path / "ca.pem")
    put(first.cert, tmp_path / "c1.pem")
    put(first.key, tmp_path / "c1.key")
    async with serving(server) as url:
        await asked(url, mine, hello(R1))

        put(both, tmp_path / "ca.pem")  # everybody trusts both
        await asked(url, TlsOptions(str(both), mine.cert, mine.key), hello(R1))
        await asked(url, TlsOptions(str(both), next_.cert, next_.key), hello(R1))

        put(second.cert, tmp_path / "c1.pem")  # certificate by certificate
        put(second.key, tmp_path / "c1.key")
        await asked(url, TlsOptions(str(both), mine.cert, mine.key), hello(R1))
        with pytest.raises(TidelogError, match="not accepted"):
            await asked(url, mine, hello(R1))  # who does not trust the new one yet: the step before was not done

        put(new.ca, tmp_path / "ca.pem")  # nobody trusts the old one any more
        await asked(url, next_, hello(R1))
        with pytest.raises(TidelogError, match="UNREACHABLE"):
            await asked(url, TlsOptions(str(both), mine.cert, mine.key), hello(R1))
