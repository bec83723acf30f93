"""The server: its models, and its life until a signal ends it."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from nmtkit.console import log
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.engine_choice import choose_export
from nmtkit.errors import NmtkitError
from nmtkit.serving.api import Api, Directions, ServedModel
from nmtkit.serving.http import HttpServer, Limits
from nmtkit.serving.translation_queue import TranslationQueue


def load_directions(
    models: Sequence[Path], engine: str, precision: Literal["float32", "bf16", "fp16"], device: str, threads: int | None
) -> Directions:
    """Load models, each for a direction of its own; arguments as the options of `nmtkit translate`.

    Raises:
        NmtkitError: a model cannot be loaded, or two of them translate the same direction.
    """
    directions: Directions = {}
    for path in models:
        export = choose_export([path], engine, {}, ["--precision"] * (precision != "float32"), device=device)
        engines: list[Engine] = []
        needs_torch = export is None or (engine == "auto" and export.model is not None)
        if export is not None:
            from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator

            engines.append(CTranslate2Translator.load(export, {}, device, threads))
        if needs_torch:
            from nmtkit.decoding.translator import Translator
            from nmtkit.distributed.workers import Workers

            workers = Workers.start(device, "float32", threads, for_decoding=True)
            engines.append(Translator.load(path, workers.device, precision))
        settings = engines[0].tokenizer.settings
        pair = settings["source_language"], settings["target_language"]
        if pair in directions:
            raise NmtkitError(f"{path}: another model translates {'-'.join(pair)} already; start a server for each")
        directions[pair] = ServedModel(engines[0], engines[-1], needs_torch)
    return directions


async def serve(
    load: Callable[[], Directions], host: str, port: int, keys: Sequence[str], limits: Limits, batch_tokens: int,
    signals: Sequence[signal.Signals] = (),
) -> int:  # fmt: skip
    """Serve until one of the signals, and return its number; requests in work are answered first.

    Raises:
        NmtkitError: the address cannot be used, or a model cannot be loaded.
    """
    registry, loop = CollectorRegistry(), asyncio.get_running_loop()
    ProcessCollector(registry=registry)
    queue = TranslationQueue(limits, batch_tokens, registry)
    http = HttpServer(lambda request: api.respond(request), limits)
    Gauge("nmtkit_connections", "Open connections.", registry=registry).set_function(lambda: http.num_connections)
    try:  # before the models are loaded, which takes long
        listener = await asyncio.start_server(http, host, port, start_serving=False)
    except OSError as error:
        reason = str(error.strerror).rpartition(": ")[2]
        raise NmtkitError(f"--host {host} --port {port}: {reason}; choose another address or port") from None
    stopped = loop.create_future()

    def stop(number: signal.Signals) -> None:
        if stopped.done():
            os._exit(128 + number)  # at the second signal, nothing is waited for
        stopped.set_result(number)
        log.info("stopping: requests in work are finished")

    try:
        directions = load()
        api = Api(directions, queue, limits, keys, registry)
        for number in signals:
            loop.add_signal_handler(number, stop, number)
        await listener.start_serving()
        translating = asyncio.create_task(queue.run())
        shown, (_, actual_port, *_) = f"[{host}]" if ":" in host else host, listener.sockets[0].getsockname()
        log.info("serving %s at http://%s:%d/", ", ".join(map("-".join, directions)), shown, actual_port)
        await asyncio.wait([stopped, translating], return_when=asyncio.FIRST_COMPLETED)
        if translating.done():
            translating.result()  # a bug in the queue; without it, requests would wait forever
    finally:
        listener.close()
    await http.stop()
    return int(stopped.result())
