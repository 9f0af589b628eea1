"""The client for asyncio: the calls of trainyard.Client as coroutines, `watch` and `logs` as asynchronous iterators."""

import asyncio
import time
import weakref

import grpc

from trainyard import _calls, _dial, _events, errors, schema


class AsyncClient(_calls.Calls):
    def __init__(self, address=None, token_file=None, allow_plaintext=False, reconnect_s=60.0):
        super().__init__(address, token_file, allow_plaintext, reconnect_s)
        self._channel = None
        # The channels that calls may use, this one and those that were forgotten, each with the event loop in which it
        # was made. A channel works in no other loop.
        self._channels = weakref.WeakKeyDictionary()

    async def close(self):
        channels, self._channel = [*self._channels.items()], None
        for channel, loop in channels:
            if not loop.is_closed():  # otherwise its calls have ended
                await channel.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def _open(self):
        loop = asyncio.get_running_loop()
        if self._channel is None or self._channels[self._channel] is not loop:
            self._channel = grpc.aio.insecure_channel(_dial.grpc_target(self.address), options=_calls.CHANNEL_OPTIONS)
            self._channels[self._channel] = loop
        return self._channel

    def _convert(self, error, metadata, channel):
        converted = errors.from_rpc(error, self.address)
        if converted.code in _calls.UNANSWERED and self._channel is channel:
            # As in Client._forget. Each call keeps a reference to its channel, which is closed when the last call ends.
            self._channel = None
        elif self._is_new_token(converted, metadata):
            converted = errors.UnavailableError(f"the coordinator at {self.address} was restarted with a new token")
        return converted

    async def _call_once(self, name, fields):
        metadata, channel = self._metadata(), self._open()
        call, request = _calls.unary(channel, name)
        try:
            made = call(request(**fields), timeout=_calls.CALL_TIMEOUT_S, metadata=metadata)
            answer = await made
            self._check_server(await made.initial_metadata())
            return answer
        except grpc.RpcError as error:
            raise self._convert(error, metadata, channel) from None

    async def _unary(self, name, fields, retry=False):
        retries = _events.Retry(self._reconnect_s if retry else 0.0)
        while True:
            try:
                return await self._call_once(name, fields)
            except (errors.UnavailableError, errors.DeadlineExceededError) as error:
                wait_s = retries.failed()
                if wait_s is None:
                    raise _calls.unanswered(error, name, fields) from None
                await asyncio.sleep(_calls.retry_wait_s(wait_s, error))

    async def _pages(self, call, attribute, **options):
        token = ""
        while True:
            page = await call(page_token=token, **options)
            for item in getattr(page, attribute):
                yield item
            token = page.next_page_token
            if not token:
                return

    def iter_jobs(self, states=()):
        """Client.iter_jobs as an asynchronous iterator."""
        return self._pages(self.list, "jobs", page_size=1000, states=states)

    def iter_hosts(self):
        """Client.iter_hosts as an asynchronous iterator."""
        return self._pages(self.list_hosts, "hosts")

    def iter_events(self, job_id="", after_sequence=0, limit=0):
        """Client.iter_events as an asynchronous iterator."""
        return self._pages(self.list_events, "events", job_id=job_id, after_sequence=after_sequence, limit=limit)

    async def _stream(self, name, fields, timeout=None):
        metadata, channel, began = self._metadata(), self._open(), time.monotonic()
        call = _calls.stream(channel, name, fields, metadata, timeout)
        try:
            async for message in call:
                yield message
        except grpc.RpcError as error:
            converted = self._convert(error, metadata, channel)
            converted.served_s = _calls.served_s(await call.initial_metadata(), began)
            raise converted from None
        finally:
            call.cancel()

    async def watch(self, job_id, after_sequence=0, after_step=0, after_eval_step=0, pause_s=None):
        """As Client.watch. Close the iterator (`aclose`) to end the call early."""
        seen = _events.EventFilter(after_sequence, after_step, after_eval_step)
        retries = _events.Retry(self._reconnect_s)
        while True:
            received = False
            stream = self._stream("Watch", _calls.watch_fields(job_id, seen), timeout=pause_s)
            try:
                async for event in stream:
                    retries.answered()
                    if not seen.is_new(event):
                        continue
                    received = True
                    yield event
                    if schema.state_name(event.state.state) in schema.FINAL_STATES:
                        return
                if schema.state_name((await self.get(job_id)).state) in schema.FINAL_STATES:
                    return
                wait_s = retries.next_wait()
            except errors.OutOfRangeError as error:
                seen.start_over(error)
                wait_s = retries.next_wait()
            except (errors.UnavailableError, errors.DeadlineExceededError) as error:
                if pause_s is not None and isinstance(error, errors.DeadlineExceededError):
                    if received:
                        continue
                    await self.get(job_id)
                    return
                wait_s = retries.failed(error.served_s)
                if wait_s is None:
                    raise
                wait_s = _calls.retry_wait_s(wait_s, error)
            finally:
                await stream.aclose()
            await asyncio.sleep(wait_s)

    async def logs(self, job_id, follow=False, ranks=(), tail_lines=0):
        """As Client.logs."""
        stream = self._stream("Logs", {"job_id": job_id, "follow": follow, "ranks": list(ranks),
                                       "tail_lines": tail_lines})
        try:
            async for line in stream:
                yield line
        finally:
            await stream.aclose()
