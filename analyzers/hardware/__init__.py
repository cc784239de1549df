"""GPUs: their data sheets, how people name them, and what naming one settles about a server."""

from kvtune.analyzers.hardware.gpu import Gpu, Hardware, parse_hardware
from kvtune.analyzers.hardware.settled import SettledByHardware, settle

__all__ = ["Gpu", "Hardware", "SettledByHardware", "parse_hardware", "settle"]
