"""The network policy and the network log of a real sandbox."""

from __future__ import annotations

from typing import Any

import pytest

import ringfence

pytestmark = [pytest.mark.e2e, pytest.mark.gvisor]


def test_a_policy_is_changed_and_what_it_refuses_is_logged(sdk: Any, client: Any) -> None:
    with sdk.Sandbox.create(network=ringfence.NetworkConfig(deny_out=["0.0.0.0/0"]), client=client) as sandbox:
        start = sandbox.get_network_log().next_cursor
        attempt = "curl -sS -m 5 http://203.0.113.9:81/ 2>&1; echo $?"
        assert sandbox.commands.run(attempt).stdout.endswith("7\n")
        log = sandbox.get_network_log("denied", cursor=start, limit=10, wait=10)
        [flow] = [flow for flow in log.flows if flow.port == 81]
        assert (flow.address, flow.protocol, flow.verdict) == ("203.0.113.9", "tcp", "denied")
        assert (flow.reason, flow.rule, flow.bytes_sent) == ("denied", "0.0.0.0/0", 0)
        assert sandbox.get_network_log("allowed").flows == ()

        sandbox.update_network(ringfence.NetworkConfig(allow_out=["198.51.100.9"]))
        assert sandbox.get_info().network == ringfence.NetworkConfig(allow_out=["198.51.100.9"])
        assert sandbox.commands.run(attempt).stdout.endswith("7\n")
        assert "not_allowed" in [
            flow.reason for flow in sandbox.get_network_log("denied", cursor=log.next_cursor).flows
        ]

        with pytest.raises(ringfence.InvalidArgumentError) as caught:
            sandbox.update_network(ringfence.NetworkConfig(allow_out=["198.51.100.9", "no name"]))
        assert caught.value.field == "network.allow_out[1]"
        with pytest.raises(ringfence.InvalidArgumentError):
            sandbox.get_network_log("blocked")
