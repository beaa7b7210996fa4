"""Any deployment plans (exit 0) or is refused (exit 3) with a message and a hint; and what must grow together, grows.

Everything goes through the command itself. The orders are those of SGLang 0.5.23's own arithmetic: a chunk is divided
and never rounded up, requests and CUDA-graph sizes are only clamped, the MoE is split evenly over the ranks.
"""

import json

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune_planner import profiles
from autotune_planner.deployment.field_flags import FIELD_OF_FLAG
from autotune_planner.deployment.fields import known_keys
from autotune_planner.deployment.models import hf_id, profile_model
from autotune_planner.engines.sglang_0_5_23 import environment
from tests.command import call

ENGINE = profiles.load("engines", "sglang-0.5.23")
FLAGS = ENGINE["flags"]
GPUS = st.sampled_from(profiles.names("gpus"))
MODELS = st.sampled_from(profiles.names("models"))
SWITCHES = [value for name, value in vars(environment).items() if name.isupper() and str(value).startswith("SGLANG_")]


def some(*values):
    return st.sampled_from(values)


def choices(flag, *more):
    return st.sampled_from([*FLAGS[flag]["choices"], *more])


def section(**fields):
    return st.fixed_dictionaries({}, optional=fields)


RANKS = some(1, 2, 3, 4, 8, 16)
CHUNKS = some(-1, 0, 1, 7, 512, 2048, 4096, 8192, 10000, 16384, 32768, 131072, 10**7)
REQUESTS = some(0, 1, 2, 13, 48, 250, 256, 2048, 4096, 65536, 2**31 - 1)
SIZES = st.lists(some(0, 1, 2, 3, 4, 8, 12, 64, 100, 512, 1024), min_size=1, max_size=4)
SPECULATIVE = section(
    algorithm=some("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"),
    num_steps=some(0, 1, 3, 5),
    eagle_topk=some(1, 2, 8),
    num_draft_tokens=some(1, 2, 4, 6, 64),
    draft_model_path=MODELS.map(hf_id),
)
SERVER_FLAGS = section(
    page_size=some(0, 1, 16, 32, 64, 128),
    quantization=choices("quantization"),
    attention_backend=choices("attention_backend"),
    prefill_attention_backend=choices("prefill_attention_backend"),
    decode_attention_backend=choices("decode_attention_backend"),
    kv_cache_dtype=choices("kv_cache_dtype"),
    mem_fraction_static=some(0.1, 0.8, 0.95),
    cuda_graph_bs_prefill=SIZES,
    cuda_graph_max_bs_prefill=CHUNKS,
    max_total_tokens=REQUESTS,
    nnodes=some(1, 2, 4),
    attn_cp_size=some(1, 2, 4),
    moe_dp_size=some(1, 2),
    ep_num_redundant_experts=some(0, 8, 32),
    context_length=some(1, 4096, 131072),
    dtype=choices("dtype"),
    speculative_moe_runner_backend=choices("speculative_moe_runner_backend"),
    deepep_mode=choices("deepep_mode"),
    fp8_gemm_runner_backend=choices("fp8_gemm_runner_backend"),
    **dict.fromkeys(
        (
            "disable_cuda_graph",
            "disable_cuda_graph_padding",
            "disable_flashinfer_autotune",
            "disable_radix_cache",
            "enable_deterministic_inference",
            "enable_mis",
            "enable_torch_compile",
            "enable_two_batch_overlap",
            "enable_kv_cache_sharding",
            "is_embedding",
        ),
        st.booleans(),
    ),
)
ENVIRONMENT = st.dictionaries(
    st.sampled_from(SWITCHES), some("0", "1", "true", "no", "", "8192", "-5", "x"), max_size=3
)
PLAUSIBLE = st.fixed_dictionaries(
    {"gpu": GPUS, "model": MODELS},
    optional={
        "parallel": section(
            tp=RANKS,
            dp=RANKS,
            dp_attention=st.booleans(),
            ep=RANKS,
            pp=some(1, 2, 4),
            moe_dense_tp=some(1, 2, 8),
            dp_lm_head=st.booleans(),
        ),
        "prefill": section(
            chunked_prefill_size=CHUNKS,
            max_prefill_tokens=CHUNKS,
            dynamic_chunking=st.booleans(),
            mixed_chunk=st.booleans(),
        ),
        "decode": section(max_running_requests=REQUESTS, cuda_graph_max_bs_decode=REQUESTS, cuda_graph_bs_decode=SIZES),
        "disaggregation": some(None, "prefill", "decode"),
        "speculative": SPECULATIVE,
        "moe": section(runner_backend=choices("moe_runner_backend"), a2a_backend=choices("moe_a2a_backend")),
        "flags": SERVER_FLAGS,
        "kv_token_capacity": some(1, 2, 1000, 100_000, 1_000_000, 2**31 - 1),
        "autotune": section(extend=st.booleans()),
        "env": ENVIRONMENT,
        "traffic": section(extend_lens=st.lists(some(1, 100, 8192), min_size=1, max_size=4)),
    },
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**301)
    | st.floats()
    | st.text(max_size=6)
    | some("H200", "1", "8k", "prefill", "EAGLE", "\0", "é", "☃", "{}", "null", -1, 0)
)
NAMES = st.sampled_from(sorted({*known_keys(()), *FIELD_OF_FLAG, *list(FLAGS)[::17], "extend", "name"}))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged_configs(draw):
    """A released configuration with up to three of its values replaced or missing."""
    config = dict(profile_model(draw(MODELS)).config)
    for key in draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = draw(ANYTHING)
        if draw(st.booleans()):
            del config[key]
    return config


