"""Load a worker's libraries at its start, as loading takes many times as long as a small round."""

from server.simulation.compute.learner import exporter
from server.simulation.quiet import quiet_libraries

quiet_libraries()  # some log as they load
exporter()
