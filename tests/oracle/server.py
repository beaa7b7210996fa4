"""The released server's own code on one kind of GPU: configurations on stdin, what became of each on stdout.

    python -m tests.oracle.server GPU MODELS < rows > results

``GPU`` is a document of profiles/gpus as JSON, ``MODELS`` a folder of model configs. A row is ``{"args", "env",
"kv_token_capacity"}``, a line each. A path in ``args`` whose last component is a folder of ``MODELS`` is read there,
and is part of the cache key as it was typed. A result has the form of the rows of tests/data/truth:

- ``resolved``, with ``runtime`` and ``runtime.real`` in it. ``fails_later`` in place of ``runtime``: its attention
  backend fails when the server builds it or makes a dummy batch. Neither: they follow from the GPU's memory only.
- ``error`` and ``error_stage``: the server refuses the row.
- ``fault``: this file, or a stand-in, is wrong.

Each row is resolved in a fork of its own, since the server's modules remember what they resolved.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.oracle import stand_ins

stand_ins.without_compiled_packages()
stand_ins.with_gpu(json.loads(sys.argv[1]))

import torch  # noqa: E402
from sglang.srt.arg_groups.overrides import flashinfer_a2a_max_dispatch_tokens_per_rank  # noqa: E402
from sglang.srt.configs.hybrid_arch import mambaish_config  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend  # noqa: E402
from sglang.srt.layers.dp_attention import compute_dp_attention_world_info  # noqa: E402
from sglang.srt.layers.moe.moe_runner import flashinfer_cutlass  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # noqa: E402
from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: E402
from sglang.srt.model_executor.model_runner_components.attention_backend_setup import (  # noqa: E402
    get_attention_backend,
)
from sglang.srt.model_executor.runner import base_runner, flashinfer_autotune  # noqa: E402
from sglang.srt.model_executor.runner.base_cuda_graph_runner import get_batch_sizes_to_capture  # noqa: E402
from sglang.srt.model_executor.runner.eager_runner import EagerRunner  # noqa: E402
from sglang.srt.runtime_context import (  # noqa: E402
    SpawnRanks,
    attention_backends,
    get_context,
    get_parallel,
    max_prefill_buffer_tokens,
    publish,
    spawn_world_rank,
    uses_mla_backend,
)
from sglang.srt.server_args import ServerArgs, prepare_server_args  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402
from sglang.srt.utils import common  # noqa: E402

TIMEOUT_S = 300  # for one row; they take a second
_OUR_FAULTS = (ImportError, AttributeError, NameError, stand_ins.NoGpuError)
"""A missing package or stand-in, no refusal of the server."""

_FROM_BAGS = (
    "chunked_prefill_size", "max_prefill_tokens", "tp_size", "dp_size", "attn_dp_size", "ep_size", "moe_dense_tp_size",
    "pp_size", "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "disaggregation_mode", "moe_runner_backend", "moe_a2a_backend",
    "attention_backend", "page_size", "quantization", "mem_fraction_static", "max_running_requests",
)  # fmt: skip
_DERIVED = ("attn_tp_size", "moe_ep_size", "moe_tp_size", "num_dp_ranks", "attn_dp_enabled")
_COMPOSED = ("HybridAttnBackend",)  # attention backends that only hold others


class Refused(Exception):  # noqa: N818
    """The server does not start with a configuration."""

    def __init__(self, stage: str, error: str) -> None:
        self.stage, self.error = stage, error


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    try:
        yield
    except _OUR_FAULTS:
        raise
    except Exception as error:
        raise Refused(name, f"{type(error).__name__}: {error}") from error


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """What the server makes of one row. It keeps the row's environment: run it in a process of its own."""
    os.environ.update(row["env"])
    try:
        return {"resolved": resolved(row)}
    except Refused as refused:
        return {"error": refused.error, "error_stage": refused.stage}
    except Exception:
        return {"fault": traceback.format_exc()}


