"""`nmtkit serve`."""

import asyncio
import functools
import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmtkit import console
from nmtkit.cli.options import DeviceOption, QuietOption, ThreadsOption
from nmtkit.distributed.interpreter import stop_signals
from nmtkit.errors import DataError, NmtkitError

_MIN_KEY_CHARACTERS = 16


def command(
    *,
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...", help="Model or run folders, each for another direction.", show_default=False
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    api_key: Annotated[Path | None, typer.Option(help="File of keys, one per line; a request must have one.")] = None,
    no_api_key: Annotated[bool, typer.Option("--no-api-key", help="Serve other machines without keys.")] = False,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters per request.")] = 10_000,
    max_beam: Annotated[int, typer.Option(min=1, max=10_000, help="Beam that a request may choose.")] = 10,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Time for a request to arrive, and again to be answered.")
    ] = 30.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Waiting requests; more are answered with 503.")] = 256,
    max_body: Annotated[int, typer.Option(metavar="BYTES", min=1, max=2**30, help="Size of a request.")] = 2**18,
    max_connections: Annotated[int, typer.Option(min=1, help="Open connections.")] = 256,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens that are translated together.")] = 2048,
    engine: Annotated[Literal["auto", "torch", "ctranslate2"], typer.Option(help="See `nmtkit translate`.")] = "auto",
    precision: Annotated[Literal["float32", "bf16", "fp16"], typer.Option(help="See `nmtkit translate`.")] = "float32",
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Serve models over HTTP, with a page for translating at / and the API of LibreTranslate at /translate.

    Requests that wait are translated together; the translations are those of `nmtkit translate`. Ctrl-C or SIGTERM
    finishes what is in work. /docs describes the API.

    Example: nmtkit serve runs/quickstart
    """
    missing = [name for name in ("h11", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise NmtkitError(f"{' and '.join(missing)}: not installed; run `pip install 'nmtkit[serve]'`")
    from nmtkit.serving.http import Limits
    from nmtkit.serving.server import load_directions, serve

    if api_key is None and not no_api_key and not _is_loopback(host):
        raise typer.BadParameter(
            f"{host} is open to other machines: give --api-key, or --no-api-key", param_hint="--host"
        )
    console.set_up(quiet=quiet)
    limits = Limits(max_characters, max_beam, max_body, max_seconds, max_queue, max_connections)
    keys = [] if api_key is None else _read_keys(api_key)
    load = functools.partial(load_directions, models, engine, precision, device, threads)
    number = asyncio.run(serve(load, host, port, keys, limits, batch_tokens, stop_signals()))
    raise SystemExit(128 + number)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_keys(path: Path) -> list[str]:
    from nmtkit.files import read_lines

    keys = [line.strip() for line in read_lines(path) if line.strip()]
    if not keys or min(map(len, keys)) < _MIN_KEY_CHARACTERS:
        raise DataError(
            f"{path} (--api-key): needs one or more lines of at least {_MIN_KEY_CHARACTERS} characters each"
        )
    return keys
