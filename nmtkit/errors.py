"""Mistakes a user can make and mend. Everything else is a bug and keeps its traceback.

The command line prints the message of an NmtkitError as one line and exits with 1, so a message says what is wrong,
where (file and line) and what to do.
"""


class NmtkitError(Exception):
    """A mistake in the input: the message is one line for the user."""


class RecipeError(NmtkitError):
    """A recipe, or a value given with --set, that cannot be used."""


class DataError(NmtkitError):
    """Text, a corpus, a download or prepared data that cannot be used."""


class ModelError(NmtkitError):
    """A model folder, checkpoint or run folder that cannot be used."""


class PeerLostError(NmtkitError):
    """Another process of the same training is gone, so that this one cannot go on."""


def to_install(extra: str) -> str:
    """How a message names the optional libraries that are missing: those of an extra of this package."""
    return f"run `pip install 'nmtkit[{extra}]'`"
