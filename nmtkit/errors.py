"""Errors that a user can correct. Any other exception is a bug and keeps its traceback.

The command line prints the message of an NmtkitError as one line and exits with 1. So a message names the fault, its
location (file and line) and the remedy.
"""


class NmtkitError(Exception):
    """An error that the user can correct; the message is one line for the user."""


class RecipeError(NmtkitError):
    """A recipe, or a value given with --set, that cannot be used."""


class DataError(NmtkitError):
    """Text, a corpus, a download or prepared data that cannot be used."""


class ModelError(NmtkitError):
    """A model folder, checkpoint or run folder that cannot be used."""


class PeerLostError(NmtkitError):
    """Another process of the same training was lost, so this one cannot continue."""


def in_one_line(error: object) -> str:
    """Return the message of a library's error in one line of at most 300 characters, or its type if it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
