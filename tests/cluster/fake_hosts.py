"""Hosts that a coordinator knows without a worker daemon: each attaches once and disconnects, like a daemon that was
ended, and stays in the list of hosts."""

import random

import tokens

PROTOCOL = 3
AT_ONCE = 50  # streams; each takes a thread of gRPC


def register(cluster, names):
    import trainyard.v1.agent_pb2_grpc as service
    agent, cluster_id = cluster.stubs.agent, cluster.server_info().cluster_id
    with tokens.dial(cluster.coordinator.address) as channel:
        attach = service.AgentServiceStub(channel).Attach
        for begin in range(0, len(names), AT_ONCE):
            streams = []
            for name in names[begin:begin + AT_ONCE]:
                hello = agent.Hello(protocol=PROTOCOL, host=name, slots=1, cluster_id=cluster_id,
                                    incarnation=random.getrandbits(60) + 1)
                streams.append(attach(iter([agent.AgentMessage(hello=hello)]), timeout=60))
            for stream in streams:
                list(stream)
