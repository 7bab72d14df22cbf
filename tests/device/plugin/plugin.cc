// The functions that the framework calls (paddle/phi/backends/device_ext.h), and those that tests call by ctypes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "collectives.h"
#include "paddle/phi/backends/device_ext.h"
#include "runtime.h"

using namespace testdev;  // NOLINT

namespace {

thread_local int current_device = 0;

Queue* queue_of(C_Stream stream) { return reinterpret_cast<Queue*>(stream); }

// Status after a wait: what failed in the queue is reported to whoever waits, as on a GPU.
C_Status status() {
  if (figures().lost) {
    fprintf(stderr, "test device: the device disappeared\n");
    return C_ERROR;
  }
  std::string message = take_failure();
  if (message.empty()) return C_SUCCESS;
  fprintf(stderr, "test device: %s\n", message.c_str());
  return C_ERROR;
}

struct Event {
  std::mutex mutex;
  std::shared_ptr<Queue> queue;
  uint64_t recorded = 0, reached = 0;

  bool is_reached(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex);
    return reached >= number;
  }
  uint64_t number() {
    std::lock_guard<std::mutex> lock(mutex);
    return recorded;
  }
};
using SharedEvent = std::shared_ptr<Event>;
SharedEvent event_of(C_Event event) { return *reinterpret_cast<SharedEvent*>(event); }

void wait_for(const SharedEvent& event, uint64_t number) {
  if (number && event->queue) drain_until(event->queue.get(), [&] { return event->is_reached(number); });
}

C_Status nothing() { return C_SUCCESS; }
C_Status nothing_with(const C_Device) { return C_SUCCESS; }

C_Status set_device(const C_Device device) {
  current_device = device->id;
  return C_SUCCESS;
}

C_Status get_device(const C_Device device) {
  device->id = current_device;
  return C_SUCCESS;
}

size_t device_count() {
  const char* value = getenv("TESTDEV_COUNT");
  return value ? strtoul(value, nullptr, 10) : 2;
}

C_Status get_device_count(size_t* count) {
  *count = device_count();
  return C_SUCCESS;
}

C_Status get_device_list(size_t* devices) {
  for (size_t i = 0; i < device_count(); ++i) devices[i] = i;
  return C_SUCCESS;
}

C_Status create_stream(const C_Device, C_Stream* stream) {
  *stream = reinterpret_cast<C_Stream>(create_queue());
  return C_SUCCESS;
}

C_Status destroy_stream(const C_Device, C_Stream stream) {
  destroy_queue(queue_of(stream));
  return C_SUCCESS;
}

C_Status query_stream(const C_Device, C_Stream stream) { return is_idle(queue_of(stream)) ? C_SUCCESS : C_FAILED; }

C_Status add_callback(const C_Device device, C_Stream stream, C_Callback callback, void* data) {
  enqueue(queue_of(stream), [=] {
    C_Status result = C_SUCCESS;
    callback(device, stream, data, &result);
  });
  return C_SUCCESS;
}

C_Status create_event(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(new SharedEvent(new Event));
  return C_SUCCESS;
}

C_Status destroy_event(const C_Device, C_Event event) {
  delete reinterpret_cast<SharedEvent*>(event);
  return C_SUCCESS;
}

C_Status record_event(const C_Device, C_Stream stream, C_Event handle) {
  auto event = event_of(handle);
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->queue = share(queue_of(stream));
    number = ++event->recorded;
  }
  enqueue(queue_of(stream), [event, number] {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->reached = number;
  });
  return C_SUCCESS;
}

C_Status query_event(const C_Device, C_Event handle) {
  auto event = event_of(handle);
  return event->is_reached(event->number()) ? C_SUCCESS : C_FAILED;
}

C_Status synchronize_event(const C_Device, C_Event handle) {
  count_wait();
  wait_for(event_of(handle), event_of(handle)->number());
  return status();
}

C_Status stream_wait_event(const C_Device, C_Stream stream, C_Event handle) {
  auto event = event_of(handle);
  uint64_t number = event->number();
  if (event->queue.get() != queue_of(stream)) enqueue(queue_of(stream), [event, number] { wait_for(event, number); });
  return C_SUCCESS;
}

