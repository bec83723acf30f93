"""Pictures of attention: words out of pieces, figures, pages, and the command."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from nmtkit.cli.attention import _print_heat_map
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import DataError, ModelError, NmtkitError
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import LoadedModel, load_model
from nmtkit.reports.attention_maps import (
    MAX_TOKENS,
    PARTS,
    AttentionMap,
    TokenRow,
    attention_maps,
    attention_page,
    figure_file,
    of_word,
    printable,
    strongest,
    to_words,
)
from nmtkit.text.new_tokenizers import learn_tokenizer
from tests.cli.outcomes import refusal
from tests.conftest import run_command


@pytest.fixture(scope="module")
def loaded(finished: Path) -> LoadedModel:
    return load_model(finished / "averaged")


AB = TokenRow(("a", "b"), ("a", "b"), (0, 1))
Side = list[list[str]]
"""The pieces of each word."""
SIDES = st.lists(st.lists(st.text(max_size=4), min_size=1, max_size=3), min_size=1, max_size=4)


def tokens_of(side: Side) -> TokenRow:
    pieces = tuple(piece for word in side for piece in word)
    word_of = tuple(number for number, word in enumerate(side) for _ in word)
    return TokenRow(pieces, tuple(f"w{number}" for number in range(len(side))), word_of)


def map_of(rows: Side, columns: Side) -> AttentionMap:
    """One of two layers and three heads between any tokens."""
    shape = (2, 3, sum(map(len, rows)), sum(map(len, columns)))
    weights = np.random.default_rng(1).dirichlet(np.ones(shape[3]), shape[:3])
    return AttentionMap("cross", tokens_of(rows), tokens_of(columns), weights)


@given(SIDES, SIDES)
@settings(max_examples=50, deadline=None)
def test_words_receive_all_of_their_pieces_and_give_their_mean(rows: Side, columns: Side) -> None:
    pieces = map_of(rows, columns)
    words = to_words(pieces)
    np.testing.assert_allclose(words.weights.sum(-1), 1.0)
    ends = [np.cumsum([0, *(len(word) for word in side)]) for side in (rows, columns)]
    for row, column in np.ndindex(len(rows), len(columns)):
        block = pieces.weights[..., ends[0][row] : ends[0][row + 1], ends[1][column] : ends[1][column + 1]]
        np.testing.assert_allclose(words.weights[..., row, column], block.sum(-1).mean(-1))
    assert words.rows.pieces == pieces.rows.words


@given(SIDES, SIDES)
@settings(max_examples=30, deadline=None)
def test_a_page_holds_every_token_and_weight_and_no_token_as_markup(rows: Side, columns: Side) -> None:
    shown = map_of(rows, columns)
    page = attention_page("title", "<p>about</p>", [shown])
    data = re.findall(r'<script type="application/json" id="attention">(.*?)</script>', page)
    assert len(data) == 1
    assert page.count("<script") == 3
    assert json.loads(data[0])["first"] == {"kind": "cross", "form": "pieces"}  # as in the terminal
    of_pieces = json.loads(data[0])["pieces"]["cross"]
    assert of_pieces["rows"] == list(shown.rows.pieces)
    assert of_pieces["columns"] == list(shown.columns.pieces)
    np.testing.assert_allclose(np.array(of_pieces["weights"]) / PARTS, shown.weights, atol=0.5 / PARTS + 1e-12)


@given(SIDES, SIDES)
@settings(max_examples=3, deadline=None)
@pytest.mark.filterwarnings("error")
def test_a_figure_of_any_text_is_whole_and_the_same_each_time(
    tmp_path_factory: pytest.TempPathFactory, rows: Side, columns: Side
) -> None:
    shown = map_of(rows, columns)
    folder = tmp_path_factory.mktemp("figures")
    heads = range(shown.weights.shape[1])
    for form, beginning in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        files = [folder / f"{number}{form}" for number in range(2)]
        for file in files:
            figure_file(file, shown, 0, heads)
        assert files[0].read_bytes() == files[1].read_bytes()
        assert files[0].read_bytes().startswith(beginning)
    texts = [element.text for element in ElementTree.parse(folder / "0.svg").iter("{http://www.w3.org/2000/svg}text")]
    expected = [printable(token) for token in (*shown.columns.pieces, *shown.rows.pieces) if printable(token).strip()]
    assert [text.strip() for text in texts if text and text.strip()] == [token.strip() for token in expected]


def test_a_figure_has_a_line_for_each_weight_that_can_be_seen(tmp_path: Path) -> None:
    weights = np.array([[[[1.0000001, 0.0], [0.25, 0.75]]]])  # a sum of rounded weights may exceed 1
    figure_file(tmp_path / "a.svg", AttentionMap("encoder", AB, AB, weights), 0, [0])
    lines = re.findall(r'<path d="M [\d. ]+\s*L [\d. ]+\s*"[^>]*style="([^"]*)"', (tmp_path / "a.svg").read_text())
    opacities = [re.search(r"stroke-opacity: ([\d.]+)", line) for line in lines]
    assert [float(found[1]) if found else 1.0 for found in opacities] == [1.0, 0.25, 0.75]


@pytest.mark.parametrize("long", ["花を持っている" * 5, "W" * 30, "i" * 90])
def test_no_label_of_a_figure_reaches_beyond_its_edges(tmp_path: Path, long: str) -> None:
    for name, rows, columns in (("row", (long, "b"), ("c", "d")), ("column", ("a", "b"), (long, "d"))):
        sides = (TokenRow(side, side, (0, 1)) for side in (rows, columns))
        entry = AttentionMap("cross", *sides, np.full((1, 1, 2, 2), 0.5))
        figure_file(tmp_path / f"{name}.png", entry, 0, [0])
        image = imread(tmp_path / f"{name}.png")
        edges = (image[0], image[-1], image[:, 0], image[:, -1])
        assert all((edge == 1).all() for edge in edges)
        figure_file(tmp_path / f"{name}.svg", entry, 0, [0])
        picture = ElementTree.parse(tmp_path / f"{name}.svg")
        height = float(picture.getroot().attrib["viewBox"].split()[3])
        [label] = (text for text in picture.iter("{http://www.w3.org/2000/svg}text") if text.text == long)
        begin = float(label.attrib["transform"].split()[1].removesuffix(")"))  # upright, so that it is read upwards
        ems = len(long) if long[0] == "花" else 0
        assert 9 * ems < begin < height


def test_a_figure_with_characters_that_no_font_has_tells_what_helps(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    tokens = TokenRow(("\U00012000",), ("\U00012000",), (0,))
    entry = AttentionMap("encoder", tokens, tokens, np.ones((1, 1, 1, 1)))
    figure_file(tmp_path / "a.svg", entry, 0, [0])
    assert logged.messages == []
    for name in ("a.png", "a.pdf"):
        logged.clear()
        figure_file(tmp_path / name, entry, 0, [0])
        [told] = logged.messages
        assert f"{name}: matplotlib has no font for some characters; take .svg or .html, or install a font" in told


def test_joiners_and_blanks_of_a_token_stay_and_what_a_terminal_obeys_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    persian, sinhala = "▁می\u200cخرد", "ක්\u200dර"
    assert [printable(token) for token in (persian, sinhala, "a\u3000b\u00a0c")] == [persian, sinhala, "a b c"]
    for character in "\x1b\t\n\x9b\u200b\u2028\u202e\u2066\ud800\uffff\ue000":
        assert printable(f"a{character}b") == "a\ufffdb"
    tokens = TokenRow((persian, "b"), (persian, "b"), (0, 1))
    entry = AttentionMap("cross", tokens, tokens, np.full((1, 1, 2, 2), 0.5))
    figure_file(tmp_path / "a.svg", entry, 0, [0])
    _print_heat_map(entry, 0, [0], with_zeros=True)
    for text in ((tmp_path / "a.svg").read_text(encoding="utf-8"), capsys.readouterr().out):
        assert text.count(persian) >= 2
        assert "\ufffd" not in text


def test_tokens_are_pieces_and_words_of_both_texts(loaded: LoadedModel) -> None:
    encoder, decoder, cross = attention_maps(loaded, "rst wxyz", "UV KL")
    assert "".join(encoder.rows.pieces) == "▁rst▁wxyz</s>"
    assert encoder.rows.words == ("rst", "wxyz", "</s>")
    assert encoder.rows == encoder.columns == cross.columns
    assert decoder.rows.words == ("UV", "KL", "</s>")
    assert decoder.columns.words == ("<s>", "UV", "KL")
    assert cross.rows == decoder.rows
    for entry in (encoder, decoder, cross):
        assert entry.weights.shape == (1, 2, len(entry.rows.pieces), len(entry.columns.pieces))
    assert strongest(encoder, 0, [1])[0][2] == encoder.weights[0, 1, 0].max()


@pytest.mark.parametrize(
    ("source", "target", "named"), [("", "AB", "source"), ("ab", " ", "target"), ("ab " * MAX_TOKENS, "AB", "source")]
)
def test_a_text_that_makes_no_picture_is_named(loaded: LoadedModel, source: str, target: str, named: str) -> None:
    with pytest.raises(DataError, match=f"^the {named} "):
        attention_maps(loaded, source, target)


def test_a_model_without_finite_attention_is_told(finished: Path) -> None:
    broken = load_model(finished / "averaged")
    broken.model.decoder[0].source_attention.query.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="its training diverged"):
        attention_maps(broken, "ab", "AB")


def test_the_command_shows_the_weights_in_the_terminal(finished: Path, loaded: LoadedModel) -> None:
    pair = ["--source", "ab \x1b[31m cde", "--target", "FG"]
    shown = run_command("attention", finished, *pair, "--words", "--head", "2", "--quiet")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    words = to_words(attention_maps(loaded, "ab \x1b[31m cde", "FG")[2])
    assert lines[0] == "Decoder to source, layer 1, mean of heads 2, in percent"
    for line, row in zip(lines[2:], words.weights[0, 1], strict=False):
        percents = [0 if part == "." else int(part) for part in line.split()[1 : 1 + len(row)]]
        np.testing.assert_allclose(percents, 100 * row, atol=0.51)
    assert lines[-1].startswith("columns: 1 ab  2 ")
    assert not any("\x1b" in line for line in lines)


def test_one_word_alone_is_drawn_wherever_it_occurs(tmp_path: Path) -> None:
    sides = [["▁mak", "ing"], ["▁its"], ["▁law,"], ["▁its"]]
    pieces = tuple(piece for word in sides for piece in word)
    tokens = TokenRow(pieces, ("making", "its", "law,", "its"), (0, 0, 1, 2, 3))
    entry = AttentionMap("encoder", tokens, tokens, np.full((2, 3, 5, 5), 0.2))
    for word, rows in (("making", [0, 1]), ("its", [2, 4]), ("law", [3]), ("law,", [3])):
        found = of_word(entry, word)
        assert (found.rows, found.columns) == (entry.rows, entry.columns)
        assert sorted({int(row) for row in found.weights.nonzero()[2]}) == rows
        assert (found.weights[:, :, rows] == 0.2).all()
    assert sorted({int(row) for row in of_word(to_words(entry), "making").weights.nonzero()[2]}) == [0]
    figure_file(tmp_path / "all.svg", entry, 0, [0])
    figure_file(tmp_path / "its.svg", of_word(entry, "its"), 0, [0])
    drawn = [(tmp_path / f"{name}.svg").read_text().count("stroke-opacity") for name in ("all", "its")]
    assert drawn == [25, 10]
    with pytest.raises(DataError, match="--word it: not one of the words that attend, which are: making its law, its"):
        of_word(entry, "it")


def test_rows_without_weights_are_shown_unless_one_word_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    entry = AttentionMap("cross", AB, AB, np.array([[[[0.25, 0.75], [0.0, 0.0]]]]))
    for with_zeros, words in ((True, ["a", "b"]), (False, ["a"])):
        _print_heat_map(entry, 0, [0], with_zeros=with_zeros)
        lines = capsys.readouterr().out.splitlines()[2:-1]
        assert [line.split() for line in lines] == [
            ["a", "25", "75", "b", "75", "%"], ["b", ".", ".", "attends", "elsewhere"]
        ][: len(words)]  # fmt: skip


def test_the_command_shows_one_word_alone(finished: Path) -> None:
    arguments = ("attention", finished, "--source", "ab cde", "--target", "FG HIJ", "--words", "--quiet", "--word")
    shown = run_command(*arguments, "HIJ")
    assert (shown.code, [line.split()[0] for line in shown.out.splitlines()[2:-1]]) == (0, ["HIJ"])
    told = "error: --word hij: not one of the words that attend, which are: FG HIJ </s>\n"
    assert run_command(*arguments, "hij")[::2] == (1, told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kind", "both"], "'encoder', 'decoder', 'cross'"),
        (["--output", "a.gif"], ".html, .svg, .pdf, .png"),
        (["--output", "a.html", "--layer", "1"], "leave out --kind, --layer, --head and --word"),
        (["--output", "a.html", "--word", "ab"], "leave out --kind, --layer, --head and --word"),
        (["--target", "AB", "--layer", "2"], "1 layer of this kind"),
        (["--target", "AB", "--head", "3"], "2 heads"),
        (["--target", "A\nB"], "a sentence has a line break"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(finished: Path, options: list[str], message: str) -> None:
    assert message in refusal("attention", finished, "--source", "ab", *options, code=2)


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.reports.attention_maps.find_spec", lambda name: None)
    with pytest.raises(NmtkitError, match=r"pip install 'nmtkit\[report\]'"):
        figure_file(tmp_path / "a.svg", AttentionMap("encoder", AB, AB, np.full((1, 1, 2, 2), 0.5)), 0, [0])
    assert list(tmp_path.iterdir()) == []


def test_each_side_is_read_by_the_rules_of_its_own_language() -> None:
    pairs = [("l'eau, c'est bon.", "l'eau, c'est bon.")] * 3
    values = {"source_language": "en", "target_language": "fr", "train": ["mine/train"], "vocab_size": 20}
    data = DataConfig.model_validate({**values, "normalize": ["moses-tokenize"], "subwords": "wordpiece"})
    model = Transformer(ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, num_heads=2), 20, 20).eval()
    loaded = LoadedModel(model, learn_tokenizer(data, lambda: pairs), DecodingConfig(), {})
    encoder, decoder, _ = attention_maps(loaded, "l'eau", "l'eau")
    assert encoder.rows.words[:2] == ("l", "'eau")
    assert decoder.rows.words[:2] == ("l'", "eau")
