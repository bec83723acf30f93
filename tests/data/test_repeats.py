"""Repeats found a part at a time are those that a dictionary finds."""

from pathlib import Path

import numpy as np
import pytest

from nmtkit.data import repeats
from nmtkit.data.repeats import KeyFile, key_of


@pytest.mark.parametrize("at_once", [3, 50, 1_000_000])
def test_repeats_are_those_that_a_dictionary_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(repeats, "_KEYS_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    texts = [str(number) for number in rng.integers(0, 120, 300)]
    eligible = rng.random(300) < 0.8
    file = KeyFile(tmp_path / "keys")
    for text in texts:
        file.add(key_of(text))
    for looked_at in (np.ones(300, bool), eligible):
        seen: set[str] = set()
        expected = []
        for place, text in enumerate(texts):
            if looked_at[place]:
                if text in seen:
                    expected.append(place)
                seen.add(text)
        found = [part.tolist() for part in file.repeats(looked_at)]
        assert all(part == sorted(part) for part in found)
        assert sorted(place for part in found for place in part) == expected
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_without_texts_there_is_no_repeat(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    assert list(file.repeats(np.zeros(0, bool))) == []
    file.close()
