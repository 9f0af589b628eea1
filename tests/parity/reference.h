// The oracle: training in its simplest form. One process, one tensor per parameter, the whole global batch in one pass,
// every formula written out. It shares only the initial weights with the code under test.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>
#include <vector>

#include "models/model_sizes.h"
#include "worker/parallel/update.h"

namespace trainyard::reference {

using Parameters = std::map<std::string, at::Tensor>;

inline at::Tensor LayerNorm(const at::Tensor& x, const Parameters& p, const std::string& name) {
  at::Tensor centred = x - x.mean(-1, true);
  at::Tensor variance = centred.square().mean(-1, true);
  return centred / (variance + 1e-5).sqrt() * p.at(name + ".weight") + p.at(name + ".bias");
}

// scale * x (B A)^T; 0 if the projection has no adapter.
inline at::Tensor Adapter(const at::Tensor& x, const Parameters& p, const std::string& name, const ModelSizes& c) {
  if (p.count(name + ".lora_A.weight") == 0) return at::zeros({}, x.options());
  const double scale = c.lora.alpha / static_cast<double>(c.lora.rank);
  return scale * at::matmul(x, at::matmul(p.at(name + ".lora_B.weight"), p.at(name + ".lora_A.weight")).t());
}

inline at::Tensor Project(const at::Tensor& x, const Parameters& p, const std::string& name, const ModelSizes& c) {
  return at::matmul(x, p.at(name + ".weight")) + p.at(name + ".bias") + Adapter(x, p, name, c);
}

inline at::Tensor Gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
}

// Which keys [.., tokens] a query [.., tokens, 1] must not see: later ones, and those of other documents. `starts`
// holds for each token where its document begins; undefined: each sequence is one document.
inline at::Tensor Hidden(int64_t tokens, const at::Tensor& starts) {
  at::Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
  return starts.defined() ? later | at::arange(tokens).lt(starts.view({-1, 1, tokens, 1})) : later;
}

// The positions of tokens in their documents, [tokens] or [sequences, tokens].
inline at::Tensor PositionsOf(int64_t tokens, const at::Tensor& starts) {
  return starts.defined() ? at::arange(tokens) - starts : at::arange(tokens);
}

inline at::Tensor Attention(const at::Tensor& x, const Parameters& p, const std::string& name, const ModelSizes& c,
                            const at::Tensor& starts) {
  int64_t b = x.size(0), t = x.size(1), d = x.size(2), heads = c.heads;
  std::vector<at::Tensor> qkv = Project(x, p, name + ".c_attn", c).split(d, -1);
  for (at::Tensor& part : qkv) part = part.view({b, t, heads, d / heads}).transpose(1, 2);
  at::Tensor scores = at::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(d / heads));
  at::Tensor mixed = at::matmul(scores.masked_fill(Hidden(t, starts), -INFINITY).softmax(-1), qkv[2]);
  return Project(mixed.transpose(1, 2).reshape({b, t, d}), p, name + ".c_proj", c);
}

inline at::Tensor Gpt2Scores(const at::Tensor& inputs, const Parameters& p, const ModelSizes& c,
                             const at::Tensor& starts) {
  at::Tensor x = p.at("wte.weight").index({inputs}) + p.at("wpe.weight").index({PositionsOf(inputs.size(1), starts)});
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string h = "h." + std::to_string(i);
    x = x + Attention(LayerNorm(x, p, h + ".ln_1"), p, h + ".attn", c, starts);
    x = x + Project(Gelu(Project(LayerNorm(x, p, h + ".ln_2"), p, h + ".mlp.c_fc", c)), p, h + ".mlp.c_proj", c);
  }
  return at::matmul(LayerNorm(x, p, "ln_f"), p.at("wte.weight").t());
}

inline at::Tensor RmsNorm(const at::Tensor& x, const Parameters& p, const std::string& name, double eps) {
  return x / (x.square().mean(-1, true) + eps).sqrt() * p.at(name + ".weight");
}

// A matrix of the Llama family is [out, in]; biases are optional.
inline at::Tensor ProjectTransposed(const at::Tensor& x, const Parameters& p, const std::string& name,
                                    const ModelSizes& c) {
  at::Tensor y = at::matmul(x, p.at(name + ".weight").t()) + Adapter(x, p, name, c);
  return p.count(name + ".bias") == 0 ? y : y + p.at(name + ".bias");
}

