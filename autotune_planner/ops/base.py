"""The interface behind which every FlashInfer op family stands: one file each, torch imported only when called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from autotune_planner.ops.tensors import TensorSpec, bytes_of
from autotune_planner.values import dataclass

ComputeCapability = tuple[int, int]


@dataclass(frozen=True)
class BoundCall:
    """One public call with its inputs. Calling it launches the op and gives its output; ``reference`` gives what some
    of its rows (an index tensor of tokens) should be, in float32; None where nobody but the kernel knows its layouts
    and scales, so that only finiteness can be checked. ``tolerance`` multiplies what the output's dtype allows."""

    launch: Callable[[], Any]
    reference: Callable[[Any], Any] | None
    tolerance: float = 1.0

    def __call__(self) -> Any:
        return self.launch()


Bind = Callable[[int], BoundCall]


@dataclass(frozen=True)
class JitModule:
    """A compiled module that the op loads.

    ``generator`` is the FlashInfer function that describes its build, as ``module:function``; ``objects`` is how many
    translation units a cold build compiles (counted in FlashInfer 0.7.2's build.ninja).
    """

    name: str
    generator: str
    objects: int


@dataclass(frozen=True)
class OpCall(ABC):
    """One public FlashInfer call of one rank, complete but for its token count M.

    Two calls with equal fields have equal cache keys; a work unit is (custom op, call, bucket).
    """

    family: ClassVar[str]
    runner: ClassVar[str]  # FlashInfer runner class that the server's backend choice leads to

    @property
    @abstractmethod
    def custom_ops(self) -> tuple[str, ...]:
        """Tuner names that one call goes through, in order."""

    @property
    @abstractmethod
    def tune_max(self) -> int | None:
        """Bound of the op's bucket mapper in tokens; None where the mapper is uncapped."""

    def bound_of(self, m: int) -> int | None:
        """Largest bucket that a call with M = m profiles and looks up; None where the mapper is uncapped."""
        return self.tune_max

    @property
    def searched_as(self) -> str:
        """Row of ``profiles/search.yaml`` that says how many tactics the runner has and how slow they are."""
        return f"{self.family}/{self.runner}"

    @property
    def cold_l2(self) -> bool:
        """Whether the tuner measures with a cold L2 cache, and so makes copies of the inputs and a buffer to flush."""
        return False

    def keys_verified(self, capability: ComputeCapability) -> bool:
        """Whether keys of this call were compared with those of the real server's call sites on this architecture."""
        return capability in ((9, 0), (10, 0))

    def was_run(self, capability: ComputeCapability) -> bool:
        """Whether such a call was tuned on real hardware of this architecture (docs/measurements)."""
        return False

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text of the shape, for tables."""

    @abstractmethod
    def unsupported_reason(self, capability: ComputeCapability) -> str | None:
        """Why the op cannot be tuned on this architecture; None where it can."""

    @abstractmethod
    def jit_modules(self, capability: ComputeCapability) -> tuple[JitModule, ...]:
        """Compiled modules that the call loads."""

    @abstractmethod
    def weights(self) -> tuple[TensorSpec, ...]:
        """Weights that ``prepare`` keeps on the device."""

    def weight_bytes(self) -> int:
        """Device bytes of the synthetic weights."""
        return bytes_of(self.weights())

    @abstractmethod
    def inputs(self, m: int) -> tuple[TensorSpec, ...]:
        """The call's other tensors of M = m on the device, scales included."""

    @abstractmethod
    def output(self, m: int) -> TensorSpec:
        """What one launch with M = m returns."""

    @abstractmethod
    def scratch(self, m: int) -> tuple[tuple[str, int], ...]:
        """(what, bytes) that FlashInfer allocates beside inputs and output while the call runs with M = m."""

    @abstractmethod
    def tuner_inputs(self, bucket: int) -> tuple[TensorSpec, ...]:
        """Tensors that FlashInfer's tuner makes anew for one bucket, in its order; it shares the others."""

    @property
    def compute_dtype(self) -> str:
        """Dtype of the multiplications, as GPU profiles name their peak rates."""
        return "bf16"

    def weight_share(self, m: int) -> float:
        """Share of the weights that M = m tokens read."""
        return 1.0

    @abstractmethod
    def flops(self, custom_op: str, m: int) -> float:
        """Floating-point operations of one custom op with M = m, a multiply-add as two."""

    @abstractmethod
    def profiler_bytes(self, custom_op: str, bucket: int) -> int:
        """Bytes that the runner allocates for itself to profile one bucket of one custom op, and keeps."""

    def check_bytes(self, m: int) -> int:
        """Device bytes that the check of a winner at M = m takes beside the call's own, its float32 reference among it.

        Whether an output is finite takes four bytes of each element.
        """
        return 4 * self.output(m).elements

    @abstractmethod
    def prepare(self, device: str) -> Bind:
        """Build one rank's synthetic weights on ``device`` ("cuda", "meta") and return ``bind``.

        ``bind(m)`` makes inputs of M = m tokens and returns the call, exactly the public one of the server. Nothing is
        materialised on "meta".
        """
