"""The epoch of an ensemble that has lost its data can be raised above all tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import zklock
from tests.backends import backend_or_skip
from zklock.testing import Ensemble

pytestmark = [pytest.mark.cluster, pytest.mark.slow("three servers are started")]

HIGHEST = zklock.FencingToken(0x4100000007, 12)
SERVERS = 3


def test_tokens_go_on_after_an_accepted_epoch_that_is_higher(tmp_path: Path) -> None:
    for server in range(SERVERS):
        folder = tmp_path / str(server + 1) / "version-2"
        folder.mkdir(parents=True)
        (folder / "acceptedEpoch").write_text(f"{HIGHEST.epoch >> 32}")
    with (
        Ensemble(SERVERS, backend=backend_or_skip("java"), data_dir=tmp_path) as ensemble,
        zklock.connect(ensemble.hosts) as client,
        zklock.Lock(client, "/lock") as grant,
    ):
        assert grant.token > HIGHEST