@st.composite
def hostile(draw):
    """A plausible deployment with up to three things in it replaced, or with keys that nothing has."""
    content = draw(PLAUSIBLE)
    if draw(st.booleans()):
        content.update(model=draw(damaged_configs()), model_path="/models/x")
    for _ in range(draw(st.integers(1, 3))):
        place = content
        key = draw(NAMES | st.text(max_size=5))
        if draw(st.booleans()):
            key = draw(st.sampled_from(known_keys(())))
            inside = [*known_keys((key,))] or ([*FLAGS] if key == "flags" else [])
            if inside and draw(st.booleans()):
                place = content[key] = dict(content[key]) if isinstance(content.get(key), dict) else {}
                key = draw(st.sampled_from(inside))
        place[key] = draw(ANYTHING)
    return content


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("any") / "deployment.yaml"


def computed(path, content, *options):
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8", errors="replace")
    return call("compute", path, *options)


def plans_or_says_why(result, *, as_json):
    assert result.code in (0, 3), result.err
    assert "Traceback" not in result.err
    if result.code == 0:
        assert result.out.strip()
        if as_json:
            assert json.loads(result.out)["schema"] == "autotune-plan/plan@1"
    elif as_json:
        error = json.loads(result.out)
        assert error["message"].strip()
        assert error["hint"].strip()
    else:
        assert result.err.startswith("error: ")
        assert result.err.partition("\n  try: ")[2].strip()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(content=PLAUSIBLE, as_json=st.booleans(), explain=st.booleans())
def test_a_plausible_deployment(path, content, as_json, explain):
    options = [*(["--json"] if as_json else []), *(["--explain"] if explain else [])]
    plans_or_says_why(computed(path, content, *options), as_json=as_json)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(content=hostile(), as_json=st.booleans())
def test_a_hostile_deployment(path, content, as_json):
    plans_or_says_why(computed(path, content, *(["--json"] if as_json else [])), as_json=as_json)


