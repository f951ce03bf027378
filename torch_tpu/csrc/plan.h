// Plans and the plan cache: what one op call with one key means.
#pragma once

#include <Python.h>

#include <ATen/core/function_schema.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "value.h"

namespace torch_tpu {

// Everything that changes the program of a call, as words; compared in full.
using KeyView = c10::ArrayRef<uint64_t>;
using KeyWords = c10::SmallVector<uint64_t, 96>;

// A tensor that a plan makes: metadata, and the layout of its new storage.
struct FreshTensor {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset;
  const Layout* layout;
};

// Where one value of the op's result comes from.
struct Return {
  enum class Kind : uint8_t { Fresh, Argument, None, List, Integer };
  Kind kind;
  int64_t index;  // of the fresh tensor or the argument; how many items of a list follow; the integer itself
};

// Bounds on a run-time offset: ((offset / stride) % size) <= max_start for tensor leaf `leaf`.
struct OffsetRule {
  uint32_t leaf;
  int64_t stride, size, max_start;
};

// A number argument that must be representable in `dtype`.
struct Fit {
  uint32_t argument;
  c10::ScalarType dtype;
};

// What an index argument is held to; its text names the {place} and the {value} of the first that is not.
struct Bound {
  bool index_error;  // else a RuntimeError
  std::string text;
};

// Run-time numbers that the CPU's own kernel has accepted.
class AcceptedNumbers {
 public:
  bool contains(c10::ArrayRef<uint32_t> words);
  void insert(c10::ArrayRef<uint32_t> words);

 private:
  std::mutex mutex_;
  std::set<std::vector<uint32_t>> words_;
};

// An `out=` argument whose shape the op sets.
struct Resize {
  uint32_t argument;
  std::vector<int64_t> sizes, strides;
};

// A compiled program as Python holds it. Read and written with the GIL held.
struct LoadedProgram {
  PyObject* call = nullptr;     // null once it was dropped
  PyObject* execute = nullptr;  // with `handlers` a cheaper way to run it on device arrays, or null
  PyObject* handlers = nullptr;
};

struct Plan {
  enum class Kind : uint8_t { Program, Host, Fallback };
  Kind kind = Kind::Program;
  PyObject* function = nullptr;  // of a host op; immortal, like the plan
  std::unique_ptr<LoadedProgram> program = std::make_unique<LoadedProgram>();
  std::vector<uint32_t> inputs;  // storage slots, in the order of the program's parameters
  std::vector<bool> donated;     // by input
  bool packed = false;           // the last parameter is the packed run-time data:
  bool random = false;           // four words of random state,
  bool offsets = false;          // two words for each storage offset, then the numbers
  std::vector<FreshTensor> fresh;
  std::vector<int32_t> results;  // by program result: fresh index, or ~slot of a written storage
  std::vector<Return> returns;
  std::vector<Resize> resizes;
  std::vector<OffsetRule> offset_rules;
  std::vector<Bound> bounds;  // if any, the program's last result is what it found; see traps.h
  std::vector<Fit> fits;
  std::unique_ptr<AcceptedNumbers> accepted;  // null: any number will do
};

// What the lowering table says of an op; asked once, at its first call.
struct Policy {
  std::vector<bool> static_number;  // by argument: its number is in the key
  std::vector<bool> dynamic_int;    // by argument: its int is run-time data
  bool moves_host = false;          // CPU tensors among the arguments are moved to the device
  bool bounded = false;             // its programs check index arguments
};

// One op of the dispatcher and its plans.
class OpEntry {
 public:
  OpEntry(const c10::FunctionSchema& schema);

  const c10::FunctionSchema schema;  // its own: a library of custom ops may go, and the op with it
  const std::string name;            // "aten::add.Tensor"
  const bool foreach;                // one of aten::_foreach_*
  const int device_argument;         // place of `device`, or -1
  std::vector<bool> written;         // by argument: aliased for writing
  const Policy& policy();            // takes the GIL at the first call

  const Plan* find(KeyView key);
  const Plan* insert(KeyView key, std::unique_ptr<Plan> plan);

  // Keys that are equal but for storage offsets. After the second distinct one the plan takes offsets at run
  // time.
  struct Family {
    uint32_t distinct = 0;
    const Plan* dynamic = nullptr;
  };
  Family family(KeyView key_without_offsets);
  const Plan* insert_dynamic(KeyView key_without_offsets, std::unique_ptr<Plan> plan);
  void count_offset(KeyView key_without_offsets);

  // Held while a plan is built, so that no key is built twice; taken before the GIL.
  std::recursive_mutex building;
  std::atomic<uint64_t> fallbacks{0};

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(KeyView key) const;
    size_t operator()(const std::vector<uint64_t>& key) const { return (*this)(KeyView(key)); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(KeyView a, KeyView b) const { return a == b; }
  };
  std::mutex mutex_;
  std::unordered_map<std::vector<uint64_t>, std::unique_ptr<Plan>, Hash, Equal> plans_;
  std::unordered_map<std::vector<uint64_t>, Family, Hash, Equal> families_;
  std::vector<std::unique_ptr<Plan>> dynamic_plans_;
  std::once_flag policy_once_;
  std::atomic<bool> policy_known_{false};
  Policy policy_;
};

// Counts a program among the loaded ones. A process can hold only so many: the oldest are dropped, and loaded
// again when they are next called. The GIL must be held.
void keep_program(LoadedProgram& program);

// Reads a Plan from the object that eager/miss.py returns. The GIL must be held.
std::unique_ptr<Plan> parse_plan(PyObject* spec);

// The entry of an op; made at its first use.
OpEntry& entry_of(const c10::OperatorHandle& op);

}  // namespace torch_tpu
