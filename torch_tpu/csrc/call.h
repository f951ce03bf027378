// One op call: its arguments walked once into a key, storage slots and run-time words.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <unordered_map>
#include <vector>

#include "plan.h"

namespace torch_tpu {

// A leaf of the argument tree, in the order of the walk; what a plan miss shows to Python.
struct Leaf {
  enum class Kind : uint8_t { Static, Tensor, Number };
  Kind kind;
  uint32_t argument;
  // Tensor: storage slot and index among tensor leaves. Number: first word in the packed data.
  uint32_t slot = 0, index = 0;
  char number = 0;      // 'i', 'u' (over int64), 'f', 'b', 'c': kind of a run-time number
  bool wrapped = true;  // a Python number, not a 0-dim tensor of `dtype`
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

class Call {
 public:
  Call(OpEntry& entry, torch::jit::Stack& stack);

  OpEntry& entry;
  torch::jit::Stack& stack;
  size_t first;  // of the arguments on the stack
  c10::DeviceIndex device = -1;
  KeyWords key;
  c10::SmallVector<c10::StorageImpl*, 16> storages;  // by slot
  c10::SmallVector<StorageRecord*, 16> slots;
  c10::SmallVector<uint32_t, 8> offset_words;   // key words that hold a storage offset
  c10::SmallVector<int64_t, 8> offsets;         // their values, by tensor leaf that has one
  c10::SmallVector<uint32_t, 8> offset_leaves;  // tensor leaf of each offset
  c10::SmallVector<uint32_t, 16> words;         // packed run-time numbers
  std::optional<at::Generator> generator;

  const c10::IValue& argument(size_t i) const { return stack[first + i]; }
  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack.data() + first, stack.size() - first);
  }
  // Walks the arguments again, for a plan miss.
  std::vector<Leaf> leaves();

 private:
  void walk();
  void add(const c10::IValue& value, uint32_t argument);
  void add_tensor(const at::Tensor& tensor, uint32_t argument);
  void add_number(const c10::IValue& value, uint32_t argument);
  void add_list(const c10::IValue& value, uint32_t argument);
  void add_other(const c10::IValue& value, uint32_t argument);
  void add_host_number(const at::Tensor& tensor, uint32_t argument);
  void pack(const c10::Scalar& number);
  uint32_t slot_of(const at::Tensor& tensor);
  void find_device();
  [[noreturn]] void mixed_devices(const at::Tensor& tensor, uint32_t argument) const;
  void note(Leaf leaf) {
    if (leaves_) leaves_->push_back(leaf);
  }
  std::vector<Leaf>* leaves_ = nullptr;
  std::unordered_map<c10::StorageImpl*, uint32_t> many_;  // slots by storage, once there are many
  uint32_t tensors_ = 0;
};

}  // namespace torch_tpu
