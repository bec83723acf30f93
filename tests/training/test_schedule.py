import math

import pytest

from nmtkit.config.schema import TrainingConfig
from nmtkit.training.optimizer import learning_rate

PEAK = 0.005


def config(schedule: str, **changes: object) -> TrainingConfig:
    peak = {} if schedule == "noam" else {"peak_learning_rate": PEAK}
    values = {"schedule": schedule, "warmup_steps": 100, "max_steps": 1100, **peak}
    return TrainingConfig.model_validate({**values, **changes})


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_noam_equals_equation_3_with_the_papers_peak(d_model: int, peak: float) -> None:
    paper = TrainingConfig()
    for step in (1, 17, 3999, 4000, 4001, 100_000, 300_000):
        expected = 1 / math.sqrt(d_model) * min(1 / math.sqrt(step), step / 4000**1.5)
        assert learning_rate(step, paper, d_model) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(1, paper, 512) == pytest.approx(1.747e-7, rel=1e-3)
    assert learning_rate(100_000, paper, 512) == pytest.approx(1.398e-4, rel=1e-3)
    rates = [learning_rate(step, paper, d_model) for step in range(1, 10_000)]
    assert max(rates) == learning_rate(4000, paper, d_model) == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize("schedule", ["noam", "inverse-sqrt", "cosine", "linear", "constant"])
def test_every_schedule_rises_linearly_to_its_peak_at_the_end_of_warmup(schedule: str) -> None:
    training = config(schedule)
    peak = learning_rate(100, training, 512)
    assert peak == pytest.approx(512**-0.5 * 0.1 if schedule == "noam" else PEAK, rel=1e-12)
    for step in range(1, 101):
        assert learning_rate(step, training, 512) == pytest.approx(peak * step / 100, rel=1e-12)
    assert learning_rate(101, training, 512) <= peak


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "constant"])
def test_without_warmup_the_first_update_has_the_peak(schedule: str) -> None:
    training = config(schedule, warmup_steps=0)
    assert learning_rate(1, training, 512) == pytest.approx(PEAK, rel=1e-4)


def test_inverse_sqrt_falls_with_the_root_of_the_step() -> None:
    training = config("inverse-sqrt")
    for step in (100, 101, 400, 10_000, 250_000):
        assert learning_rate(step, training, 512) == pytest.approx(PEAK * math.sqrt(100 / step), rel=1e-12)
    assert learning_rate(400, training, 512) == pytest.approx(PEAK / 2)


@pytest.mark.parametrize("final", [0.0, PEAK / 10])
@pytest.mark.parametrize(
    ("schedule", "shares"), [("cosine", (1.0, (1 + math.sqrt(0.5)) / 2, 0.5)), ("linear", (1.0, 0.75, 0.5))]
)
def test_cosine_and_linear_fall_to_their_last_value_at_max_steps(
    schedule: str, shares: tuple[float, ...], final: float
) -> None:
    training = config(schedule, final_learning_rate=final)
    for step, share in zip((100, 350, 600, 1100, 1200), (*shares, 0.0, 0.0), strict=True):
        assert learning_rate(step, training, 512) == pytest.approx(final + (PEAK - final) * share, abs=1e-18)
    rates = [learning_rate(step, training, 512) for step in range(100, 1101)]
    assert rates == sorted(rates, reverse=True)


def test_linear_needs_an_end_and_falls_from_its_first_update_without_warmup() -> None:
    assert learning_rate(1, config("linear", warmup_steps=0, max_steps=10), 512) == pytest.approx(0.9 * PEAK)
    with pytest.raises(ValueError, match="schedule linear needs max_steps"):
        config("linear", max_steps=None, max_epochs=3)


def test_constant_stays_at_its_peak() -> None:
    training = config("constant")
    assert {learning_rate(step, training, 512) for step in (100, 101, 5000, 10**6)} == {PEAK}


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "linear", "constant"])
def test_only_noam_depends_on_d_model(schedule: str) -> None:
    for step in (3, 100, 700):
        rates = {learning_rate(step, config(schedule), d_model) for d_model in (64, 512)}
        assert len(rates) == 1
