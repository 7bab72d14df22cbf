// Kernels of the test device: every CPU kernel of the framework, run later, on the bytes behind device addresses.
//
// In float16 and bfloat16 the float32 kernel of the same name runs between casts: float32 arithmetic, one rounding.
// The framework calls a kernel as a C++ function of its own signature. One gate in assembler receives all of them: each
// registered function is a stub that loads its entry and jumps there, and the arguments are read back by the kernel's
// description. x86-64 with the System V calling convention only.
#include <immintrin.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/generator.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/tensor_utils.h"
#include "runtime.h"

namespace testdev {
namespace {

using phi::DataType;
using phi::DenseTensor;
using Tensors = std::vector<const DenseTensor*>;

// What cannot be forwarded: copies between devices, files, other processes, pointers into a fused buffer.
const char* const kLeftOut[] = {"memcpy", "copy_to", "feed", "fetch", "load", "save", "print", "c_", "all_reduce",
                                "all_gather", "all_to_all", "reduce_scatter", "broadcast", "send", "recv", "p_send", "p_recv",
                                "partial_", "mp_", "global_", "coalesce_tensor", "share_buffer", "distributed", "pull_",
                                "push_", "barrier", "dist_concat", "data", "number_count", "limit_by", "random_routing",
                                "sparse", "py_func", "get_tensor_from", "onednn", "strings_"};
// Results whose size depends on values: the host waits, as it does on a GPU.
const std::set<std::string> kSynchronous = {"nonzero", "masked_select", "unique", "unique_consecutive", "where_index",
                                            "shape", "shape64", "bincount", "nms", "repeat_interleave_with_tensor_index",
                                            "arange", "arange_tensor", "linspace", "logspace"};
// They move bits; their half kernels of the CPU are taken as they are, strides included.
const std::set<std::string> kMoveBits = {"contiguous", "strided_copy"};
// Position of the attribute multi_precision: the float32 master is updated and the half parameter gets its rounding.
const std::map<std::string, int> kMasters = {{"sgd", 0}, {"momentum", 4}, {"adam", 5}, {"adamw", 8}, {"lamb", 5}};
// beta1^t and beta2^t stand in host memory, as on a GPU: (input, output, attribute) of each.
struct Power {
  int input, output, attribute;
};
const std::map<std::string, std::vector<Power>> kPowers = {
    {"adam", {{6, 4, 0}, {7, 5, 1}}}, {"adamw", {{6, 4, 0}, {7, 5, 1}}}, {"lamb", {{5, 3, 1}, {6, 4, 2}}}};
const char* const kRandom[] = {"dropout", "uniform", "gaussian", "bernoulli", "randint", "randperm", "multinomial", "rrelu",
                               "exponential", "poisson", "normal", "binomial", "gamma", "dirichlet", "gumbel"};

bool starts_with_any(const std::string& name, const char* const* begin, const char* const* end) {
  return std::any_of(begin, end, [&](const char* prefix) { return name.rfind(prefix, 0) == 0; });
}

bool is_half(DataType dtype) { return dtype == DataType::FLOAT16 || dtype == DataType::BFLOAT16; }

// Casts ---------------------------------------------------------------------------------------------------------------

__attribute__((target("f16c,avx"))) void float16_to_float(const uint16_t* from, float* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}

__attribute__((target("f16c,avx"))) void float_to_float16(const float* from, uint16_t* to, size_t count) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), nearest));
  for (; i < count; ++i) to[i] = _cvtss_sh(from[i], nearest);
}

void bfloat16_to_float(const uint16_t* from, float* to, size_t count) {
  auto* bits = reinterpret_cast<uint32_t*>(to);
  for (size_t i = 0; i < count; ++i) bits[i] = uint32_t{from[i]} << 16;
}