C_Status synchronize_device(const C_Device) {
  count_wait();
  drain_all();
  return status();
}

C_Status synchronize_stream(const C_Device, C_Stream stream) {
  count_wait();
  drain(queue_of(stream));
  return status();
}

C_Status allocate_memory(const C_Device, void** address, size_t size) {
  if (figures().lost) return C_FAILED;
  *address = allocate(size);
  return *address ? C_SUCCESS : C_FAILED;
}

C_Status deallocate_memory(const C_Device, void* address, size_t size) {
  drain_all();  // queued work may still use it; the framework's allocator gives whole chunks back, and seldom
  deallocate(address, size);
  return C_SUCCESS;
}

C_Status host_allocate(const C_Device, void** address, size_t size) {
  *address = malloc(size);
  return *address ? C_SUCCESS : C_FAILED;
}

C_Status host_deallocate(const C_Device, void* address, size_t) {
  free(address);
  return C_SUCCESS;
}

C_Status memory_set(const C_Device, void* address, unsigned char value, size_t size) {
  drain_all();
  memset(bytes_of(address), value, size);
  return C_SUCCESS;
}

// Either side of a copy must be where the caller says it is.
void* side(const void* address, bool on_device, const char* what) {
  if (is_device_address(address) == on_device) return on_device ? bytes_of(address) : const_cast<void*>(address);
  fprintf(stderr, "test device: %s of a copy is %son the device\n", what, on_device ? "not " : "");
  abort();
}

C_Status copy_h2d(const C_Device, void* to, const void* from, size_t size) {
  ++figures().copies_to_device;
  count_wait();
  drain_all();
  memcpy(side(to, true, "destination"), side(from, false, "source"), size);
  return status();
}

C_Status copy_d2h(const C_Device, void* to, const void* from, size_t size) {
  ++figures().copies_to_host;
  count_wait();
  drain_all();
  memcpy(side(to, false, "destination"), side(from, true, "source"), size);
  return status();
}

C_Status copy_d2d(const C_Device, void* to, const void* from, size_t size) {
  drain_all();
  memcpy(side(to, true, "destination"), side(from, true, "source"), size);
  return status();
}

// From memory that is not pinned CUDA copies into a buffer of its own before it returns; so does this.
C_Status async_h2d(const C_Device, C_Stream stream, void* to, const void* from, size_t size) {
  ++figures().copies_to_device;
  auto staged = std::make_shared<std::string>(static_cast<const char*>(side(from, false, "source")), size);
  void* bytes = side(to, true, "destination");
  enqueue(queue_of(stream), [=] { memcpy(bytes, staged->data(), size); });
  return C_SUCCESS;
}

// Until the copy has run the destination holds NaN, so that a read without a wait shows.
C_Status async_d2h(const C_Device, C_Stream stream, void* to, const void* from, size_t size) {
  ++figures().copies_to_host;
  void *host = side(to, false, "destination"), *bytes = side(from, true, "source");
  memset(host, 0xFF, size);
  enqueue(queue_of(stream), [=] { memcpy(host, bytes, size); });
  return C_SUCCESS;
}

C_Status async_d2d(const C_Device, C_Stream stream, void* to, const void* from, size_t size) {
  void *target = side(to, true, "destination"), *source = side(from, true, "source");
  enqueue(queue_of(stream), [=] { memmove(target, source, size); });
  return C_SUCCESS;
}

C_Status copy_p2p(const C_Device, const C_Device device, void* to, const void* from, size_t size) {
  return copy_d2d(device, to, from, size);
}

C_Status async_p2p(const C_Device, const C_Device device, C_Stream stream, void* to, const void* from, size_t size) {
  return async_d2d(device, stream, to, from, size);
}

C_Status memory_stats(const C_Device, size_t* total, size_t* free) {
  *total = figures().limit;
  *free = figures().limit - figures().used;
  return C_SUCCESS;
}

C_Status min_chunk_size(const C_Device, size_t* size) {
  *size = 256;
  return C_SUCCESS;
}

