"""An hour of mixed requests, and a short form of it: every answer is right, and memory stays constant."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nmtkit.decoding.request import TranslationRequest
from nmtkit.decoding.translator import Translator
from tests.cli.test_serve import process
from tests.export.tiny_models import sentences
from tests.serving.conftest import Client, Server, request, translation_request, wait_until
from tests.serving.test_malformed import malformed

LINES = [*sentences(60, seed=8), " ".join(sentences(12, seed=9)), ""]
CLIENTS = 6
PAUSE_SECONDS = 0.01
OPTIONS: list[dict[str, Any]] = [{}, {"n_best": 2}, {"beam": 1}, {"alignment": True}, {"prefix": "die"}]
HURRIED_SECONDS = 0.05
"""After this time some clients go away without their answer."""


class Soak:
    """Clients that use a server until they are stopped."""

    def __init__(self, server: Server, translator: Translator) -> None:
        self.server = server
        self.expected = {line: translator.translate([line])[0] for line in LINES}
        prefixed = translator.translations(LINES, TranslationRequest(prefixes=["die"] * len(LINES)))
        self.prefixed = {line: best.text for line, [best, *_] in zip(LINES, prefixed, strict=True)}
        self.faults: list[Any] = []
        self.num_answers = 0
        self.ends = threading.Event()
        self._malformed = malformed()

    def use(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.ends.wait(PAUSE_SECONDS):
            try:
                with Client(self.server.port) as client:
                    for _ in range(rng.randrange(1, 20)):
                        self._ask(client, rng)
                        self.num_answers += 1
                    if rng.random() < 0.3:
                        client.send(rng.choice(self._malformed))
                        answer = client.read_answer()
                        if not 400 <= answer.status < 500:
                            self.faults.append(answer)
                    elif rng.random() < 0.5:
                        client.send(translation_request({"q": rng.choices(LINES, k=5), "source": "en", "target": "de"}))
                        time.sleep(HURRIED_SECONDS)
            except BaseException as error:
                self.faults.append(error)
                return

    def _ask(self, client: Any, rng: random.Random) -> None:
        if rng.random() < 0.05:
            client.send(request("GET", rng.choice(["/", "/docs", "/health", "/metrics", "/languages"])))
            assert client.read_answer().status == 200
            return
        line, options = rng.choice(LINES), rng.choice(OPTIONS)
        client.send(translation_request({"q": line, "source": "en", "target": "de", **options}))
        answer = client.read_answer()
        assert answer.status == 200, answer
        if "beam" not in options:
            expected = (self.prefixed if "prefix" in options else self.expected)[line]
            assert answer.json["translatedText"] == expected, (line, options)


@pytest.mark.parametrize(
    ("seconds", "growth_bytes"), [(8, 60e6), pytest.param(3600, 15e6, marks=pytest.mark.slow)], ids=["short", "an hour"]
)
def test_memory_stays_constant_and_every_answer_right(
    model: Path, tmp_path: Path, seconds: float, growth_bytes: float
) -> None:
    translator = Translator.load(model)
    options = ("--max-seconds", 120, "--max-body", 95000)
    with process(tmp_path, model, *options, is_forked=False) as (server, _):
        soak = Soak(server, translator)
        threads = [threading.Thread(target=soak.use, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        memory: list[float] = []
        try:
            wait_until(lambda: soak.num_answers > 100 or bool(soak.faults))
            begun = time.monotonic()
            while (time.monotonic() - begun < seconds or len(memory) < 12) and not soak.faults:
                time.sleep(min(10.0, seconds / 12))
                memory.append(server.metric("process_resident_memory_bytes"))
        finally:
            soak.ends.set()
            for thread in threads:
                thread.join()
        server.clients.clear()
        assert soak.faults == []
        third = len(memory) // 3
        print(f"{soak.num_answers} answers; memory, MB: {[round(size / 1e6) for size in memory]}")
        assert soak.num_answers > seconds
        assert max(memory[-third:]) - max(memory[:third]) < growth_bytes
        wait_until(lambda: server.metric("nmtkit_connections") == 1 and server.metric("nmtkit_waiting_requests") == 0)
        assert server.metric("process_open_fds") < 60
