// The oracle: training in its simplest form. One process, one tensor per parameter, the whole global batch in one pass,
// every formula written out. It shares only the initial weights with the product.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <string>
#include <vector>

#include "worker/model/gpt2.h"
#include "worker/parallel/update.h"

namespace trainyard::reference {

using Parameters = std::map<std::string, at::Tensor>;

inline at::Tensor LayerNorm(const at::Tensor& x, const Parameters& p, const std::string& name) {
  at::Tensor centred = x - x.mean(-1, true);
  at::Tensor variance = centred.square().mean(-1, true);
  return centred / (variance + 1e-5).sqrt() * p.at(name + ".weight") + p.at(name + ".bias");
}

inline at::Tensor Project(const at::Tensor& x, const Parameters& p, const std::string& name) {
  return at::matmul(x, p.at(name + ".weight")) + p.at(name + ".bias");
}

inline at::Tensor Gelu(const at::Tensor& x) {
  return 0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
}

inline at::Tensor Attention(const at::Tensor& x, const Parameters& p, const std::string& name, int64_t heads) {
  int64_t b = x.size(0), t = x.size(1), d = x.size(2);
  std::vector<at::Tensor> qkv = Project(x, p, name + ".c_attn").split(d, -1);
  for (at::Tensor& part : qkv) part = part.view({b, t, heads, d / heads}).transpose(1, 2);
  at::Tensor scores = at::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(d / heads));
  at::Tensor future = at::ones({t, t}, at::kBool).triu(1);
  at::Tensor mixed = at::matmul(scores.masked_fill(future, -INFINITY).softmax(-1), qkv[2]);
  return Project(mixed.transpose(1, 2).reshape({b, t, d}), p, name + ".c_proj");
}

inline at::Tensor MeanLoss(const at::Tensor& inputs, const at::Tensor& targets, const Parameters& p,
                           const ModelSizes& c) {
  at::Tensor x = p.at("wte.weight").index({inputs}) + p.at("wpe.weight").slice(0, 0, inputs.size(1));
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string h = "h." + std::to_string(i);
    x = x + Attention(LayerNorm(x, p, h + ".ln_1"), p, h + ".attn", c.heads);
    x = x + Project(Gelu(Project(LayerNorm(x, p, h + ".ln_2"), p, h + ".mlp.c_fc")), p, h + ".mlp.c_proj");
  }
  at::Tensor scores = at::matmul(LayerNorm(x, p, "ln_f"), p.at("wte.weight").t());
  return -scores.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean();
}

// One AdamW update, which consumes the gradients of the parameters. `m` and `v` are the moments, `t` counts from 1.
// Returns the norm of the gradient before clipping.
inline double Update(Parameters& p, Parameters& m, Parameters& v, int t, double lr, const UpdateOptions& options) {
  c10::NoGradGuard no_grad;
  const AdamWConfig& o = options.optimizer;
  double squares = 0;
  for (auto& [name, w] : p) squares += w.grad().square().sum().item<double>();
  double clip = options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (std::sqrt(squares) + 1e-6)) : 1;
  for (auto& [name, w] : p) {
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
