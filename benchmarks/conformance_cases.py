"""Random conformance cases for one vLLM release: inputs alone, for whatever drives an unmodified engine.

    python benchmarks/conformance_cases.py --release 0.33.0 --seed 1 --cases 1000 > cases.json

Writes a `prefix-hits/1` document whose cases hold settings and requests. With what the engine did added to them,
`kvtune conform` compares every field. Kinds of cases: full attention, hybrids, three kinds of groups, uneven blocks,
sliding windows, chunked local attention, rings, big odd blocks; drafters of each method; state exports; small pools;
concurrent arrivals; async scheduling; retention; match units. README.md says how many agreed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from typing import Any

SIZES = (1, 2, 3, 8, 16, 17, 32, 33, 48, 64, 96, 100, 128, 272, 528, 784, 1056)
ACCELERATED = (8, 16, 24, 50, 64)
METHODS = ("eagle", "mtp", "mtp", "draft_model", "dflash")


def release_of(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


class CaseMaker:
    """Cases of one release, the same for the same seed."""

    def __init__(self, release: str, seed: int) -> None:
        self.release = release_of(release)
        self.random = random.Random(f"{release} {seed}")
        self.seed = seed

    def case(self, number: int) -> dict[str, Any]:
        choose = self.random
        groups = self._groups()
        mambas = [group for group in groups if group["type"] == "mamba"]
        sizes = [group["block_size"] for group in groups if group["type"] != "ring"]
        block, whole = min(sizes), math.lcm(*sizes)
        longest = min(6 * whole, 4_000)
        concurrent = choose.random() < 0.3
        requests = self._requests(block, longest, concurrent)
        most = max(sum(part[2] for part in request["prompt"] + request["output"]) for request in requests)
        budget = choose.choice([8192, 300, 100, 2 * block + 1, block, block + 7])
        if self.release < (0, 28) and mambas:
            budget = max(budget, block)
        config: dict[str, Any] = {
            "groups": groups,
            "prefix_match_unit": self._unit(sizes),
            "num_blocks": self._pool(groups, most),
            "max_num_batched_tokens": max(8, budget),
            "prefix_cache_retention_interval": self._retention(whole),
        }
        if choose.random() < 0.2:
            config["max_num_seqs"] = choose.choice([1, 2, 4])
        if choose.random() < 0.15:
            config["long_prefill_token_threshold"] = choose.choice([64, 200, 1000])
        if concurrent and choose.random() < 0.5:
            config["scheduler"] = "async"
        if choose.random() < 0.35:
            self._draft(config)
        elif mambas and self.release >= (0, 29) and choose.random() < 0.25:
            alignment = choose.choice(ACCELERATED)
            for group in mambas:
                group["checkpoint_alignment"] = alignment
        return {
            "name": f"own-{self.seed}-{number}",
            "mode": "concurrent" if concurrent else "sequential",
            "config": config,
            "requests": requests,
        }

    def _groups(self) -> list[dict[str, Any]]:
        choose = self.random
        size = choose.choice(SIZES[3:])
        small = choose.choice((4, 8, 16))
        full = {"type": "full", "block_size": size}
        mamba = {"type": "mamba", "block_size": size}
        window = {
            "type": "sliding_window",
            "block_size": size,
            "sliding_window": choose.choice((8, 33, 100, 400)),
        }
        kind = choose.choice(
            ("full", "hybrid", "hybrid", "hybrid", "window", "three", "uneven", "mamba", "chunked")
        )
        if kind == "chunked":
            chunked = {"type": "chunked_local", "block_size": 16, "sliding_window": choose.choice((64, 128))}
            return [chunked, {"type": "full", "block_size": 16}]
        if kind == "uneven":
            factor = choose.choice((2, 4))
            return [mamba | {"block_size": small * factor}, {"type": "full", "block_size": small}]
        groups = {
            "full": [full],
            "hybrid": [dict(mamba) for _ in range(choose.choice((1, 2, 3)))] + [full],
            "window": [window, full],
            "three": [mamba, window, full],
            "mamba": [mamba],
        }[kind]
        if choose.random() < 0.5:
            choose.shuffle(groups)
        return groups

    def _unit(self, sizes: list[int]) -> int | None:
        common = math.gcd(*sizes)
        divisors = [unit for unit in range(1, common + 1) if common % unit == 0]
        return None if self.random.random() < 0.3 or len(divisors) < 2 else self.random.choice(divisors)

    def _retention(self, whole: int) -> int | None:
        if self.random.random() < 0.6:
            return 0 if self.release >= (0, 29) else None
        return self.random.choice([None, 0, whole, 2 * whole])

    def _pool(self, groups: list[dict[str, Any]], longest: int) -> int:
        if self.random.random() < 0.6:
            return 8_000
        blocks = sum(-(-longest // group["block_size"]) for group in groups if group["type"] != "mamba")
        states = sum(3 for group in groups if group["type"] == "mamba")
        return int((blocks + states) * self.random.choice((1.0, 1.1, 1.5, 2.5))) + 4

    def _draft(self, config: dict[str, Any]) -> None:
        choose = self.random
        drafts = choose.choice((1, 2, 4))
        method = choose.choice(METHODS)
        config["eagle"] = {
            "method": method,
            "num_speculative_tokens": drafts,
            "accept": choose.randint(0, drafts),
        }
        if method == "mtp" and self.release >= (0, 33) and drafts > 1 and choose.random() < 0.4:
            config["eagle"]["modules"] = drafts
        attention = [group for group in config["groups"] if group["type"] != "mamba"] or config["groups"]
        choose.choice(attention)["eagle"] = True

    def _requests(self, block: int, longest: int, concurrent: bool) -> list[dict[str, Any]]:
        """Prompts that begin like earlier ones: the same again, cut, continued with the answer, or new."""
        choose = self.random
        requests: list[dict[str, Any]] = []
        seed, arrive = 0, 0
        for _ in range(choose.randint(4, 14)):
            prompt: list[list[Any]] = []
            if requests and choose.random() < 0.85:
                earlier = choose.choice(requests)
                prompt = [list(part) for part in earlier["prompt"]]
                way = choose.random()
                if way < 0.35:
                    prompt += [list(part) for part in earlier["output"]]
                elif way < 0.7:
                    prompt[-1][2] = choose.randint(1, prompt[-1][2])
            if not prompt or choose.random() < 0.8:
                seed += 1
                length = choose.choice(
                    [block, block + 1, block - 1, choose.randint(1, longest), 2 * block, 7]
                )
                prompt.append(["seg", seed, max(1, length)])
            seed += 1
            request: dict[str, Any] = {
                "prompt": prompt,
                "output": [["seg", seed, choose.choice((1, 1, 2, 9, choose.randint(1, 2 * block)))]],
            }
            if choose.random() < 0.08:
                request["salt"] = "s"
            if choose.random() < 0.08:
                request["lora"] = "x"
            if concurrent:
                arrive += choose.choice((0, 0, 1, 3, 30))
                request["arrive"] = arrive
            requests.append(request)
        return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    asked = parser.parse_args()
    maker = CaseMaker(asked.release, asked.seed)
    cases = [maker.case(number) for number in range(asked.cases)]
    document = {
        "format": "prefix-hits/1",
        "vllm_version": asked.release,
        "about": "random cases",
        "cases": cases,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
