import gzip
import json
import math
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.errors import DataError, RecipeError
from nmtkit.evaluation.metric_names import METRICS, ON_REQUEST, comparable_to, left_out
from nmtkit.evaluation.metrics import Scorer, score
from nmtkit.evaluation.rouge import ROUGE_METRICS
from nmtkit.evaluation.scores import Interval, read_scores, scores_as_json, shown_score
from nmtkit.lines import read_lines
from nmtkit.text import moses
from nmtkit.versions import package_version

REFERENCES = [
    "Der alte Mann geht mit dem Hund durch den Park.",
    "Eine Frau fährt auf ihrem hell-blauen Rad, und ein Kind schaut ihr zu.",
    'Er sagte: "Das ist ein Links-rechts-Fall & nichts sonst."',
    "Zwei Hunde spielen im Schnee…",
]
HYPOTHESES = [
    "Der Mann geht mit dem Hund durch den alten Park.",
    "Eine Frau fährt auf ihrem dunkel-blauen Rad, und ein Kind schaut ihr zu!",
    'er sagte: "das ist ein Links-rechts-Fall & nichts sonst."',
    "Zwei Hunde spielen im Schnee...",
]
BLEU_SIGNATURE = f"nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:{sacrebleu.__version__}"
SACREMOSES = f"sacremoses-{package_version('sacremoses')}"


def ngram_bleu(hypotheses: list[str], references: list[str]) -> float:
    """BLEU without smoothing of tokens at white space, written from the formula of Papineni et al. (2002)."""
    log_precision = 0.0
    for order in range(1, 5):
        matches = total = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            counts = [
                Counter(zip(*[line.split()[start:] for start in range(order)], strict=False))
                for line in (hypothesis, reference)
            ]
            matches += (counts[0] & counts[1]).total()
            total += counts[0].total()
        log_precision += math.log(matches / total) / 4
    hypothesis_length = sum(len(line.split()) for line in hypotheses)
    reference_length = sum(len(line.split()) for line in references)
    return 100 * math.exp(min(0.0, 1 - reference_length / hypothesis_length) + log_precision)


def random_tokens(seed: int, num_lines: int = 60) -> tuple[list[str], list[str]]:
    """Tokenised hypotheses and references that share most of their words."""
    generator = random.Random(seed)
    words = ["der", "Hund", "hell-blau", "a-b-c", ",", ".", "und", "Ü-Wagen", "läuft", "&", '"']
    references = [generator.choices(words, k=generator.randint(4, 14)) for _ in range(num_lines)]
    hypotheses = [[word if generator.random() < 0.8 else "nie" for word in line] for line in references]
    return [" ".join(line[: len(line) - 1]) for line in hypotheses], [" ".join(line) for line in references]


# What each metric is


def test_scores_of_plain_text_equal_those_of_sacrebleu_itself() -> None:
    scores = score(HYPOTHESES, REFERENCES, target_language=None, text="plain")
    expected = {
        "sacrebleu": (sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]), sacrebleu.BLEU()),
        "chrf2": (sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]), sacrebleu.CHRF()),
        "chrf2++": (sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2), sacrebleu.CHRF(word_order=2)),
        "ter": (sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES]), sacrebleu.TER()),
    }
    assert list(scores) == list(expected)
    for name, (result, metric) in expected.items():
        metric.corpus_score(HYPOTHESES, [REFERENCES])
        assert scores[name].score == result.score
        assert scores[name].signature == str(metric.get_signature())
    assert scores["sacrebleu"].details in str(expected["sacrebleu"][0])
    assert scores["chrf2"].details == scores["ter"].details == ""


@pytest.mark.parametrize("seed", range(3))
def test_tokenised_bleu_of_tokenised_text_is_ngram_bleu_of_the_text_as_it_is(seed: int) -> None:
    hypotheses, references = random_tokens(seed)
    scores = score(hypotheses, references, target_language=None, text="tokenized")
    assert list(scores) == ["bleu-tokenized", "bleu-tokenized-lc"]
    assert scores["bleu-tokenized"].score == pytest.approx(ngram_bleu(hypotheses, references), abs=1e-9)
    assert scores["bleu-tokenized"].signature == BLEU_SIGNATURE


