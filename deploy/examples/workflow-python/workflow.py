"""A workflow service in Python: takes turn requests and publishes answers, chunk by chunk.

The contract is proto/antiphon/v1/work.proto. Put your model in the place of `think`.
"""

import asyncio
import datetime
import json
import os
import secrets
import signal

import nats
from nats.js.api import AckPolicy, ConsumerConfig

WORKFLOW = os.environ.get("ANTIPHON_WORKFLOW", "default")
AT_A_TIME = int(os.environ.get("ANTIPHON_WORKFLOW_CONCURRENCY", "16"))


class Failed(Exception):
    """Why there is no answer. `hint` tells Antiphon what to do: class (transient, permanent, auth), retry_after (seconds)."""

    def __init__(self, text, **hint):
        super().__init__(text)
        self.hint = hint


async def think(request):
    """Yields the answer piece by piece: here the input, word by word. `request["context"]` holds the history before it.

    A dict is the report of a call of a model, for the ledger: one when the call begins, so that it is counted if the turn is stopped, and
    one with the provider's counts when it has ended.
    """
    read = sum(len(message["content"].encode()) for message in request["context"])
    yield {"id": "call-0", "model": "echo", "input_tokens": read * 5 // 16, "estimated": True}
    text = request["context"][-1]["content"]
    if text.startswith("fail"):
        raise Failed("it was told to fail", **{"class": "permanent"})
    for word in f"Python heard: {text}".split(" "):
        await asyncio.sleep(0.02)
        yield word + " "
    yield {"id": "call-0", "model": "echo", "input_tokens": read, "output_tokens": len(text.encode())}


async def answer(js, request, attempt):
    """Publishes the chunks of one attempt: numbered from 0, each until it is stored, the last one final."""
    number, delivery = 0, secrets.token_hex(8)

    async def say(text, **more):
        nonlocal number
        chunk = {
            "session_id": request["thread_id"],
            "message_id": request["message_id"],
            "turn_token": request["turn_token"],
            "attempt": attempt,
            "delivery_id": delivery,
            "chunk_id": number,
            "chunk": text,
            **more,
        }
        number += 1
        while True:  # The same chunk again does no harm: it is dropped.
            try:
                return await js.publish(request["subject"], json.dumps(chunk).encode(), timeout=5)
            except nats.errors.Error as error:
                print(f"{request['turn_id']}: publishing again: {error!r}", flush=True)
                await asyncio.sleep(0.5)

    pieces, piece = think(request), None
    try:
        while True:
            piece = asyncio.ensure_future(anext(pieces, None))
            while not (await asyncio.wait({piece}, timeout=request["deadline_ms"] / 3000))[0]:
                await say("", chunk_type="metadata")  # A sign of life: a silent run would fail.
            if piece.result() is None:
                return await say("", is_final=True, metadata={"model": "echo"})
            if isinstance(piece.result(), dict):
                await say("", chunk_type="metadata", metadata={"model_calls": [piece.result()]})
            else:
                await say(piece.result())
    except Failed as failed:
        await say(str(failed), chunk_type="error", is_final=True, metadata=failed.hint)
    finally:
        piece.cancel()  # Stopped: the call to the model ends too.


def has_expired(request):
    """Whether the run has failed before anybody began it."""
    expires_at = request.get("expires_at", "9999-12-31T23:59:59Z").replace("Z", "+00:00")
    return datetime.datetime.now(datetime.timezone.utc) > datetime.datetime.fromisoformat(expires_at)


async def stopped(nc, subject):
    """Returns when somebody stops the turn."""
    stop = await nc.subscribe(subject)
    try:
        while (await stop.next_msg(timeout=None)).data != b"stop":  # Whatever else comes is not from the fleet.
            pass
    finally:
        await stop.unsubscribe()


async def take(nc, js, message, in_hand):
    """Answers one request, unless somebody stops it. Acknowledged only when the last chunk is stored."""
    request = json.loads(message.data)
    # Each delivery is an attempt of its own and fences those before it.
    attempt = request["attempt"] + message.metadata.num_delivered - 1
    if message.metadata.num_delivered == 1 and has_expired(request):  # A later delivery goes on with a run that was alive.
        return await message.ack_sync(timeout=5)
    key = (request["turn_id"], request["run"], attempt)
    if key in in_hand:  # A NATS server that was killed may deliver again under the same number: the answer under way goes on.
        return
    in_hand.add(key)
    answering = asyncio.ensure_future(answer(js, request, attempt))
    stopping = asyncio.ensure_future(stopped(nc, request["stop_subject"]))
    try:
        while not (await asyncio.wait({answering, stopping}, timeout=10, return_when=asyncio.FIRST_COMPLETED))[0]:
            await message.in_progress()
        for ended in (answering, stopping):
            if ended.done():
                ended.result()
        await message.ack_sync(timeout=5)
    except asyncio.CancelledError:  # By a drain.
        await message.nak()
        raise
    except Exception as error:
        print(f"{request['turn_id']}: handing the request back: {error!r}", flush=True)
        await message.nak(delay=1)
    finally:
        in_hand.discard(key)
        answering.cancel(), stopping.cancel()


async def main():
    nc = await nats.connect(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        max_reconnect_attempts=-1,
        # A user of NATS may be answered on subjects of its own only.
        inbox_prefix=os.environ.get("ANTIPHON_NATS_INBOX_PREFIX", "_INBOX"),
    )
    js, drain, slots, turns = nc.jetstream(), asyncio.Event(), asyncio.Semaphore(AT_A_TIME), set()
    in_hand, draining = set(), asyncio.ensure_future(drain.wait())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, drain.set)
    # One durable consumer for all services of a workflow: `antiphon migrate` makes it, or the first service that may.
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30, max_deliver=16)
    requests = await js.pull_subscribe(f"work.{WORKFLOW}", f"WORKFLOW_{WORKFLOW}", "WORK", config)
    print(f"taking turn requests for {WORKFLOW}", flush=True)
    while not nc.is_closed:
        slot = asyncio.ensure_future(slots.acquire())  # Ask only when there is somebody who can answer.
        await asyncio.wait({slot, draining}, return_when=asyncio.FIRST_COMPLETED)
        if drain.is_set():
            break
        try:
            if not nc.is_connected:  # What is asked for now would be sent, all of it, when NATS is back.
                raise nats.errors.ConnectionReconnectingError
            [message] = await requests.fetch(1, timeout=2)
        except nats.errors.Error as error:
            slots.release()
            if not isinstance(error, nats.errors.TimeoutError):  # None for a while is no error.
                await asyncio.sleep(0.5)
            continue
        turn = asyncio.ensure_future(take(nc, js, message, in_hand))
        turns.add(turn)
        turn.add_done_callback(lambda done: (turns.discard(done), slots.release()))
    if turns:  # What is in hand is finished; what takes longer is handed back.
        _, unfinished = await asyncio.wait(turns, timeout=20)
        for turn in unfinished:
            turn.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    if nc.is_closed and not drain.is_set():
        raise SystemExit("the connection to NATS was closed for good")
    await nc.close()


if __name__ == "__main__":
    asyncio.run(main())
