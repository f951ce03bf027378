// What kernels of sparse tensors share.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_tpu {

// The position of each stored element in the flattened sparse dimensions: int64[nnz].
at::Tensor flat_positions(const at::Tensor& indices, c10::IntArrayRef sizes);

// The sizes of a dense tensor of its shape, with the sparse dimensions flattened to one.
std::vector<int64_t> flat_sizes(const at::Tensor& sparse);

// A COO tensor of the sizes of `sparse`, and of the dtype of `values`.
at::Tensor coo_like(const at::Tensor& sparse, const at::Tensor& indices, const at::Tensor& values,
                    bool coalesced);

// Makes `target` hold what `source`, a tensor of the same layout, does.
void assign_sparse(const at::Tensor& target, const at::Tensor& source);

}  // namespace torch_tpu
