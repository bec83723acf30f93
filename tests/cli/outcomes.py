"""How commands end: with a result, or with a fault in one line."""

from tests.conftest import Outcome, Streamed, run_command


def printed(*arguments: object) -> str:
    """What a command prints that succeeds."""
    outcome = run_command(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def fault_of(outcome: Outcome | Streamed, code: int = 1) -> str:
    """The fault that a command names, of one line where it is no wrong usage, and without a result."""
    assert (outcome.code, len(outcome.out)) == (code, 0), outcome.err
    assert code == 2 or (outcome.err.startswith("error: ") and outcome.err.count("\n") == 1)
    return " ".join(outcome.err.removeprefix("error: ").split())


def refusal(*arguments: object, code: int = 1) -> str:
    """The fault that a command ends with."""
    return fault_of(run_command(*arguments), code)