def resolved(row: dict[str, Any]) -> dict[str, Any]:
    """Start the server as far as it goes without weights: parse, resolve, validate, publish, size its runners."""
    typed = {local(argument): argument for argument in row["args"]}
    with stage("argparse"):
        server_args = parsed([local(argument) for argument in row["args"]])
    with stage("resolve_once"):
        server_args.resolve_once()
    with stage("check_server_args"):
        server_args.check_server_args()
    with stage("runtime"), mock.patch.object(Path, "mkdir"):
        publish_rank(server_args, typed, tp=0, pp=0, dp=None)
        model_config = ModelConfig.from_server_args(server_args)
        Scheduler.init_moe_gemm_config(SimpleNamespace(model_config=model_config))
        found = {"model": model_document(model_config), "dtype": str(model_config.dtype), **arguments_document()}
        # Requests of a model with recurrent states follow from the memory that its weights leave.
        if mambaish_config(model_config) is not None:
            return found
        capacity = row["kv_token_capacity"] or 8 * model_config.context_len
        runner = model_runner(server_args, model_config, capacity)
        try:
            runner.attn_backend = attention_backend(runner)
        except (AssertionError, ValueError) as error:
            return found | {"fails_later": f"{type(error).__name__}: {error}"}
        if not has_dummy(runner.attn_backend):
            runs = flashinfer_autotune.should_run_flashinfer_autotune(runner)
            return found | ({"fails_later": "its attention backend runs no dummy batch"} if runs else {})
        found["runtime"] = runtime_document(runner)
        found["runtime"]["real"]["cache_files"] = rank_files(runner, typed)
        return found


def local(argument: str) -> str:
    """The model's folder in ``MODELS`` for a path that names it, anything else as it is."""
    folder = Path(sys.argv[2], Path(argument).name)
    return str(folder) if "/" in argument and (folder / "config.json").is_file() else argument


def parsed(arguments: list[str]) -> ServerArgs:
    """The server's own parser, whose refusal is the last line that it prints."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return prepare_server_args(arguments)
    except SystemExit as ended:
        raise ValueError(said.getvalue().strip().splitlines()[-1]) from ended


def publish_rank(server_args: ServerArgs, typed: dict[str, str], *, tp: int, pp: int, dp: int | None) -> None:
    """Become one rank, as ``scheduler.run_scheduler_process`` does."""
    world_rank = spawn_world_rank(server_args, tp_rank=tp, pp_rank=pp)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=world_rank, dp_rank=dp, gpu_id=0))
    path = get_context().config_leaf("model_path")
    get_context().override("as it was typed", model_path=typed.get(path, path))


def model_document(model_config: ModelConfig) -> dict[str, Any]:
    return {
        "dtype": str(model_config.dtype),
        "hidden_size": model_config.hidden_size,
        "vocab_size": model_config.vocab_size,
        "arch": model_config.hf_config.architectures[0],
    }


def arguments_document() -> dict[str, Any]:
    """``resolved`` of the contract, from the published configuration."""
    found = {name: get_context().config_leaf(name) for name in _FROM_BAGS}
    found |= {name: getattr(get_parallel(), name) for name in _DERIVED}
    found["prefill_attn_backend"], found["decode_attn_backend"] = attention_backends()
    buffer_tokens = max_prefill_buffer_tokens()
    found["max_prefill_buffer_tokens"] = buffer_tokens
    found["autotune_extend_ceiling"] = buffer_tokens or found["max_prefill_tokens"]
    found["flashinfer_a2a_max_dispatch_tokens_per_rank"] = flashinfer_a2a_max_dispatch_tokens_per_rank(buffer_tokens)
    graphs = get_context().config_leaf("cuda_graph_config")
    for name in ("decode", "prefill"):
        phase = getattr(graphs, name)
        found[f"cuda_graph_{name}"] = {"backend": phase.backend, "max_bs": phase.max_bs, "bs": list(phase.bs)}
    return found


def model_runner(server_args: ServerArgs, model_config: ModelConfig, capacity: int) -> ModelRunner:
    """The server's ``ModelRunner`` of rank 0 as it is before its eager runner is built, without model and pools."""
    sizes = SimpleNamespace(model_config=model_config, attn_dp_size=get_parallel().attn_dp_size, mambaish_config=None)
    requests = KVCacheConfigurator.resolve_max_num_reqs(sizes, capacity)
    runner = ModelRunner.__new__(ModelRunner)
    runner.__dict__.update(
        server_args=server_args,
        model_config=model_config,
        model=torch.nn.Module(),
        device="cuda",
        dtype=model_config.dtype,
        kv_cache_dtype=model_config.dtype,
        is_generation=model_config.is_generation,
        is_draft_worker=False,
        draft_attention_backend=None,
        spec_algorithm=SpeculativeAlgorithm.from_string(get_context().config_leaf("speculative_algorithm")),
        use_mla_backend=uses_mla_backend(),
        max_total_num_tokens=capacity,
        max_running_requests=requests,
        req_to_token_pool=SimpleNamespace(size=requests),
        token_to_kv_pool=None,
        kv_index_translator=None,
        plan_stream_for_flashinfer=object(),
        layer_info=SimpleNamespace(start_layer=0),
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        canary_manager=None,
    )
    return runner