C_Status supported(const C_Device, bool* is_supported) {
  *is_supported = getenv("TESTDEV_NO_HALF") == nullptr;
  return C_SUCCESS;
}

std::atomic<int64_t>* figure(const std::string& name) {
  Figures& all = figures();
  if (name == "kernels") return &all.kernels;
  if (name == "copies_to_host") return &all.copies_to_host;
  if (name == "copies_to_device") return &all.copies_to_device;
  if (name == "waits") return &all.waits;
  if (name == "syncs") return &all.syncs;
  if (name == "collectives") return &all.collectives;
  if (name == "used") return &all.used;
  if (name == "peak") return &all.peak;
  if (name == "limit") return &all.limit;
  if (name == "lazy") return &all.lazy;
  if (name == "lose_after") return &all.lose_after;
  if (name == "fail_collective_after") return &all.fail_collective_after;
  if (name == "lost") return &all.lost;
  return nullptr;
}

// TESTDEV_SET=name=value,... sets figures of a program that is started as a user would; with TESTDEV_RANK=n only of the
// process of that rank.
void set_from_environment() {
  const char *words = getenv("TESTDEV_SET"), *rank = getenv("TESTDEV_RANK"), *own = getenv("PADDLE_TRAINER_ID");
  if (words == nullptr || (rank != nullptr && strcmp(rank, own ? own : "0") != 0)) return;
  std::stringstream stream(words);
  for (std::string word; std::getline(stream, word, ',');) {
    auto equals = word.find('=');
    auto* found = figure(word.substr(0, equals));
    if (equals == std::string::npos || found == nullptr) {
      fprintf(stderr, "test device: TESTDEV_SET: no figure %s\n", word.c_str());
      abort();
    }
    *found = atoll(word.c_str() + equals + 1);
  }
}

}  // namespace

const char* testdev::device_type() {
  const char* name = getenv("TESTDEV_NAME");
  return name ? name : "npu";
}

extern "C" {

// -1: no such figure.
int64_t testdev_get(const char* name) {
  auto* found = figure(name);
  return found ? found->load() : -1;
}

int testdev_set(const char* name, int64_t value) {
  auto* found = figure(name);
  if (found) found->store(value);
  return found ? 0 : -1;
}

void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>(device_type());
  auto& call = *params->interface;
  memset(&call, 0, sizeof call);
  call.size = sizeof call;
  call.initialize = nothing;
  call.finalize = nothing;
  call.init_device = set_device;
  call.set_device = set_device;
  call.get_device = get_device;
  call.deinit_device = nothing_with;
  call.create_stream = create_stream;
  call.destroy_stream = destroy_stream;
  call.query_stream = query_stream;
  call.stream_add_callback = add_callback;
  call.create_event = create_event;
  call.destroy_event = destroy_event;
  call.record_event = record_event;
  call.query_event = query_event;
  call.synchronize_device = synchronize_device;
  call.synchronize_stream = synchronize_stream;
  call.synchronize_event = synchronize_event;
  call.stream_wait_event = stream_wait_event;
  call.device_memory_allocate = allocate_memory;
  call.device_memory_deallocate = deallocate_memory;
  call.device_memory_set = memory_set;
  call.host_memory_allocate = host_allocate;
  call.host_memory_deallocate = host_deallocate;
  call.memory_copy_h2d = copy_h2d;
  call.memory_copy_d2h = copy_d2h;
  call.memory_copy_d2d = copy_d2d;
  call.memory_copy_p2p = copy_p2p;
  call.async_memory_copy_h2d = async_h2d;
  call.async_memory_copy_d2h = async_d2h;
  call.async_memory_copy_d2d = async_d2d;
  call.async_memory_copy_p2p = async_p2p;
  call.get_device_count = get_device_count;
  call.get_device_list = get_device_list;
  call.device_memory_stats = memory_stats;
  call.device_min_chunk_size = min_chunk_size;
  call.is_float16_supported = supported;
  call.is_bfloat16_supported = supported;
  set_collectives(&call);
  set_from_environment();
  reserve_memory();
  register_kernels();
}

}  // extern "C"
