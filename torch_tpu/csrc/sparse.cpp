// Sparse tensors (COO and compressed): dense `tpu` tensors of indices and values.
//
// PyTorch's own kernels do what they do through other ops alone; products, sums and coalesce are here, also
// through other ops; what is left runs on the CPU, as loudly as any fallback.
#include <ATen/Functions.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/native/TypeProperties.h>
#include <torch/library.h>

#include <unordered_set>

#include "borrowed.h"
#include "kernel.h"
#include "registration.h"
#include "sparse.h"

namespace torch_tpu {

using at::Tensor;

Tensor flat_positions(const Tensor& indices, c10::IntArrayRef sizes) {
  if (indices.size(0) == 0) return at::zeros({indices.size(1)}, indices.options());
  Tensor flat = indices.select(0, 0);
  for (int64_t dim = 1; dim < indices.size(0); ++dim) flat = flat * sizes[dim] + indices.select(0, dim);
  return flat;
}

std::vector<int64_t> flat_sizes(const Tensor& sparse) {
  std::vector<int64_t> sizes{1};
  for (int64_t dim = 0; dim < sparse.dim(); ++dim) {
    if (dim < sparse.sparse_dim()) {
      sizes[0] *= sparse.size(dim);
    } else {
      sizes.push_back(sparse.size(dim));
    }
  }
  return sizes;
}

Tensor coo_like(const Tensor& sparse, const Tensor& indices, const Tensor& values, bool coalesced) {
  auto result = at::_sparse_coo_tensor_unsafe(indices, values, sparse.sizes(),
                                              sparse.options().dtype(values.scalar_type()));
  return result._coalesced_(coalesced);
}

namespace {

using c10::DispatchKey;
using c10::Scalar;

bool is_compressed(const Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

// Makes the sparse tensor `out` hold what `result` does, in its own dtype.
void assign_coo(const Tensor& out, const Tensor& result) {
  auto* impl = at::sparse::get_sparse_impl(out);
  impl->raw_resize_(result.sparse_dim(), result.dense_dim(), result.sizes());
  impl->set_indices_and_values_unsafe(result._indices(), result._values().to(out.scalar_type()));
  impl->set_coalesced(result.is_coalesced());
}

}  // namespace

void assign_sparse(const Tensor& target, const Tensor& source) {
  if (target.is_sparse()) return assign_coo(target, source.to(target.device()));
  if (is_compressed(target)) {
    const auto moved = source.to(target.device());
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(moved);
    at::sparse_csr::get_sparse_csr_impl(target)->set_member_tensors(compressed, plain, moved.values(),
                                                                    moved.sizes());
    return;
  }
  target.resize_(source.sizes()).copy_(source);
}

namespace {

// --- COO ---------------------------------------------------------------------------------------------

// The inverse of flat_positions: int64[sparse_dim, n].
Tensor unflattened(Tensor flat, int64_t sparse_dim, c10::IntArrayRef sizes) {
  if (sparse_dim == 0) return at::zeros({0, flat.size(0)}, flat.options());
  std::vector<Tensor> rows(static_cast<size_t>(sparse_dim));
  for (int64_t dim = sparse_dim; dim-- > 1;) {
    rows[dim] = flat.remainder(sizes[dim]);
    flat = flat.div(sizes[dim], "floor");
  }
  rows[0] = std::move(flat);
  return at::stack(rows);
}

Tensor coalesce(const Tensor& self) {
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const auto flat = flat_positions(self._indices(), self.sizes());
  const auto [places, inverse] = at::_unique(flat, /*sorted=*/true, /*return_inverse=*/true);
  const auto values = self._values();
  auto sizes = values.sizes().vec();
  sizes[0] = places.size(0);
  const auto summed = at::zeros(sizes, values.options()).index_add_(0, inverse, values);
  return coo_like(self, unflattened(places, self.sparse_dim(), self.sizes()), summed, true);
}

void check_cast(const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto common = at::result_type(a, b);
  TORCH_CHECK(c10::canCast(common, out.scalar_type()), "Can't convert result type ", common, " to output ",
              out.scalar_type(), " in add operation");
}

Tensor& add_dense(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.sizes() == other.sizes(),
              "add: expected 'self' and 'other' to have same size, but self has size ", self.sizes(),
              " while other has size ", other.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  check_cast(self, other, out);
  const auto common = at::result_type(self, other);
  const auto values = at::mul(other._values().to(common), alpha).to(common);  // bool * 1 is int64
  auto result = self.to(common, /*non_blocking=*/false, /*copy=*/true).contiguous().view(flat_sizes(other));
  result.index_add_(0, flat_positions(other._indices(), other.sizes()), values);
  if (!out.is_same(self)) out.resize_(self.sizes());
  return out.copy_(result.view(self.sizes()));
}

Tensor& add_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  if (!self.is_sparse()) {
    TORCH_CHECK(!out.is_sparse(), "add: expected 'out' to be dense, got a sparse tensor");
    return add_dense(self, other, alpha, out);
  }
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, but ",
              self.sizes(), " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  check_cast(self, other, out);
  const auto common = at::result_type(self, other);
  const auto scaled = at::mul(other._values().to(common), alpha).to(common);
  auto sum = coo_like(self, at::cat(std::vector<Tensor>{self._indices(), other._indices()}, 1),
                      at::cat(std::vector<Tensor>{self._values().to(common), scaled}), false);
  assign_coo(out, self.is_coalesced() && other.is_coalesced() ? coalesce(sum) : sum);
  return out;
}

// The product of the elements that both have, by place.
Tensor intersected(const Tensor& a, const Tensor& b) {
  const auto x = a.coalesce(), y = b.coalesce();
  if (x._nnz() == 0 || y._nnz() == 0) {
    return coo_like(a, x._indices().narrow(1, 0, 0),
                    x._values().narrow(0, 0, 0) * y._values().narrow(0, 0, 0), true);
  }
  const auto ours = flat_positions(x._indices(), x.sizes()), theirs = flat_positions(y._indices(), y.sizes());
  const auto place = at::searchsorted(theirs, ours).clamp_max(theirs.size(0) - 1);
  const auto both = at::nonzero(theirs.index_select(0, place) == ours).squeeze(1);
  const auto values =
      x._values().index_select(0, both) * y._values().index_select(0, place.index_select(0, both));
  return coo_like(a, x._indices().index_select(1, both), values, true);
}

Tensor times_dense(const Tensor& sparse, const Tensor& dense) {
  const auto expanded = dense.expand(sparse.sizes()).reshape(flat_sizes(sparse));
  const auto picked = expanded.index_select(0, flat_positions(sparse._indices(), sparse.sizes()));
  return coo_like(sparse, sparse._indices(), sparse._values() * picked, sparse.is_coalesced());
}

Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  Tensor result;
  if (self.is_sparse() && other.is_sparse()) {
    TORCH_CHECK(self.sizes() == other.sizes(), "mul(sparse, sparse): inputs must have the same shape, got ",
                self.sizes(), " and ", other.sizes());
    TORCH_CHECK(self.sparse_dim() == other.sparse_dim(),
                "mul(sparse, sparse): inputs must have the same number of sparse dimensions, got ",
                self.sparse_dim(), " and ", other.sparse_dim());
    result = intersected(self, other);
  } else {
    const auto& sparse = self.is_sparse() ? self : other;
    const auto& dense = self.is_sparse() ? other : self;
    result = dense.dim() == 0
                 ? coo_like(sparse, sparse._indices(), sparse._values() * dense, sparse.is_coalesced())
                 : times_dense(sparse, dense);
  }
  assign_coo(out, result);
  return out;
}

// beta * self + alpha * sparse @ dense, for a COO matrix.
Tensor coo_addmm(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta,
                 const Scalar& alpha) {
  TORCH_CHECK(sparse.is_sparse() && !dense.is_sparse() && !self.is_sparse(),
              "addmm: expected a dense input, a sparse mat1 and a dense mat2 on device tpu");
  TORCH_CHECK(sparse.sparse_dim() == 2 && sparse.dense_dim() == 0,
              "addmm: matrices expected, got sparse_dim ", sparse.sparse_dim(), " and dense_dim ",
              sparse.dense_dim());
  TORCH_CHECK(dense.dim() == 2 && sparse.size(1) == dense.size(0),
              "mat1 and mat2 shapes cannot be multiplied (", sparse.size(0), "x", sparse.size(1), " and ",
              dense.size(0), "x", dense.dim() == 2 ? dense.size(1) : 1, ")");
  const auto rows = sparse._indices().select(0, 0), columns = sparse._indices().select(0, 1);
  const auto products = sparse._values().unsqueeze(1) * dense.index_select(0, columns) * alpha;
  const auto start = beta.toComplexDouble() == 0.0
                         ? at::zeros({sparse.size(0), dense.size(1)}, dense.options())
                         : (self * beta).expand({sparse.size(0), dense.size(1)}).clone();
  return start.contiguous().index_add_(0, rows, products);
}

Tensor& addmm_out(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  const auto result = coo_addmm(self, sparse, dense, beta, alpha);
  return out.resize_(result.sizes()).copy_(result);
}

Tensor& addmm_(Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta,
               const Scalar& alpha) {
  return self.copy_(coo_addmm(self, sparse, dense, beta, alpha));
}

// Batches as the blocks of one matrix.
Tensor coo_bmm(const Tensor& self, const Tensor& dense) {
  TORCH_CHECK(self.is_sparse() && !dense.is_sparse(), "bmm: expected a sparse self and a dense mat2");
  TORCH_CHECK(self.dim() == 3 && dense.dim() == 3 && self.dense_dim() == 0 && self.size(0) == dense.size(0) &&
                  self.size(2) == dense.size(1),
              "bmm: expected batches of matrices that fit, got ", self.sizes(), " and ", dense.sizes());
  const int64_t batch = self.size(0), n = self.size(1), k = self.size(2);
  const auto indices = self._indices();
  const auto block = indices.select(0, 0);
  const auto places = at::stack({block * n + indices.select(0, 1), block * k + indices.select(0, 2)});
  const auto matrix =
      at::_sparse_coo_tensor_unsafe(places, self._values(), {batch * n, batch * k}, self.options());
  return at::mm(matrix, dense.reshape({batch * k, dense.size(2)})).view({batch, n, dense.size(2)});
}

Tensor& bmm_out(const Tensor& self, const Tensor& dense, Tensor& out) {
  const auto result = coo_bmm(self, dense);
  return out.resize_(result.sizes()).copy_(result);
}

// --- Compressed --------------------------------------------------------------------------------------

Tensor& addmm_compressed(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                         const Scalar& alpha, Tensor& out) {
  const bool first = mat1.layout() != c10::kStrided, second = mat2.layout() != c10::kStrided;
  if (first && second) {
    TORCH_CHECK(is_compressed(out), "addmm: the product of two sparse matrices is sparse, got a dense out");
    auto product = at::mm(mat1.to_sparse(), mat2.to_sparse()).mul(alpha);
    if (self._nnz() != 0) product = product.add(self.to_sparse().mul(beta));
    assign_sparse(out, product.coalesce().to_sparse(out.layout()));
    return out;
  }
  TORCH_CHECK(first != second && self.layout() == c10::kStrided,
              "addmm: products of a compressed and a dense matrix are dense on device tpu; convert with "
              "to_dense() or to_sparse()");
  const auto result = first ? at::addmm(self, mat1.to_sparse(), mat2, beta, alpha)
                            : at::addmm(self.t(), mat2.to_sparse().t(), mat1.t(), beta, alpha).t();
  return out.resize_(result.sizes()).copy_(result);
}

// Rows to columns and back, by way of COO.
template <c10::Layout layout>
Tensor turned(const Tensor& self, std::optional<int64_t> dense_dim) {
  const auto name = layout == c10::kSparseCsr ? "aten::_to_sparse_csr" : "aten::_to_sparse_csc";
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  const bool blocks = self.layout() == c10::kSparseBsr || self.layout() == c10::kSparseBsc;
  if (self.layout() != layout && !blocks && self.values().dim() == 1) {
    return self.to_sparse().coalesce().to_sparse(layout, std::nullopt, dense_dim);
  }
  torch::jit::Stack stack{self, dense_dim};
  op.callBoxedForDispatchKey(DispatchKey::SparseCsrCPU, stack);
  return stack.back().toTensor();
}

Tensor& addmv_compressed(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                         const Scalar& alpha, Tensor& out) {
  const auto column = self.dim() == 1 ? self.unsqueeze(1) : self;
  const auto result = at::addmm(column, matrix.to_sparse(), vector.unsqueeze(1), beta, alpha).squeeze(1);
  return out.resize_(result.sizes()).copy_(result);
}

// --- On the CPU --------------------------------------------------------------------------------------

c10::IValue on_cpu(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined() || tensor.device().type() != kTpu) return tensor;
    auto moved = tensor.cpu();
    if (tensor.requires_grad()) moved.set_requires_grad(true);  // some kernels save more then
    return moved;
  }
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(tensor.cpu());
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(c10::kCPU);
  return value;
}

