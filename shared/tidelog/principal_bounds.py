"""Bounds per principal: how much of what all share one principal may have at a time.

Each bound is kept where the count is: groups, members, applications and open transactions by their coordinators,
topics and partitions by the controllers, subscriptions and connections by each gateway. Clients without a token and a
certificate are one principal, ``anonymous``. What has no owner, since an earlier release made it, counts for no
principal. Gateways name the principal of each request from feature level ``OWNERS`` on.
"""

from __future__ import annotations

from tidelog.errors import TidelogError, refuse


def refuse_excess(
    principal: str, what: str, held: int, setting: str, most: int, *, more: int = 1
) -> TidelogError | None:
    """Return ``LIMIT_EXCEEDED`` if a principal that holds ``held`` of ``what`` (groups, topics, …) may not get
    ``more`` of them, because ``setting`` allows ``most``. Returns None if it may, or if the principal is not known
    ("")."""
    if not principal or held + more <= most:
        return None
    text = f"{principal} has {held} {what}, and asks for {more} more: {setting} = {most}"
    return refuse("LIMIT_EXCEEDED", text, principal=principal, bound=what, setting=setting, limit=most)
