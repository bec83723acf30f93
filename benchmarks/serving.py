"""Speed of `nmtkit serve` on loopback beside `nmtkit translate` on a file of the same lines, A B A B.

    python benchmarks/serving.py --model RUN --text test.en --clients 1 8 64 --rounds 2 --threads 2 --json out.json

Each client has one connection and sends the next line as a request as soon as its answer is there, until every line was
sent once; so the load is bounded, and the generator shares the processor with the server. A line before the measured
ones warms the server up. Every answer is compared with the line of `translate`. The rate of `translate` leaves out
start and loading: it is the number of lines but one, divided by the difference of the times for all lines and for one.
The time of a request is that from its first byte sent to its last byte received. Compare only what ran in one call, on
an idle machine.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import train as benchmark


def translate(model: Path, lines: list[str], options: list[str]) -> tuple[list[str], float]:
    """The translations by the command, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "in", Path(name) / "out"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        begun = time.perf_counter()
        benchmark.nmtkit(
            ["translate", str(model), "--input", str(source), "--output", str(output), "--quiet", *options]
        )
        seconds = time.perf_counter() - begun
        return output.read_text(encoding="utf-8").split("\n")[:-1], seconds


@contextmanager
def server(model: Path, options: list[str]) -> Iterator[int]:
    """The port of a server that runs for a `with` block."""
    command = [sys.executable, "-m", "nmtkit", "serve", str(model), "--port", "0", "--max-seconds", "600", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = ""
    for line in process.stderr:
        first += line
        if match := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            break
    else:
        sys.exit(f"{' '.join(command)}: exit code {process.wait()}\n{first}")
    try:
        yield int(match[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=600)


async def load(port: int, lines: list[str], clients: int) -> tuple[list[str], list[float], float]:
    """The translation and the seconds of each line, and the seconds of all, with so many clients at a time."""
    translations, seconds = [""] * len(lines), [0.0] * len(lines)
    numbers = iter(range(len(lines)))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            body = json.dumps({"q": lines[number], "source": "auto", "target": target}).encode()
            head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            begun = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert length is not None
            content = json.loads(await reader.readexactly(int(length[1])))
            seconds[number] = time.perf_counter() - begun
            if "translatedText" not in content:
                sys.exit(f"line {number + 1}: {content}")
            translations[number] = content["translatedText"]
        writer.close()

    target = await target_of(port)
    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return translations, seconds, time.perf_counter() - begun


async def target_of(port: int) -> str:
    """The language into which the server translates."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /languages HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return str(json.loads(body)[0]["targets"][0])


def measure(model: Path, lines: list[str], arguments: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """The results of one round."""
    _, one = translate(model, lines[:1], options)
    expected, both = translate(model, lines, options)
    round_: dict[str, Any] = {"translate": (len(lines) - 1) / (both - one), "clients": {}}
    with server(model, options) as port:
        asyncio.run(load(port, lines[:1] * 8, 1))
        for clients in arguments.clients:
            translations, seconds, elapsed = asyncio.run(load(port, lines, clients))
            ordered = sorted(seconds)
            round_["clients"][clients] = {
                "rate": len(lines) / elapsed,
                "p50": statistics.median(ordered),
                "p95": ordered[int(0.95 * (len(ordered) - 1))],
                "different": sum(one != other for one, other in zip(expected, translations, strict=True)),
            }
    return round_


def main() -> None:
    """Reads the command line, measures in turn, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a trained model")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="lines to translate")
    parser.add_argument("--lines", type=int, default=1000, help="how many of them")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--engine", choices=("auto", "torch", "ctranslate2"), default="auto")
    parser.add_argument("--threads", type=int, help="of both; by default all cores")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    lines = [line for line in arguments.text.read_text(encoding="utf-8").split("\n") if line.strip()][: arguments.lines]
    options = ["--device", "cpu", "--engine", arguments.engine]
    options += ["--threads", str(arguments.threads)] if arguments.threads else []
    rounds = []
    for turn in range(arguments.rounds):
        rounds.append(measure(arguments.model, lines, arguments, options))
        print(f"round {turn + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    base = statistics.mean(one["translate"] for one in rounds)
    print(f"{len(lines)} lines, {len(rounds)} rounds; translate: {base:.1f} sentences/s")
    print("| clients | sentences/s | to translate | p50, ms | p95, ms | other than translate |")
    print("|---|---|---|---|---|---|")
    report: dict[str, Any] = {"lines": len(lines), "translate": base, "rounds": rounds, "clients": {}}
    for clients in arguments.clients:
        of = {key: statistics.mean(one["clients"][clients][key] for one in rounds) for key in ("rate", "p50", "p95")}
        of |= {"ratio": of["rate"] / base, "different": sum(one["clients"][clients]["different"] for one in rounds)}
        report["clients"][clients] = of
        times = f"{1000 * of['p50']:.1f} | {1000 * of['p95']:.1f}"
        print(f"| {clients} | {of['rate']:.1f} | {of['ratio']:.2f} | {times} | {of['different']} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