def words_of(flag):
    """Words that may follow a flag: right ones of its type, and others."""
    kind = FLAGS[flag]["type"]
    right = {
        "bool": st.just([]),
        "switch": st.just([]),
        "int": some(-1, 0, 1, 2, 4, 8, 4096, 2**31, 10**30).map(lambda value: [str(value)]),
        "size": some("-1", "0", "7", "4k", "1.5M", "16Ki", "0.5Ki", "8192").map(lambda value: [value]),
        "float": some("0", "0.5", "-1", "nan", "inf", "1e400").map(lambda value: [value]),
        "str": st.text(max_size=4).map(lambda value: [value]),
        "json": some("{}", "[]", "1", "null", "{", '{"decode": {"bs": [1]}}', '{"decode": 1}', "NaN").map(
            lambda v: [v]
        ),
        "ints": st.lists(st.integers(-2, 600).map(str), max_size=4),
        "floats": st.lists(some("0.5", "1", "nan"), max_size=3),
        "strs": st.lists(st.text(max_size=4), max_size=3),
    }[kind]
    known = FLAGS[flag].get("choices")
    usual = st.sampled_from(known).map(lambda value: [str(value)]) if known else right
    return st.one_of(usual, usual, usual, st.lists(st.text(max_size=4), max_size=2))


@st.composite
def lines(draw):
    """Words of a launch line: plausible fields as flags, then any flags of the server."""
    words = ["--model-path", draw(MODELS.map(hf_id) | st.text(max_size=6))]
    important = [flag for flag in ENGINE["field_flags"].values() if flag != "model_path"]
    for _ in range(draw(st.integers(0, 6))):
        flag = draw(st.sampled_from(important) | st.sampled_from(sorted(FLAGS)))
        words += ["--" + flag.replace("_", "-"), *draw(words_of(flag))]
    return words


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(gpu=GPUS, words=lines(), as_json=st.booleans())
def test_any_launch_line(gpu, words, as_json):
    result = call("compute", "--gpu", gpu, *(["--json"] if as_json else []), "--", *words)
    plans_or_says_why(result, as_json=as_json)


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ("--tp-size 0", "--tp-size"),
        ("--ep-size 0", "--ep-size"),
        ("--pp-size -1", "--pp-size"),
        ("--dp-size 0", "--dp-size"),
        ("--nnodes 0", "--nnodes"),
        ("--attn-cp-size 0", "--attn-cp-size"),
        ("--context-length -5", "--context-length"),
        ("--tp-size 2147483647", "--tp-size"),
        ("--chunked-prefill-size 1000000000000000000000000000000", "--chunked-prefill-size"),
        ("--cuda-graph-max-bs-decode 2147483647", "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-config []", "--cuda-graph-config"),
        ('--cuda-graph-config {"decode":1}', "--cuda-graph-config"),
        ('--cuda-graph-config {"draft":{}}', "--cuda-graph-config"),
        ('--cuda-graph-config {"decode":{"bs":[]}}', "--cuda-graph-config"),
        ('--cuda-graph-config {"decode":{"max_bs":"8"}}', "--cuda-graph-config"),
        ('--cuda-graph-config {"prefill":{"backend":"tc_piecewise"}}', "--cuda-graph-config"),
    ],
)
def test_sizes_that_no_server_has(flags, where):
    result = call("compute", "--gpu", "H200", "--json", "--", "--model-path", "Qwen/Qwen3-30B-A3B", *flags.split())
    plans_or_says_why(result, as_json=True)
    assert (result.code, json.loads(result.out)["where"]) == (3, where)


def test_a_prefill_budget_below_nothing_plans():
    """--max-prefill-tokens is never validated, and is the budget where chunked prefill is off."""
    line = "--model-path Qwen/Qwen3-30B-A3B --moe-runner-backend flashinfer_cutlass --chunked-prefill-size -1"
    result = call("compute", "--gpu", "H200", "--json", "--", *line.split(), "--max-prefill-tokens", "-7")
    assert json.loads(result.out)["resolved"]["autotune_extend_ceiling"] == -7


