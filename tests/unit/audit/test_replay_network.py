"""A replay opens no set of another network than the one that counts."""

from __future__ import annotations

import pytest

from tallystick.audit.replay import _open
from tallystick.canonical.hashing import sha256
from tallystick.errors import EvidenceError
from tallystick.receipts.verify import VerifyContext
from tests.support.sets import AUDIT_KEY, NOW, SIGNER, make_replica, make_tickets

NETWORK = sha256(b"a network")


def test_a_set_of_another_network_is_refused_in_step_2() -> None:
    files = make_replica(make_tickets(network_id=NETWORK)[0], SIGNER).files()
    with pytest.raises(EvidenceError, match=r"step 2 .*network"):
        _open(files, VerifyContext(None, NOW, AUDIT_KEY))
    held = _open(files, VerifyContext(None, NOW, AUDIT_KEY, network_id=NETWORK))
    assert held.documents.compute.body.network_id == NETWORK
