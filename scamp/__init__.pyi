# The names of the package for editors and type checkers; __init__.py imports each when it is first used.

from scamp.client import Client, submit
from scamp.errors import Conflict, InvalidInput, NotFound, Refused, ScampError, Unavailable
from scamp.trackers.mirroring import mirror
from scamp.user_code.bundling import bundle_code
from scamp.workload.protocol import (
    Batch,
    Chain,
    Context,
    Divided,
    Experts,
    Parts,
    Phase,
    Spatial,
    Split,
    Tables,
    Workload,
    hints,
    inheritance,
)
from scamp.workload.split_sgd import SplitSGD
from scamp_service.exchange.conversions import space_of_distributions as space_of_distributions
from scamp_service.exchange.conversions import space_of_tune as space_of_tune
from scamp_service.exchange.optuna_storage import ScampStorage as ScampStorage
from scamp_service.sizing.estimate import estimate as estimate
from scamp_service.tune import scamp_resources as scamp_resources
from workloads.adapters.lightning import LightningWorkload as LightningWorkload
from workloads.adapters.plain import from_function as from_function
from workloads.adapters.transformers import TransformersWorkload as TransformersWorkload
from workloads.models.stdlib_gpt import StdlibGpt as StdlibGpt
from workloads.models.unet3d_blobs import Unet3dBlobs as Unet3dBlobs
from workloads.models.vit_digits import VitDigits as VitDigits

__all__ = [
    "Batch",
    "Chain",
    "Client",
    "Conflict",
    "Context",
    "Divided",
    "Experts",
    "InvalidInput",
    "NotFound",
    "Parts",
    "Phase",
    "Refused",
    "ScampError",
    "Spatial",
    "Split",
    "SplitSGD",
    "Tables",
    "Unavailable",
    "Workload",
    "__version__",
    "bundle_code",
    "hints",
    "inheritance",
    "mirror",
    "submit",
]

__version__: str