def test_tokenised_bleu_of_plain_text_is_ngram_bleu_of_its_moses_tokens() -> None:
    scores = score(HYPOTHESES, REFERENCES, target_language="de", text="plain")
    tokens = moses.tokenize(HYPOTHESES, "de"), moses.tokenize(REFERENCES, "de")
    assert scores["bleu-tokenized"].score == pytest.approx(ngram_bleu(*tokens), abs=1e-9)
    assert scores["bleu-tokenized"].signature == f"{BLEU_SIGNATURE}|text:moses-de-{SACREMOSES}"
    french = score(HYPOTHESES, REFERENCES, target_language="fr", text="plain")["bleu-tokenized"]
    assert french.signature == f"{BLEU_SIGNATURE}|text:moses-fr-{SACREMOSES}"


@pytest.mark.parametrize("text", ["plain", "tokenized"])
def test_lower_cased_bleu_ignores_case_and_says_so(text: Any) -> None:
    upper = [line.upper() for line in REFERENCES[:2]]
    scores = score(upper, REFERENCES[:2], target_language="de", text=text)
    assert scores["bleu-tokenized"].score < 50
    assert scores["bleu-tokenized-lc"].score == pytest.approx(100)
    assert "case:lc" in scores["bleu-tokenized-lc"].signature


def test_a_chain_of_single_letters_is_split_once() -> None:
    scores = score(["a-b-c x y z"], ["a-b-c x y z"], target_language="de", text="tokenized")
    assert "hyp_len = 6 ref_len = 6" in scores["bleu-compound-split"].details


def test_compound_split_bleu_replaces_punctuation_tokenises_and_splits_both_sides() -> None:
    result = score(HYPOTHESES, REFERENCES, target_language="de", text="plain")["bleu-compound-split"]
    sides = [
        [moses.split_compounds(line) for line in moses.tokenize([side.replace("…", "...") for side in lines], "de")]
        for lines in (HYPOTHESES, REFERENCES)
    ]
    assert result.score == pytest.approx(ngram_bleu(*sides), abs=1e-9)
    assert result.signature == (
        f"{BLEU_SIGNATURE}|text:unicode-punctuation+moses-de+compound-split-sacremoses-{package_version('sacremoses')}"
    )


def test_sacrebleu_of_tokenised_text_is_taken_on_detokenised_text_and_marked() -> None:
    sides = HYPOTHESES[:3], REFERENCES[:3]  # the detokeniser puts a space before the fourth line's "…"
    tokens = [moses.tokenize(side, "de") for side in sides]
    assert [moses.detokenize(side, "de") for side in tokens] == list(sides)
    plain = score(*sides, target_language="de", text="plain")
    tokenized = score(*tokens, target_language="de", text="tokenized")
    for name in ("sacrebleu", "chrf2", "chrf2++", "ter"):
        assert tokenized[name].score == plain[name].score
        assert tokenized[name].signature == f"{plain[name].signature}|text:detokenized-moses-de-{SACREMOSES}"


def test_compound_split_bleu_equals_an_example_worked_by_hand() -> None:
    # hypothesis  rich ##AT##-##AT## text is an old e ##AT##-##AT## mail     9 tokens
    # reference   plain ##AT##-##AT## text is an old mail                    7 tokens
    # 1-grams: ##AT##-##AT## (once), text, is, an, old, mail     6 of 9
    # 2-grams: ##AT##-##AT## text, text is, is an, an old        4 of 8
    # 3-grams: the same from the second on                       3 of 7
    # 4-grams:                                                   2 of 6
    by_hand = 100 * (6 / 9 * 4 / 8 * 3 / 7 * 2 / 6) ** 0.25  # longer than the reference: no brevity penalty
    scores = score(
        ["rich-text is an old e-mail"], ["plain-text is an old mail"], target_language="de", text="tokenized",
        metrics=["bleu-compound-split"],
    )  # fmt: skip
    assert scores["bleu-compound-split"].score == pytest.approx(by_hand, abs=1e-9)
    assert round(by_hand, 4) == 46.7138
    assert scores["bleu-compound-split"].details == (
        "66.7/50.0/42.9/33.3 (BP = 1.000 ratio = 1.286 hyp_len = 9 ref_len = 7)"
    )


def test_compound_splitting_of_plain_text_step_by_step() -> None:
    line = "„Rich‐Text“ ist ein Ad-hoc-Format： alt…"
    punctuation = moses.replace_unicode_punctuation(line)
    assert punctuation == '„Rich‐Text" ist ein Ad-hoc-Format: alt...'  # only what the Moses script has in its list
    (tokens,) = moses.tokenize([punctuation], "de")
    assert tokens == '„ Rich ‐ Text " ist ein Ad-hoc-Format : alt ...'
    split = moses.split_compounds(tokens)
    assert split == '„ Rich ‐ Text " ist ein Ad ##AT##-##AT## hoc ##AT##-##AT## Format : alt ...'
    details = score([line], [line], target_language="de", text="plain")["bleu-compound-split"].details
    assert details.endswith(f"hyp_len = {len(split.split())} ref_len = {len(split.split())})")


