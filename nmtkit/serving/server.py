"""The server: its models, and its life until a signal ends it."""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from prometheus_client import CollectorRegistry, ProcessCollector

from nmtkit.console import log
from nmtkit.decoding.ctranslate2_engine import is_export
from nmtkit.decoding.engine_choice import load_engine
from nmtkit.decoding.request import TranslationRequest
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.serving.api import Api, Directions
from nmtkit.serving.http import HttpServer, Limits, Reader
from nmtkit.serving.translation_queue import TranslationQueue


def load_directions(
    models: Sequence[Path], engine: Literal["auto", "torch", "ctranslate2"],
    precision: Literal["float32", "bf16", "fp16"], device: str, threads: int | None,
) -> Directions:  # fmt: skip
    """Load models, each for directions of its own; arguments as the options of `nmtkit translate`.

    Raises:
        NmtkitError: a model cannot be loaded, or two of them translate the same direction.
    """
    directions: Directions = {}
    for path in models:
        # Requests may have options that CTranslate2 lacks.
        kind = "torch" if engine == "auto" and not is_export(path) else engine
        refused = ["--precision"] * (precision != "float32")
        try:
            loaded = load_engine([path], kind, {}, refused, precision=precision, device=device, threads=threads)
        except ModelError as error:
            place = "" if str(path) in str(error) else f"{path}: "
            raise ModelError(f"{place}{error}") from None
        sources, targets = loaded.tokenizer.source_languages, loaded.tokenizer.target_languages
        for source, target in itertools.product(sources, targets):
            if (source, target) in directions:
                raise NmtkitError(f"{path}: another model translates {source}-{target}; start a server for each")
            if source != target or len(sources) == len(targets) == 1:
                shared = TranslationRequest(source_language=source, target_language=target)
                directions[source, target] = (loaded, shared)
    return directions


async def serve(
    load: Callable[[], Directions], host: str, port: int, keys: Sequence[str], limits: Limits, batch_tokens: int,
    signals: Sequence[signal.Signals] = (), *, is_local: bool = False,
) -> None:  # fmt: skip
    """Serve until one of the signals; requests in work are answered first.

    Args:
        is_local: see `Api`.

    Raises:
        NmtkitError: the address cannot be used, or a model cannot be loaded.
    """
    registry, loop = CollectorRegistry(), asyncio.get_running_loop()
    ProcessCollector(registry=registry)
    queue = TranslationQueue(limits, batch_tokens, registry)
    http = HttpServer(lambda request: api.respond(request), limits, registry)

    def unusable(error: OSError | ValueError) -> NmtkitError:
        reason = str(error.strerror if isinstance(error, OSError) else error).rpartition(": ")[2]
        reason = reason.rpartition("] ")[2]  # since Python 3.13 it begins with [errno 98]
        return NmtkitError(f"--host {host} --port {port}: {reason}; choose another address or port")

    try:  # before the models are loaded, which takes long
        # Any: its callback is called with this reader.
        protocol = lambda: asyncio.StreamReaderProtocol(Reader(loop=loop), cast(Any, http))  # noqa: E731
        listener = await loop.create_server(protocol, host, port, start_serving=False)
    except (OSError, ValueError) as error:  # ValueError: of a name that no host can have
        raise unusable(error) from None
    stopped = loop.create_future()

    def stop(number: signal.Signals) -> None:
        if stopped.done():
            os._exit(128 + number)  # at the second signal, nothing is waited for
        stopped.set_result(None)
        log.info("stopping: requests in work are finished")

    try:
        # In the thread that translates: OpenMP halves the speed of a thread beside another that has computed.
        directions = await loop.run_in_executor(queue.thread, load)
        api = Api(directions, queue, limits, keys, is_local=is_local)
        # After the models are loaded, as nothing would wait for ``stopped`` before, and signals would have no effect.
        for number in signals:
            loop.add_signal_handler(number, stop, number)
        try:
            await listener.start_serving()
        except OSError as error:  # another server has begun to listen since
            raise unusable(error) from None
        translating = asyncio.create_task(queue.run())
        shown, (_, actual_port, *_) = f"[{host}]" if ":" in host else host, listener.sockets[0].getsockname()
        pairs = ", ".join(map("-".join, itertools.islice(directions, 10)))
        log.info("serving %s at http://%s:%d/", pairs, shown, actual_port)
        await asyncio.wait([stopped, translating], return_when=asyncio.FIRST_COMPLETED)
        if translating.done():
            translating.result()  # a bug in the queue; without it, requests would wait forever
    finally:
        listener.close()
    await http.stop()
