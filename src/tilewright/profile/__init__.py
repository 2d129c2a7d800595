"""What a kernel costs: runs on the simulator, figures by source line, bounds on a GPU, better layouts, and reports."""

# run         simulate, analyze: run kernels on the simulator and measure
# report      Profile, what a run measured, and Report: text, tables (JSON) and page (HTML)
# bounds      roofline and occupancy of a launch
# conflicts   bank conflicts with their lines, and a layout without them
# caches      tile_fill: what the second-level cache makes of an order of tiles
# roles       which role waits for which phase of which stage
#
# The simulator fills the figures (`tilewright.figures`) by the model of `tilewright.transactions`; here they are read.

from tilewright.frames import hiding_all
from tilewright.profile.caches import TileFill, Wave, tile_fill
from tilewright.profile.report import Profile, Report
from tilewright.profile.run import Run, analyze, simulate

__all__ = ["Profile", "Report", "Run", "TileFill", "Wave", "analyze", "simulate", "tile_fill"]

hiding_all(globals(), __all__)