# Several references


def test_strings_and_an_unknown_kind_of_text_are_refused() -> None:
    scorer = Scorer([["a b"]], target_language=None, text="plain")
    for call in (
        lambda: Scorer(["a b"], target_language=None, text="plain"),  # type: ignore[list-item]
        lambda: scorer.score("a b"),  # type: ignore[arg-type]
        lambda: scorer.score(["a b"], "sacrebleu"),
    ):
        with pytest.raises(TypeError, match="list"):
            call()
    with pytest.raises(RecipeError, match="no kind of text: plain, tokenized"):
        Scorer([["a b"]], target_language=None, text="tokenised")


def test_unequal_references_are_told() -> None:
    with pytest.raises(DataError, match="reference 1 has 4 lines and reference 3 has 2:"):
        Scorer([REFERENCES, REFERENCES, REFERENCES[:2]], target_language=None, text="plain")
    with pytest.raises(DataError, match="no reference"):
        Scorer([], target_language=None, text="plain")


def test_a_test_set_stands_in_the_signature_as_sacrebleu_writes_it() -> None:
    scorer = Scorer([REFERENCES], target_language="de", text="plain", test_set=("wmt14/full", "en-de"))
    scores = scorer.score(HYPOTHESES, ["sacrebleu", "bleu-tokenized"])
    version = f"version:{sacrebleu.__version__}"
    test = "nrefs:1|test:wmt14/full|lang:en-de|case:mixed|eff:no"
    assert scores["sacrebleu"].signature == f"{test}|tok:13a|smooth:exp|{version}"
    assert scores["bleu-tokenized"].signature == f"{test}|tok:none|smooth:exp|{version}|text:moses-de-{SACREMOSES}"


# Lines by themselves


def test_sentence_scores_are_those_of_sacrebleu_itself() -> None:
    further = [*REFERENCES[1:], REFERENCES[0]]
    scorer = Scorer([REFERENCES, further], target_language="de", text="plain")
    found = scorer.sentence_scores(HYPOTHESES)
    assert [list(of_line) for of_line in found] == [list(METRICS)] * 4
    sentence_bleu, ter, chrf = sacrebleu.BLEU(effective_order=True), sacrebleu.TER(), sacrebleu.CHRF(word_order=2)
    for hypothesis, one, other, of_line in zip(HYPOTHESES, REFERENCES, further, found, strict=True):
        assert of_line["sacrebleu"] == sentence_bleu.sentence_score(hypothesis, [one, other]).score
        assert of_line["ter"] == ter.sentence_score(hypothesis, [one, other]).score
        assert of_line["chrf2++"] == chrf.sentence_score(hypothesis, [one, other]).score
    split = [moses.split_compounds(line) for line in moses.tokenize(["ein Hell-dunkel-Fall ."], "de")]
    by_form = sacrebleu.BLEU(effective_order=True, tokenize="none").sentence_score(split[0], split)
    one_line = Scorer([["ein Hell-dunkel-Fall ."]], target_language="de", text="tokenized")
    assert one_line.sentence_scores(["ein Hell-dunkel-Fall ."])[0]["bleu-compound-split"] == by_form.score


def test_sentence_scores_leave_the_scores_of_the_text_as_they_are() -> None:
    scorer = Scorer([REFERENCES], target_language="de", text="plain")
    before = scorer.score(HYPOTHESES)
    scorer.sentence_scores(HYPOTHESES)
    assert scorer.score(HYPOTHESES) == before == score(HYPOTHESES, REFERENCES, target_language="de", text="plain")


# Hostile text

LINES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30), min_size=4, max_size=4
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(hypotheses=LINES, references=LINES, text=st.sampled_from(["plain", "tokenized"]))
def test_any_text_has_scores_line_for_line(hypotheses: list[str], references: list[str], text: Any) -> None:
    scorer = Scorer([references], target_language="de", text=text)
    scores = scorer.score(hypotheses)
    assert list(scores) == list(METRICS)
    assert all(math.isfinite(one.score) and one.score >= 0 for one in scores.values())
    assert all(one.score <= 100 + 1e-9 for name, one in scores.items() if name != "ter")
    sentences = scorer.sentence_scores(hypotheses)
    assert len(sentences) == 4
    assert all(math.isfinite(value) for of_line in sentences for value in of_line.values())
    # sacreBLEU's own answer to the same lines, where nothing is done to them before
    if text == "plain":
        assert scores["sacrebleu"].score == sacrebleu.corpus_bleu(hypotheses, [references], force=True).score
        assert scores["chrf2"].score == sacrebleu.corpus_chrf(hypotheses, [references]).score


