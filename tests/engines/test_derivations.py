"""``--explain``: a chain for each number, ending in the server's own number, and made of numbers that give it."""

from dataclasses import asdict, fields

import pytest

from autotune_planner.deployment.load import deployment_from
from autotune_planner.engines import resolve
from autotune_planner.engines.resolved import Arguments
from tests.engines.parity import accepted
from tests.engines.truth import deployment_of, rows

RULE_OR_ORIGIN = ("flag", "default", "env", "nvidia-smi", "kv_token_capacity", "")


def numbers(values, prefix):
    """Every integer, float and list of integers of ``resolved`` or ``runtime``, by its JSON name."""
    for name, value in values.items():
        if isinstance(value, dict) and "len" not in value:
            yield from numbers(value, f"{prefix}.{name}")
        elif value is not None and not isinstance(value, (bool, str)):
            yield f"{prefix}.{name}", value


def listed(value):
    if isinstance(value, dict) and value["len"] <= 8:  # the truth has {len, first 5, last 3} of a list
        return listed([*value["first"], *value["last"][len(value["last"]) - max(value["len"] - 5, 0) :]])
    if isinstance(value, dict):
        ends = (*map(str, value["first"][:4]), "..", *map(str, value["last"][-2:]))
        return f"{', '.join(ends)} ({value['len']} sizes)"
    if not isinstance(value, (list, tuple)):
        return str(value)
    if not value:
        return "no sizes"
    if len(value) <= 8:
        return ", ".join(map(str, value))
    return ", ".join((*map(str, value[:4]), "..", *map(str, value[-2:]))) + f" ({len(value)} sizes)"


@pytest.mark.parametrize("found", [found for found in rows() if accepted(found)], ids=lambda found: found["id"])
def test_each_number_of_the_server_has_a_chain_that_ends_in_it(found):
    """The values come from the truth, not from the resolved deployment."""
    theirs, runtime = found["resolved"], found["resolved"]["runtime"]
    capacity = runtime["assumed_token_capacity"]
    chains = {d.field: d for d in resolve(deployment_of(found, capacity)).derivations}
    for name, value in numbers({f.name: theirs.get(f.name) for f in fields(Arguments)}, "resolved"):
        assert chains[name].value == listed(value), name
    for name in ("max_running_requests_per_dp_worker", "eager_max_bs", "cuda_graph_bs_alignment"):
        assert chains[f"runtime.{name}"].value == str(runtime[name])


@pytest.mark.parametrize("found", [found for found in rows() if accepted(found)][::5], ids=lambda found: found["id"])
def test_no_number_is_left_out(found):
    resolved = resolve(deployment_of(found, 1_000_000))
    chains = {d.field: d for d in resolved.derivations}
    for name, value in (
        *numbers(asdict(resolved.arguments), "resolved"),
        *numbers(asdict(resolved.runtime), "runtime"),
    ):
        assert chains[name].value == listed(value), name
    for chain in chains.values():
        assert chain.steps
        for text, source in chain.steps:
            assert text
            assert source in RULE_OR_ORIGIN or source.startswith("assumed") or "_" in source or "." in source


def chain_of(field, **content):
    resolved = resolve(deployment_from({"gpu": "H200", "model": "qwen3-30b-a3b", **content}))
    found = next(d for d in resolved.derivations if d.field == field)
    return [*(f"{text} ({source})" if source else text for text, source in found.steps), f"{found.label} {found.value}"]


def test_the_chain_of_the_extend_budget():
    """The example of the requirement, word by word: 32768 / 4 = 8192."""
    assert chain_of(
        "resolved.autotune_extend_ceiling",
        parallel={"tp": 4, "dp": 4, "dp_attention": True},
        prefill={"chunked_prefill_size": 32768},
    ) == [
        "--chunked-prefill-size 32768 (flag)",
        "/ attn_dp 4 (parallel_hook.handle_data_parallelism)",
        "8192",
        "max_prefill_buffer_tokens (runtime_context)",
        "EXTEND budget 8192",
    ]


def test_chunked_prefill_off():
    chain = chain_of(
        "resolved.autotune_extend_ceiling", prefill={"chunked_prefill_size": -1, "max_prefill_tokens": 20000}
    )
    assert chain[-3:] == [
        "--max-prefill-tokens 20000 (flag)",
        "stands in (flashinfer_autotune.maybe_flashinfer_autotune_extend)",
        "EXTEND budget 20000",
    ]


def test_the_memory_fraction_adds_up():
    """H200: 143771 MiB; 512 + 1.5 x 8192 + 1/8 x 1024 = 12928, and with the graphs 13000 and more: above 10240."""
    chain = chain_of("resolved.mem_fraction_static")
    reserve = float(chain[1].split()[1])
    terms = [float(part.split()[0]) for part in chain[1].partition("= ")[2].split(" + ")]
    assert sum(terms) == reserve
    assert terms[:3] == [512, 1.5 * 8192, 128]
    assert float(chain[-1]) == round((143771 - reserve) / 143771, 3)


def test_the_requests_of_a_speculative_server():
    chain = chain_of(
        "runtime.max_running_requests_per_dp_worker",
        parallel={"tp": 4, "dp": 4, "dp_attention": True},
        speculative={"algorithm": "EAGLE"},
    )
    assert chain[:2] == [
        "48 for the whole server under speculation (speculative_hook)",
        "/ attn_dp 4 (kv_cache_configurator.resolve_max_num_reqs)",
    ]
    assert chain[-1].strip() == "12"
