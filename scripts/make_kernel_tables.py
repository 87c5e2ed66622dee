"""Write src/moescale/catalogue/kernels: the part of NVIDIA's measured kernel tables that the default engine is priced with.

    pip install '.[kernels]'
    python scripts/make_kernel_tables.py

Reads the installed package aiconfigurator-core (Apache-2.0). Rows and columns that no prediction reads are left out; what stays
keeps its digits (tests/unit/test_kernel_tables.py compares every table). One archive a system, SYSTEM.npz, whose members
moescale.latency.kernels.tables reads; index.json says where each table came from, and its SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from moescale.latency import experts, latent, linear, messages
from moescale.latency.attention import COLUMNS as ATTENTION
from moescale.latency.card import ENGINE
from moescale.latency.kernels import moe
from moescale.latency.kernels.formats import BF16, EXPERTS_OF, KINDS, SHARED_EXPERT_KERNELS
from moescale.latency.kernels.moe import LOAD
from moescale.latency.kernels.tables import FOLDER, INDEX, System, find_installed, root, stand_ins, version_key

TARGET = Path(__file__).parents[1] / "src" / "moescale" / "catalogue" / FOLDER
Rows = dict[str, npt.NDArray[Any]]
FAMILIES = ("gemm", "attention", "moe")  # what every engine must have tables of, to be priced


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where the package was built with it
    return cast("dict[str, Any]", yaml.load(path.read_text(encoding="utf-8"), Loader=loader))


@cache
def systems() -> tuple[str, ...]:
    """Systems with kernel tables, such as h100_sxm."""
    data = root() / "data"
    return tuple(sorted(path.name for path in data.iterdir() if (path / "gemm").is_dir()))


@cache
def find_system(name: str) -> System:
    """The system called `name`."""
    specification = _yaml(root() / f"{name}.yaml")
    gpu = specification["gpu"]
    fp8, fp4 = gpu.get("fp8_tc_flops"), gpu.get("fp4_tc_flops")
    return System(
        name=name,
        memory_bandwidth_bytes_per_s=float(gpu["mem_bw"]),
        bf16_flops_per_s=float(gpu["bfloat16_tc_flops"]),
        fp8_flops_per_s=None if fp8 is None else float(fp8),
        fp4_flops_per_s=None if fp4 is None else float(fp4),
        elementwise_efficiency=float(gpu["mem_bw_empirical_scaling_factor"]),
        elementwise_latency_s=float(gpu["mem_empirical_constant_latency"]),
        link_bytes_per_s=float(specification["node"]["intra_node_bw"]),
    )


@cache
def engines(system: str) -> tuple[str, ...]:
    """Serving engines whose kernels were measured on a system, such as vllm."""
    data = root() / "data" / system
    found = [{path.name for path in (data / family).iterdir()} for family in FAMILIES if (data / family).is_dir()]
    return tuple(sorted(set.intersection(*found))) if len(found) == len(FAMILIES) else ()


def versions(system: str, engine: str) -> tuple[str, ...]:
    """Versions of an engine with tables of every family, oldest first."""
    folders = [root() / "data" / system / family / engine for family in FAMILIES]
    names = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    known = (name for name in names if all(stand_ins(folder, name) for folder in folders))
    return tuple(sorted(known, key=version_key))


def default_version(system: str, engine: str) -> str:
    """The version that the package itself takes."""
    listed = _yaml(root() / "query_versions.yaml")
    entry = listed.get("overrides", {}).get(system, {}).get(engine) or listed["defaults"].get(engine, {})
    current, known = entry.get("current"), versions(system, engine)
    return str(current) if current in known else known[-1]


# Event clocks count in so many milliseconds; a float32 of such counts is divided by the repeats of a measurement. Some tables
# state decimals: 0 stands for no tick, and the count is divided alone.
TICKS_MS = (3.2e-5, 1.6e-5, 1e-6)
DECIMALS = (1e4, 1e6)
REPEATS = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
    10,
    12,
    15,
    16,
    18,
    20,
    24,
    25,
    30,
    32,
    36,
    40,
    45,
    48,
    50,
    60,
    64,
    72,
    75,
    80,
    90,
    100,
)
LEAST_SHARE = 0.005  # of a block's rows that a unit of its own pays for


@dataclass(frozen=True)
class Wanted:
    """What is read of one kind of table."""

    sizes: tuple[str, ...]  # whole numbers
    texts: tuple[str, ...] = ()  # rows are kept in blocks of equal texts
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()  # texts of the rows that are read
    times: tuple[str, ...] = ("latency",)
    whole_prompts: bool = False  # prompts after a cached prefix are left out
    is_part: bool = False  # of what the table's own engine needs


def _kept(rows: Rows, wanted: Wanted) -> npt.NDArray[np.bool_]:
    keep = np.ones(len(rows[wanted.times[0]]), dtype=bool)
    for name, values in wanted.only:
        keep &= np.isin(rows[name].astype(str), values)
    return keep & (rows["step"] == 0) if wanted.whole_prompts else keep


def tables() -> dict[tuple[str, str], Wanted]:
    """What is read, by family and stem."""
    attended = tuple(name for name in ATTENTION if name != "latency")
    modules = tuple(name for name in latent.COLUMNS if name != "latency")
    kinds = tuple(KINDS)
    found: dict[tuple[str, str], Wanted] = {
        ("gemm", "gemm_perf"): Wanted(("m", "n", "k"), ("gemm_dtype",), (("gemm_dtype", kinds),)),
        ("moe", "moe_perf"): Wanted(
            moe.SIZES,
            ("moe_dtype", "distribution", "kernel_source"),
            (("moe_dtype", kinds), ("distribution", (LOAD,))),
        ),
        ("mla_bmm", "mla_bmm_perf"): Wanted(("num_heads", "num_tokens"), ("bmm_dtype", "op_name")),
        ("comm", "custom_allreduce_perf"): Wanted(("num_gpus", "message_size"), ("backend",)),
    }
    for stem in ("computescale_perf", "scale_matrix_perf"):
        found["quantize", stem] = Wanted(("m", "k"), ("quant_dtype",), (("quant_dtype", ("fp8",)),))
    for family, stem in linear.TABLES.values():
        sizes = tuple(name for name in linear.COLUMNS if name != "latency")
        found[family, stem] = Wanted(sizes, ("kernel_source", "phase"))
    for stage in ("context", "generation"):
        prompts = stage == "context"
        found["attention", f"{stage}_attention_perf"] = Wanted(
            attended, ("attn_dtype", "kv_cache_dtype", "kernel_source"), (("attn_dtype", (BF16, "fp8")),)
        )
        formats = ("gemm_type", "kv_cache_dtype")
        found["mla", f"mla_{stage}_module_perf"] = Wanted(modules, formats, whole_prompts=prompts)
        found["mla", f"{stage}_mla_perf"] = Wanted(
            modules, ("mla_dtype", "kv_cache_dtype"), (("mla_dtype", (BF16,)),), whole_prompts=False
        )
        found["sparse_attention", f"dsa_{stage}_module_perf"] = Wanted(
            modules, ("model", *formats), (("model", tuple(latent.SPARSE)),), whole_prompts=prompts
        )
    return found


def shared() -> list[tuple[str, str, str, str, Wanted]]:
    """Tables of libraries and of other engines that stand in: family, engine, version, stem, what is read."""
    halves = (("op_name", ("all_gather", "reduce_scatter")), ("nccl_dtype", ("half",)))
    sizes = ("num_gpus", "message_size")
    found = [("comm", "nccl", messages.NEWEST, "nccl_perf", Wanted(sizes, ("op_name", "nccl_dtype"), halves))]
    sizes = ("node_num", "num_token", "hidden_size", "num_topk", "dispatch_sms")
    for kind, times in (
        ("ll", ("dispatch_avg_t_us", "combine_avg_t_us")),
        ("normal", ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us")),
    ):
        wanted = Wanted(sizes, times=times)
        found.append(("comm", "sglang", messages.DEEPEP_VERSION, f"wideep_deepep_{kind}_perf", wanted))
    only = (("distribution", (experts.BALANCED,)), ("moe_dtype", ("fp8_block",)))
    for stage in ("context", "generation"):
        wanted = Wanted(("moe_ep_size", "num_tokens"), ("distribution", "moe_dtype"), only)
        found.append(("moe", "sglang", experts.EXPERTS_VERSION, f"wideep_{stage}_moe_perf", wanted))
    texts = ("kernel_source", "op_name", "moe_dtype")
    only = (("kernel_source", (messages.NVLINK,)), ("op_name", messages.NVLINK_PARTS))
    wanted = Wanted(("moe_ep_size", "num_tokens"), texts, only)
    return [*found, ("comm", "trtllm", messages.NVLINK_VERSION, "trtllm_alltoall_perf", wanted)]


def of_others(system: str) -> list[tuple[str, str, str, str, Wanted]]:
    """What the default engine's kernels are compared with or answered by: modules that decode, experts of EXPERTS_OF."""
    every = tables()
    found: list[tuple[str, str, str, str, Wanted]] = []
    for other in engines(system):
        if other == ENGINE:
            continue
        release = default_version(system, other)
        for family, stem in (("mla", "mla_generation_module_perf"), ("sparse_attention", "dsa_generation_module_perf")):
            found.append((family, other, release, stem, every[family, stem]))
        kinds = tuple(kind for (engine, kind), lenders in EXPERTS_OF.items() if engine == ENGINE and other in lenders)
        table = find_installed(system, "moe", other, release, "moe_perf")
        if kinds and table is not None:
            names = tuple(name for name in _texts(table.path, "kernel_source") if SHARED_EXPERT_KERNELS in name)
            whole = every["moe", "moe_perf"]
            only = (("moe_dtype", kinds), ("distribution", (LOAD,)), ("kernel_source", names))
            wanted = Wanted(whole.sizes, whole.texts, only, is_part=True)
            found.append(("moe", other, release, "moe_perf", wanted))
    return found


