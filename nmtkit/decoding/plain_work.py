"""Windows of lines to text by CTranslate2: what LineWork does with torch, without n-best lists, wishes and status."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator
from nmtkit.decoding.file_translation import Window, Written


@dataclass(frozen=True)
class PlainWork:
    """One translation for each line.

    Attributes:
        batch_sentences, batch_tokens, max_source_tokens: see CTranslate2Translator.translate.
    """

    translator: CTranslate2Translator
    batch_sentences: int | None
    batch_tokens: int
    max_source_tokens: int | None

    def check(self) -> None:
        """Nothing is asked for that could not be."""

    def check_lines(self, num_lines: int) -> None:
        """Any number of lines will do."""

    def description(self) -> dict[str, Any]:
        """All that decides what is written for a text, as JSON."""
        return {
            "engine": "ctranslate2",
            "decoding": self.translator.decoding.model_dump(mode="json"),
            "device": self.translator.device,
            "precision": self.translator.precision,
            "max_source_tokens": self.max_source_tokens,
            "training_lengths": self.translator.lengths and self.translator.lengths.model_dump(),
        }

    def translate(self, window: Window, invalid_lines: Sequence[int], advance: Callable[[float], None]) -> Written:
        """What is written for the lines of a window, of which CTranslate2 tells nothing on the way."""
        return Written(
            self.translator.translate(
                window.lines,
                batch_sentences=self.batch_sentences,
                batch_tokens=self.batch_tokens,
                max_source_tokens=self.max_source_tokens,
            ),
            [],
        )
