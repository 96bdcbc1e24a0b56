"""Archive logs as Parquet files. A manifest proves which bytes the lake holds. Needs pyarrow but not Spark."""

from mqlake.errors import MissingExtra

try:
    import pyarrow  # noqa: F401
except ImportError:
    raise MissingExtra("mqlake.lake", "arrow") from None

from mqlake.lake.entries import DONE, MARKER, Gap, LakeFile, LakeRange, Seam, done, harvest
from mqlake.lake.identity import identity_of, make_identity
from mqlake.lake.lake import Lake
from mqlake.lake.snapshot import LakeSnapshot, StoreState

__all__ = [
    "DONE",
    "MARKER",
    "Gap",
    "Lake",
    "LakeFile",
    "LakeRange",
    "LakeSnapshot",
    "Seam",
    "StoreState",
    "done",
    "harvest",
    "identity_of",
    "make_identity",
]