def test_room_for_no_request(path):
    """tp_worker.TpModelWorker asserts a pool of one request: half of one KV token is none."""
    result = computed(path, {"gpu": "H200", "model": "qwen3-30b-a3b", "kv_token_capacity": 1}, "--json")
    assert (result.code, json.loads(result.out)["where"]) == (3, f"{path}:3")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"vocab_size": "151936"},
        {"num_attention_heads": [32]},
        {"num_attention_heads": 10**6, "head_dim": None},
        {"rope_scaling": 2},
        {"rope_scaling": {"factor": "x"}},
        {"max_position_embeddings": 10**300},
    ],
)
def test_a_damaged_configuration_is_named(path, change):
    config = {**profile_model("qwen3-30b-a3b").config, **change}
    result = computed(path, {"gpu": "H200", "model": config, "model_path": "/models/x"}, "--json")
    plans_or_says_why(result, as_json=True)
    assert result.code == 3
    assert next(iter(change)) in json.loads(result.out)["message"]


# What must grow together. Every pair differs in one field and both are accepted.

CHANGED = st.fixed_dictionaries(
    {"gpu": GPUS, "model": MODELS, "moe": section(runner_backend=some("auto", "triton", "flashinfer_cutlass"))},
    optional={
        "prefill": section(
            chunked_prefill_size=some(2048, 4096, 8192, 10000, 16384, 32768),
            max_prefill_tokens=some(1024, 16384, 32768),
            dynamic_chunking=st.booleans(),
        ),
        "parallel": section(
            tp=some(2, 4, 8), dp=some(1, 2, 4, 8), dp_attention=st.booleans(), ep=some(1, 2), pp=some(1, 2)
        ),
        "decode": section(
            max_running_requests=some(1, 13, 250, 2048, 8192), cuda_graph_max_bs_decode=some(8, 100, 512)
        ),
        "disaggregation": some("prefill", "decode"),
        "speculative": section(algorithm=some("EAGLE", "NGRAM")),
        "kv_token_capacity": some(5000, 100_000, 1_000_000),
    },
)


def pair(path, content, field, small, large):
    """Documents of two deployments that differ in one field; the example is dropped unless both are accepted."""
    documents = []
    for value in (small, large):
        section_name, _, key = field.partition(".")
        changed = {**content, section_name: {**content.get(section_name, {}), key: value} if key else value}
        result = computed(path, changed, "--json")
        assume(result.code == 0)
        documents.append(json.loads(result.out))
    return documents


def ordered(values):
    return st.tuples(values, values).map(sorted)


orders = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@orders
@given(content=CHANGED, chunks=ordered(st.integers(64, 200_000)))
def test_a_larger_chunk_never_gives_a_smaller_extend_budget(path, content, chunks):
    """(a), (c), (g): the chunk is floored by the attention-DP ranks, and packing rounds up to whole requests."""
    small, large = pair(path, content, "prefill.chunked_prefill_size", *chunks)
    assume(small["resolved"]["chunked_prefill_size"] > 0)
    for name in ("chunked_prefill_size", "max_prefill_buffer_tokens", "autotune_extend_ceiling"):
        assert small["resolved"][name] <= large["resolved"][name]
    shapes = [document["runtime"]["extend_pass_if_enabled"] for document in (small, large)]
    if shapes[0] is not None:
        tokens = [shape["max_bs"] * shape["num_tokens_per_req"] for shape in shapes]
        assert tokens[0] <= tokens[1]
    # The memory fraction shrinks with the chunk, whose activations it leaves room for.
    assert small["resolved"]["mem_fraction_static"] >= large["resolved"]["mem_fraction_static"]


@orders
@given(content=CHANGED, requests=ordered(st.integers(1, 100_000)))
def test_more_running_requests_never_give_fewer_decode_tokens(path, content, requests):
    """(e), (f): floored by the ranks, capped by half the KV tokens, rounded up to the attention-TP ranks."""
    small, large = pair(path, content, "decode.max_running_requests", *requests)
    for name in ("max_running_requests_per_dp_worker", "eager_max_bs", "decode_autotune_tokens"):
        assert small["runtime"][name] <= large["runtime"][name]
    assert small["buffers"]["gpu_bytes"] <= large["buffers"]["gpu_bytes"]