void float_to_bfloat16(const float* from, uint16_t* to, size_t count) {
  auto* bits = reinterpret_cast<const uint32_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    uint32_t rounded = (bits[i] + 0x7FFF + ((bits[i] >> 16) & 1)) >> 16;
    bool is_nan = (bits[i] & 0x7FFFFFFF) > 0x7F800000;
    to[i] = is_nan ? uint16_t((bits[i] >> 16) | 0x40) : uint16_t(rounded);
  }
}

void widen(DataType dtype, const void* from, float* to, size_t count) {
  auto* half = static_cast<const uint16_t*>(from);
  dtype == DataType::FLOAT16 ? float16_to_float(half, to, count) : bfloat16_to_float(half, to, count);
}

void round_to(DataType dtype, const float* from, void* to, size_t count) {
  auto* half = static_cast<uint16_t*>(to);
  dtype == DataType::FLOAT16 ? float_to_float16(from, half, count) : float_to_bfloat16(from, half, count);
}

// Entries -------------------------------------------------------------------------------------------------------------

enum class Kind { kOne, kMany };

struct Entry {
  std::string name;
  phi::Kernel cpu;
  DataType dtype;
  std::vector<Kind> inputs, outputs;
  std::vector<bool> optional;
  std::vector<phi::AttributeType> attributes;
  bool random = false, synchronous = false, moves_bits = false;
  mutable std::atomic<bool> ran{false};  // since `testdev_ran` was asked last
};

// Every entry, for as long as the process lives.
std::vector<Entry*>& entries() {
  static auto& all = *new std::vector<Entry*>;
  return all;
}

// One operator as the framework asked for it. A missing optional input is a single nullptr.
struct Call {
  const phi::CustomContext* context;
  std::vector<Tensors> inputs;
  std::vector<phi::Attribute> attributes;
  std::vector<std::vector<DenseTensor*>> outputs;
};

// The CPU's side of a tensor. `bytes` stay the device's: holders of the framework are not kept alive, so that memory is
// given back, and taken again by later work of the queue, as on a real device.
struct Operand {
  phi::DenseTensorMeta meta;
  void* bytes = nullptr;  // behind the holder's first address; meta.offset counts from here
  size_t size = 0;
  std::shared_ptr<std::string> staged;  // the content of a tensor in host memory when the operator was asked for
  bool exists = false, announced = false;

  void* data() const { return static_cast<char*>(bytes) + meta.offset; }
};

void set_meta(DenseTensor* tensor, const phi::DenseTensorMeta& meta) {
  *phi::DenseTensorUtils::GetMutableMeta(tensor) = meta;  // the public set_meta is for the first time only
}

Operand operand_of(const DenseTensor* tensor) {
  Operand operand;
  if (tensor == nullptr) return operand;
  operand.exists = true;
  operand.meta = tensor->meta();
  if (!tensor->has_allocation()) return operand;
  operand.size = tensor->Holder()->size();
  void* address = tensor->Holder()->ptr();
  if (operand.size && is_device_address(address)) {
    operand.bytes = bytes_of(address);
  } else if (operand.size) {
    operand.staged = std::make_shared<std::string>(static_cast<char*>(address), operand.size);
    operand.bytes = operand.staged->data();
  }
  return operand;
}

// One for each piece of memory: rmsprop demands that a parameter and its new value share theirs, not the address alone.
struct Views {
  std::map<void*, std::shared_ptr<phi::Allocation>> known;

  std::shared_ptr<phi::Allocation> of(const Operand& operand) {
    auto& view = known[operand.bytes];
    if (view == nullptr || view->size() != operand.size)
      view = std::make_shared<phi::Allocation>(operand.bytes, operand.size, phi::CPUPlace());
    return view;
  }
};

struct Worker {
  phi::CPUContext context{phi::CPUPlace()};
  phi::Generator generator{0};

  Worker() {
    auto* shared = phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
    context.SetAllocator(&shared->GetAllocator());
    context.SetHostAllocator(&shared->GetHostAllocator());
    context.SetZeroAllocator(&shared->GetZeroAllocator());
    context.SetHostZeroAllocator(&shared->GetHostZeroAllocator());
    context.SetGenerator(&generator);
    context.SetHostGenerator(&generator);
  }
};

