"""tensorveil: complete a partly observed tensor under differential privacy, and prove it.

The names below are resolved on first use, so that `import tensorveil` costs next to nothing.
"""

TYPE_CHECKING = False  # as of `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from tensorveil import audit as audit
    from tensorveil import published as published
    from tensorveil.data.datasets import synthetic as synthetic
    from tensorveil.data.datasets.movielens import download_movielens as download_movielens
    from tensorveil.data.datasets.movielens import load_movielens as load_movielens
    from tensorveil.data.features import Features as Features
    from tensorveil.data.features import features_for as features_for
    from tensorveil.data.features import smooth_features as smooth_features
    from tensorveil.data.observations import Observations as Observations
    from tensorveil.data.readers.files import read as read
    from tensorveil.data.scaling import BiScaling as BiScaling
    from tensorveil.data.scaling import MinMaxScaling as MinMaxScaling
    from tensorveil.data.shards import Sharded as Sharded
    from tensorveil.data.shards import open_shards as open_shards
    from tensorveil.data.shards import write_shards as write_shards
    from tensorveil.engines.dask import Dask as Dask
    from tensorveil.errors import BudgetError as BudgetError
    from tensorveil.errors import DivergenceError as DivergenceError
    from tensorveil.errors import InputError as InputError
    from tensorveil.errors import SpentError as SpentError
    from tensorveil.errors import TensorveilError as TensorveilError
    from tensorveil.errors import UnprovenError as UnprovenError
    from tensorveil.inference.posterior.sampler import Posterior as Posterior
    from tensorveil.mechanisms.gradient import GradientPerturbation as GradientPerturbation
    from tensorveil.mechanisms.input import InputPerturbation as InputPerturbation
    from tensorveil.mechanisms.local.answers import LocalAnswers as LocalAnswers
    from tensorveil.mechanisms.local.protocols import design_protocol as design_protocol
    from tensorveil.mechanisms.output import OutputPerturbation as OutputPerturbation
    from tensorveil.mechanisms.statistic import StatisticPerturbation as StatisticPerturbation
    from tensorveil.mechanisms.sums import SumPerturbation as SumPerturbation
    from tensorveil.mechanisms.with_offsets import WithOffsets as WithOffsets
    from tensorveil.metrics import rmse as rmse
    from tensorveil.models import algebra as algebra
    from tensorveil.models.cp import CP as CP
    from tensorveil.models.cp import CPModel as CPModel
    from tensorveil.models.tucker import Tucker as Tucker
    from tensorveil.models.tucker import TuckerModel as TuckerModel
    from tensorveil.privacy.bounds import Bounds as Bounds
    from tensorveil.privacy.coupled import Coupled as Coupled
    from tensorveil.privacy.guarantee import Guarantee as Guarantee
    from tensorveil.privacy.local.client import LocalProtocol as LocalProtocol
    from tensorveil.privacy.local.randomizing import randomize as randomize
    from tensorveil.privacy.noise.exact import ExactNoise as ExactNoise
    from tensorveil.privacy.plan import Plan as Plan
    from tensorveil.privacy.units import Unit as Unit
    from tensorveil.release.advice.advisor import advise as advise
    from tensorveil.release.advice.results import Advice as Advice
    from tensorveil.release.certificate.certificate import Certificate as Certificate
    from tensorveil.release.certificate.verification import verify as verify
    from tensorveil.release.fitting import complete as complete
    from tensorveil.release.fitting import fit as fit
    from tensorveil.release.fitting import plan as plan
    from tensorveil.release.ledger.ledger import Ledger as Ledger
    from tensorveil.release.release import Release as Release
    from tensorveil.release.tuning.comparing import tune as tune
    from tensorveil.solvers.als import ALS as ALS
    from tensorveil.solvers.parallel_sgd import ParallelSGD as ParallelSGD
    from tensorveil.solvers.sgd import SGD as SGD
    from tensorveil.solvers.start import NormalStart as NormalStart
    from tensorveil.solvers.start import UniformStart as UniformStart

__version__ = "0.1.0"

# module -> the names that it holds; the last part of its own name stands for the module itself
_NAMES = {
    "tensorveil.audit": "audit",
    "tensorveil.data.datasets.movielens": "download_movielens load_movielens",
    "tensorveil.data.datasets.synthetic": "synthetic",
    "tensorveil.data.features": "Features features_for smooth_features",
    "tensorveil.data.observations": "Observations",
    "tensorveil.data.readers.files": "read",
    "tensorveil.data.scaling": "BiScaling MinMaxScaling",
    "tensorveil.data.shards": "Sharded open_shards write_shards",
    "tensorveil.engines.dask": "Dask",
    "tensorveil.errors": "BudgetError DivergenceError InputError SpentError TensorveilError UnprovenError",
    "tensorveil.inference.posterior.sampler": "Posterior",
    "tensorveil.mechanisms.gradient": "GradientPerturbation",
    "tensorveil.mechanisms.input": "InputPerturbation",
    "tensorveil.mechanisms.local.answers": "LocalAnswers",
    "tensorveil.mechanisms.local.protocols": "design_protocol",
    "tensorveil.mechanisms.output": "OutputPerturbation",
    "tensorveil.mechanisms.statistic": "StatisticPerturbation",
    "tensorveil.mechanisms.sums": "SumPerturbation",
    "tensorveil.mechanisms.with_offsets": "WithOffsets",
    "tensorveil.metrics": "rmse",
    "tensorveil.models.algebra": "algebra",
    "tensorveil.models.cp": "CP CPModel",
    "tensorveil.models.tucker": "Tucker TuckerModel",
    "tensorveil.privacy.bounds": "Bounds",
    "tensorveil.privacy.coupled": "Coupled",
    "tensorveil.privacy.guarantee": "Guarantee",
    "tensorveil.privacy.local.client": "LocalProtocol",
    "tensorveil.privacy.local.randomizing": "randomize",
    "tensorveil.privacy.noise.exact": "ExactNoise",
    "tensorveil.privacy.plan": "Plan",
    "tensorveil.privacy.units": "Unit",
    "tensorveil.published": "published",
    "tensorveil.release.advice.advisor": "advise",
    "tensorveil.release.advice.results": "Advice",
    "tensorveil.release.certificate.certificate": "Certificate",
    "tensorveil.release.certificate.verification": "verify",
    "tensorveil.release.fitting": "complete fit plan",
    "tensorveil.release.ledger.ledger": "Ledger",
    "tensorveil.release.release": "Release",
    "tensorveil.release.tuning.comparing": "tune",
    "tensorveil.solvers.als": "ALS",
    "tensorveil.solvers.parallel_sgd": "ParallelSGD",
    "tensorveil.solvers.sgd": "SGD",
    "tensorveil.solvers.start": "NormalStart UniformStart",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tensorveil' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOMES[name])
    found = home if _HOMES[name].endswith(f".{name}") else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
