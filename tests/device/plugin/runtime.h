// The test device: what its memory, its queues and its kernels share. Facts and figures: docs/devices.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace testdev {

// The device type that the framework sees: TESTDEV_NAME, by default npu, one of those it casts to bfloat16 on.
const char* device_type();

// What a test can count or set by name (testdev_get, testdev_set).
struct Figures {
  std::atomic<int64_t> kernels{0};        // operators that ran on the device
  std::atomic<int64_t> copies_to_host{0};
  std::atomic<int64_t> copies_to_device{0};
  std::atomic<int64_t> waits{0};          // calls that wait: copies to and from the host, streams, events, the device
  std::atomic<int64_t> syncs{0};          // those of them that found unfinished work, so that the host stood still
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> used{0};           // bytes the framework's allocator holds
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> limit{int64_t{1} << 33};  // bytes of memory of one device
  std::atomic<int64_t> lazy{1};           // 1: work starts only when someone waits; 0: a worker takes it at once
  std::atomic<int64_t> lose_after{-1};    // the device disappears after that many operators; -1: never
  std::atomic<int64_t> fail_collective_after{-1};  // that many collectives succeed, then one fails; -1: never
  std::atomic<int64_t> lost{0};           // 1 once the device disappeared
};
Figures& figures();

// Memory. An address of the device can never be read by the CPU: it lies in a range without access rights, and the
// bytes lie at the same distance in a second range that only the device's own functions know.
void reserve_memory();
void* allocate(size_t size);  // nullptr: out of memory
void deallocate(void* address, size_t size);
bool is_device_address(const void* address);
void* bytes_of(const void* device_address);

// Queues. Work runs in order, on a thread of the queue.
struct Queue;
Queue* create_queue();
std::shared_ptr<Queue> share(Queue* queue);  // for those who may outlive it, such as events
void destroy_queue(Queue* queue);
void enqueue(Queue* queue, std::function<void()> work);
void drain(Queue* queue);  // wait until everything that was queued has run
void drain_until(Queue* queue, const std::function<bool()>& reached);
void drain_all();
bool is_idle(Queue* queue);
void fail(const std::string& message);  // the first failure of queued work stays until it is taken
std::string take_failure();

void count_wait();
void register_kernels();

}  // namespace testdev
