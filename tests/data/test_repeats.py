"""Repeats found a part at a time are those that a dictionary finds."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from nmtkit.data import repeats
from nmtkit.data.repeats import KeyFile, PairFile, key_of


@pytest.mark.parametrize("at_once", [3, 50, 1_000_000])
@pytest.mark.parametrize("watched", [0, 10, 300])
def test_repeats_are_those_that_a_dictionary_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, watched: int
) -> None:
    monkeypatch.setattr(repeats, "_KEYS_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    texts = [str(number) for number in rng.integers(0, 120, 300)]
    eligible = rng.random(300) < 0.8

    def expected(looked_at: npt.NDArray[np.bool_]) -> list[int]:
        seen: set[str] = set()
        found = []
        for index, text in enumerate(texts):
            if looked_at[index] and text in seen:
                found.append(index)
            seen |= {text} if looked_at[index] else set()
        return found

    file = KeyFile(tmp_path / "keys", watched)
    first = [begin + index for begin in range(0, 300, 7) if (index := _added(file, texts, eligible, begin)) is not None]
    assert first == [index for index in expected(eligible) if index < watched][:1]
    for looked_at in (np.ones(300, bool), eligible):
        found = [part.tolist() for part in file.repeats(looked_at)]
        assert all(part == sorted(part) for part in found)
        assert sorted(index for part in found for index in part) == expected(looked_at)


def _added(file: KeyFile, texts: list[str], eligible: npt.NDArray[np.bool_], begin: int) -> int | None:
    keys = b"".join(key_of(text) for text in texts[begin : begin + 7])
    return file.add(keys, eligible[begin : begin + 7])


def test_without_texts_there_is_no_repeat(tmp_path: Path) -> None:
    assert list(KeyFile(tmp_path / "keys").repeats(np.zeros(0, bool))) == []


@pytest.mark.parametrize("at_once", [4, 1_000_000])
def test_pairs_held_out_are_those_with_the_smallest_sums_and_take_all_that_share_a_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(repeats, "_KEYS_AT_ONCE", at_once)
    rng = np.random.default_rng(2)
    pairs = [(number, f"A{rng.integers(40)}", f"b {rng.integers(40)}") for number in range(1, 201)]
    kept, eligible = rng.random(200) < 0.9, rng.random(200) < 0.7

    def sums(pair: tuple[int, str, str]) -> bytes:
        return hashlib.blake2b(f"{pair[1].lower()}\n{pair[2]}".encode(), digest_size=16).digest()

    first: dict[bytes, tuple[int, str, str]] = {}
    for pair in pairs:
        if kept[pair[0] - 1] and eligible[pair[0] - 1]:
            first.setdefault(sums(pair), pair)
    chosen = [first[total] for total in sorted(first)[:20]]
    sides = [{pair[side].lower() for pair in chosen} for side in (1, 2)]
    file = PairFile(tmp_path / "pairs")
    for begin in range(0, 200, 9):
        block = pairs[begin : begin + 9]
        lines = ([f"{pair[side]}\n".encode() for pair in block] for side in (1, 2))
        rows = PairFile.rows(block, ["lowercase"], tuple(lines))
        for row, is_eligible in enumerate(eligible[begin : begin + 9]):
            position = sum(len(pair[1]) + 1 for pair in pairs[:begin])
            file.add(rows[row : row + 1], (position, 0), group=0 if is_eligible else -1)
    [found], sharing = file.hold_out([20], kept, PairFile.rows([], [], ([], [])))
    assert found["number"].tolist() == sorted(pair[0] for pair in chosen)
    assert found["begins"][:, 0].tolist() == [
        sum(len(pair[1]) + 1 for pair in pairs[: number - 1]) for number in found["number"].tolist()
    ]
    assert sharing.tolist() == [
        pair[0] for pair in pairs if kept[pair[0] - 1] and (pair[1].lower() in sides[0] or pair[2] in sides[1])
    ]