c10::Device device_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kTpu)
      return value.toTensor().device();
    if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) {
        if (tensor.device().type() == kTpu) return tensor.device();
      }
    }
    if (value.isDevice() && value.toDevice().type() == kTpu) return value.toDevice();
  }
  return c10::Device(kTpu, 0);
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  announce_fallback(entry_of(op), given);
  const auto device = device_of(given);
  torch::jit::drop(*stack, count);
  std::vector<c10::IValue> moved;
  for (const auto& value : given) moved.push_back(on_cpu(value));
  stack->insert(stack->end(), moved.begin(), moved.end());
  op.callBoxed(*stack);
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && given[i].isTensor())
      assign_sparse(given[i].toTensor(), moved[i].toTensor());
  }
  const size_t results = schema.returns().size(), first = stack->size() - results;
  for (size_t i = 0; i < results; ++i) {
    auto& result = (*stack)[first + i];
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const auto* alias = schema.returns()[i].alias_info();
    const Tensor* written = nullptr;
    for (size_t a = 0; a < count && alias != nullptr; ++a) {
      const auto* other = schema.arguments()[a].alias_info();
      if (other != nullptr && *other == *alias && given[a].isTensor()) written = &given[a].toTensor();
    }
    result = written != nullptr ? *written : result.toTensor().to(device);
  }
}

