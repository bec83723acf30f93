"""A task's own metric, here one that only this test knows, is scored, tested, checked and compared like EVALB."""

from collections.abc import Sequence

import pytest

from nmtkit.errors import DataError
from nmtkit.evaluation.checks import text_faults
from nmtkit.evaluation.metric_names import TASK_METRICS, comparable_to, left_out
from nmtkit.evaluation.metrics import Scorer
from nmtkit.evaluation.significance import paired_test
from nmtkit.tasks.known import TASKS
from nmtkit.tasks.task import Task, TaskMetric


class ShareRight(TaskMetric):
    """The share of lines with the right label."""

    name = "share-right"
    title = "share-right"
    tested = ("share-right",)
    comparable_to = {"share-right": "share-right on the same lines"}  # noqa: RUF012

    def scores(self, reference: Sequence[str], hypotheses: Sequence[str]) -> dict[str, tuple[float, str, str]]:
        right = [sum(counts) for counts in zip(*self.counts(reference, hypotheses), strict=True)]
        return {"share-right": (self.value("share-right", right), self.signature(reference), "")}

    def counts(self, reference: Sequence[str], hypotheses: Sequence[str]) -> list[list[int]]:
        return [[int(one == other), 1] for one, other in zip(reference, hypotheses, strict=True)]

    def value(self, score: str, counts: Sequence[int]) -> float:
        return 100 * counts[0] / counts[1]

    def signature(self, reference: Sequence[str]) -> str:
        return f"share-right|lines:{len(reference)}"

    def unscored(
        self, reference: Sequence[str], hypotheses: Sequence[str], name: str
    ) -> tuple[str, tuple[int, ...], str]:
        empty = tuple(number for number, line in enumerate(hypotheses, start=1) if not line)
        return "no label", empty, "label them"


class Labels(Task):
    own_metric = "share-right"


@pytest.fixture(autouse=True)
def labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "labels", lambda text: Labels())
    monkeypatch.setitem(TASK_METRICS, "share-right", ShareRight())


REFERENCE = ["good", "bad"] * 20
SYSTEMS = {"half": ["good"] * 40, "most": [*REFERENCE[:36], "", "good", "", "good"]}


def test_a_tasks_own_metric_scores_its_text_alone() -> None:
    scorer = Scorer([REFERENCE], target_language=None, text="labels")
    scores = scorer.score(SYSTEMS["most"], resamples=200)
    assert {name: (one.score, one.signature) for name, one in scores.items()} == {
        "share-right": (90.0, "share-right|lines:40")
    }
    interval = scores["share-right"].interval
    assert interval is not None and abs(interval.mean - 90) < 3 and interval.half_width > 0
    assert scorer.sentence_quality(["good"] * 40) == ("share-right", [100.0, 0.0] * 20)
    with pytest.raises(DataError, match="share-right cannot be combined with other metrics"):
        scorer.score(SYSTEMS["most"], ["share-right", "chrf2"])


def test_a_tasks_own_metric_is_tested_in_pairs_and_checked() -> None:
    scorer = Scorer([REFERENCE], target_language=None, text="labels")
    (metric,) = scorer.tested(None)
    found = paired_test(scorer, SYSTEMS, metric, "bootstrap", trials=100)
    assert [(one.score, one.is_significant) for one in found.values()] == [(50.0, False), (90.0, True)]
    assert comparable_to(metric) == "share-right on the same lines"
    (fault,) = text_faults(SYSTEMS["most"], [REFERENCE], sources=None, target_language=None, text="labels")
    assert str(fault) == "no label in 2 lines: 37, 39; label them"


def test_a_metric_of_another_task_is_computed_on_plain_text_by_name() -> None:
    scorer = Scorer([REFERENCE], target_language=None, text="plain")
    assert list(scorer.score(SYSTEMS["half"], ["share-right"])) == ["share-right"]
    assert "share-right" not in scorer.score(SYSTEMS["half"])
    assert "share-right" not in left_out(target_language=None, text="plain")
