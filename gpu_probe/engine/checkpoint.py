"""A folder's weights under the decoder's own names: which tensors of a checkpoint make up which of ours.

Knows the public names of the families in `model_config`, and how their fused projections are ordered; ours are
stacked as `spec` says. A missing or misshapen tensor is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kvtune.gpu_probe.engine.safetensors_file import SafetensorsFolder
from kvtune.gpu_probe.engine.spec import (
    Attention,
    Block,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    ShortConv,
    mixer_kind,
)
from kvtune.gpu_probe.engine.weights import tensor_specs
from kvtune.tokenization.errors import UnusableInputError

Tensor = torch.Tensor
PREFIXES = ("model.language_model.", "language_model.model.", "model.", "backbone.")


def load_weights(
    folder: Path, spec: ModelSpec, dtype: torch.dtype, state_dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Every tensor of `weights.tensor_specs`, on the device.

    Raises:
        UnusableInputError: a tensor is missing or has another shape; the config asks for what has no effect here.
    """
    if spec.unfaithful:
        raise UnusableInputError(
            f"the bundled engine would not compute this model faithfully: {', '.join(spec.unfaithful)}",
            where=str(folder),
            way_out="use --layers N for synthetic weights",
        )
    source = _Checkpoint(SafetensorsFolder(folder), spec)
    blocks = {block.name: block for block in spec.blocks}
    out = {}
    for tensor in tensor_specs(spec):
        owner, _, part = tensor.name.rpartition(".")
        value = source.block(blocks[owner], part) if owner in blocks else source.outer(tensor.name)
        if tuple(value.shape) != tensor.shape:
            raise UnusableInputError(
                "has another shape than the config says",
                where=str(folder),
                field=tensor.name,
                found=str(tuple(value.shape)),
                wanted=str(tensor.shape),
            )
        if tensor.fill == "norm" and spec.zero_centred_norm:
            value = value.float() + 1
        out[tensor.name] = value.to(device=device, dtype=state_dtype if tensor.wide else dtype)
    return out