// A queued operator.
struct Work {
  const Entry* entry;
  std::vector<std::vector<Operand>> inputs, outputs;
  std::vector<phi::Attribute> attributes;
  uint64_t seed = 0;

  // Run on the CPU and write the results behind their addresses. Those whose size was not known before are an error,
  // unless someone takes them in `kept`.
  void run(std::vector<std::vector<DenseTensor>>* kept = nullptr) {
    static thread_local Worker worker;
    if (entry->random) worker.generator.SetCurrentSeed(seed);
    Views views;
    std::map<void*, DenseTensor> widened;  // a half tensor that is read and written in place stays one tensor
    std::vector<std::vector<DenseTensor>> reads(inputs.size()), results(outputs.size());
    phi::KernelContext call(&worker.context);
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (auto& operand : inputs[i]) reads[i].push_back(read(operand, &worker.context, &views, &widened));
      paddle::small_vector<const phi::TensorBase*> pointers;
      for (size_t j = 0; j < inputs[i].size(); ++j) pointers.push_back(inputs[i][j].exists ? &reads[i][j] : nullptr);
      if (entry->inputs[i] == Kind::kOne || (pointers.size() == 1 && pointers[0] == nullptr)) {
        call.EmplaceBackInput(pointers[0]);
      } else {
        call.EmplaceBackInputs(pointers);
      }
    }
    for (auto& attribute : attributes) call.EmplaceBackAttr(attribute);
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (auto& operand : outputs[i]) results[i].push_back(place_for(operand, &views, widened));
      paddle::small_vector<phi::TensorBase*> pointers;
      for (size_t j = 0; j < outputs[i].size(); ++j) pointers.push_back(outputs[i][j].exists ? &results[i][j] : nullptr);
      if (entry->outputs[i] == Kind::kOne) {
        call.EmplaceBackOutput(pointers[0]);
      } else {
        call.EmplaceBackOutputs(pointers);
      }
    }
    try {
      entry->cpu(&call);
    } catch (const std::exception& error) {
      throw std::runtime_error("kernel " + entry->name + ": " + error.what());
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      for (size_t j = 0; j < outputs[i].size(); ++j)
        if (outputs[i][j].exists && (outputs[i][j].announced || !kept)) write(outputs[i][j], results[i][j], i);
    if (kept != nullptr) *kept = std::move(results);
  }

  DenseTensor read(const Operand& operand, phi::CPUContext* context, Views* views,
                   std::map<void*, DenseTensor>* widened) const {
    DenseTensor tensor;
    if (operand.bytes == nullptr) {
      if (!operand.exists) return tensor;
      auto meta = operand.meta;
      if (is_half(meta.dtype) && !entry->moves_bits) meta.dtype = DataType::FLOAT32;
      set_meta(&tensor, meta);
      // Off the CPU the framework frees inputs that a device's gradient kernel does not read (x of multiply_grad when
      // only dx is asked for). The CPU's kernel touches them all the same: it gets NaN.
      if (meta.dtype != DataType::UNDEFINED && tensor.numel() > 0)
        memset(context->Alloc(&tensor, meta.dtype), 0xFF, tensor.numel() * phi::SizeOf(meta.dtype));
      return tensor;
    }
    if (!is_half(operand.meta.dtype) || entry->moves_bits) return DenseTensor(views->of(operand), operand.meta);
    auto known = widened->find(operand.data());
    if (known != widened->end() && known->second.numel() == phi::product(operand.meta.dims)) return known->second;
    auto meta = operand.meta;
    int64_t extent = phi::product(meta.dims) ? 1 : 0;  // elements from the first to the last, gaps of strides included
    for (int i = 0; extent && i < meta.dims.size(); ++i) extent += (meta.dims[i] - 1) * meta.strides[i];
    meta.dtype = DataType::FLOAT32;
    meta.offset = 0;
    set_meta(&tensor, phi::DenseTensorMeta(DataType::FLOAT32, phi::make_ddim({extent})));
    float* values = context->Alloc<float>(&tensor);
    widen(operand.meta.dtype, operand.data(), values, extent);
    set_meta(&tensor, meta);
    (*widened)[operand.data()] = tensor;
    return tensor;
  }

  DenseTensor place_for(const Operand& operand, Views* views, const std::map<void*, DenseTensor>& widened) const {
    DenseTensor tensor;
    if (!operand.exists) return tensor;
    auto meta = operand.meta;
    if (!operand.announced || operand.bytes == nullptr) {
      if (is_half(meta.dtype)) meta.dtype = DataType::FLOAT32;
      set_meta(&tensor, meta);
      return tensor;
    }
    if (!is_half(meta.dtype) || entry->moves_bits) return DenseTensor(views->of(operand), meta);
    auto known = widened.find(operand.data());
    if (known != widened.end() && known->second.numel() == phi::product(meta.dims)) {
      DenseTensor shared = known->second;
      meta.dtype = DataType::FLOAT32;
      meta.offset = 0;
      set_meta(&shared, meta);
      return shared;
    }
    meta.dtype = DataType::FLOAT32;
    meta.offset = 0;
    set_meta(&tensor, meta);
    return tensor;
  }

  void write(const Operand& operand, const DenseTensor& result, size_t index) const {
    std::string which = "kernel " + entry->name + ", output " + std::to_string(index) + ": ";
    if (!operand.announced) {
      if (result.has_allocation() && result.numel() > 0) fail(which + "has a result that nobody announced");
      return;
    }
    if (operand.bytes == nullptr || entry->moves_bits) return;
    if (!result.has_allocation()) return;  // the CPU's kernel leaves it out
    if (result.numel() != phi::product(operand.meta.dims)) {
      fail(which + "its size is known only after the computation");
    } else if (result.dtype() == operand.meta.dtype) {
      if (result.data() != operand.data())
        memcpy(operand.data(), result.data(), result.numel() * phi::SizeOf(result.dtype()));
    } else if (is_half(operand.meta.dtype) && result.dtype() == DataType::FLOAT32) {
      round_to(operand.meta.dtype, static_cast<const float*>(result.data()), operand.data(), result.numel());
    } else {
      fail(which + "is " + phi::DataTypeToString(result.dtype()) + ", announced as " +
           phi::DataTypeToString(operand.meta.dtype));
    }
  }
};