def _read(path: Path, wanted: Wanted) -> Rows:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    have = set(file.schema_arrow.names)
    names = [name for name in (*wanted.texts, *wanted.sizes, *wanted.times) if name in have]
    table = file.read(columns=names)
    return {name: table[name].combine_chunks().to_numpy(zero_copy_only=False) for name in names}


def _texts(path: Path, name: str) -> list[str]:
    from pyarrow.parquet import ParquetFile

    return sorted(ParquetFile(path).read(columns=[name])[name].unique().to_pylist())


def planes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of numbers, all first ones before all second ones, which packs better."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T)


def units_of(times: npt.NDArray[np.float64]) -> tuple[list[list[float]], npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Units (tick in ms, repeats) in which times are whole numbers, the unit of each (0: none), and those numbers.

    float64(float32(number * tick)) / repeats gives a time back to its last bit, and number / repeats where the tick is 0.
    """
    code, count = np.zeros(len(times), np.uint8), np.zeros(len(times), np.uint32)
    tried: list[tuple[float, float, float, npt.NDArray[np.bool_], npt.NDArray[np.float64]]] = []
    asked = [(tick, float(n)) for tick in TICKS_MS for n in REPEATS] + [(0.0, n * d) for d in DECIMALS for n in REPEATS]
    for tick, repeats in asked:
        whole = (times * repeats).astype(np.float32).astype(np.float64) / tick if tick else times * repeats
        number = np.round(whole)
        same = ((number * tick).astype(np.float32).astype(np.float64) if tick else number) / repeats == times
        same &= (number < 2**32) & (number >= 0)
        tried.append((float(-same.mean()), repeats, tick, same, number))
    units: list[list[float]] = []
    for _, repeats, tick, same, number in sorted(tried, key=lambda one: one[:2]):
        new = same & (code == 0)
        if len(units) < 255 and new.mean() >= LEAST_SHARE:
            units.append([tick, repeats])
            code[new], count[new] = len(units), number[new].astype(np.uint32)
    return units, code, count


def pack(path: Path, wanted: Wanted, key: str, members: dict[str, npt.NDArray[Any]]) -> dict[str, Any] | None:
    """The index's entry of one table, and its blocks among `members`; None where no row is read."""
    rows = _read(path, wanted)
    keep = _kept(rows, wanted)
    rows = {name: values[keep] for name, values in rows.items()}
    sizes = [name for name in wanted.sizes if name in rows]
    named = [name for name in wanted.texts if name in rows]
    texts = [rows[name].astype(str) for name in named]
    if not keep.any():
        return None
    combos = sorted(set(zip(*texts, strict=True))) if texts else [()]
    blocks: list[dict[str, Any]] = []
    for i, combo in enumerate(combos):
        own = np.ones(int(keep.sum()), dtype=bool)
        for values, text in zip(texts, combo, strict=True):
            own &= values == text
        columns = [rows[name][own] for name in sizes]
        assert all(np.array_equal(c, c.astype(np.uint32)) for c in columns), (path, sizes)
        order = np.lexsort(columns)  # stable: rows of one place keep their order
        members[f"{key}/{i}/sizes"] = np.stack(columns).astype(np.uint32)[:, order]
        block: dict[str, Any] = {"texts": list(combo), "rows": int(own.sum())}
        for time in wanted.times:
            units, code, count = units_of(rows[time][own][order].astype(np.float64))
            block.setdefault("units", {})[time] = units
            rest = rows[time][own][order].astype(np.float64)[code == 0]
            parts = {"code": code, "count": planes(count[code > 0]), "rest": planes(rest)}
            alike = code.size > 0 and bool(np.all(code == code[0]))
            if alike:
                del parts["code"]
                block.setdefault("code", {})[time] = int(code[0])
            members.update({f"{key}/{i}/{time}/{name}": part for name, part in parts.items() if part.size})
        blocks.append(block)
    part = {"part": True} if wanted.is_part else {}
    return {"sizes": sizes, "texts": named, "blocks": blocks, **part}


def write(path: Path, members: dict[str, npt.NDArray[Any]]) -> None:
    """An .npz of LZMA members, equal bytes for equal members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, values in members.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, values, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_LZMA
            archive.writestr(entry, data.getvalue())


def main() -> None:
    """Write the archives and the index."""
    TARGET.mkdir(exist_ok=True)
    for old in TARGET.glob("*.npz"):
        old.unlink()
    index: dict[str, Any] = {
        "source": f"aiconfigurator-core {version('aiconfigurator-core')}, Apache-2.0, see NOTICE",
        "engine": ENGINE,
        "load": LOAD,
        "systems": {},
    }
    for system in systems():
        current = {engine: default_version(system, engine) for engine in engines(system)}
        release = current[ENGINE]
        asked = [(family, ENGINE, release, stem, wanted) for (family, stem), wanted in tables().items()]
        asked += shared() + of_others(system)
        members: dict[str, npt.NDArray[Any]] = {}
        entries: dict[str, Any] = {}
        for family, engine, wanted_version, stem, wanted in asked:
            table = find_installed(system, family, engine, wanted_version, stem)
            path = None if table is None else table.path
            key = f"{family}/{engine}/{wanted_version}/{stem}"
            entry = None if path is None else pack(path, wanted, key, members)
            if path is not None and entry is not None:
                source = str(path.relative_to(root() / "data").as_posix())
                entries[key] = {"from": source, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **entry}
        write(TARGET / f"{system}.npz", members)
        index["systems"][system] = {
            "specification": asdict(find_system(system)),
            "engines": current,
            "tables": entries,
        }
        print(system, len(entries), f"{(TARGET / f'{system}.npz').stat().st_size:,} bytes", flush=True)
    (TARGET / INDEX).write_text(json.dumps(index, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
