// Nested tensors of the strided layout: a dense `tpu` buffer, and sizes on the host.
//
// PyTorch's own kernels work on the buffer or on its parts through other ops; those that read elements
// themselves are here, also through other ops. The jagged layout is a Python subclass: see
// lowering/nested.py.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <torch/library.h>

#include "borrowed.h"
#include "registration.h"
#include "value.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using at::native::get_nested_tensor_impl;
using c10::DispatchKey;

Tensor like(const Tensor& buffer, const Tensor& nested) {
  return at::native::wrap_buffer(buffer.reshape(-1), get_nested_tensor_impl(nested)->get_nested_sizes());
}

Tensor contiguous_buffer(const Tensor& nested) {
  return get_nested_tensor_impl(nested.contiguous())->get_buffer();
}

// --- Sums over the last dimension, the only ones that nested tensors have -----------------------------

Tensor sum_last(const Tensor& self, c10::OptionalIntArrayRef dims, bool keepdim,
                std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(dims.has_value() && dims->size() == 1,
              "sum(): NestedTensor only allows reduction of a single dimension for now.");
  const auto dim = c10::maybe_wrap_dim(dims->front(), self.dim());
  TORCH_CHECK(dim == self.dim() - 1,
              "sum(): NestedTensor can only be reduced across the last dimension for now got dimension ", dim,
              " instead.");
  TORCH_CHECK(keepdim, "sum(): NestedTensor always requires keepdim=True for now.");
  TORCH_CHECK(!dtype, "sum(): NestedTensor does not support dtype argument for now.");
  std::vector<Tensor> sums;
  for (const Tensor& part : self.unbind()) sums.push_back(part.sum(-1, true));
  return at::_nested_tensor_from_tensor_list(sums);
}

Tensor sum_backward(const Tensor& grad, const Tensor& self, c10::OptionalIntArrayRef, bool) {
  const auto grads = grad.unbind(), parts = self.unbind();
  std::vector<Tensor> spread;
  for (size_t i = 0; i < parts.size(); ++i) spread.push_back(grads[i].expand_as(parts[i]));
  return at::_nested_tensor_from_tensor_list(spread);
}

// --- Products, part by part ---------------------------------------------------------------------------

Tensor product(const char* op, const Tensor& self, const Tensor& other, bool dims_fit, bool takes_dense) {
  TORCH_CHECK(self.is_nested() && (takes_dense || other.is_nested()), op,
              "(): Expected both to be nested, but got a ", self.is_nested() ? "" : "non-",
              "nested self and ", other.is_nested() ? "" : "non-", "nested other");
  TORCH_CHECK(dims_fit, op, "(): expected nested tensors of as many dimensions, at least 3, got ", self.dim(),
              " and ", other.dim());
  const auto ours = self.unbind(), theirs = other.unbind();
  TORCH_CHECK(ours.size() == theirs.size(), op,
              "(): Expected size for the 1st dimension of 2nd input tensor to be: ", ours.size(),
              " but got: ", theirs.size(), ".");
  std::vector<Tensor> products;
  for (size_t i = 0; i < ours.size(); ++i) {
    TORCH_CHECK(ours[i].size(-1) == theirs[i].size(-2), op, "(): ", i,
                "-th nested matrices in batch cannot be multiplied (", ours[i].sizes(), " and ",
                theirs[i].sizes(), ")");
    products.push_back(at::matmul(ours[i], theirs[i]));
  }
  return at::_nested_tensor_from_tensor_list(products);
}

Tensor bmm(const Tensor& self, const Tensor& other) {
  return product("bmm", self, other, self.dim() == 3 && other.dim() == 3, true);
}

Tensor matmul(const Tensor& self, const Tensor& other) {
  return product("matmul", self, other, self.dim() >= 3 && self.dim() == other.dim(), false);
}

// --- Layer norm: one over the buffer, as the normalised dimensions are the same in every part ----------