uint64_t mix(uint64_t seed, uint64_t offset) {  // splitmix64
  uint64_t x = seed + (offset + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

void check_device(const std::string& name) {
  auto& count = figures();
  ++count.kernels;
  if (count.lose_after >= 0 && count.lose_after-- == 0) count.lost = 1;
  if (count.lost) PADDLE_THROW(common::errors::External("test device error 999: the device disappeared in %s", name));
}

// The half parameter becomes the rounding of the updated float32 master.
void use_master(Work* work, int multi_precision) {
  size_t master = work->inputs.size();
  for (size_t i = 1; i < work->inputs.size(); ++i)
    if (work->entry->optional[i] && work->inputs[i][0].exists &&
        work->inputs[i][0].meta.dtype == DataType::FLOAT32 && work->outputs.back()[0].exists)
      master = i;
  if (master == work->inputs.size()) return;
  work->inputs[0] = {work->inputs[master][0]};
  work->inputs[master] = {Operand()};
  work->attributes[multi_precision] = false;
}

void launch(const Entry& entry, Call call) {
  check_device(entry.name);
  entry.ran = true;
  Work work;
  work.entry = &entry;
  work.attributes = std::move(call.attributes);
  if (is_half(entry.dtype) || !entry.moves_bits)
    for (auto& attribute : work.attributes)
      if (auto* dtype = paddle::get_if<DataType>(&attribute))
        if (is_half(*dtype)) *dtype = DataType::FLOAT32;
  for (auto& tensors : call.inputs) {
    work.inputs.emplace_back();
    for (auto* tensor : tensors) work.inputs.back().push_back(operand_of(tensor));
  }
  if (entry.random) {
    auto state = call.context->GetGenerator()->IncrementOffset(4);
    work.seed = mix(state.first, state.second);
  }
  if (entry.name == "strided_copy") {  // the kernel itself says where its result lies
    auto* out = call.outputs[0][0];
    auto meta = out->meta();
    meta.dims = phi::make_ddim(paddle::get<std::vector<int64_t>>(work.attributes[0]));
    meta.strides = phi::make_ddim(paddle::get<std::vector<int64_t>>(work.attributes[1]));
    meta.offset = paddle::get<int64_t>(work.attributes[2]);
    set_meta(out, meta);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    work.outputs.emplace_back();
    for (auto* out : call.outputs[i]) {
      Operand operand;
      if (out != nullptr) {
        operand.exists = true;
        operand.meta = out->meta();
        bool unknown = operand.meta.dims.size() > 0 && phi::product(operand.meta.dims) < 0;
        bool unset = operand.meta.dtype == DataType::UNDEFINED && operand.meta.dims == phi::make_ddim({0});
        operand.announced = !unknown && !unset;
      }
      work.outputs.back().push_back(operand);
    }
  }
  auto powers = kPowers.find(entry.name);
  if (powers != kPowers.end()) {
    for (auto& power : powers->second) {
      auto *in = call.inputs[power.input][0];
      auto* out = call.outputs[power.output][0];
      if (in == nullptr || out == nullptr || in->place().GetType() != phi::AllocationType::CPU) continue;
      auto& attribute = work.attributes[power.attribute];
      auto* scalar = paddle::get_if<phi::Scalar>(&attribute);
      float beta = scalar ? scalar->to<float>() : paddle::get<float>(attribute);
      float next = *static_cast<const float*>(in->data()) * beta;
      *static_cast<float*>(call.context->HostAlloc(out, DataType::FLOAT32)) = next;
      work.outputs[power.output][0] = Operand();
      work.outputs[power.output][0].exists = work.outputs[power.output][0].announced = true;
      work.outputs[power.output][0].meta = out->meta();
      call.outputs[power.output][0] = nullptr;
    }
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    for (size_t j = 0; j < call.outputs[i].size(); ++j) {
      auto* out = call.outputs[i][j];
      auto& operand = work.outputs[i][j];
      if (out == nullptr || !operand.announced) continue;
      DataType dtype = operand.meta.dtype;
      if (dtype == DataType::UNDEFINED) dtype = entry.dtype;
      if (!entry.moves_bits || entry.name == "contiguous") call.context->Alloc(out, dtype);
      operand = operand_of(out);
      operand.announced = true;
    }
  }
  if (entry.synchronous) {
    count_wait();
    drain_all();
    std::vector<std::vector<DenseTensor>> results;
    work.run(&results);
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      for (size_t j = 0; j < call.outputs[i].size(); ++j) {
        auto* out = call.outputs[i][j];
        auto& result = results[i][j];
        if (out == nullptr || work.outputs[i][j].announced || !result.has_allocation()) continue;
        bool rounds = is_half(out->dtype()) && result.dtype() == DataType::FLOAT32;
        DataType dtype = rounds ? out->dtype() : result.dtype();
        out->Resize(result.dims());
        call.context->Alloc(out, dtype);
        if (result.numel() == 0) continue;
        void* bytes = bytes_of(out->data());
        if (rounds) {
          round_to(dtype, static_cast<const float*>(result.data()), bytes, result.numel());
        } else {
          memcpy(bytes, result.data(), result.numel() * phi::SizeOf(dtype));
        }
      }
    }
    return;
  }
  auto masters = kMasters.find(entry.name);
  Operand rounded;
  if (is_half(entry.dtype) && masters != kMasters.end()) {
    bool has_master = paddle::get<bool>(work.attributes[masters->second]);
    use_master(&work, masters->second);
    if (has_master) {
      rounded = work.outputs[0][0];
      work.outputs[0][0] = work.outputs.back()[0];
      work.outputs.back()[0] = Operand();
    }
  }
  auto* queue = reinterpret_cast<Queue*>(call.context->stream());
  enqueue(queue, [work = std::move(work), rounded]() mutable {
    work.run();
    if (rounded.exists)
      round_to(rounded.meta.dtype, static_cast<const float*>(work.outputs[0][0].data()), rounded.data(),
               phi::product(rounded.meta.dims));
  });
}

// The gate ------------------------------------------------------------------------------------------------------------

struct Registers {
  int64_t general[6];
  double vector[8];
};

// Reads arguments in the order of the System V convention.
struct Arguments {
  const Registers* registers;
  const int64_t* stack;
  int general = 0, vector = 0;

  int64_t integer() { return general < 6 ? registers->general[general++] : *stack++; }
  template <typename T>
  T* pointer() {
    return reinterpret_cast<T*>(integer());
  }
  template <typename T>
  T floating() {
    T value;
    const void* from = vector < 8 ? static_cast<const void*>(&registers->vector[vector++]) : stack++;
    memcpy(&value, from, sizeof value);
    return value;
  }
};

phi::Attribute attribute_of(phi::AttributeType type, Arguments* arguments) {
  using Type = phi::AttributeType;
  switch (type) {
    case Type::BOOL: return static_cast<bool>(arguments->integer() & 0xFF);
    case Type::INT32: return static_cast<int>(arguments->integer());
    case Type::INT64: return static_cast<int64_t>(arguments->integer());
    case Type::FLOAT32: return arguments->floating<float>();
    case Type::FLOAT64: return arguments->floating<double>();
    case Type::DATA_TYPE: return static_cast<DataType>(static_cast<int>(arguments->integer()) & 0xFF);
    case Type::DATA_LAYOUT: return static_cast<phi::DataLayout>(static_cast<int>(arguments->integer()));
    case Type::STRING: return *arguments->pointer<const std::string>();
    case Type::BOOLS: return *arguments->pointer<const std::vector<bool>>();
    case Type::INT32S: return *arguments->pointer<const std::vector<int>>();
    case Type::INT64S: return *arguments->pointer<const std::vector<int64_t>>();
    case Type::FLOAT32S: return *arguments->pointer<const std::vector<float>>();
    case Type::FLOAT64S: return *arguments->pointer<const std::vector<double>>();
    case Type::STRINGS: return *arguments->pointer<const std::vector<std::string>>();
    case Type::SCALAR: return *arguments->pointer<const phi::Scalar>();
    case Type::SCALARS: return *arguments->pointer<const std::vector<phi::Scalar>>();
    case Type::INT_ARRAY: return *arguments->pointer<const phi::IntArray>();
    default: PADDLE_THROW(common::errors::Unimplemented("test device: an attribute of this kind"));
  }
}

}  // namespace