def attention_backend(runner: ModelRunner) -> AttentionBackend:
    """The attention backend that the server builds, made without its tensors: only its class is asked."""

    def bare(kind: type[AttentionBackend], *_: Any, **__: Any) -> AttentionBackend:
        if kind.__name__ not in _COMPOSED:
            kind = type(kind.__name__, (kind,), {"__init__": lambda self, *_, **__: None})
        return object.__new__(kind)

    with mock.patch.object(AttentionBackend, "__new__", bare):
        return get_attention_backend(model_runner=runner)


def has_dummy(backend: AttentionBackend) -> bool:
    """Whether the runner can make its DECODE dummy, which asks the backend for a value."""
    try:
        backend.get_cuda_graph_seq_len_fill_value()
    except NotImplementedError:
        return False
    return True


def eager_runner(runner: ModelRunner) -> EagerRunner:
    """The runner that warms up first. Its tensors, and those it makes, are without memory: on the meta device."""
    runner.device = "meta"
    with (
        mock.patch.object(torch, "get_device_module", return_value=torch.cuda),
        mock.patch.object(base_runner, "TboCudaGraphRunnerPlugin"),
    ):
        return EagerRunner(runner, run_warmup=False)


def runtime_document(runner: ModelRunner) -> dict[str, Any]:
    """``runtime`` of the contract. What the server computes inside a forward pass is derived as it does there:
    ``decode_autotune_tokens_per_req`` and ``dummy_global_num_tokens`` (``base_runner._dummy_run``)."""
    eager = eager_runner(runner)
    buffers, requests = eager._autotune_buffers()
    runner.device = "cuda"
    per_request = runner.decode_num_tokens_per_req()
    pd_prefill = get_context().config_leaf("disaggregation_mode") == "prefill"
    of_dummy = per_request if runner.spec_algorithm.is_speculative() and not pd_prefill else 1
    tokens = requests * of_dummy
    gathered = any(runner.decode_graph_gather_requirements())
    found = {
        "require_mlp_tp_gather": common.require_mlp_tp_gather(),
        "require_attn_tp_gather": common.require_attn_tp_gather(),
        "require_gathered_buffer": common.require_gathered_buffer(),
        "require_mlp_sync": common.require_mlp_sync(),
        "cuda_graph_bs_alignment": common.get_cuda_graph_batch_size_alignment(gathered_buffer_required=gathered),
        "max_running_requests_per_dp_worker": runner.max_running_requests,
        "decode_num_tokens_per_req": per_request,
        "decode_autotune_tokens_per_req": of_dummy,
        "decode_autotune_tokens": tokens,
        "dummy_global_num_tokens": global_num_tokens(tokens),
        "real": {
            "EagerRunner._eager_max_bs": eager._eager_max_bs,
            "_autotune_buffers.bs": requests,
            **buffers_document(buffers),
            **autotune_document(runner, requests),
            "cutlass_tune_max_num_tokens_for_decode_dummy": flashinfer_cutlass._cutlass_moe_tune_max_num_tokens(tokens),
        },
    }
    if get_context().config_leaf("cuda_graph_config").decode.backend != "disabled":
        try:
            found["capture_bs"], _ = get_batch_sizes_to_capture(runner, per_request, gathered_buffer_required=gathered)
        except AssertionError as error:
            found["capture_bs_error"] = f"{type(error).__name__}: {error}"
    return found


