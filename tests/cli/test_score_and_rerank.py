"""`nmtkit score --model` and `nmtkit rerank`: one line out for each line in, whatever the text."""

import gzip
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.model_schema import ModelConfig
from nmtkit.decoding.forced import ForcedDecoder
from nmtkit.decoding.translator import Translator
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import save_model
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.tokenizer import Tokenizer
from tests.cli.outcomes import fault_of
from tests.conftest import Streamed, run_with_streams
from tests.decoding.models import TEXT, TINY, data_config

HOSTILE = [
    ("", "Der Hund"),
    ("The dog", ""),
    ("", ""),
    ("The\u2028dog\x0b\x0c\x85", "Der\u2028Hund\u2029\x1c"),
    ("The dog\ttab", "Der Hund\ttab"),
    ("The dog. " * 11_112, "Der Hund"),
    ("The dog", "Der Hund. " * 10_000),
    (" ", "\u3000"),
    ("中文", "¿qué?"),
]


def save(folder: Path, seed: int, pairs: Sequence[tuple[str, str]] = TEXT, **data: object) -> Path:
    """A model of random weights, larger than initial ones so that probabilities differ."""
    tokenizer = learn_tokenizer(data_config(**data), lambda: pairs)
    torch.manual_seed(seed)
    config = ModelConfig.model_validate(TINY)
    model = Transformer(config, tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
    for parameter in model.parameters():
        parameter.data *= 2.0
    decoding = DecodingConfig(beam=2, max_length_offset=2, alpha=1.0, length_penalty="length")
    save_model(folder, model.state_dict(), config, tokenizer, decoding, {})
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "one", seed=1)


