"""Data sheets of GPUs that serve language models: memory, bandwidth, dense bf16 throughput. Facts, one card a row.

Memory is what the driver reports, in GiB. Throughput is dense (no sparsity), bf16 with fp32 accumulation; on cards
without bf16, fp16. `kernels` is the name under which `aiconfigurator-core` holds measured kernels of the card.

Sources: the makers' data sheets and architecture white papers: NVIDIA A100 (2021), A10/A30/A40 (2021), L4 and L40S
(2023), H100 and H100 NVL (2023), H200 (2024), GB200 NVL72 (2024), DGX B200 and B300 (2025), RTX PRO 6000 Blackwell
(2025), Ampere GA102, Ada AD102 and Blackwell GB202 white papers, DGX Spark (2025); AMD MI300X (2023), MI325X (2024),
MI355X (2025). H20 as published by resellers: NVIDIA has no public sheet.
"""

from __future__ import annotations

from typing import NamedTuple


class DataSheet(NamedTuple):
    """One card.

    Attributes:
        name: as people write it.
        words: words that all stand in its names, in lower case; a name with more words of a row is that row's.
        memory_gib: as the driver reports it, GiB.
        bandwidth_gb_s: of its memory, GB/s.
        bf16_tflops: dense, TFLOP/s.
        capability: CUDA compute capability, major and minor in one number; 0 for other makers.
        kernels: the system of measured kernels; None where there is none.
        link_gb_s: of one card to the others, one way, GB/s: NVLink, Infinity Fabric, or else PCIe.
    """

    name: str
    words: tuple[str, ...]
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    capability: int
    kernels: str | None = None
    link_gb_s: float = 32


DATA_SHEETS: tuple[DataSheet, ...] = (
    DataSheet("H100", ("h100",), 79.6, 3350, 989.4, 90, "h100_sxm", link_gb_s=450),
    DataSheet("H100-PCIe", ("h100", "pcie"), 79.6, 2000, 756.5, 90, "h100_pcie", link_gb_s=64),
    DataSheet("H100-NVL", ("h100", "nvl"), 93.6, 3900, 835.5, 90, link_gb_s=300),
    DataSheet("H200", ("h200",), 140.4, 4800, 989.4, 90, "h200_sxm", link_gb_s=450),
    DataSheet("H200-NVL", ("h200", "nvl"), 140.4, 4800, 835.5, 90, link_gb_s=450),
    DataSheet("H800", ("h800",), 79.6, 3350, 989.4, 90, link_gb_s=200),
    DataSheet("H20", ("h20",), 95.6, 4000, 148, 90, link_gb_s=450),
    DataSheet("GH200", ("gh200",), 95.6, 4000, 989.4, 90, link_gb_s=450),
    DataSheet("B200", ("b200",), 178.4, 7700, 2250, 100, "b200_sxm", link_gb_s=900),
    DataSheet("GB200", ("gb200",), 185.0, 8000, 2500, 100, "gb200", link_gb_s=900),
    DataSheet("B300", ("b300",), 268.6, 7750, 2250, 103, "b300_sxm", link_gb_s=900),
    DataSheet("GB300", ("gb300",), 277.5, 8000, 2500, 103, "gb300", link_gb_s=900),
    DataSheet("A100-40GB", ("a100", "40gb"), 39.4, 1555, 312, 80, link_gb_s=300),
    DataSheet("A100-80GB", ("a100",), 79.3, 2039, 312, 80, "a100_sxm", link_gb_s=300),
    DataSheet("A100-80GB-PCIe", ("a100", "pcie"), 79.3, 1935, 312, 80, "a100_pcie"),
    DataSheet("A100-40GB-PCIe", ("a100", "40gb", "pcie"), 39.4, 1555, 312, 80),
    DataSheet("A30", ("a30",), 24.0, 933, 165, 80, "a30"),
    DataSheet("A10", ("a10",), 22.5, 600, 125, 86),
    DataSheet("A10G", ("a10g",), 22.5, 600, 70, 86),
    DataSheet("A40", ("a40",), 44.9, 696, 149.7, 86),
    DataSheet("RTX-A6000", ("a6000",), 47.5, 768, 154.8, 86),
    DataSheet("RTX-3090", ("3090",), 24.0, 936, 71, 86),
    DataSheet("L40S", ("l40s",), 45.0, 864, 362.05, 89, "l40s"),
    DataSheet("L20", ("l20",), 45.0, 864, 119.5, 89),
    DataSheet("L40", ("l40",), 45.0, 864, 181.05, 89),
    DataSheet("L4", ("l4",), 22.5, 300, 121, 89, "l4"),
    DataSheet("RTX-6000-Ada", ("6000", "ada"), 47.9, 960, 364.2, 89),
    DataSheet("RTX-4090", ("4090",), 24.0, 1008, 165.2, 89),
    DataSheet("RTX-PRO-6000", ("pro", "6000"), 95.6, 1792, 467.8, 120, "rtx_pro_6000_server", link_gb_s=64),
    DataSheet("RTX-5090", ("5090",), 31.8, 1792, 209.5, 120, link_gb_s=64),
    DataSheet("GB10", ("gb10",), 119.7, 273, 125, 121),
    DataSheet("V100", ("v100",), 31.7, 900, 125, 70, link_gb_s=150),
    DataSheet("T4", ("t4",), 14.6, 320, 65, 75, link_gb_s=16),
    DataSheet("MI300X", ("mi300x",), 192.0, 5300, 1307.4, 0, link_gb_s=448),
    DataSheet("MI325X", ("mi325x",), 256.0, 6000, 1307.4, 0, link_gb_s=448),
    DataSheet("MI355X", ("mi355x",), 288.0, 8000, 2516.6, 0, link_gb_s=538),
)