def global_num_tokens(tokens: int) -> list[int] | None:
    if common.require_mlp_tp_gather():
        return [tokens] * get_parallel().num_dp_ranks
    return [tokens] if common.require_attn_tp_gather() else None


def buffers_document(buffers: SimpleNamespace) -> dict[str, Any]:
    """Names, shapes and types of the decode dummy's tensors, and the bytes of those that a GPU would hold."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in vars(buffers).items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, dict):
            tensors |= {f"{name}.{part}": tensor for part, tensor in value.items()}
    on_gpu = [tensor for tensor in tensors.values() if tensor.device.type == "meta"]
    return {
        "_autotune_buffers": {
            name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in tensors.items()
        },
        "_autotune_buffers.gpu_bytes": sum(tensor.numel() * tensor.element_size() for tensor in on_gpu),
    }


def autotune_document(runner: ModelRunner, requests: int) -> dict[str, Any]:
    """The gates of both passes, the EXTEND dummy if it were switched on, and rank 0's file."""
    runs = flashinfer_autotune.should_run_flashinfer_autotune(runner)
    extend_runs = runs and extend_dummy(runner, requests) is not None
    with mock.patch.dict(os.environ, SGLANG_FLASHINFER_AUTOTUNE_EXTEND="1"):
        extend_dummy_if_on = extend_dummy(runner, requests)
    return {
        "should_run_flashinfer_autotune": runs,
        "passes": {"decode": runs, "extend": extend_runs},
        "extend_pass_if_enabled": extend_dummy_if_on,
        "flashinfer_autotune_cache_path": str(flashinfer_autotune.flashinfer_autotune_cache_path(runner)),
    }


def extend_dummy(runner: ModelRunner, requests: int) -> dict[str, Any] | None:
    """The EXTEND dummy that the server runs in this environment, caught before its forward pass; None for none."""
    found: dict[str, Any] = {}

    def allocate(max_bs: int, *, num_tokens_per_req: int, allocate_logits_buffer: bool) -> None:
        found.update(
            max_bs=max_bs, num_tokens_per_req=num_tokens_per_req, allocate_logits_buffer=allocate_logits_buffer
        )

    def forward(_: ModelRunner, forward_fn: Any, *, run_lm_head: bool) -> None:
        argument = forward_fn.keywords["extend_num_tokens_per_req"]
        found.update(run_lm_head=run_lm_head, extend_num_tokens_per_req_arg=argument)

    eager = SimpleNamespace(model_runner=runner, _alloc_dummy_decode_buffers=allocate, _dummy_run=forward)
    with mock.patch.object(flashinfer_autotune, "run_flashinfer_autotune_forward", forward):
        flashinfer_autotune.maybe_flashinfer_autotune_extend(eager, decode_num_tokens=requests)
    return found or None


def rank_files(runner: ModelRunner, typed: dict[str, str]) -> list[str]:
    """Every rank's file, sorted. Ranks as ``data_parallel_controller.launch_tensor_parallel_group`` numbers them."""
    parallel = get_parallel()
    attention = (parallel.tp_size, parallel.attn_dp_size, parallel.attn_cp_size)
    replicas = range(parallel.dp_size) if parallel.dp_size > 1 else (None,)
    found = []
    for replica, pp, tp in itertools.product(replicas, range(parallel.pp_size), range(parallel.tp_size)):
        dp = compute_dp_attention_world_info(tp, *attention)[2] if parallel.attn_dp_enabled else replica
        publish_rank(runner.server_args, typed, tp=tp, pp=pp, dp=dp)
        found.append(str(flashinfer_autotune.flashinfer_autotune_cache_path(runner)))
    return sorted(found)


def main() -> None:
    # The server prints as it goes: stdout is for results only.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rows = [json.loads(line) for line in sys.stdin]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        answers = pool.imap(answer, rows)
        for _ in rows:
            print(json.dumps(answers.next(TIMEOUT_S)), file=results, flush=True)


if __name__ == "__main__":
    main()
