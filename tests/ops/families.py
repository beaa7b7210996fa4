"""One call of every op family and format, at one rank's shapes of shipped models, with an architecture that runs it."""

import pytest

from autotune_planner.ops.bmm_fp8 import BmmFp8
from autotune_planner.ops.cute_dsl_moe import CuteDslMoe, CuteDslMoeW4A16
from autotune_planner.ops.cutlass_fused_moe import CutlassFusedMoe
from autotune_planner.ops.mm_bf16_fp4 import MmBf16Fp4
from autotune_planner.ops.mm_fp4 import CuteDslMmFp4, CutlassMmFp4
from autotune_planner.ops.mm_mxfp8 import CuteDslMmMxfp8, CutlassMmMxfp8
from autotune_planner.ops.trtllm_moe import TrtllmMoe

H200, B200, RTX5090 = (9, 0), (10, 0), (12, 0)


def cutlass(quant, **fields):
    """gpt-oss-120b at tp8 in MXFP4, else Qwen3-30B-A3B at tp4."""
    shape = (128, 128, 3072, 384, 4, 8, 1, 8192) if "mxfp4" in quant else (128, 128, 2048, 192, 8, 4, 1, 8192)
    return CutlassFusedMoe(*shape, quant=quant, biased="mxfp4" in quant, **fields)


def trtllm(quant, **fields):
    """gpt-oss-120b at tp8 in MXFP4, Kimi-K2 at tp8 in INT4, else DeepSeek-V3 at tp8 ep8."""
    if quant.startswith("mxfp4"):
        return TrtllmMoe(128, 128, 3072, 384, 4, quant, output_size=2880, biased=True, **fields)
    return TrtllmMoe(384 if quant == "mxint4" else 256, 48 if quant == "mxint4" else 32, 7168, 2048, 8, quant, **fields)


CALLS = {
    "bmm_fp8": (BmmFp8(n=6144, k=4096), H200),
    "cutlass-bf16": (cutlass("bf16"), H200),
    "cutlass-fp8": (cutlass("fp8"), H200),
    "cutlass-w4a16": (cutlass("w4a16_mxfp4"), H200),
    "cutlass-w4a8": (cutlass("w4a8_mxfp4"), H200),
    "cutlass-nvfp4": (cutlass("nvfp4"), B200),
    "cutlass-nvfp4-gathered": (cutlass("nvfp4", quantized_input=True), B200),
    "cutlass-mxfp8": (cutlass("mxfp8_mxfp4"), RTX5090),
    "trtllm-bf16": (trtllm("bf16"), B200),
    "trtllm-bf16-routed": (trtllm("bf16", routed=True), B200),
    "trtllm-fp8-tensor": (trtllm("fp8_per_tensor"), B200),
    "trtllm-fp8-tensor-routed": (trtllm("fp8_per_tensor", routed=True), B200),
    "trtllm-fp8-block": (trtllm("fp8_block"), B200),
    "trtllm-fp8-block-routed": (trtllm("fp8_block", routed=True), B200),
    "trtllm-mxfp8": (trtllm("mxfp8"), B200),
    "trtllm-nvfp4": (trtllm("nvfp4"), B200),
    "trtllm-nvfp4-routed": (trtllm("nvfp4", routed=True), B200),
    "trtllm-nvfp4-deferred": (trtllm("nvfp4", finalize=False), B200),
    "trtllm-mxfp4-bf16": (trtllm("mxfp4_bf16"), B200),
    "trtllm-mxfp4-mxfp8": (trtllm("mxfp4_mxfp8"), B200),
    "trtllm-mxint4": (trtllm("mxint4"), B200),
    "mm_fp4-cute": (CuteDslMmFp4(n=7168, k=2304), B200),
    "mm_fp4-cutlass": (CutlassMmFp4(n=7168, k=2304), B200),
    "mm_mxfp8-cute": (CuteDslMmMxfp8(n=1280, k=2048), B200),
    "mm_mxfp8-cutlass": (CutlassMmMxfp8(n=1280, k=2048), B200),
    "mm_bf16_fp4": (MmBf16Fp4(n=7168, k=2304), B200),
    "cute-moe": (CuteDslMoe(256, 32, 7168, 2048, 8), B200),
    "cute-moe-w4a16": (CuteDslMoeW4A16(256, 32, 7168, 2048, 8), B200),
}
NEEDS_TRITON = ("cute-moe", "cute-moe-w4a16")


def each(**only):
    """Parameters ``call, capability`` of every family."""
    return pytest.mark.parametrize(("call", "capability"), list(CALLS.values()), ids=list(CALLS))


def require(call):
    if isinstance(call, CuteDslMoe):
        pytest.importorskip("triton", reason="FlashInfer's MoE in CuTe DSL imports triton")