int64_t normalized_size(const Tensor& self, c10::SymIntArrayRef shape, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(shape);
  TORCH_CHECK(!sizes.empty() && static_cast<int64_t>(sizes.size()) < self.dim(),
              "layer_norm(): expected normalized_shape to have between 1 and ", self.dim() - 1,
              " dimensions for a nested input of ", self.dim(), ", got ", sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto dim = self.dim() - static_cast<int64_t>(sizes.size() - i);
    const auto size = get_nested_tensor_impl(self)->opt_size(dim);
    TORCH_CHECK(size && *size == sizes[i], "layer_norm(): expected dimension ", dim,
                " of the nested input to be ", sizes[i], " in every part, as normalized_shape is ", sizes);
  }
  for (const auto& scale : {weight, bias}) {
    TORCH_CHECK(!scale || !scale->defined() || scale->sizes() == sizes,
                "layer_norm(): expected weight and bias to have the sizes of normalized_shape ", sizes);
  }
  return c10::multiply_integers(sizes);
}

std::optional<Tensor> flat(const std::optional<Tensor>& scale) {
  return scale && scale->defined() ? std::make_optional(scale->reshape(-1)) : std::nullopt;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& self, c10::SymIntArrayRef shape,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& bias, double eps) {
  const auto size = normalized_size(self, shape, weight, bias);
  const auto rows = contiguous_buffer(self).view({-1, size});
  const auto [result, mean, rstd] = at::native_layer_norm(rows, {size}, flat(weight), flat(bias), eps);
  return {like(result, self), mean.reshape(-1), rstd.reshape(-1)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& grad, const Tensor& self, c10::SymIntArrayRef shape, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, std::array<bool, 3> mask) {
  const auto size = normalized_size(self, shape, weight, bias);
  const auto rows = contiguous_buffer(self).view({-1, size});
  auto [input, gamma, beta] =
      at::native_layer_norm_backward(contiguous_buffer(grad).view({-1, size}), rows, {size},
                                     mean.view({-1, 1}), rstd.view({-1, 1}), flat(weight), flat(bias), mask);
  if (input.defined()) input = like(input, self);
  if (gamma.defined()) gamma = gamma.view_as(*weight);
  if (beta.defined()) beta = beta.view_as(*bias);
  return {input, gamma, beta};
}

// --- Attention -----------------------------------------------------------------------------------------

std::tuple<Tensor, Tensor, Tensor> transform_qkv(const Tensor& qkv, const Tensor& bias, int64_t heads) {
  return at::_transform_bias_rescale_qkv(qkv.to_padded_tensor(0), bias, heads);
}

int64_t choose_math(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                    std::optional<double>, bool) {
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// --- Sizes, strides and offsets, which are the host's ----------------------------------------------------

void check_on_host(const char* op, const char* name, const Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu(), op, "(): expected ", name, " to be a CPU tensor, got one on ", tensor.device(),
              ": nested tensors keep it on the host; pass ", name, ".cpu()");
}

Tensor on_cpu_key(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxedForDispatchKey(DispatchKey::CPU, stack);
  return stack.back().toTensor();
}

Tensor from_padded(const Tensor& padded, const Tensor& sizes, bool fused) {
  check_on_host("_nested_from_padded", "cpu_nested_shape_example", sizes);
  return on_cpu_key("aten::_nested_from_padded", {padded, sizes, fused});
}

Tensor view_from_buffer(const Tensor& self, const Tensor& sizes, const Tensor& strides,
                        const Tensor& offsets) {
  check_on_host("_nested_view_from_buffer", "nested_size", sizes);
  check_on_host("_nested_view_from_buffer", "nested_strides", strides);
  check_on_host("_nested_view_from_buffer", "offsets", offsets);
  return on_cpu_key("aten::_nested_view_from_buffer", {self, sizes, strides, offsets});
}

}  // namespace

void register_nested() {
  static auto* handles = new Handles();
  for (const auto& op : borrowable(DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1)) {
    borrow(*handles, op, DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1);
  }
  for (const auto* name : {"aten::_nested_tensor_from_mask", "aten::_nested_tensor_from_mask_left_aligned"}) {
    borrow(*handles, c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), DispatchKey::CPU,
           DispatchKey::PrivateUse1);
  }
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("sum.dim_IntList", &sum_last);
  m.impl("_nested_sum_backward", &sum_backward);
  m.impl("bmm", &bmm);
  m.impl("matmul", &matmul);
  m.impl("native_layer_norm", &layer_norm);
  m.impl("native_layer_norm_backward", &layer_norm_backward);
  m.impl("_transform_bias_rescale_qkv", &transform_qkv);
  m.impl("_fused_sdp_choice", &choose_math);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_from_padded", &from_padded);
  m.impl("_nested_view_from_buffer", &view_from_buffer);
}

}  // namespace torch_tpu
