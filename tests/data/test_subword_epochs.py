"""What is drawn is another segmentation of the same text, and follows from (seed, epoch, pair) alone."""

import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.data import subword_epochs as drawing
from nmtkit.data.shards import PairData
from nmtkit.data.subword_epochs import Draw, draw_epoch, is_drawn
from nmtkit.errors import NmtkitError, RecipeError
from nmtkit.files import write_folder_atomically
from nmtkit.run import Run
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import UNK, Side
from tests.conftest import TinyProject, contents

SIDES: tuple[Side, Side] = ("source", "target")
DRAW = Draw("data", seed=1, epoch=0, strength=0.3, max_tokens=0)
ALPHABET = "abcdäß \t\u2581\u0301\u2028🙂"


@pytest.fixture
def drawn(tiny_project: TinyProject, tmp_path: Path) -> Callable[..., Path]:
    """Draws an epoch of the tiny project into a new folder."""

    def draw(processes: int = 1, **changes: int) -> Path:
        folder = tmp_path / "drawn" / str(len(list(tmp_path.glob("drawn/*"))))
        draw_epoch(tiny_project.prepared / "data", folder, dataclasses.replace(DRAW, **changes), processes)
        return folder

    return draw


def all_ids(folder: Path) -> list[list[list[int]]]:
    data = PairData(folder)
    return [[data.ids(side, pair).tolist() for side in range(2)] for pair in range(len(data))]


def test_the_text_of_every_pair_stays_and_most_segmentations_do_not(
    tiny_project: TinyProject, drawn: Callable[..., Path]
) -> None:
    tokenizer = Run(tiny_project.prepared).tokenizer()
    plain, other = all_ids(tiny_project.prepared / "data" / "train"), all_ids(drawn() / "pairs")
    for before, after in zip(plain, other, strict=True):
        for side, name in enumerate(SIDES):
            assert tokenizer.decode(before[side], name) == tokenizer.decode(after[side], name)
    assert sum(before != after for before, after in zip(plain, other, strict=True)) > 0.9 * len(plain)
    folders = (tiny_project.prepared / "data" / "train", drawn() / "pairs")
    lines, other_lines = (PairData(folder).lines.tolist() for folder in folders)
    assert lines == other_lines


def test_seed_and_epoch_decide_and_the_number_of_processes_does_not(
    drawn: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "_BLOCK_PAIRS", 30)
    first = contents(drawn())
    assert contents(drawn()) == contents(drawn(processes=3)) == first
    assert len({str(contents(folder / "pairs")) for folder in (drawn(), drawn(seed=2), drawn(epoch=1))}) == 3


def test_a_pair_that_would_be_too_long_keeps_its_plain_segmentation(
    tiny_project: TinyProject, drawn: Callable[..., Path]
) -> None:
    plain, free = all_ids(tiny_project.prepared / "data" / "train"), all_ids(drawn() / "pairs")
    limited = all_ids(drawn(max_tokens=20) / "pairs")
    too_long = [max(map(len, pair)) > 20 for pair in free]
    assert 0 < sum(too_long) < len(too_long)
    for one, other, found, is_too_long in zip(plain, free, limited, too_long, strict=True):
        assert found == (one if is_too_long else other)


def test_a_sampled_source_is_cut_as_the_prepared_one_is(drawn: Callable[..., Path]) -> None:
    free, cut = all_ids(drawn() / "pairs"), all_ids(drawn(max_source_tokens=9) / "pairs")
    assert any(len(source) > 9 for source, _ in free)
    assert cut == [[source[:9], target] for source, target in free]


def test_what_was_drawn_is_known_again_by_all_that_decides_it(drawn: Callable[..., Path]) -> None:
    folder = drawn()
    assert is_drawn(folder, DRAW)
    changes = {"data_fingerprint": "other", "seed": 2, "epoch": 1, "strength": 0.2, "max_tokens": 9,
               "max_source_tokens": 9}  # fmt: skip
    assert not any(is_drawn(folder, dataclasses.replace(DRAW, **{key: value})) for key, value in changes.items())
    assert not is_drawn(folder.parent / "missing", DRAW)


def test_a_full_disk_is_told_and_leaves_nothing(drawn: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.files.free_bytes", lambda folder: 1000)
    with pytest.raises(NmtkitError, match=r"the subwords drawn for an epoch needs .* MB, but only 0\.0 MB are"):
        drawn()


def test_it_ends_when_the_training_is_gone(tiny_project: TinyProject, tmp_path: Path) -> None:
    with pytest.raises(NmtkitError, match="has ended"):
        draw_epoch(tiny_project.prepared / "data", tmp_path / "drawn" / "0", DRAW, 1, parent=os.getpid())
    assert list((tmp_path / "drawn").iterdir()) == []


def test_drawing_that_is_ended_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_process: None
) -> None:
    def draw(data: Path, folder: Path, *arguments: object) -> None:
        with write_folder_atomically(folder):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", drawing._command(tmp_path, tmp_path / "drawn" / "0", DRAW, 1)[2:])
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    monkeypatch.setattr(drawing, "draw_epoch", draw)
    with pytest.raises(SystemExit, match="143"):
        drawing._main()
    assert list((tmp_path / "drawn").iterdir()) == []


def test_the_process_imports_no_file_of_the_users(
    tiny_project: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the file of the user ran')\n")
    monkeypatch.chdir(tmp_path)
    process = drawing.start(tiny_project.prepared / "data", tmp_path / "drawn", DRAW, 1)
    assert (process.communicate()[1], process.returncode) == (b"", 0)
    assert is_drawn(tmp_path / "drawn", DRAW)


def tokenizer(**data: object) -> Tokenizer:
    values = {"source_language": "en", "target_language": "de", "train": ["mine/train"], "vocab_size": 40, **data}
    pairs = [(ALPHABET * 2, f"{ALPHABET[::-1]} ab abc abcd cd bcd")] * 3
    return learn_tokenizer(DataConfig.model_validate(values), lambda: pairs)


BPE = tokenizer(vocab_size=24, normalize=[])
UNIGRAM = tokenizer(subwords="unigram", vocab_size=20, normalize=[])
WITH_BYTES = tokenizer(byte_fallback=True, vocab_size=290, normalize=[])


@settings(deadline=None, max_examples=150)
@given(line=st.text(ALPHABET) | st.text(), seed=st.integers(0, 2**63), kind=st.sampled_from(["bpe", "unigram"]))
def test_any_text_is_the_same_text_after_sampling(line: str, seed: int, kind: str) -> None:
    for model in (BPE if kind == "bpe" else UNIGRAM, WITH_BYTES):
        (plain,) = model.encode([line], "source")
        drawn = model.sampler("source", 0.2).sample(plain, seed)
        assert drawn == model.sampler("source", 0.2).sample(plain, seed)
        assert model.decode(drawn) == model.decode(plain)
        assert drawn.count(UNK) == plain.count(UNK)


@pytest.mark.parametrize("subwords", ["wordpiece", "none"])
def test_other_kinds_are_not_sampled(subwords: str) -> None:
    with pytest.raises(RecipeError, match=f'subwords = "{subwords}" cannot be sampled; use bpe or unigram'):
        tokenizer(subwords=subwords).sampler("source", 0.1)