class _Checkpoint:
    """Looks tensors up by the names that the family gives them."""

    def __init__(self, files: SafetensorsFolder, spec: ModelSpec) -> None:
        self.files = files
        self.spec = spec
        names = [f"{prefix}{name}.weight" for prefix in PREFIXES for name in ("embed_tokens", "embeddings")]
        found = next((name for name in names if name in files), None)
        if found is None:
            raise UnusableInputError("holds no token embedding", where=str(files.folder), wanted=names[0])
        self.embedding = found
        self.prefix = next(prefix for prefix in PREFIXES if found.startswith(prefix))

    def outer(self, name: str) -> Tensor:
        """The embedding, the final norm or the head."""
        if name == "embedding":
            return self.files.get(self.embedding)
        if name == "head":
            return self.files.get("lm_head.weight")
        return self._first(
            *(
                f"{self.prefix}{norm}.weight"
                for norm in ("norm", "norm_f", "embedding_norm", "final_layernorm")
            )
        )

    def block(self, block: Block, part: str) -> Tensor:
        """One tensor of a block."""
        layer = f"{self.prefix}layers.{block.layer}."
        if part in ("norm", "post_norm"):
            return self._first(*(f"{layer}{name}.weight" for name in self._norms(block, part)))
        operator = block.operator
        if isinstance(operator, Attention):
            return self._attention(layer, operator, part)
        if isinstance(operator, GatedDeltaNet):
            return self._delta_net(f"{layer}linear_attn.", operator, part)
        if isinstance(operator, Mamba2):
            return self._mamba2(self._inside(layer, "mamba.", "mixer."), operator, part)
        if isinstance(operator, ShortConv):
            names = {"in": "in_proj.weight", "conv": "conv.weight", "out": "out_proj.weight"}
            value = self.files.get(f"{layer}conv.{names[part]}")
            return value[:, 0] if part == "conv" else value
        if isinstance(operator, Mlp):
            return self._mlp(layer, operator, part)
        return self._moe(layer, operator, part)

    def _norms(self, block: Block, part: str) -> Sequence[str]:
        mixes = mixer_kind(block.operator) is not None
        if block.post_norm:
            names = {
                (True, "norm"): "input_layernorm",
                (True, "post_norm"): "post_attention_layernorm",
                (False, "norm"): "pre_feedforward_layernorm",
                (False, "post_norm"): "post_feedforward_layernorm",
            }
            return (names[mixes, part],)
        if mixes:
            return ("input_layernorm", "operator_norm", "norm")
        return ("pre_ff_layernorm", "ffn_norm", "post_attention_layernorm", "norm")

    def _attention(self, layer: str, op: Attention, part: str) -> Tensor:
        inside = self._inside(layer, "self_attn.", "mixer.")
        if part == "out":
            return self._first(f"{inside}o_proj.weight", f"{inside}out_proj.weight")
        if part in ("query_norm", "key_norm"):
            letter = part[0]
            return self._first(f"{inside}{letter}_norm.weight", f"{inside}{letter}_layernorm.weight")
        kind = "bias" if part == "in_bias" else "weight"
        query, key, value = (self.files.get(f"{inside}{letter}_proj.{kind}") for letter in "qkv")
        if not op.output_gate:
            return torch.cat([query, key, value])
        # Each head's rows are its query and then its gate.
        halves = query.unflatten(0, (op.num_heads, 2, op.head_dim))
        return torch.cat([halves[:, 0].flatten(0, 1), key, value, halves[:, 1].flatten(0, 1)])

    def _delta_net(self, inside: str, op: GatedDeltaNet, part: str) -> Tensor:
        if part != "in":
            return self._recurrent(inside, part)
        if f"{inside}in_proj_qkv.weight" in self.files:
            return torch.cat(
                [self.files.get(f"{inside}in_proj_{name}.weight") for name in ("qkv", "z", "b", "a")]
            )
        # Rows stand by key head: its query, key, values and output gates; its betas and decays.
        values = op.num_value_heads // op.num_key_heads
        wide, narrow = (self.files.get(f"{inside}in_proj_{name}.weight") for name in ("qkvz", "ba"))
        sizes = [op.key_dim, op.key_dim, values * op.value_dim, values * op.value_dim]
        by_head = wide.unflatten(0, (op.num_key_heads, -1)).split(sizes, dim=1)
        gates = narrow.unflatten(0, (op.num_key_heads, 2 * values)).split([values, values], dim=1)
        return torch.cat([rows.flatten(0, 1) for rows in (*by_head, *gates)])

    def _mamba2(self, inside: str, op: Mamba2, part: str) -> Tensor:
        if part != "in":
            return self._recurrent(inside, part)
        z, xbc, dt = self.files.get(f"{inside}in_proj.weight").split(
            [op.inner_size, op.conv_size, op.num_heads]
        )
        return torch.cat([xbc, z, dt])

    def _recurrent(self, inside: str, part: str) -> Tensor:
        names = {
            "conv": "conv1d.weight",
            "conv_bias": "conv1d.bias",
            "log_rate": "A_log",
            "step_bias": "dt_bias",
            "skip": "D",
            "gate_norm": "norm.weight",
            "out": "out_proj.weight",
        }
        value = self.files.get(inside + names[part])
        return value[:, 0] if part == "conv" else value

    def _mlp(self, layer: str, op: Mlp, part: str) -> Tensor:
        if f"{layer}shared_mlp.input_linear.weight" in self.files:
            return self.files.get(f"{layer}shared_mlp.{'input' if part == 'in' else 'output'}_linear.weight")
        inside = self._inside(layer, "mlp.", "feed_forward.", "mixer.")
        if part == "out":
            return self._first(f"{inside}down_proj.weight", f"{inside}w2.weight")
        up = self._first(f"{inside}up_proj.weight", f"{inside}w3.weight")
        if not op.gated:
            return up
        return torch.cat([self._first(f"{inside}gate_proj.weight", f"{inside}w1.weight"), up])

    def _moe(self, layer: str, op: Moe, part: str) -> Tensor:
        inside = self._inside(layer, "block_sparse_moe.", "mlp.", "feed_forward.", "mixer.")
        if part == "router":
            names = ("gate.weight", "router.layer.weight", "router.weight")
            return self._first(*(inside + name for name in names))
        if part == "router_bias":
            return self._first(f"{inside}gate.e_score_correction_bias", f"{inside}expert_bias")
        if part == "shared_gate":
            return self.files.get(f"{inside}shared_expert_gate.weight")
        if part.startswith("shared"):
            if f"{layer}shared_mlp.input_linear.weight" in self.files:
                return self.files.get(
                    f"{layer}shared_mlp.{'input' if part == 'shared_in' else 'output'}_linear.weight"
                )
            shared = self._inside(inside, "shared_expert.", "shared_experts.")
            if part == "shared_out":
                return self.files.get(f"{shared}down_proj.weight")
            halves = ("gate_proj", "up_proj") if op.gated else ("up_proj",)
            return torch.cat([self.files.get(f"{shared}{name}.weight") for name in halves])
        return self._experts(inside, op, part)

    def _experts(self, inside: str, op: Moe, part: str) -> Tensor:
        fused = {
            "experts_in": ("experts.gate_up_proj" if op.gated else "experts.up_proj", "input_linear.weight"),
            "experts_out": ("experts.down_proj", "output_linear.weight"),
        }[part]
        found = next((inside + name for name in fused if inside + name in self.files), None)
        if found is not None:
            return self.files.get(found)

        return torch.stack(
            [self._expert(f"{inside}experts.{number}.", op, part) for number in range(op.num_experts)]
        )

    def _expert(self, inside: str, op: Moe, part: str) -> Tensor:
        if part == "experts_out":
            return self._first(f"{inside}down_proj.weight", f"{inside}w2.weight")
        up = self._first(f"{inside}up_proj.weight", f"{inside}w3.weight")
        if not op.gated:
            return up
        return torch.cat([self._first(f"{inside}gate_proj.weight", f"{inside}w1.weight"), up])

    def _inside(self, layer: str, *names: str) -> str:
        """The first of the sub-modules that the checkpoint has."""
        for name in names:
            if any(key.startswith(layer + name) for key in self.files):
                return layer + name
        return layer + names[0]

    def _first(self, *names: str) -> Tensor:
        return self.files.get(next((name for name in names if name in self.files), names[0]))