# Which metrics there are


@pytest.mark.parametrize(
    ("text", "target_language", "left"),
    [
        ("plain", "de", set()),
        ("plain", "de-AT", set()),
        ("plain", "fr", {"bleu-compound-split"}),
        ("plain", None, {"bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split"}),
        ("tokenized", "de", set()),
        ("tokenized", "fr", {"bleu-compound-split"}),
        ("tokenized", None, {"sacrebleu", "chrf2", "chrf2++", "ter", "bleu-compound-split"}),
    ],
)
def test_metrics_that_are_impossible_are_left_out(text: Any, target_language: str | None, left: set[str]) -> None:
    scores = score(HYPOTHESES, REFERENCES, target_language=target_language, text=text)
    assert list(scores) == [name for name in METRICS if name not in left]
    reasons = left_out(target_language=target_language, text=text)
    assert set(reasons) - set(ON_REQUEST) == left
    for name, reason in reasons.items():
        with pytest.raises(DataError, match=re.escape(f"{name} cannot be computed: {reason}")):
            score(HYPOTHESES, REFERENCES, target_language=target_language, text=text, metrics=[name])


def test_reasons_say_what_to_do() -> None:
    assert left_out(target_language=None, text="plain")["bleu-tokenized"].endswith("(e.g. --target-language de)")
    assert left_out(target_language=None, text="tokenized")["sacrebleu"].endswith("(e.g. --target-language de)")
    assert left_out(target_language="fr", text="plain")["bleu-compound-split"] == (
        "it is defined for German only, not for fr: use bleu-tokenized"
    )


def test_metrics_asked_for_are_those_computed_in_their_order() -> None:
    scores = score(HYPOTHESES, REFERENCES, target_language="de", text="plain", metrics=["ter", "sacrebleu", "ter"])
    assert list(scores) == ["ter", "sacrebleu"]


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match="unknown metric 'sacreblue': did you mean 'sacrebleu'"):
        score(HYPOTHESES, REFERENCES, target_language="de", text="plain", metrics=["sacreblue"])
    with pytest.raises(DataError, match="unknown metric 'ChrF': did you mean 'chrf2'"):
        comparable_to("ChrF")
    with pytest.raises(DataError, match="The metrics are sacrebleu, chrf2, chrf2"):
        comparable_to("")


def test_every_metric_says_what_it_may_be_compared_with() -> None:
    assert all(comparable_to(metric) for metric in METRICS + ON_REQUEST)
    assert "not the paper's 27.3" in comparable_to("sacrebleu")
    assert "the paper's 27.3" in comparable_to("bleu-compound-split")


# Lines


def test_unequal_line_counts_are_an_error_that_tells_both() -> None:
    with pytest.raises(DataError, match="the hypotheses have 4 lines and the references 3:"):
        score(HYPOTHESES, REFERENCES[:3], target_language="de", text="plain")


def test_no_lines_are_an_error() -> None:
    with pytest.raises(DataError, match="no lines: there is nothing to score"):
        score([], [], target_language="de", text="plain")


@pytest.mark.parametrize("text", ["plain", "tokenized"])
def test_empty_lines_are_scored(text: Any) -> None:
    for hypotheses, references in [
        (["", *HYPOTHESES[1:]], REFERENCES),
        (HYPOTHESES, ["", *REFERENCES[1:]]),
        ([""] * 4, REFERENCES),
        (HYPOTHESES, [""] * 4),
        ([""], [""]),
    ]:
        scores = score(hypotheses, references, target_language="de", text=text)
        assert list(scores) == list(METRICS)
        assert all(math.isfinite(one.score) for one in scores.values())


