// Kernels of COO tensors over groups of elements (softmax, products, masks), and sampled products.
//
// Made of other ops, as in sparse.cpp; the values of a group are reduced by index_add and scatter_reduce.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include "sparse.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::Scalar;

// --- Masks -------------------------------------------------------------------------------------------

// The values of `self` at the places of the elements of `mask`; zero where it has none.
Tensor values_at(const Tensor& self, const Tensor& mask) {
  const auto places = flat_positions(mask._indices(), mask.sizes());
  if (!self.is_sparse()) return self.reshape(flat_sizes(mask)).index_select(0, places);
  const auto x = self.coalesce();
  if (x._nnz() == 0) return at::zeros_like(mask._values(), x._values().options());
  const auto ours = flat_positions(x._indices(), x.sizes());
  const auto found = at::searchsorted(ours, places).clamp_max(ours.size(0) - 1);
  auto sizes = std::vector<int64_t>(static_cast<size_t>(x._values().dim()), 1);
  sizes[0] = places.size(0);
  const auto hit = (ours.index_select(0, found) == places).view(sizes);
  return at::where(hit, x._values().index_select(0, found), at::zeros({}, x._values().options()));
}

Tensor sparse_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.is_sparse(), "sparse_mask(): expected a sparse mask, got layout ", mask.layout());
  TORCH_CHECK(self.sizes() == mask.sizes(), "sparse_mask(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  TORCH_CHECK(!self.is_sparse() || self.sparse_dim() == mask.sparse_dim(),
              "sparse_mask(): expected as many sparse dimensions in self and mask, got ",
              self.is_sparse() ? self.sparse_dim() : 0, " and ", mask.sparse_dim());
  if (self.is_same(mask)) return self;
  return coo_like(mask, mask._indices().clone(), values_at(self, mask), mask.is_coalesced());
}

Tensor compressed_mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.layout() != c10::kSparse && mask.layout() != c10::kStrided,
              "sparse_mask(): expected a compressed mask for a compressed self, got layout ", mask.layout());
  const auto source = self.layout() == c10::kStrided || self.is_sparse() ? self : self.to_sparse();
  const auto masked = source.sparse_mask(mask.to_sparse().coalesce());
  if (mask.layout() != c10::kSparseCsr) {
    const bool blocks = mask.layout() == c10::kSparseBsr || mask.layout() == c10::kSparseBsc;
    const auto sizes = mask.values().sizes();
    const auto at = static_cast<size_t>(mask.dim() - 1);  // of the blocks' sizes, after the batches
    return masked.to_sparse(mask.layout(),
                            blocks ? at::OptionalIntArrayRef(sizes.slice(at, 2)) : std::nullopt);
  }
  return at::_sparse_csr_tensor_unsafe(mask.crow_indices().clone(), mask.col_indices().clone(),
                                       masked._values().view_as(mask.values()), mask.sizes(),
                                       mask.options().dtype(masked.scalar_type()));
}

// --- Softmax -----------------------------------------------------------------------------------------

// The groups that a sparse dimension's softmax is over: of each element its number, and how many there are.
std::pair<Tensor, int64_t> groups(const Tensor& self, int64_t dim) {
  auto sizes = self.sizes().vec();
  sizes[dim] = 1;
  auto indices = self._indices().clone();
  indices.select(0, dim).zero_();
  const auto [places, group] = at::_unique(flat_positions(indices, sizes), true, true);
  return {group, places.size(0)};
}

struct Softmax {
  Softmax(const Tensor& self, int64_t dim, bool log) : log(log), sparse_dim(self.sparse_dim()), dim(dim) {
    if (dim < sparse_dim) std::tie(group, count) = groups(self, dim);
  }

  // Of each element the sum over its group.
  Tensor sums(const Tensor& values) const {
    if (dim >= sparse_dim) return values.sum(dim - sparse_dim + 1, true);
    auto sizes = values.sizes().vec();
    sizes[0] = count;
    return at::zeros(sizes, values.options()).index_add_(0, group, values).index_select(0, group);
  }

