"""The rows of the table in running order: short ones first, so that the others get the time they leave."""

from __future__ import annotations

from mqlake.torture.cuts import Cuts
from mqlake.torture.flips import Flips
from mqlake.torture.full_disk import FullDisk
from mqlake.torture.heal import Heal
from mqlake.torture.kill import Kill
from mqlake.torture.partition import Partition
from mqlake.torture.pipeline import Pipeline
from mqlake.torture.power import Power
from mqlake.torture.row import Row
from mqlake.torture.shapes import Shapes
from mqlake.torture.sink import Sink
from mqlake.torture.syncs import Syncs

ROWS: dict[str, type[Row]] = {
    row.name: row for row in (Shapes, Cuts, FullDisk, Syncs, Flips, Heal, Partition, Kill, Power, Sink, Pipeline)
}
