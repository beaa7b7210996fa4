"""Query tiles of ragged EXTEND attention, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from autotune_planner.plan.tiles import Admission, Tiles

_TITLE = "Query tiles of EXTEND attention (per head)"


def tiles_view(tiles: Tiles) -> Table:
    """Both grids, what is saved, whether the compact grid is launched and why, and what a budget admits."""
    table = Table(
        title=_TITLE, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("traffic")
    table.add_column("value", overflow="fold")
    for name, value in _rows(tiles):
        table.add_row(name, value)
    return table


def _rows(tiles: Tiles) -> Iterator[tuple[str, str]]:
    batches = "1 batch" if tiles.batches == 1 else f"{tiles.batches} batches"
    yield (
        "sample",
        f"{tiles.source}: {tiles.request_count} requests in {batches}, {tiles.sum_extend_len} tokens, "
        f"longest {tiles.max_extend_len}",
    )
    yield "BLOCK_M (query / value head dim)", _block_m(tiles)
    yield "legacy (rectangular) tiles", str(tiles.legacy_q_tiles_per_head)
    yield "compact tiles", str(tiles.compact_q_tiles_per_head)
    yield "saved", _saved(tiles)
    yield "compact grid", f"{'yes' if tiles.compact_grid.applies else 'no'}: {tiles.compact_grid.reason}"
    if tiles.launched_q_tiles_per_head is not None:
        yield "launched here", str(tiles.launched_q_tiles_per_head)
    yield from _admission(tiles.admission, tiles.request_count)
    if tiles.verify_split_kv_refused is not None:
        yield "split-KV verification", f"refused: {tiles.verify_split_kv_refused}"


def _block_m(tiles: Tiles) -> str:
    plain = f"{tiles.block_m} ({tiles.q_head_dim} / {tiles.v_head_dim})"
    dims = (tiles.q_head_dim_after_prefix, tiles.v_head_dim_after_prefix)
    if dims == (tiles.q_head_dim, tiles.v_head_dim):
        return plain
    return f"{plain}; {tiles.block_m_after_prefix} ({dims[0]} / {dims[1]}) after a cached prefix or in a prefill graph"


def _saved(tiles: Tiles) -> str:
    ratio = tiles.saved_q_tile_ratio
    if ratio is None:
        return str(tiles.saved_q_tiles_per_head)
    mean = tiles.mean_saved_q_tile_ratio
    per_batch = "" if tiles.batches == 1 or mean is None else f", {mean:.1%} of a batch on average"
    return f"{tiles.saved_q_tiles_per_head} ({ratio:.1%}{per_batch})"


def _admission(admission: Admission, requests: int) -> Iterator[tuple[str, str]]:
    if admission.budget <= 0:
        yield "tile budget", f"off: {admission.reason}"
        return
    state = "enforced" if admission.active else "not enforced"
    size = f"{admission.budget} tiles at BLOCK_M {admission.block_m}, {admission.mode} mode"
    yield "tile budget", f"{size}; {state}: {admission.reason}"
    yield (
        "requests it admits",
        f"{admission.compact_requests} of {requests} by compact tiles, {admission.legacy_requests} by legacy tiles",
    )
    ruled = admission.compact_requests if admission.mode == "compact" else admission.legacy_requests
    if admission.active and admission.release_requests != ruled:
        yield "requests this release admits", f"{admission.release_requests} of {requests}"