  Tensor forward(const Tensor& values) const {
    if (values.numel() == 0) return values;
    if (dim >= sparse_dim) {
      const auto at = dim - sparse_dim + 1;
      return log ? at::log_softmax(values, at) : at::softmax(values, at);
    }
    auto sizes = values.sizes().vec();
    sizes[0] = count;
    const auto lowest = at::full(sizes, -std::numeric_limits<double>::infinity(), values.options());
    const auto spread = group.view(group_sizes(values)).expand_as(values);
    const auto most = lowest.scatter_reduce(0, spread, values, "amax").index_select(0, group);
    const auto shifted = values - most;
    const auto powers = shifted.exp();
    return log ? shifted - sums(powers).log() : powers / sums(powers);
  }

  Tensor backward(const Tensor& grad, const Tensor& output) const {
    if (output.numel() == 0) return output;
    return log ? grad - output.exp() * sums(grad) : output * (grad - sums(output * grad));
  }

  static std::vector<int64_t> group_sizes(const Tensor& values) {
    std::vector<int64_t> sizes(static_cast<size_t>(values.dim()), 1);
    sizes[0] = values.size(0);
    return sizes;
  }

  bool log;
  int64_t sparse_dim, dim, count = 0;
  Tensor group;
};

template <bool log>
Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  const auto* name = log ? "_sparse_log_softmax" : "_sparse_softmax";
  TORCH_CHECK(self.is_sparse(), name, "(): expected a COO tensor, got layout ", self.layout());
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point() || self.is_complex(), "\"",
                              log ? "log_softmax" : "softmax", "\" not implemented for '", self.scalar_type(),
                              "'");
  TORCH_CHECK(!half_to_float, name, "(): with half to float conversion is not supported on tpu");
  const auto wrapped = c10::maybe_wrap_dim(dim, self.dim());
  const auto x = self.coalesce();
  return coo_like(x, x._indices().clone(), Softmax(x, wrapped, log).forward(x._values()), true);
}

template <bool log>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor& self) {
  TORCH_CHECK(grad.sizes() == output.sizes(), "sparse softmax: expected a gradient of sizes ", output.sizes(),
              ", got ", grad.sizes());
  const Softmax rule(output, c10::maybe_wrap_dim(dim, self.dim()), log);
  return coo_like(output, output._indices().clone(), rule.backward(values_at(grad, output), output._values()),
                  true);
}

// --- Products ----------------------------------------------------------------------------------------

// Each element of `self` with each of the row of `other` that it meets; elements of one place are summed.
Tensor matmul(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.is_sparse() && other.is_sparse() && self.dim() == 2 && other.dim() == 2 &&
                  self.dense_dim() == 0 && other.dense_dim() == 0,
              "_sparse_sparse_matmul(): expected two sparse matrices");
  TORCH_CHECK(self.size(1) == other.size(0), "mat1 and mat2 shapes cannot be multiplied (", self.size(0), "x",
              self.size(1), " and ", other.size(0), "x", other.size(1), ")");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "mat1 dtype ", self.dtype(),
              " does not match mat2 dtype ", other.dtype());
  const auto a = self.coalesce(), b = other.coalesce();
  const auto inner = a._indices().select(0, 1), rows = b._indices().select(0, 0).contiguous();
  const auto starts = at::searchsorted(rows, inner), ends = at::searchsorted(rows, inner, false, true);
  const auto counts = ends - starts;
  const auto ours = at::repeat_interleave(counts);
  const auto before = (at::cumsum(counts, 0) - counts - starts).index_select(0, ours);
  const auto theirs = at::arange(ours.size(0), ours.options()) - before;
  const auto indices = at::stack(
      {a._indices().select(0, 0).index_select(0, ours), b._indices().select(0, 1).index_select(0, theirs)});
  const auto values = a._values().index_select(0, ours) * b._values().index_select(0, theirs);
  return at::_sparse_coo_tensor_unsafe(indices, values, {self.size(0), other.size(1)}, self.options())
      .coalesce();
}