@pytest.fixture(scope="module")
def reverse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exchanged = [(target, source) for source, target in TEXT]
    folder = tmp_path_factory.mktemp("model") / "reverse"
    return save(folder, 3, exchanged, source_language="de", target_language="en")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "other", seed=2)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a vocabulary of its own."""
    return save(tmp_path_factory.mktemp("model") / "stranger", seed=3, vocab_size=60)


class Outcome(Streamed):
    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        assert self.code == 0, self.err
        return super().lines


def nmtkit(*arguments: object, stdin: bytes = b"", threads: int | None = 1) -> Outcome:
    """Runs a command on the CPU in this process, from its arguments to its exit code."""
    options = ["--device", "cpu"] if threads is None else ["--device", "cpu", "--threads", threads]
    return Outcome(**vars(run_with_streams(*arguments, *options, stdin=stdin)))


def write_pairs(folder: Path, pairs: list[tuple[str, str]]) -> list[str]:
    """Writes both sides and gives the arguments that name them."""
    for index, name in enumerate(("source", "hypothesis")):
        (folder / name).write_bytes("".join(f"{pair[index]}\n" for pair in pairs).encode())
    return ["--source", str(folder / "source"), "--hypothesis", str(folder / "hypothesis")]


class TestScore:
    def test_a_line_has_log_probability_tokens_perplexity_and_status(self, model: Path, tmp_path: Path) -> None:
        expected = ForcedDecoder.load([model]).score(TEXT)
        outcome = nmtkit("score", "--model", model, *write_pairs(tmp_path, TEXT))
        rows = [line.split("\t") for line in outcome.lines]
        assert [len(row) for row in rows] == [4] * len(TEXT)
        assert [float(row[0]) for row in rows] == pytest.approx([score.log_prob for score in expected], abs=1e-5)
        assert [int(row[1]) for row in rows] == [len(score.ids) for score in expected]
        for row in rows:
            assert float(row[2]) == pytest.approx(math.exp(-float(row[0]) / int(row[1])), rel=1e-4)
        assert {row[3] for row in rows} == {"ok"}
        assert outcome.err == ""

    def test_tokens_and_their_log_probabilities_come_last(self, model: Path, tmp_path: Path) -> None:
        tokenizer = Tokenizer.of_model(model)
        arguments = ["score", "--model", model, *write_pairs(tmp_path, TEXT)]
        plain = nmtkit(*arguments).lines
        for line, without, (_, hypothesis) in zip(nmtkit(*arguments, "--tokens").lines, plain, TEXT, strict=True):
            *columns, log_probs, pieces = line.split("\t")
            assert "\t".join(columns) == without
            ids = tokenizer.encode([tokenizer.normalize(hypothesis)], "target")[0]
            assert pieces.split(" ") == [*tokenizer.pieces(ids, "target"), "</s>"]
            values = [float(value) for value in log_probs.split(" ")]
            assert len(values) == len(ids) + 1 == int(columns[1])
            assert sum(values) == pytest.approx(float(columns[0]), abs=1e-4)

    def test_lines_of_json_hold_the_same(self, model: Path, tmp_path: Path) -> None:
        arguments = ["score", "--model", model, *write_pairs(tmp_path, TEXT + HOSTILE[:3]), "--tokens"]
        lines = nmtkit(*arguments, "--format", "jsonl").lines
        for number, (line, row) in enumerate(zip(lines, nmtkit(*arguments).lines, strict=True), start=1):
            found = json.loads(line)
            log_prob, tokens, perplexity, status, log_probs, pieces = row.split("\t")
            assert found["line"] == number
            assert found["log_prob"] == pytest.approx(float(log_prob), abs=1e-5)
            assert (found["length"], found["tokens"]) == (int(tokens), pieces.split(" "))
            assert found["perplexity"] == pytest.approx(float(perplexity), rel=1e-4)
            assert ",".join(found["status"]) == status
            assert found["token_log_probs"] == pytest.approx([float(value) for value in log_probs.split(" ")], abs=1e-5)
        assert "tokens" not in json.loads(nmtkit(*arguments[:-1], "--format", "jsonl").lines[0])

    @pytest.mark.parametrize("options", [[], ["--tokens"], ["--format", "jsonl", "--tokens"]])
    def test_hostile_lines_have_a_line_each(self, model: Path, tmp_path: Path, options: list[str]) -> None:
        pairs = [TEXT[0], *HOSTILE, TEXT[1]]
        outcome = nmtkit("score", "--model", model, *write_pairs(tmp_path, pairs), "--max-tokens", 50, *options)
        assert len(outcome.lines) == len(pairs)
        if not options:
            rows = [line.split("\t") for line in outcome.lines]
            assert [row[3] for row in rows[1:8]] == [
                "empty_source", "empty_hypothesis", "empty_source,empty_hypothesis", "unknown_tokens",
                "unknown_tokens", "cut_source", "cut_hypothesis",
            ]  # fmt: skip
            assert all(math.isfinite(float(row[0])) and math.isfinite(float(row[2])) for row in rows)
            alone = nmtkit("score", "--model", model, *write_pairs(tmp_path, TEXT[:2])).lines
            assert [outcome.lines[0], outcome.lines[-1]] == alone
            assert [row[1] for row in rows[2:4]] == ["1", "1"]
            assert rows[7][1] == "50"
        told = "warning: the {} was cut (the model's limit, or --max-tokens 50) in line {}\n"
        assert outcome.err.startswith(told.format("source", 7) + told.format("hypothesis", 8))
        whole, tabs, unknown = outcome.err.splitlines()[2:]
        number = next(number for number, (source, _) in enumerate(pairs, start=1) if "\t" in source.strip())
        assert tabs.startswith("warning: tabs are read as blanks") and tabs.endswith(f" meant: line {number}")
        assert unknown == "warning: <unk> in the hypothesis of 4 lines: 5, 6, 9, 10"
        assert whole.startswith("warning: sources of several sentences") and whole.endswith("for this model: line 7")

    def test_invalid_utf8_is_replaced_and_told(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"The dog\nA \xff cat\n")
        (tmp_path / "hypothesis").write_bytes(b"Der Hund\nKatze\n")
        arguments = ["score", "--model", model, "--source", tmp_path / "source", "--hypothesis"]
        outcome = nmtkit(*arguments, tmp_path / "hypothesis")
        assert [line.split("\t")[3] for line in outcome.lines] == ["ok", "invalid_utf8"]
        assert outcome.err == (f"warning: {tmp_path / 'source'}: invalid UTF-8 was replaced by U+FFFD in line 2\n")

    def test_texts_have_the_forms_of_other_scores_and_the_lines_of_tables_are_whole(
        self, model: Path, tmp_path: Path
    ) -> None:
        arguments = ["score", "--model", model, *write_pairs(tmp_path, TEXT)]
        expected = nmtkit(*arguments).out
        segments = "".join(f"<seg id='1'>{source}</seg>\n" for source, _ in TEXT)
        (tmp_path / "source.sgm").write_text(f"<doc>\n{segments}</doc>\n")
        with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
            archive.write(tmp_path / "hypothesis", "in/it.de")
            archive.write(tmp_path / "hypothesis", "in/it.tsv")
        (tmp_path / "lines.tsv").write_bytes((tmp_path / "hypothesis").read_bytes())
        for hypothesis in ("texts.zip:in/it.de", "texts.zip:in/it.tsv", "lines.tsv"):
            files = ["--source", tmp_path / "source.sgm", "--hypothesis", tmp_path / hypothesis]
            assert nmtkit(*arguments[:3], *files) == Outcome(0, expected, "")
        outcome = nmtkit(*arguments[:-1], tmp_path / "texts.zip")
        assert fault_of(outcome).startswith(f"{tmp_path / 'texts.zip'}: is an archive; name a text in it")

    @pytest.mark.parametrize("through_pipe", [False, True])
    def test_unequal_files_are_told_with_their_lines(
        self, model: Path, tmp_path: Path, through_pipe: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.cli.score_by_model.WINDOW_LINES", 2)
        arguments = write_pairs(tmp_path, TEXT)
        (tmp_path / "hypothesis").write_text("Der Hund\nDie Katze\nDas Haus\n")
        hypothesis = str(tmp_path / "hypothesis")
        if through_pipe:
            end, other_end = os.pipe()
            os.write(other_end, (tmp_path / "hypothesis").read_bytes())
            os.close(other_end)
            hypothesis = f"/dev/fd/{end}"
        else:
            monkeypatch.setattr(ForcedDecoder, "load", lambda *_: pytest.fail("loaded for nothing"))
        output = tmp_path / "scores"
        outcome = nmtkit("score", "--model", model, *arguments[:2], "--hypothesis", hypothesis, "--output", output)
        if through_pipe:
            os.close(end)
        told = f"error: {arguments[1]} has 4 lines, but {hypothesis} has 3; line n of one must belong to line n of"
        told += " the other\n"
        assert outcome == Outcome(1, b"", told)
        assert not output.exists()

    def test_the_output_is_a_file_and_no_lines_give_no_lines(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ["score", "--model", model, *write_pairs(tmp_path, TEXT)]
        expected = nmtkit(*arguments).out
        monkeypatch.setattr("nmtkit.cli.score_by_model.WINDOW_LINES", 3)
        assert nmtkit(*arguments, "--output", tmp_path / "scores.gz") == Outcome(0, b"", "")
        assert gzip.decompress((tmp_path / "scores.gz").read_bytes()) == expected
        assert nmtkit("score", "--model", model, *write_pairs(tmp_path, [])) == Outcome(0, b"", "")

    def test_options_reach_the_decoder(
        self, model: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        load, score = ForcedDecoder.load, ForcedDecoder.score

        def loading(paths: list[Path], device: Any, precision: Any, *languages: Any) -> ForcedDecoder:
            asked.append((paths, device.type, precision, *languages))
            return load(paths, device, precision, *languages)

        def scoring(self: ForcedDecoder, pairs: Any, before: Any, **options: Any) -> Any:
            asked.append(options)
            return score(self, pairs, before, **options)

        monkeypatch.setattr(ForcedDecoder, "load", loading)
        monkeypatch.setattr(ForcedDecoder, "score", scoring)
        arguments = ["score", "--model", model, "--model", other, *write_pairs(tmp_path, TEXT), "--device", "cpu"]
        assert (
            nmtkit(*arguments, "--precision", "float32", "--batch-tokens", 99, "--max-tokens", 88, "--to", "de").code
            == 0
        )
        options = {"batch_tokens": 99, "max_tokens": 88, "first_line": 1}
        assert asked == [([model, other], "cpu", "float32", "de", None), options]


def lists_of(model: Path, sources: list[str]) -> list[dict[str, Any]]:
    """N-best lists of a model's translations and the references, as `translate --json` writes them."""
    translator = Translator.load([model])
    lists = []
    for number, source in enumerate(sources, start=1):
        texts = [hypothesis for _, hypothesis in TEXT] + translator.translate([source])
        hypotheses = [{"text": text, "score": -index / 2, "log_prob": -9.0} for index, text in enumerate(texts)]
        lists.append({"line": number, "source": source, "hypotheses": hypotheses})
    return lists