@orders
@given(content=CHANGED, capacities=ordered(st.integers(2, 4_000_000)))
def test_more_kv_tokens_never_give_fewer_requests(path, content, capacities):
    """(f)"""
    small, large = pair(path, content, "kv_token_capacity", *capacities)
    for name in ("max_running_requests_per_dp_worker", "decode_autotune_tokens"):
        assert small["runtime"][name] <= large["runtime"][name]


@orders
@given(content=CHANGED, sizes=ordered(st.integers(1, 2000)))
def test_larger_decode_graphs_never_leave_out_sizes(path, content, sizes):
    """(d): every size of the smaller list but its own end is in the larger one."""
    small, large = pair(path, content, "decode.cuda_graph_max_bs_decode", *sizes)
    lists = [document["resolved"]["cuda_graph_decode"]["bs"] for document in (small, large)]
    assert set(lists[0][:-1]) <= set(lists[1])
    assert lists[0][-1] <= lists[1][-1] == large["resolved"]["cuda_graph_decode"]["max_bs"]
    assert small["resolved"]["mem_fraction_static"] >= large["resolved"]["mem_fraction_static"]


@orders
@given(content=CHANGED, ranks=ordered(some(1, 2, 4, 8, 16)))
def test_more_tensor_ranks_never_give_a_rank_more_of_an_expert(path, content, ranks):
    """The intermediate size of one rank is that of the model over moe_tp = tp // ep."""
    small, large = pair(path, content, "parallel.tp", *ranks)
    assert small["resolved"]["moe_tp_size"] <= large["resolved"]["moe_tp_size"]
    assert small["resolved"]["attn_tp_size"] <= large["resolved"]["attn_tp_size"]
    assert len(small["cache_files"]) <= len(large["cache_files"])


@orders
@given(content=CHANGED, ranks=ordered(some(1, 2, 4, 8)))
def test_more_attention_dp_ranks_never_give_a_rank_a_larger_chunk(path, content, ranks):
    """(a): a floor division of what the operator passes."""
    parallel = {**content.get("parallel", {}), "tp": 8, "dp_attention": True}
    small, large = pair(path, {**content, "parallel": parallel}, "parallel.dp", *ranks)
    assert small["resolved"]["chunked_prefill_size"] >= large["resolved"]["chunked_prefill_size"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(content=PLAUSIBLE)
def test_the_same_deployment_gives_the_same_plan(path, content):
    first = computed(path, content, "--json")
    assert first == computed(path, content, "--json")


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(content=PLAUSIBLE)
def test_a_launch_line_plans_what_the_fields_plan(path, content):
    """The same arguments as flags after ``--``, the environment in front."""
    content = {name: value for name, value in content.items() if name not in ("traffic", "autotune", "flags")}
    by_file = computed(path, content, "--json")
    capacity = ["--kv-token-capacity", content["kv_token_capacity"]] if "kv_token_capacity" in content else []
    by_line = call("compute", "--gpu", content["gpu"], *capacity, "--json", "--", *line_of(content))
    assert by_file.code == by_line.code
    if by_file.code == 0:
        file, line = json.loads(by_file.out), json.loads(by_line.out)
        for part in ("resolved", "runtime", "passes", "buffers", "ops", "cache_files", "workspaces"):
            assert file[part] == line[part]


def line_of(content):
    words = [f"{name}={value}" for name, value in content.get("env", {}).items()]
    words += ["sglang", "serve", "--model-path", hf_id(content["model"])]
    for field, flag in ENGINE["field_flags"].items():
        section_name, _, key = field.partition(".")
        value = content.get(section_name)
        value = value.get(key) if key and value is not None else value
        option = "--" + flag.replace("_", "-")
        if field == "model_path" or value is None or value is False:
            continue
        if value is True:
            words.append(option)
        else:
            words += [option, *map(str, value if isinstance(value, list) else [value])]
    return words
