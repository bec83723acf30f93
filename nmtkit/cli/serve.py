"""`nmtkit serve`."""

import asyncio
import contextlib
import functools
import ipaddress
import resource
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option

from nmtkit.cli import options

_MIN_KEY_CHARACTERS = 16


def command(
    *,
    models: Annotated[
        list[Path], Argument(metavar="MODEL...", help="Model or run folders, each for different language pairs.")
    ],
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    api_key: Annotated[Path | None, Option(help="File of keys, one per line; requests need one of them.")] = None,
    no_api_key: Annotated[bool, Option(help="Serve other machines, or under other names, without a key.")] = False,
    max_characters: Annotated[int, Option(min=1, help="Characters per request.")] = 5000,
    max_beam: Annotated[int, Option(min=1, max=10_000, help="Beam size per request.")] = 10,
    max_body: Annotated[int, Option(metavar="BYTES", min=1, max=2**30, help="Bytes per request.")] = 2**18,
    max_seconds: Annotated[
        float,
        Option(
            min=0.1,
            max=86_400,
            help="Maximum time for each of three steps: receiving a request, translating, sending the answer.",
        ),
    ] = 30,
    max_queue: Annotated[int, Option(min=1, help="Waiting requests; further ones are refused with 503.")] = 256,
    max_connections: Annotated[int, Option(min=1, help="Connections; further ones are refused with 503.")] = 256,
    batch_tokens: Annotated[int, Option(min=1, help="Source tokens that are translated together.")] = 2048,
    engine: Annotated[
        Literal["auto", "torch", "ctranslate2"], Option(help="auto: torch, but CTranslate2 for an export.")
    ] = "auto",
    precision: Annotated[Literal["float32", "bf16", "fp16"], Option(help="As for `nmtkit translate`.")] = "float32",
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Serve models over HTTP: a page to translate on, and LibreTranslate's API, described on the page /docs.

    The translations are those of `nmtkit translate`; waiting requests are translated together. Once it serves,
    Ctrl-C or SIGTERM ends the server when the requests in progress are finished, with exit code 0.

    Example: nmtkit serve runs/quickstart
    """
    from nmtkit.distributed.interpreter import stop_signals
    from nmtkit.errors import DataError, NmtkitError
    from nmtkit.lines import read_lines

    if not all(map(find_spec, ("h11", "prometheus_client"))):
        raise NmtkitError("nmtkit serve needs more packages; run `pip install 'nmtkit[serve]'`")
    if api_key is not None and no_api_key:
        raise BadParameter("give --api-key or --no-api-key, not both")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host  # as in a URL
    if api_key is None and not no_api_key and not _is_loopback(host):
        raise BadParameter("other machines can reach this address; give --api-key or --no-api-key", param_hint="--host")
    written = [line.strip() for line in read_lines(api_key)] if api_key is not None else []
    keys = [line for line in written if line and not line.startswith("#")]
    if api_key is not None and min(map(len, keys), default=0) < _MIN_KEY_CHARACTERS:
        raise DataError(f"{api_key} (--api-key): write one key per line, of at least {_MIN_KEY_CHARACTERS} characters")

    from nmtkit.serving import server
    from nmtkit.serving.http import Limits

    # macOS allows 256 open files by default, which are fewer than the connections.
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= allowed < (wanted := 2 * max_connections + 128):
        wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    load = functools.partial(server.load_directions, models, engine, precision, device, threads)
    limits = Limits(max_characters, max_beam, max_body, max_seconds, max_queue, max_connections)
    # With neither option, the address is a loopback one.
    is_local = api_key is None and not no_api_key
    asyncio.run(server.serve(load, host, port, keys, limits, batch_tokens, stop_signals(), is_local=is_local))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