def as_json(lists: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lists).encode()


def as_divided(lists: list[dict[str, Any]]) -> bytes:
    return "".join(
        f"{number} ||| {hypothesis['text']} ||| F0= {hypothesis['log_prob']} ||| {hypothesis['score']}\n"
        for number, entry in enumerate(lists)
        for hypothesis in entry["hypotheses"]
    ).encode()


def best_by(lists: list[dict[str, Any]], score: Callable[[str, dict[str, Any]], float]) -> list[str]:
    return [
        max(entry["hypotheses"], key=lambda hypothesis: score(entry["source"], hypothesis))["text"] for entry in lists
    ]


def normalized(decoder: ForcedDecoder, source: str, hypothesis: str) -> float:
    (score,) = decoder.score([(source, hypothesis)])
    return score.log_prob / len(score.ids)  # the penalty of the models' recipe


SOURCES = [source for source, _ in TEXT]


class TestOfTranslations:
    """What `nmtkit translate` writes is read, and its log-probabilities are those of forced decoding."""

    def test_translations_have_the_log_probability_that_translate_reports(self, tmp_path: Path) -> None:
        # Words as they stand: subwords found by a search may be others than those the text is cut into.
        models = [save(tmp_path / str(seed), seed, subwords="none", text="tokenized") for seed in (1, 2)]
        text = "".join(f"{source}\n" for source in SOURCES * 3).encode()
        options = ["--json", "--beam", 6, "--n-best", 6, "--max-length-offset", 1]
        lists = [json.loads(line) for line in nmtkit("translate", *models, *options, stdin=text).lines]
        found = [(entry["source"], hypothesis) for entry in lists for hypothesis in entry["hypotheses"]]
        arguments = write_pairs(tmp_path, [(source, hypothesis["text"]) for source, hypothesis in found])
        ensemble = ["--model", models[0], "--model", models[1]]
        lines = nmtkit("score", *ensemble, *arguments, "--tokens", "--format", "jsonl").lines
        assert len(lines) > 40
        for (_, hypothesis), line in zip(found, lines, strict=True):
            score = json.loads(line)
            assert score["tokens"] == [*hypothesis["tokens"], "</s>"]
            assert score["log_prob"] == pytest.approx(hypothesis["log_prob"], abs=1e-4)
            assert score["token_log_probs"] == pytest.approx(hypothesis["token_log_probs"], abs=1e-4)
        # So the order of such a list is the order it has already, and its scores are the scores it has.
        again = nmtkit("rerank", *ensemble, "--list", stdin=as_json(lists)).lines
        for line, entry in zip(again, lists, strict=True):
            old = [hypothesis["score"] for hypothesis in entry["hypotheses"]]
            assert [hypothesis["score"] for hypothesis in json.loads(line)["hypotheses"]] == pytest.approx(
                old, abs=1e-4
            )

    def test_translations_of_divided_words_are_read_back_by_their_tokens(self, tmp_path: Path) -> None:
        pairs = [
            (re.sub(r"(?<=\w\w)(?=\w)", "@@ ", source), re.sub("(?<=[a-z])(?=[a-z])", "@@ ", target))
            for source, target in TEXT
        ]
        model = save(tmp_path / "divided", 1, pairs, subwords="none", text="tokenized")
        options = ["--json", "--beam", 4, "--n-best", 4]
        text = "".join(f"{source}\n" for source, _ in pairs)
        lists = [json.loads(line) for line in nmtkit("translate", model, *options, stdin=text.encode()).lines]
        found = [(entry["source"], hypothesis) for entry in lists for hypothesis in entry["hypotheses"]]
        joined = [(source, each) for source, each in found if "@@" in " ".join(each["tokens"])]
        assert len(joined) > 8 and not any("@@" in each["text"] for _, each in joined)
        again = nmtkit("rerank", "--model", model, "--list", stdin=as_json(lists))
        for line, entry in zip(again.lines, lists, strict=True):
            assert [each["score"] for each in json.loads(line)["hypotheses"]] == pytest.approx(
                [each["score"] for each in entry["hypotheses"]], abs=1e-4
            )
        arguments = write_pairs(tmp_path, [(source, each["text"]) for source, each in joined])
        scored = nmtkit("score", "--model", model, *arguments)
        assert all("unknown_tokens" in line for line in scored.lines)
        assert "words have to be divided as in the training text" in scored.err
        for entry in lists:
            shown = nmtkit("attention", model, "--source", entry["source"]).out.decode()
            assert "</s>" in shown and "<unk>" not in shown

    def test_lists_of_translate_are_reranked_in_both_forms(self, model: Path, other: Path, tmp_path: Path) -> None:
        text = "".join(f"{source}\n" for source in [SOURCES[0], "", *SOURCES[1:]])
        (tmp_path / "source").write_text(text)
        options = ["--beam", 4, "--n-best", 4]
        as_objects = nmtkit("translate", model, *options, "--json", stdin=text.encode()).out
        with_bars = nmtkit("translate", model, *options, stdin=text.encode()).out
        best = nmtkit("rerank", "--model", other, stdin=as_objects).lines
        assert len(best) == 5
        assert best[1] == ""
        assert best != nmtkit("translate", model, *options[:2], stdin=text.encode()).lines
        assert nmtkit("rerank", "--model", other, "--source", tmp_path / "source", stdin=with_bars).lines == best
        shifted = ["rerank", "--model", other, "--source", tmp_path / "source", "--count-from", 0]
        told = "source line 5 does not exist (there are 5, from 0)"
        assert told in fault_of(nmtkit(*shifted, stdin=with_bars))


