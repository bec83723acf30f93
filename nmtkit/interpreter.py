"""Other Python processes of the same command import what this one does."""

import os
import sys


def same_imports() -> dict[str, str]:
    """Variables of the environment with which another Python imports what this one does.

    Started with -c or -m, Python looks into the working folder first, where the user's files may be called like modules
    of the standard library.
    """
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