extern "C" void testdev_enter(const Entry* entry, const Registers* registers, const int64_t* stack) {
  Arguments arguments{registers, stack};
  Call call;
  call.context = arguments.pointer<const phi::CustomContext>();
  for (size_t i = 0; i < entry->inputs.size(); ++i) {
    if (entry->inputs[i] == Kind::kOne && entry->optional[i]) {
      auto* given = arguments.pointer<const paddle::optional<DenseTensor>>();
      call.inputs.push_back({given->get_ptr()});
    } else if (entry->inputs[i] == Kind::kOne) {
      call.inputs.push_back({arguments.pointer<const DenseTensor>()});
    } else if (entry->optional[i]) {
      auto* given = arguments.pointer<const paddle::optional<Tensors>>();
      call.inputs.push_back(given->get_ptr() ? given->get() : Tensors{nullptr});
    } else {
      call.inputs.push_back(*arguments.pointer<const Tensors>());
    }
  }
  for (auto type : entry->attributes) call.attributes.push_back(attribute_of(type, &arguments));
  for (auto kind : entry->outputs) {
    if (kind == Kind::kOne) {
      call.outputs.push_back({arguments.pointer<DenseTensor>()});
    } else {
      call.outputs.push_back(*arguments.pointer<std::vector<DenseTensor*>>());
    }
  }
  launch(*entry, std::move(call));
}