// Rotary position embedding, without scaling of the frequencies. x is [.., tokens, width]; angles are fp32.
inline at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions, double theta) {
  const int64_t width = x.size(-1);
  at::Tensor frequencies = 1 / at::pow(theta, at::arange(0, width, 2, at::kFloat) / static_cast<double>(width));
  at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * frequencies;
  at::Tensor cosines = angles.cos().to(x.dtype()), sines = angles.sin().to(x.dtype());
  std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::cat({halves[0] * cosines - halves[1] * sines, halves[1] * cosines + halves[0] * sines}, -1);
}

inline at::Tensor LlamaAttention(const at::Tensor& x, const Parameters& p, const std::string& name, const ModelSizes& c,
                                 const at::Tensor& starts) {
  int64_t b = x.size(0), t = x.size(1);
  at::Tensor positions = PositionsOf(t, starts);
  if (starts.defined()) positions = positions.unsqueeze(1);  // the same for all heads
  auto by_heads = [&](const char* part, int64_t heads) {
    return ProjectTransposed(x, p, name + part, c).view({b, t, heads, c.head_width}).transpose(1, 2);
  };
  at::Tensor q = Rotate(by_heads(".q_proj", c.heads), positions, c.rope.theta);
  at::Tensor k =
      Rotate(by_heads(".k_proj", c.kv_heads), positions, c.rope.theta).repeat_interleave(c.heads / c.kv_heads, 1);
  at::Tensor v = by_heads(".v_proj", c.kv_heads).repeat_interleave(c.heads / c.kv_heads, 1);
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(c.head_width));
  at::Tensor mixed = at::matmul(scores.masked_fill(Hidden(t, starts), -INFINITY).softmax(-1), v);
  return ProjectTransposed(mixed.transpose(1, 2).reshape({b, t, c.heads * c.head_width}), p, name + ".o_proj", c);
}

inline at::Tensor LlamaScores(const at::Tensor& inputs, const Parameters& p, const ModelSizes& c,
                              const at::Tensor& starts) {
  at::Tensor x = p.at("embed_tokens.weight").index({inputs});
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string h = "layers." + std::to_string(i);
    x = x + LlamaAttention(RmsNorm(x, p, h + ".input_layernorm", c.norm_eps), p, h + ".self_attn", c, starts);
    at::Tensor in = RmsNorm(x, p, h + ".post_attention_layernorm", c.norm_eps);
    at::Tensor gate = ProjectTransposed(in, p, h + ".mlp.gate_proj", c);
    at::Tensor hidden = gate * gate.sigmoid() * ProjectTransposed(in, p, h + ".mlp.up_proj", c);
    x = x + ProjectTransposed(hidden, p, h + ".mlp.down_proj", c);
  }
  const char* head = c.tied ? "embed_tokens.weight" : "lm_head.weight";
  return at::matmul(RmsNorm(x, p, "norm", c.norm_eps), p.at(head).t());
}

// The mean over the targets that are not -1. `starts` as in Hidden, [sequences, tokens].
inline at::Tensor MeanLoss(const at::Tensor& inputs, const at::Tensor& targets, const Parameters& p,
                           const ModelSizes& c, const at::Tensor& starts = {}) {
  at::Tensor scores = IsLlamaGraph(c.family) ? LlamaScores(inputs, p, c, starts) : Gpt2Scores(inputs, p, c, starts);
  const at::Tensor losses = -scores.log_softmax(-1).gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return (losses * targets.ge(0)).sum() / targets.ge(0).sum();
}

// One AdamW update, which consumes the gradients of the parameters. `m` and `v` are the moments, `t` counts from 1.
// Returns the norm of the gradient before clipping.
inline double Update(Parameters& p, Parameters& m, Parameters& v, int t, double lr, const UpdateOptions& options) {
  c10::NoGradGuard no_grad;
  const AdamWConfig& o = options.optimizer;
  double squares = 0;
  for (auto& [name, w] : p) squares += w.requires_grad() ? w.grad().square().sum().item<double>() : 0;
  double clip = options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (std::sqrt(squares) + 1e-6)) : 1;
  for (auto& [name, w] : p) {
    if (!w.requires_grad()) continue;
    at::Tensor g = w.grad() * clip;
    if (w.dim() >= 2) w.mul_(1 - lr * o.weight_decay);
    m[name] = o.beta1 * m[name] + (1 - o.beta1) * g;
    v[name] = o.beta2 * v[name] + (1 - o.beta2) * g * g;
    at::Tensor m_hat = m[name] / (1 - std::pow(o.beta1, t)), v_hat = v[name] / (1 - std::pow(o.beta2, t));
    w.sub_(lr * m_hat / (v_hat.sqrt() + o.eps));
    w.mutable_grad().reset();
  }
  return std::sqrt(squares);
}

}  // namespace trainyard::reference
