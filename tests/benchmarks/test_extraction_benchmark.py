"""The table of extractive baselines, against figures that were measured independently of nmtkit."""

import os
from pathlib import Path
from types import ModuleType

import pytest

from nmtkit.corpora.download import Downloader
from nmtkit.evaluation.rouge import ROUGE_METRICS

SCITLDR = {
    "first sentence": (31.29, 11.42, 24.08, 24.08),
    "TextRank, one sentence": (34.81, 11.19, 25.09, 25.13),
    "tf-idf on the title, one sentence": (37.84, 15.65, 28.86, 28.88),
    "the title itself": (40.40, 20.33, 33.68, 33.68),
    "oracle sentence": (49.34, 26.05, 39.95, 39.98),
}
QMSUM = {
    "identity (first words)": (14.22, 1.41, 9.13, 10.04),
    "TextRank": (18.14, 1.49, 11.28, 11.34),
    "tf-idf on the query": (21.40, 3.65, 13.78, 13.90),
}
"""By rouge-score 0.1.2 with the stemmer, and other implementations of the extractors."""


@pytest.fixture
def extraction() -> ModuleType:
    import extraction

    return extraction


def test_scores_are_those_by_the_reference_with_the_best_rouge1(extraction: ModuleType) -> None:
    references = ["a b c d", "b a x"]
    assert extraction.scores_by_best_reference("a b", references) == {
        "rouge1": pytest.approx(80),
        "rouge2": 0,
        "rougeL": pytest.approx(40),
        "rougeLsum": pytest.approx(40),
    }
    assert extraction.scores_by_best_reference("a b c d", references)["rouge2"] == 100


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("NMTKIT_MIRROR"), reason="real corpora: set NMTKIT_MIRROR to a mirror folder")
@pytest.mark.parametrize("name", ["SciTLDR", "QMSum"])
def test_the_table_of_baselines_is_reproduced(extraction: ModuleType, name: str) -> None:
    downloader = Downloader(Path(os.environ["NMTKIT_MIRROR"]))
    if name == "SciTLDR":
        examples = list(extraction.scitldr_examples(downloader.fetch(extraction.SCITLDR).path))
        rows, separator, expected = extraction.SCITLDR_ROWS, "\t", SCITLDR
    else:
        examples = list(extraction.qmsum_examples(downloader.fetch(extraction.QMSUM).path))
        rows, separator, expected = extraction.QMSUM_ROWS, None, QMSUM
    assert len(examples) == {"SciTLDR": 618, "QMSum": 281}[name]
    for row, figures in expected.items():
        found = extraction.mean_scores(examples, rows[row], separator=separator)
        assert found == pytest.approx(dict(zip(ROUGE_METRICS, figures, strict=True)), abs=0.05), row