extern "C" void testdev_gate();
asm(R"(
  .text
  .globl testdev_gate
  .hidden testdev_gate
  .type testdev_gate, @function
testdev_gate:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset 6, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register 6
  subq $112, %rsp
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movsd %xmm0, 48(%rsp)
  movsd %xmm1, 56(%rsp)
  movsd %xmm2, 64(%rsp)
  movsd %xmm3, 72(%rsp)
  movsd %xmm4, 80(%rsp)
  movsd %xmm5, 88(%rsp)
  movsd %xmm6, 96(%rsp)
  movsd %xmm7, 104(%rsp)
  movq %r11, %rdi
  movq %rsp, %rsi
  leaq 16(%rbp), %rdx
  call testdev_enter@PLT
  leave
  .cfi_def_cfa 7, 8
  ret
  .cfi_endproc
  .size testdev_gate, .-testdev_gate
)");

namespace {

// Machine code of `r11 = entry; jump to the gate`, one stub for each entry.
class Stubs {
 public:
  void* add(const Entry* entry) {
    if (next_ == nullptr || next_ + kSize > end_) {
      next_ = static_cast<uint8_t*>(
          mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      end_ = next_ + kBlock;
      blocks_.push_back(next_);
    }
    uint8_t* stub = next_;
    next_ += kSize;
    auto put = [&](std::initializer_list<uint8_t> code) { stub = std::copy(code.begin(), code.end(), stub); };
    auto put_address = [&](const void* address) {
      memcpy(stub, &address, sizeof address);
      stub += sizeof address;
    };
    uint8_t* start = stub;
    put({0x49, 0xBB});  // movabs r11
    put_address(entry);
    put({0x49, 0xBA});  // movabs r10
    put_address(reinterpret_cast<const void*>(&testdev_gate));
    put({0x41, 0xFF, 0xE2});  // jmp r10
    return start;
  }

  void seal() {
    for (auto* block : blocks_) mprotect(block, kBlock, PROT_READ | PROT_EXEC);
  }

 private:
  static constexpr size_t kSize = 32, kBlock = 1 << 20;
  uint8_t *next_ = nullptr, *end_ = nullptr;
  std::vector<uint8_t*> blocks_;
};

// Fill in the kinds of arguments; false: it has one that the gate does not read.
bool describe(Entry* entry) {
  auto& args = entry->cpu.args_def();
  for (auto& input : args.input_defs()) {
    if (input.type_index == typeid(DenseTensor) || input.type_index == typeid(paddle::optional<DenseTensor>)) {
      entry->inputs.push_back(Kind::kOne);
      entry->optional.push_back(input.type_index == typeid(paddle::optional<DenseTensor>));
    } else if (input.type_index == typeid(Tensors) || input.type_index == typeid(paddle::optional<Tensors>)) {
      entry->inputs.push_back(Kind::kMany);
      entry->optional.push_back(input.type_index == typeid(paddle::optional<Tensors>));
    } else {
      return false;
    }
  }
  for (auto& output : args.output_defs()) {
    if (output.type_index == typeid(DenseTensor*)) {
      entry->outputs.push_back(Kind::kOne);
    } else if (output.type_index == typeid(std::vector<DenseTensor*>)) {
      entry->outputs.push_back(Kind::kMany);
    } else {
      return false;
    }
  }
  for (auto& attribute : args.attribute_defs()) {
    if (attribute.type_index == phi::AttributeType::PLACE) return false;
    entry->attributes.push_back(attribute.type_index);
  }
  return true;
}

Call call_of(const Entry& entry, phi::KernelContext* given) {
  Call call;
  call.context = &given->GetDeviceContext<phi::CustomContext>();
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    auto range = given->InputRangeAt(i);
    call.inputs.emplace_back();
    for (int j = range.first; j < range.second; ++j)
      call.inputs.back().push_back(static_cast<const DenseTensor*>(given->MutableInputAt(j)));
  }
  for (size_t i = 0; i < entry.attributes.size(); ++i) call.attributes.push_back(given->AttrAt(i));
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    auto range = given->OutputRangeAt(i);
    call.outputs.emplace_back();
    for (int j = range.first; j < range.second; ++j)
      call.outputs.back().push_back(given->MutableOutputAt<DenseTensor>(j));
  }
  return call;
}

}  // namespace