// beta * self + alpha * (mat1 @ mat2) at the places of `self`, [..., rows, columns] in CSR.
Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha) {
  const auto* name = "sampled_addmm(): ";
  TORCH_CHECK(self.layout() == c10::kSparseCsr, name, "Expected self to have layout SparseCsr, got ",
              self.layout());
  TORCH_CHECK(mat1.layout() == c10::kStrided && mat2.layout() == c10::kStrided, name,
              "Expected mat1 and mat2 to have strided layout, got ", mat1.layout(), " and ", mat2.layout());
  TORCH_CHECK(mat1.scalar_type() == self.scalar_type() && mat2.scalar_type() == self.scalar_type(), name,
              "Expected self, mat1 and mat2 of one dtype, got ", self.scalar_type(), ", ", mat1.scalar_type(),
              " and ", mat2.scalar_type());
  TORCH_CHECK(
      mat1.dim() == self.dim() && mat2.dim() == self.dim() && self.dim() >= 2 &&
          mat1.size(-1) == mat2.size(-2) && self.size(-2) == mat1.size(-2) && self.size(-1) == mat2.size(-1),
      name, "self ", self.sizes(), ", mat1 ", mat1.sizes(), " and mat2 ", mat2.sizes(), " do not fit");
  TORCH_CHECK(self.is_floating_point() || self.is_complex(), name,
              "Expected self to be a floating-point or complex tensor, but got ", self.scalar_type());
  const auto batches = self.sizes().slice(0, self.dim() - 2);
  TORCH_CHECK(
      mat1.sizes().slice(0, mat1.dim() - 2) == batches && mat2.sizes().slice(0, mat2.dim() - 2) == batches,
      name, "Expected self, mat1 and mat2 to have the same batch size, but got ", self.sizes(), ", ",
      mat1.sizes(), " and ", mat2.sizes());
  const auto coo = self.to_sparse();
  const auto indices = coo._indices();
  const auto batch = indices.size(0) - 2;
  const auto place = [&](int64_t last) {  // of a row or column among those of all batches
    auto kept = at::cat(std::vector<Tensor>{indices.narrow(0, 0, batch), indices.narrow(0, last, 1)}, 0);
    auto sizes = self.sizes().slice(0, static_cast<size_t>(batch)).vec();
    sizes.push_back(self.size(last));
    return flat_positions(kept, sizes);
  };
  const auto rows = [&](const Tensor& matrices) {  // -1 for a size would be ambiguous where K is 0
    const auto count = c10::multiply_integers(matrices.sizes().slice(0, matrices.dim() - 1));
    return matrices.reshape({count, matrices.size(-1)});
  };
  const auto left = rows(mat1).index_select(0, place(batch));
  const auto right = rows(mat2.transpose(-1, -2)).index_select(0, place(batch + 1));
  auto values = (left * right).sum(-1).mul(alpha).view_as(self.values());
  if (beta.toComplexDouble() != 0.0) values = values + self.values() * beta;
  return at::_sparse_csr_tensor_unsafe(self.crow_indices().clone(), self.col_indices().clone(), values,
                                       self.sizes(), self.options());
}

Tensor& sampled_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                          const Scalar& alpha, Tensor& out) {
  assign_sparse(out, sampled_addmm(self, mat1, mat2, beta, alpha));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("sparse_mask", &sparse_mask);
  m.impl("_sparse_softmax", &softmax<false>);
  m.impl("_sparse_log_softmax", &softmax<true>);
  m.impl("_sparse_softmax_backward_data", &softmax_backward<false>);
  m.impl("_sparse_log_softmax_backward_data", &softmax_backward<true>);
  m.impl("_sparse_sparse_matmul", &matmul);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("sparse_mask", &compressed_mask);
  m.impl("sparse_sampled_addmm", &sampled_addmm);
  m.impl("sparse_sampled_addmm.out", &sampled_addmm_out);
}

}  // namespace torch_tpu
