"""A holder whose client is being stopped no longer holds, before anybody else can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zklock
from tests.contract.support import SOON, granted, run
from zklock.testing import FaultProxy, wait_for


def test_a_stopping_client_holds_nothing_before_the_next_is_granted(
    zklock_connect: Callable[..., Any], zklock_proxy: FaultProxy, zklock_path: str
) -> None:
    stopping, other = zklock_connect(zklock_proxy.hosts), zklock_connect()
    losses: list[zklock.Loss] = []
    grant = granted(zklock.Lock(stopping, zklock_path, on_lost=losses.append))
    waiting = run(granted, zklock.Lock(other, zklock_path))
    fault = zklock_proxy.hold_before_reply(op="closeSession")
    stopped = run(stopping.stop)
    fault.wait(SOON)
    # The server has ended the session, and the client has not heard of it yet.
    assert waiting.result(SOON).token > grant.token
    assert not grant.held
    assert grant.lost.wait(SOON)
    zklock_proxy.release()
    stopped.result(SOON)
    wait_for(lambda: losses, SOON)  # told on a thread of its own
    assert [loss.reason for loss in losses] == [zklock.LossReason.CLIENT_CLOSED]
    assert losses[0].noticed < losses[0].lease_end
