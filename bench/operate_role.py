"""What every process of operate_clients.py does: it loads the schema, prints lines of JSON, and ends when its standard
input ends."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise gRPC reports each connection that the coordinator closes
import grpc

CALL_LIMIT_S = 60
INPUT = {}  # events that lines of the standard input cause: "begin", "stop"


def say(**line):
    print(json.dumps(line), flush=True)


def dial(address):
    """A channel with a connection of its own: channels to one address share a connection otherwise."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def until_begin():
    """Waits until the bench has sent a line, so that several processes begin at the same time."""
    say(ready=True)
    await INPUT["begin"].wait()


def load_schema(folder):
    sys.path.insert(0, folder)
    import trainyard.v1.agent_pb2 as agent
    import trainyard.v1.agent_pb2_grpc as agent_grpc
    import trainyard.v1.service_pb2 as service
    import trainyard.v1.service_pb2_grpc as service_grpc

    return {"agent": agent, "agent_grpc": agent_grpc, "service": service, "service_grpc": service_grpc}


async def until_input_ends():
    """The first line of the input means to begin, the second one to stop; the end of the input ends the process."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        INPUT["stop" if INPUT["begin"].is_set() else "begin"].set()


async def run(role, setting):
    INPUT.update({name: asyncio.Event() for name in ("begin", "stop")})
    end = asyncio.create_task(until_input_ends())
    work = asyncio.create_task(role(setting, load_schema(setting["stubs"])))
    await asyncio.wait({end, work}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        await work
        await end


def first_of(error):
    """The description of the first error in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.RpcError) else \
        f"{type(error).__name__}: {error}"


def main(roles):
    """`roles`: {name: coroutine function of the setting and the schema}"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends this process by closing its input
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        asyncio.run(run(roles[sys.argv[1]], json.loads(sys.argv[2])))
    except BaseException as error:
        with contextlib.suppress(OSError):  # the bench has ended
            say(error=first_of(error))
    os._exit(0)  # without waiting for a thousand channels to close