// --- Registration ------------------------------------------------------------------------------------

// What reads or writes elements itself, in PyTorch's kernels for sparse tensors on the CPU.
const std::unordered_set<std::string>& host_only() {
  static const std::unordered_set<std::string> names{
      "_sparse_mask_projection",
      "_sparse_sum_backward",
      "hspmm",
      "index_select",
      "sspaddmm",
      "_pin_memory",
      "is_pinned",
      // compressed
      "_sparse_csr_prod",
      "_sparse_csr_sum",
      "_sparse_mm_reduce_impl",
      "_sparse_mm_reduce_impl_backward",
      "add",
      "add_",
      "normal_",
      "triangular_solve",
  };
  return names;
}

void borrow_all(Handles& handles, DispatchKey from, DispatchKey to, bool compressed) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& op : borrowable(from, to)) {
    const auto base = op.operator_name().name.substr(6);
    const bool adds = base == "add" || base == "add_";
    if (host_only().count(base) && (compressed || !adds)) {
      // Not left to the fallback of the key: composite kernels come before that.
      handles.push_back(dispatcher.registerImpl(op.operator_name(), to,
                                                c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>(),
                                                std::nullopt, nullptr, "torch_tpu sparse fallback"));
    } else {
      borrow(handles, op, from, to);
    }
  }
}

}  // namespace

