#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds multi-token prediction blocks to families/NAME/, and what they draft, computed from their description.

    python3 make_mtp_goldens.py     (as make_family_goldens.py, which it calls; then run make_gguf_goldens.py)

transformers does not run these blocks; the modules here put its own layers together as the makers' descriptions say. With
h_i the main model's final hidden state at position i,

    x = fc [ norm_e(embedding of token i + 1) ; norm_h(h_i) ];  x = attention layer, feed-forward layer of x
    out = norm(x);  logits of token i + 2 = lm_head out

and further drafts feed `out` back as the hidden state with the embedding of what was drafted. golden.safetensors gets
    mtp_at       lengths n of prompts
    mtp_drafts   [n][4]: the main model's choice after n tokens, and three drafts after it, all greedy
Lengths where a choice hangs on less than 1e-3 are left out.
"""
import copy
import os

import torch
import transformers
import transformers.models.nemotron_h.modeling_nemotron_h as nemotron
import transformers.models.qwen3_5.modeling_qwen3_5 as qwen
from safetensors.torch import load_file, save_file

import make_family_goldens as families

DRAFTS, LENGTHS, MARGIN = 3, range(1, 60), 1e-3


def causal(tokens):
    return torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]


class NemotronMtp(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = copy.deepcopy(config)
        self.config.layers_block_type = ["full_attention", "moe"]
        self.config._attn_implementation = self.config._experts_implementation = "eager"
        h, eps = config.hidden_size, config.layer_norm_epsilon
        self.enorm, self.hnorm, self.final_layernorm = (nemotron.NemotronHRMSNorm(h, eps) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * h, h, bias=False)
        self.layers = torch.nn.ModuleList(nemotron.NemotronHBlock(self.config, i) for i in range(2))

    def forward(self, embedding, hidden):
        x = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], -1))
        for layer in self.layers:
            x = layer(x, attention_mask=causal(x.shape[1]))
        return self.final_layernorm(x)

    def published(self):
        out = {}
        for name, value in self.state_dict().items():
            if name.startswith("final"):
                name = "layers.1." + name
            elif not name.startswith("layers."):
                name = "layers.0." + name
            if name.endswith("experts.up_proj") or name.endswith("experts.down_proj"):
                stem, part = name.rsplit(".", 1)
                out.update({f"mtp.{stem}.{e}.{part}.weight": expert for e, expert in enumerate(value)})
            else:
                out["mtp." + name] = value
        return out


class Qwen3_5Mtp(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        h, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (qwen.Qwen3_5RMSNorm(h, eps) for _ in range(3))
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        self.layers = torch.nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))])
        self.rotary = qwen.Qwen3_5TextRotaryEmbedding(config)

    def forward(self, embedding, hidden):
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1))
        tokens = x.shape[1]
        turns = self.rotary(x, torch.arange(tokens)[None, None].expand(3, 1, tokens))
        return self.norm(self.layers[0](x, position_embeddings=turns, attention_mask=causal(tokens)))

    def published(self):
        return {"mtp." + name: value for name, value in self.state_dict().items() if "rotary" not in name}


def qwen3_5():
    config = transformers.Qwen3_5TextConfig(
        vocab_size=families.VOCAB, hidden_size=40, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, layer_types=["linear_attention", "full_attention", "linear_attention"], intermediate_size=22,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=10, linear_value_head_dim=12,
        rope_parameters=families.rope(10000.0, 0.5), max_position_embeddings=512, eos_token_id=2, tie_word_embeddings=False)
    return config, transformers.Qwen3_5ForCausalLM(config), None


def choose(head, row):
    best = torch.topk(head(row), 2)
    return best.indices[0].item(), (best.values[0] - best.values[1]).item()


def drafts(model, block, tokens):
    """The model's choice after the tokens, and the block's drafts after it; None where one is close."""
    embed, head = model.get_input_embeddings(), model.lm_head
    hidden = model.base_model(tokens[None]).last_hidden_state
    token, margin = choose(head, hidden[0, -1])
    found, ids, least = [token], torch.cat([tokens[1:], torch.tensor([token])]), margin
    for _ in range(DRAFTS):
        out = block(embed(ids)[None], hidden)
        token, margin = choose(head, out[0, -1])
        found.append(token)
        least = min(least, margin)
        ids, hidden = torch.cat([ids, torch.tensor([token])]), torch.cat([hidden, out[:, -1:]], 1)
    return found if least > MARGIN else None


def make(build, block_of):
    name = build.__name__
    weights = families.make(build)
    where = os.path.join(families.HERE, "families", name)
    # the model as it was saved: the same seed, the same weights
    torch.manual_seed(0)
    config, model, _ = build()
    model = model.float().eval()
    model.set_attn_implementation("eager")
    config._experts_implementation = "eager"
    families.randomise(model, sum(map(ord, name)))
    block = block_of(config).float().eval()
    families.randomise(block, sum(map(ord, name)) + 1)
    golden = load_file(os.path.join(where, "golden.safetensors"))
    tokens, found = golden["tokens"].long(), {}
    with torch.no_grad():
        check = model(tokens[None]).logits[0, -1] - golden["logits"][-1]
        assert check.abs().max() < 1e-4, check
        for n in LENGTHS:
            found[n] = drafts(model, block, tokens[:n])
    found = {n: row for n, row in found.items() if row}
    golden["mtp_at"] = torch.tensor(list(found), dtype=torch.int32)
    golden["mtp_drafts"] = torch.tensor(list(found.values()), dtype=torch.int32)
    for key, value in block.published().items():
        value = value.detach()
        weights[key] = (value.bfloat16() if value.dim() > 1 else value).contiguous()
    save_file(golden, os.path.join(where, "golden.safetensors"))
    save_file(weights, os.path.join(where, "model.safetensors"))
    for file in os.listdir(where):
        os.chmod(os.path.join(where, file), 0o644)
    print(f"{name}: {len(found)} prompts, {len({tuple(r[1:]) for r in found.values()})} different chains;",
          os.path.getsize(os.path.join(where, "model.safetensors")), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(families.nemotron_h_latent, NemotronMtp)
    make(qwen3_5, Qwen3_5Mtp)
