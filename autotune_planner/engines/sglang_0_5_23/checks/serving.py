"""Flags of the serving surface: workers, gRPC, metrics, scheduling, multimodal input.

Sources: ``arg_groups/serving_hook.py``, ``arg_groups/validation_hook.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune_planner.engines.sglang_0_5_23.checks.subject import Rule, Subject, least, refuse
from autotune_planner.json_text import parse_json

_VALIDATION = "validation_hook.check_server_args"
_OBJECT_STORES = ("s3://", "gs://", "az://")
_MODALITIES = ("image", "video", "audio")
_LARGEST_PORT = 65535


def check(subject: Subject) -> None:
    refuse("validation_hook.check_server_args", *_numbers(subject), *_names(subject))
    refuse("serving_hook", *_positive(subject))
    refuse("serving_hook.handle_ssl_validation", *_encryption(subject))
    refuse("serving_hook.handle_deprecated_args", *_grpc(subject))
    refuse("validation_hook.check_server_args", *_scheduling(subject))
    refuse("validation_hook.check_watermark_server_args", *_watermark(subject))
    refuse("validation_hook.validate_buckets_rule", *_buckets(subject))
    refuse("serving_hook.handle_other_validations", *_objects(subject))


def _numbers(subject: Subject) -> Iterator[Rule]:
    """Tokenizing nothing leaves one detokenizer (``serving_hook.handle_tokenizer_batching``)."""
    yield least(subject, "tokenizer_worker_num", 1, 1)
    if not subject.on("skip_tokenizer_init"):
        yield least(subject, "detokenizer_worker_num", 1, 1)
    yield least(subject, "mm_processor_worker_num", 0, 0)
    yield least(subject, "mm_io_worker_num", 0, 0)
    yield least(subject, "pp_max_micro_batch_size", 1, 1)
    yield least(subject, "base_gpu_id", 0, 0)
    yield least(subject, "gpu_id_step", 1, 1)
    yield least(subject, "schedule_conservativeness", 1, 0)
    limits = subject.get("gc_threshold", ())
    yield len(limits) > 3, "--gc-threshold", "takes 1 to 3 integers", "--gc-threshold 700 10 10"
    canary = subject.get("kv_canary_sweep_interval", 0) > 0 and subject.get("kv_canary", "none") == "none"
    yield canary, "--kv-canary-sweep-interval", "needs --kv-canary log or raise", "add --kv-canary log"


def _names(subject: Subject) -> Iterator[Rule]:
    name = str(subject.get("served_model_name", subject.arguments.model_path))
    yield (
        ":" in name and not name.lower().startswith(_OBJECT_STORES),
        "--served-model-name",
        f"{name} has a colon, which separates a model from its LoRA adapter",
        "--served-model-name NAME, without a colon",
    )
    for flag, value, platform in (
        ("model_impl", "mindspore", "Ascend NPUs"),
        ("sampling_backend", "intel_xpu", "XPUs"),
    ):
        option = "--" + flag.replace("_", "-")
        yield subject.get(flag) == value, option, f"{value} runs on {platform} only", f"leave {option} out"
    communications = "--enable-quant-communications"
    yield subject.on("enable_quant_communications"), communications, "works on NPUs only", f"leave {communications} out"


def _positive(subject: Subject) -> Iterator[Rule]:
    yield least(subject, "asr_max_buffer_seconds", 60, 1)
    yield least(subject, "asr_max_concurrent_sessions", 32, 1)
    yield least(subject, "mm_preprocess_cache_size_mb", 0, 0)
    yield least(subject, "sampling_mask_max_tokens", 4096, 1)
    yield least(subject, "prefill_decode_interval", 0, 0)
    yield least(subject, "prefill_decode_interval_min_bs", 0, 0)
    yield least(subject, "grpc_response_timeout_secs", 300, 1)


def _encryption(subject: Subject) -> Iterator[Rule]:
    key, certificate = subject.on("ssl_keyfile"), subject.on("ssl_certfile")
    yield key and not certificate, "--ssl-keyfile", "needs --ssl-certfile", "add --ssl-certfile FILE"
    yield certificate and not key, "--ssl-certfile", "needs --ssl-keyfile", "add --ssl-keyfile FILE"
    for name in ("ssl_ca_certs", "ssl_keyfile_password", "enable_ssl_refresh"):
        option = "--" + name.replace("_", "-")
        alone = subject.on(name) and not (key and certificate)
        yield alone, option, "needs --ssl-certfile and --ssl-keyfile", f"add both, or leave {option} out"
    one_worker = subject.get("tokenizer_worker_num", 1) == 1
    yield (
        subject.on("enable_http_worker_reuseport") and (one_worker or subject.on("enable_http2")),
        "--enable-http-worker-reuseport",
        "needs --tokenizer-worker-num above 1, and no --enable-http2",
        "add --tokenizer-worker-num 2",
    )


def _grpc(subject: Subject) -> Iterator[Rule]:
    """The port may come from SGLANG_GRPC_PORT; without one the legacy modes take one of their own."""
    legacy = subject.on("smg_grpc_mode") or subject.on("grpc_mode")
    port = subject.get("grpc_port", subject.environment.number("SGLANG_GRPC_PORT"))
    sidecar = subject.get("sidecar")
    arguments = subject.get("sidecar_args")
    yield (
        arguments is not None and sidecar is None,
        "--sidecar-args",
        "needs --sidecar",
        "add --sidecar COMMAND, or leave it out",
    )
    not_texts = not isinstance(arguments, list) or not all(isinstance(one, str) for one in arguments)
    yield (
        arguments is not None and not_texts,
        "--sidecar-args",
        "takes a JSON array of texts",
        """--sidecar-args '["--verbose"]'""",
    )
    yield sidecar is not None and legacy, "--sidecar", "needs the native gRPC server", "leave --smg-grpc-mode out"
    yield sidecar is not None and port is None, "--sidecar", "needs --grpc-port", "add --grpc-port 40000"
    if port is None:
        return
    yield not 1 <= port <= _LARGEST_PORT, "--grpc-port", f"is no port: {port}", "--grpc-port 40000"
    if legacy:
        return
    http = subject.get("port", 30000)
    yield port == http, "--grpc-port", f"is --port too: {http}", "--grpc-port 40000"
    for name in ("use_ray", "encoder_only", "api_key", "admin_api_key"):
        option = "--" + name.replace("_", "-")
        yield subject.on(name), "--grpc-port", f"does not go with {option}", f"leave --grpc-port or {option} out"
    workers = subject.get("tokenizer_worker_num", 1)
    yield workers > 1, "--grpc-port", f"works with one tokenizer worker, not {workers}", "--tokenizer-worker-num 1"


def _scheduling(subject: Subject) -> Iterator[Rule]:
    policy = subject.get("schedule_policy", "fcfs")
    priorities = subject.on("enable_priority_scheduling")
    yield (
        priorities and policy not in ("fcfs", "lof"),
        "--schedule-policy",
        f"priority scheduling works with fcfs and lof, not {policy}",
        "--schedule-policy fcfs",
    )
    yield (
        subject.get("retraction_policy") == "priority" and not priorities,
        "--retraction-policy",
        "priority needs --enable-priority-scheduling",
        "add --enable-priority-scheduling",
    )
    yield (
        subject.on("enable_tokenizer_batch_encode") and subject.on("enable_dynamic_batch_tokenizer"),
        "--enable-tokenizer-batch-encode",
        "cannot be combined with --enable-dynamic-batch-tokenizer",
        "leave one of the two out",
    )
    yield (
        subject.on("export_metrics_to_file") and not subject.on("export_metrics_to_file_dir"),
        "--export-metrics-to-file",
        "needs --export-metrics-to-file-dir",
        "add --export-metrics-to-file-dir DIR",
    )
    published = str(subject.get("load_publish_endpoint", "")).strip().lower() not in ("", "off")
    yield (
        published and not subject.on("kv_events_config"),
        "--load-publish-endpoint",
        "needs --kv-events-config, by which routers find it",
        "add --kv-events-config, or --load-publish-endpoint off",
    )
    if subject.on("enable_pdmux"):
        alone = subject.arguments.pp_size == 1 and subject.mode == "null"
        yield not alone, "--enable-pdmux", "works without pipeline parallelism and PD workers only", "leave it out"
        chunk = "--chunked-prefill-size -1"
        yield subject.chunk != -1, "--enable-pdmux", "does not work with chunked prefill", f"add {chunk}"
        overlap = subject.arguments.disable_overlap_schedule
        yield not overlap, "--enable-pdmux", "needs --disable-overlap-schedule", "add --disable-overlap-schedule"
    yield (
        subject.on("enable_response_store") and subject.mode != "null",
        "--enable-response-store",
        "does not work on the workers of a PD pair",
        "leave it out",
    )
    yield (
        subject.arguments.pp_size > 1 and subject.get("min_free_slots_delay") is not None,
        "--min-free-slots-delay",
        "does not work with pipeline parallelism",
        "leave it out",
    )


def _watermark(subject: Subject) -> Iterator[Rule]:
    """A key or a file of settings cannot be judged without its content, which never comes here."""
    enabled = "--enable-watermark"
    on = subject.on("enable_watermark")
    yield subject.on("watermark_config") and not on, "--watermark-config", f"needs {enabled}", f"add {enabled}"
    algorithm = subject.drafts.algorithm
    for broken, what in (
        (subject.on("enable_custom_logit_processor"), "--enable-custom-logit-processor"),
        (subject.on("dllm_algorithm"), "--dllm-algorithm"),
        (subject.mode != "null", "--disaggregation-mode"),
        (algorithm not in (None, "NGRAM", "EAGLE", "EAGLE3"), f"--speculative-algorithm {algorithm}"),
        (algorithm is not None and subject.arguments.pp_size > 1, "pipeline-parallel speculation"),
        (subject.on("speculative_use_rejection_sampling"), "--speculative-use-rejection-sampling"),
    ):
        yield on and broken, enabled, f"does not work with {what}", "leave one of the two out"


def _buckets(subject: Subject) -> Iterator[Rule]:
    for name in ("prompt_tokens_buckets", "generation_tokens_buckets"):
        option, values = "--" + name.replace("_", "-"), subject.get(name, ())
        if values:
            rule = "takes default, custom and its values, or tse MIDDLE BASE COUNT"
            yield not _right_buckets(list(map(str, values))), option, rule, f"{option} default"


def _right_buckets(values: list[str]) -> bool:
    kind, *rest = values
    try:
        numbers = [float(value) for value in rest]
    except ValueError:
        return False
    if kind == "default":
        return not rest
    if kind == "custom":
        return bool(rest) and len(set(numbers)) == len(numbers) and min(numbers) >= 0
    whole = kind == "tse" and len(rest) == 3 and rest[2].lstrip("+-").isdigit()
    return whole and numbers[0] > 0 and numbers[1] > 1 and numbers[2] > 0


def _objects(subject: Subject) -> Iterator[Rule]:
    template = subject.get("default_chat_template_kwargs")
    option = "--default-chat-template-kwargs"
    yield template is not None and not isinstance(template, dict), option, "takes a JSON object", f"{option} '{{}}'"
    limits = _parsed(subject.get("limit_mm_data_per_request"))
    unknown = [key for key in limits if key not in _MODALITIES] if isinstance(limits, dict) else []
    option = "--limit-mm-data-per-request"
    known = ", ".join(_MODALITIES)
    yield (
        bool(unknown),
        option,
        f"does not know {', '.join(unknown)}: it takes {known}",
        f"""{option} '{{"image": 4}}'""",
    )
    sampling = _parsed(subject.get("preferred_sampling_params"))
    marked = isinstance(sampling, dict) and "watermark" in sampling
    yield marked, "--preferred-sampling-params", "cannot hold a watermark", "leave watermark out of it"
    process = subject.get("mm_process_config")
    wrong = process is not None and not isinstance(process, dict)
    wrong = wrong or any(not isinstance(process.get(key, {}), dict) for key in _MODALITIES if isinstance(process, dict))
    option = "--mm-process-config"
    yield wrong, option, "takes a JSON object of objects", f"""{option} '{{"image": {{}}}}'"""
    backend = subject.get("image_processor_backend", "auto")
    yield (
        subject.on("disable_fast_image_processor") and backend not in ("auto", "pil"),
        "--disable-fast-image-processor",
        f"contradicts --image-processor-backend {backend}",
        "leave one of the two out",
    )


def _parsed(value: Any) -> Any:
    """Some JSON flags hold text that the server parses later."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return None
