"""archcalc: how big a transformer is, what it costs to run, and whether that is what it really costs.

>>> from archcalc import preset, parameters
>>> parameters(preset("llama3-8b"))
8030261248
"""

from archcalc.config import ModelConfig
from archcalc.cost import parameters
from archcalc.errors import ArchcalcError, ConfigError
from archcalc.hf import load_config
from archcalc.presets import preset
from archcalc.report import report
from archcalc.request import Request

__version__ = "0.1.0"
__all__ = ["ArchcalcError", "ConfigError", "ModelConfig", "Request", "load_config", "parameters", "preset", "report"]
