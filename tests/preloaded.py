"""Makes a process ready to be forked: all is imported, and kept from the garbage collector.

A collection would touch every object, and so copy all memory in each of the forked processes: 0.2 s.
"""

import gc

from tests import everything  # noqa: F401

gc.collect()
gc.freeze()