def test_nothing_is_printed_not_even_on_text_that_looks_tokenised(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["ein Mann geht ."] * 150
    for text in ("plain", "tokenized"):
        score(lines, lines, target_language="de", text=text)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


# Form of the results


def test_scores_as_json_is_the_inner_level_of_scores_json() -> None:
    scorer = Scorer([REFERENCES], target_language="de", text="plain")
    bleu = scorer.score(HYPOTHESES, ["sacrebleu"])["sacrebleu"]
    ter = scorer.score(HYPOTHESES, ["ter"], resamples=30)["ter"]
    assert ter.interval is not None
    interval = {"mean": ter.interval.mean, "half_width": ter.interval.half_width, "resamples": 30, "seed": "12345"}
    assert json.loads(json.dumps(scores_as_json({"sacrebleu": bleu, "ter": ter}))) == {
        "sacrebleu": {"score": bleu.score, "signature": bleu.signature, "details": bleu.details},
        "ter": {"score": ter.score, "signature": ter.signature, "interval": interval},
    }


# Golden values, computed with sacreBLEU 2.6.0 on public test sets; they need the corpora


def mirror() -> Path:
    if "NMTKIT_MIRROR" not in os.environ:
        pytest.skip("the corpora of NMTKIT_MIRROR are not here")
    return Path(os.environ["NMTKIT_MIRROR"])


def existing(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return path


def extra_references(pair: str) -> dict[str, list[str]]:
    """The sides S (source), T (reference) and R1 to R10 (further translations), 500 lines each."""
    sides: dict[str, list[str]] = {}
    path = existing(mirror().parent / "golden" / "newstest2014-extra-refs" / f"wmt14-{pair}.extra_refs.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            key, text = line.rstrip("\n").split("\t")
            sides.setdefault(key.split("-")[0], []).append(text)
    assert {len(lines) for lines in sides.values()} == {500}
    return sides


@pytest.mark.parametrize(
    ("pair", "name", "bleu", "precisions", "lengths", "chrf2"),
    [
        ("eng-deu", "newstest2014", 2.75, "15.8/3.5/1.5/0.7", (1.000, 1.074, 67337, 62688), 23.23),
        ("eng-fra", "newstest2014", 2.43, "18.1/3.7/1.4/0.5", (0.911, 0.915, 70708, 77306), 26.19),
        ("eng-deu", "newstest2013", 2.52, "16.8/2.9/1.3/0.6", (1.000, 1.012, 64505, 63737), 21.75),
    ],
)
def test_a_copied_source_has_the_golden_scores(
    pair: str, name: str, bleu: float, precisions: str, lengths: tuple[float, float, int, int], chrf2: float
) -> None:
    folder = mirror() / "raw.githubusercontent.com/Helsinki-NLP/OPUS-MT-testsets/master/testsets" / pair
    source, reference = (read_lines(existing(folder / f"{name}.{side}")) for side in pair.split("-"))
    scores = score(source, reference, target_language=None, text="plain", metrics=["sacrebleu", "chrf2"])
    assert round(scores["sacrebleu"].score, 2) == bleu
    penalty = "BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = {}".format(*lengths)
    assert scores["sacrebleu"].details == f"{precisions} ({penalty})"
    assert round(scores["chrf2"].score, 2) == chrf2


@pytest.mark.parametrize(
    ("pair", "metric", "num_references", "expected", "details"),
    [
        (
            "en-de", "sacrebleu", 1, 25.94,
            "57.7/31.8/19.5/12.7 (BP = 1.000 ratio = 1.011 hyp_len = 10754 ref_len = 10632)",
        ),
        ("en-de", "sacrebleu-lc", 1, 26.40, "58.7/32.4/19.9/12.9 "),
        ("en-de", "sacrebleu-intl", 1, 26.45, "hyp_len = 10972 ref_len = 10959)"),
        ("en-de", "bleu-tokenized", 1, 21.85, "hyp_len = 9381 ref_len = 9314)"),
        ("en-de", "chrf2", 1, 56.68, ""),
        ("en-de", "chrf2++", 1, 53.73, ""),
        (
            "en-de", "sacrebleu", 10, 74.17,
            "92.0/79.8/69.3/60.2 (BP = 0.997 ratio = 0.997 hyp_len = 10754 ref_len = 10785)",
        ),
        ("en-fr", "sacrebleu", 1, 87.03, ""),
        ("en-fr", "sacrebleu-lc", 1, 87.46, ""),
        ("en-fr", "sacrebleu-intl", 1, 87.87, ""),
        ("en-fr", "bleu-tokenized", 1, 84.68, ""),
        ("en-fr", "chrf2", 1, 93.41, ""),
        ("en-fr", "chrf2++", 1, 92.77, ""),
        ("en-fr", "sacrebleu", 10, 94.88, "98.3/96.1/93.8/91.5 (BP"),
    ],
)  # fmt: skip
def test_a_further_reference_has_the_golden_score(
    pair: str, metric: str, num_references: int, expected: float, details: str
) -> None:
    sides = extra_references(pair)
    references = [sides["T"], *(sides[f"R{number}"] for number in range(2, num_references + 1))]
    # bleu-tokenized of text that is said to be tokenised already is sacreBLEU with tok:none
    text = "tokenized" if metric == "bleu-tokenized" else "plain"
    result = Scorer(references, target_language=None, text=text).score(sides["R1"], [metric])[metric]
    assert round(result.score, 2) == expected
    assert details in result.details
    assert result.signature.startswith(f"nrefs:{num_references}|")


def test_the_tokenised_reference_of_multi30k_has_12103_tokens() -> None:
    folder = mirror() / "raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok"
    reference = read_lines(existing(folder / "test_2016_flickr.lc.norm.tok.de"))
    result = score(reference, reference, target_language="de", text="tokenized")["bleu-tokenized"]
    assert result.score == pytest.approx(100)
    assert result.details.endswith("hyp_len = 12103 ref_len = 12103)")


@pytest.mark.parametrize("resamples", [0, 30])
def test_a_long_text_is_counted_in_parts_with_the_same_scores(monkeypatch: pytest.MonkeyPatch, resamples: int) -> None:
    hypotheses, references = random_tokens(5)
    both = [references, [" ".join(reversed(line.split())) for line in references]]
    names = [*METRICS, *ROUGE_METRICS]
    whole = Scorer(both, target_language="de", text="plain").score(hypotheses, names, resamples=resamples)
    largest = []
    count = sacrebleu.BLEU._extract_corpus_statistics

    def counted(self: Any, lines: list[str], references: Any) -> Any:
        largest.append(max(len(lines), len(self._ref_cache)))
        return count(self, lines, references)

    monkeypatch.setattr("nmtkit.evaluation.metrics.LINES_AT_ONCE", 7)
    monkeypatch.setattr("sacrebleu.metrics.base.Metric._extract_corpus_statistics", counted)
    scorer = Scorer(both, target_language="de", text="plain")
    assert scorer.score(hypotheses, names, resamples=resamples) == whole
    assert max(largest) == 7


@pytest.mark.parametrize(("seed", "num_references"), [("12345", 1), ("7", 1), ("12345", 2)])
def test_intervals_equal_sacrebleus_to_the_last_digit(
    monkeypatch: pytest.MonkeyPatch, seed: str, num_references: int
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    hypotheses, one = random_tokens(6)
    references = [one, [" ".join(reversed(line.split())) for line in one]][:num_references]
    found = Scorer(references, target_language=None, text="plain").score(hypotheses, resamples=200)
    for name, metric in (
        ("sacrebleu", sacrebleu.BLEU(force=True)), ("chrf2", sacrebleu.CHRF()), ("ter", sacrebleu.TER())
    ):  # fmt: skip
        expected = metric.corpus_score(hypotheses, references, n_bootstrap=200)
        assert found[name].score == expected.score
        assert found[name].signature == str(metric.get_signature()).replace(f"|bs:200|seed:{seed}", "")
        assert found[name].interval == Interval(float(expected._mean), float(expected._ci), 200, seed)


@pytest.mark.parametrize(
    "entry",
    [
        7, "41.2", {}, {"score": "41.2"}, {"score": None}, {"score": [1]},
        {"score": 1, "signature": 2}, {"score": 1, "details": []}, {"score": 1, "interval": 3},
        {"score": 1, "interval": {}},
        {"score": 1, "interval": {"mean": 1, "half_width": "x"}},
    ],
)  # fmt: skip
def test_a_damaged_score_is_one_line(tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "scores.json"
    for content in ({"test": {"sacrebleu": entry}}, {"test": entry}):
        path.write_text(json.dumps(content), encoding="utf-8")
        if content == {"test": {}}:
            continue  # a test set without scores
        with pytest.raises(DataError, match=r"scores\.json: test.* the file is damaged"):
            read_scores(path)
    whole = scores_as_json(Scorer([REFERENCES], target_language="de", text="plain").score(HYPOTHESES, resamples=20))
    path.write_text(json.dumps({"test": whole}), encoding="utf-8")
    assert read_scores(path) == {"test": whole}
    diverged = {"test": {"perplexity": {"score": 1.3e45}}}
    path.write_text(json.dumps(diverged), encoding="utf-8")
    assert read_scores(path) == diverged
    assert [shown_score("perplexity", value) for value in (1.3e45, 41.256)] == ["1.3e+45", "41.26"]