void register_sparse() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* handles = new Handles();
  borrow_all(*handles, DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1, false);
  borrow_all(*handles, DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1, true);
  for (const auto* name : {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    borrow(*handles, dispatcher.findSchemaOrThrow((std::string("aten::") + name).c_str(), ""),
           DispatchKey::CPU, DispatchKey::PrivateUse1);
  }
  for (const auto* overload : {"", "sparse_dim"}) {
    borrow(*handles, dispatcher.findSchemaOrThrow("aten::_to_sparse", overload), DispatchKey::CPU,
           DispatchKey::PrivateUse1);
  }
  for (const auto key : {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCsrPrivateUse1}) {
    handles->push_back(dispatcher.registerFallback(
        key, c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>(), "torch_tpu sparse fallback"));
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesce", &coalesce);
  m.impl("add.out", &add_out);
  m.impl("mul.out", &mul_out);
  m.impl("addmm", &coo_addmm);
  m.impl("addmm.out", &addmm_out);
  m.impl("addmm_", &addmm_);
  m.impl("bmm", &coo_bmm);
  m.impl("bmm.out", &bmm_out);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("addmm.out", &addmm_compressed);
  m.impl("addmv.out", &addmv_compressed);
  m.impl("_to_sparse_csr", &turned<c10::kSparseCsr>);
  m.impl("_to_sparse_csc", &turned<c10::kSparseCsc>);
}

}  // namespace torch_tpu