class TestRerank:
    def test_the_best_by_the_model_is_written_for_each_source_line(
        self, model: Path, other: Path, tmp_path: Path
    ) -> None:
        lists = lists_of(model, SOURCES)
        decoder = ForcedDecoder.load([other])
        expected = best_by(lists, lambda source, hypothesis: normalized(decoder, source, hypothesis["text"]))
        assert expected != [entry["hypotheses"][0]["text"] for entry in lists]
        assert nmtkit("rerank", "--model", other, stdin=as_json(lists)) == Outcome(
            0, "".join(f"{text}\n" for text in expected).encode(), ""
        )
        (tmp_path / "lists").write_bytes(as_divided(lists))
        (tmp_path / "source").write_text("".join(f"{source}\n" for source in SOURCES))
        arguments = ["rerank", "--model", other, "--input", tmp_path / "lists", "--source", tmp_path / "source"]
        assert nmtkit(*arguments).lines == expected
        assert nmtkit(*arguments, "--output", tmp_path / "best") == Outcome(0, b"", "")
        assert (tmp_path / "best").read_text().split("\n")[:-1] == expected

    def test_weights_penalty_and_original_score_make_up_the_score(self, model: Path, stranger: Path) -> None:
        lists = lists_of(model, SOURCES[:2])
        decoders = [ForcedDecoder.load([model]), ForcedDecoder.load([stranger])]
        arguments = ["--model", model, "--weight", 0.5, "--model", stranger, "--weight", 2, "--original-weight", 3]
        outcome = nmtkit("rerank", *arguments, "--length-penalty", "wu", "--alpha", 0.7, "--list", stdin=as_json(lists))
        for line, entry in zip(outcome.lines, lists, strict=True):
            found = json.loads(line)
            assert (found["line"], found["source"]) == (entry["line"], entry["source"])
            assert len(found["hypotheses"]) == len(entry["hypotheses"])
            scores = [hypothesis["score"] for hypothesis in found["hypotheses"]]
            assert scores == sorted(scores, reverse=True)
            for hypothesis in found["hypotheses"]:
                forced = [decoder.score([(entry["source"], hypothesis["text"])])[0] for decoder in decoders]
                parts = [score.log_prob / ((5 + len(score.ids)) / 6) ** 0.7 for score in forced]
                assert hypothesis["model_scores"] == pytest.approx(parts, abs=1e-9)
                weighted = 0.5 * parts[0] + 2 * parts[1] + 3 * hypothesis["original_score"]
                assert hypothesis["score"] == pytest.approx(weighted, abs=1e-9)
                assert hypothesis["log_prob"] == -9.0

    def test_several_models_without_weights_are_an_ensemble(self, model: Path, other: Path, stranger: Path) -> None:
        lists = lists_of(model, SOURCES[:1])
        outcome = nmtkit("rerank", "--model", model, "--model", other, "--list", stdin=as_json(lists))
        ensemble = ForcedDecoder.load([model, other])
        for hypothesis in json.loads(outcome.lines[0])["hypotheses"]:
            (score,) = ensemble.score([(SOURCES[0], hypothesis["text"])])
            assert hypothesis["model_scores"] == pytest.approx([score.log_prob / len(score.ids)], abs=1e-9)
        refused = nmtkit("rerank", "--model", model, "--model", stranger, stdin=as_json(lists))
        assert "its vocabulary differs from that of" in fault_of(refused)

    def test_a_reverse_model_scores_the_source_given_each_hypothesis(self, model: Path, reverse: Path) -> None:
        lists = lists_of(model, SOURCES)
        decoder = ForcedDecoder.load([reverse])
        expected = best_by(lists, lambda source, hypothesis: normalized(decoder, hypothesis["text"], source))
        assert expected != nmtkit("rerank", "--model", model, stdin=as_json(lists)).lines
        assert nmtkit("rerank", "--reverse-model", reverse, stdin=as_json(lists)).lines == expected
        # Its score is the last one, wherever it stands among the options.
        arguments = ["--reverse-model", reverse, "--reverse-weight", 0.5, "--model", model, "--weight", 2]
        for line, entry in zip(nmtkit("rerank", *arguments, "--list", stdin=as_json(lists)).lines, lists, strict=True):
            for hypothesis in json.loads(line)["hypotheses"]:
                direct, reversed_score = hypothesis["model_scores"]
                expected_score = normalized(decoder, hypothesis["text"], entry["source"])
                assert reversed_score == pytest.approx(expected_score, abs=1e-9)
                assert hypothesis["score"] == pytest.approx(2 * direct + 0.5 * reversed_score, abs=1e-9)

    def test_a_reverse_model_with_context_is_refused(self, tmp_path: Path) -> None:
        documents = save(tmp_path / "documents", 1, context=1)
        refused = nmtkit("rerank", "--reverse-model", documents, stdin=as_json(lists_of(documents, SOURCES[:1])))
        assert refused.code == 1
        assert refused.err.startswith(f"error: {documents}: a --reverse-model must not be trained with context")

    def test_languages_are_those_of_the_lists_and_exchanged_for_a_reverse_model(self, reverse: Path) -> None:
        lists = as_json(lists_of(reverse, SOURCES[:1]))
        arguments = ["rerank", "--reverse-model", reverse, "--from", "en"]
        assert nmtkit(*arguments, "--to", "de", stdin=lists).code == 0
        refused = nmtkit(*arguments, "--to", "fr", stdin=lists)
        assert refused.code == 1
        assert f'error: {reverse}: the model does not know the source language "fr"' in refused.err
        assert refused.err.endswith("; for a --reverse-model, --from and --to are exchanged\n")

    def test_texts_of_the_other_direction_are_told(
        self, model: Path, reverse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judged: list[list[tuple[str, str]]] = []
        monkeypatch.setattr(
            ForcedDecoder, "prefers_exchanged", lambda self, pairs, **_: bool(judged.append([*pairs])) or True
        )
        warning = "warning: {} translates from {} to {}, but the texts are far more probable in the other direction; "
        arguments = write_pairs(tmp_path, TEXT)
        told = nmtkit("score", "--model", model, *arguments).err
        assert told == warning.format(model, "en", "de") + "if they are, exchange --source and --hypothesis\n"
        lists = [{"source": source, "hypotheses": [{"text": target}]} for source, target in TEXT]
        told = nmtkit("rerank", "--model", model, "--reverse-model", reverse, stdin=as_json(lists)).err
        by_model = warning.format(model, "en", "de") + "if they are, name the model with --reverse-model\n"
        assert told == by_model + warning.format(reverse, "de", "en") + "if they are, name the model with --model\n"
        assert judged == [TEXT, TEXT, [(target, source) for source, target in TEXT]]

    def test_a_list_with_bars_comes_back_in_its_form(self, model: Path, tmp_path: Path) -> None:
        lists = lists_of(model, SOURCES)
        (tmp_path / "source").write_text("".join(f"{source}\n" for source in SOURCES))
        lines = nmtkit(
            "rerank", "--model", model, "--source", tmp_path / "source", "--list", stdin=as_divided(lists)
        ).lines
        rows = [line.split(" ||| ") for line in lines]
        assert [row[0] for row in rows] == [str(number) for number in range(4) for _ in range(5)]
        texts = [hypothesis["text"] for entry in lists for hypothesis in entry["hypotheses"]]
        assert sorted(row[1] for row in rows) == sorted(texts)
        assert all(row[2].startswith("F0= -9.0 original= ") for row in rows)
        for number in range(4):
            scores = [float(row[3]) for row in rows if row[0] == str(number)]
            assert scores == sorted(scores, reverse=True)

    def test_every_source_line_has_its_line_whatever_it_holds(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nmtkit.cli.rerank.WINDOW_HYPOTHESES", 2)
        texts = [[hypothesis] for _, hypothesis in HOSTILE] + [[], ["", "a\nb"], ["only"]]
        sources = [source for source, _ in HOSTILE] + ["The dog", "The dog", "A cat"]
        lists = [
            {"source": source, "hypotheses": [{"text": text} for text in candidates]}
            for source, candidates in zip(sources, texts, strict=True)
        ]
        outcome = nmtkit("rerank", "--model", model, "--max-tokens", 40, stdin=as_json(lists))
        assert outcome.lines[: len(HOSTILE)] == [hypothesis for _, hypothesis in HOSTILE]
        assert len(outcome.lines) == len(lists)
        assert outcome.lines[-3] == ""
        assert outcome.lines[-2] in ("", "a b")
        assert outcome.lines[-1] == "only"
        assert "--max-tokens 40) in 2 lines: 6, 7\n" in outcome.err

    def test_missing_lists_and_lines_of_several_sentences_are_named(self, model: Path, tmp_path: Path) -> None:
        sources = ["The dog sees a cat. A cat sees the dog!", "The dog", "", "A cat"]
        arguments = write_pairs(tmp_path, [(source, "Der Hund") for source in sources])
        whole = "warning: sources of several sentences were scored as a whole, although `translate` splits them "
        whole += "for this model: "
        assert nmtkit("score", "--model", model, *arguments).err == f"{whole}line 1\n"
        outcome = nmtkit("rerank", "--model", model, *arguments[:2], "--count-from", 1, stdin=b"1 ||| a\n4 ||| b\n")
        assert outcome.lines == ["a", "", "", "b"]
        assert outcome.err == f"{whole}line 1\nwarning: stdin: no list for line 2\n"

    def test_invalid_utf8_is_replaced_and_told(self, model: Path) -> None:
        text = b'{"source": "The \xff dog", "hypotheses": [{"text": "Der \xff Hund"}]}\n'
        outcome = nmtkit("rerank", "--model", model, stdin=text)
        assert outcome.lines == ["Der \ufffd Hund"]
        assert outcome.err == "warning: stdin: invalid UTF-8 was replaced by U+FFFD in line 1\n"

    @pytest.mark.parametrize("option", ["--input", "--source"])
    def test_lists_and_sources_are_not_written_over(self, model: Path, tmp_path: Path, option: str) -> None:
        (tmp_path / "mine").write_bytes(as_json(lists_of(model, SOURCES[:2])))
        before = (tmp_path / "mine").read_bytes()
        outcome = nmtkit("rerank", "--model", model, option, tmp_path / "mine", "--output", tmp_path / "mine")
        assert f"is also the file of {option}" in fault_of(outcome, 2)
        assert (tmp_path / "mine").read_bytes() == before

    def test_a_broken_list_is_told_and_no_output_is_made(self, model: Path, tmp_path: Path) -> None:
        text = as_json(lists_of(model, SOURCES[:2])) + b"{]\n"
        outcome = nmtkit("rerank", "--model", model, "--output", tmp_path / "best", stdin=text)
        assert fault_of(outcome).startswith("stdin, line 3: not valid JSON")
        assert list(tmp_path.iterdir()) == []