// "kernel dtype" of each line: what ran since the last call.
extern "C" const char* testdev_ran() {
  static std::string text;
  text.clear();
  for (auto* entry : entries())
    if (entry->ran.exchange(false)) text += entry->name + " " + phi::DataTypeToString(entry->dtype) + "\n";
  return text.c_str();
}

void register_kernels() {
  auto backend = phi::TransToPhiBackend(phi::CustomPlace(device_type(), 0));
  auto& kernels = phi::KernelFactory::Instance().kernels();
  auto& stubs = *new Stubs;
  for (auto& named : kernels) {
    const std::string& name = named.first;
    if (starts_with_any(name, std::begin(kLeftOut), std::end(kLeftOut))) continue;
    std::vector<std::unique_ptr<Entry>> made;
    auto add = [&](const phi::KernelKey& key, const phi::Kernel& cpu) {
      auto entry = std::make_unique<Entry>();
      entry->name = name;
      entry->cpu = cpu;
      entry->dtype = key.dtype();
      bool is_gradient = name.find("_grad") != std::string::npos;
      for (auto* part : kRandom) entry->random |= !is_gradient && name.find(part) != std::string::npos;
      entry->synchronous = kSynchronous.count(name) > 0;
      entry->moves_bits = kMoveBits.count(name) > 0;
      if (describe(entry.get())) made.push_back(std::move(entry));
    };
    phi::KernelKey wide(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, DataType::FLOAT32);
    for (auto& keyed : named.second) {
      auto& key = keyed.first;
      if (key.backend() != phi::Backend::CPU || key.layout() != phi::DataLayout::ALL_LAYOUT) continue;
      if (is_half(key.dtype()) && !kMoveBits.count(name) && named.second.count(wide)) continue;
      add(key, keyed.second);
    }
    auto found = named.second.find(wide);
    if (found != named.second.end() && !kMoveBits.count(name)) {
      for (auto dtype : {DataType::FLOAT16, DataType::BFLOAT16})
        add(phi::KernelKey(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, dtype), found->second);
    }
    for (auto& owned : made) {
      const char* without = getenv("TESTDEV_WITHOUT");  // "momentum bfloat16": a device that lacks this kernel
      if (without && name + " " + phi::DataTypeToString(owned->dtype) == without) continue;
      Entry* entry = owned.release();
      entries().push_back(entry);
      phi::Kernel kernel([entry](phi::KernelContext* given) { launch(*entry, call_of(*entry, given)); },
                         stubs.add(entry));
      *kernel.mutable_args_def() = entry->cpu.args_def();
      for (auto& input : kernel.mutable_args_def()->input_defs())
        if (input.backend == phi::Backend::CPU) input.backend = backend;
      for (auto& output : kernel.mutable_args_def()->output_defs())
        if (output.backend == phi::Backend::CPU) output.backend = backend;
      auto powers = kPowers.find(name);
      if (powers != kPowers.end()) {
        for (auto& power : powers->second) {
          kernel.InputAt(power.input).SetBackend(phi::Backend::ALL_BACKEND);
          kernel.OutputAt(power.output).SetBackend(phi::Backend::UNDEFINED);
        }
      }
      named.second[phi::KernelKey(backend, phi::DataLayout::ALL_LAYOUT, entry->dtype)] = kernel;
    }
  }
  stubs.seal();
}

}  // namespace testdev
