// Collectives between processes of one host, over shared memory. They run in the queue like any other work: each process
// puts its part into a slot of its own, all meet, each reads what it needs, all meet again.
#include "collectives.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime.h"

namespace testdev {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr int kMostRanks = 16;
constexpr size_t kIdSize = 32;

struct Mailbox {
  std::atomic<uint32_t> full;
  char bytes[1 << 16];
};

struct Shared {
  std::atomic<uint32_t> arrived, round, broken;
  char slots[kMostRanks][kChunk];
  Mailbox mail[kMostRanks][kMostRanks];  // [from][to]
};

struct Comm {
  Shared* shared;
  int rank, size;
  std::string name;
};

Comm* comm_of(C_CCLComm comm) { return reinterpret_cast<Comm*>(comm); }
Queue* queue_of(C_Stream stream) { return reinterpret_cast<Queue*>(stream); }
char* bytes(void* address) { return static_cast<char*>(is_device_address(address) ? bytes_of(address) : address); }

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// Wait for a condition that another process makes true: for so long only where nobody watches the processes.
template <typename Condition>
void await(Shared* shared, Condition reached) {
  double end = now() + 600;
  for (int turn = 0; !reached(); ++turn) {
    if (shared->broken) throw std::runtime_error("a collective failed");
    if (turn < 200) continue;
    usleep(50);
    if (now() > end) throw std::runtime_error("a collective waited too long for another process");
  }
}

void meet(Comm* comm) {
  auto* shared = comm->shared;
  uint32_t round = shared->round;
  if (++shared->arrived == uint32_t(comm->size)) {
    shared->arrived = 0;
    ++shared->round;
    return;
  }
  await(shared, [&] { return shared->round != round; });
}

size_t size_of(C_DataType type) {
  switch (type) {
    case BOOL: case UINT8: case INT8: return 1;
    case UINT16: case INT16: case FLOAT16: case BFLOAT16: return 2;
    case UINT32: case INT32: case FLOAT32: return 4;
    case UINT64: case INT64: case FLOAT64: return 8;
    default: throw std::runtime_error("a collective of an unknown dtype");
  }
}

template <typename T>
T combine(C_CCLReduceOp op, T a, T b) {
  switch (op) {
    case MAX: return std::max(a, b);
    case MIN: return std::min(a, b);
    case PRODUCT: return a * b;
    default: return a + b;
  }
}

template <typename T>
void reduce_slots(Comm* comm, C_CCLReduceOp op, char* to, size_t from, size_t count) {
  auto* result = reinterpret_cast<T*>(to);
  for (size_t i = 0; i < count; ++i) {
    T total = reinterpret_cast<T*>(comm->shared->slots[0])[from + i];
    for (int rank = 1; rank < comm->size; ++rank)
      total = combine(op, total, reinterpret_cast<T*>(comm->shared->slots[rank])[from + i]);
    result[i] = op == AVG ? total / T(comm->size) : total;
  }
}

// Half values are added in float32 and rounded once.
template <typename Widen, typename Round>
void reduce_halves(Comm* comm, C_CCLReduceOp op, char* to, size_t from, size_t count, Widen widen, Round round) {
  auto* result = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < count; ++i) {
    float total = widen(reinterpret_cast<uint16_t*>(comm->shared->slots[0])[from + i]);
    for (int rank = 1; rank < comm->size; ++rank)
      total = combine(op, total, float(widen(reinterpret_cast<uint16_t*>(comm->shared->slots[rank])[from + i])));
    result[i] = round(op == AVG ? total / comm->size : total);
  }
}

float widen_bfloat16(uint16_t half) {
  uint32_t bits = uint32_t{half} << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

uint16_t round_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void reduce_any(Comm* comm, C_DataType type, C_CCLReduceOp op, char* to, size_t from, size_t count) {
  switch (type) {
    case FLOAT32: return reduce_slots<float>(comm, op, to, from, count);
    case FLOAT64: return reduce_slots<double>(comm, op, to, from, count);
    case INT32: return reduce_slots<int32_t>(comm, op, to, from, count);
    case INT64: return reduce_slots<int64_t>(comm, op, to, from, count);
    case BOOL: case UINT8: return reduce_slots<uint8_t>(comm, op, to, from, count);
    case BFLOAT16: return reduce_halves(comm, op, to, from, count, widen_bfloat16, round_bfloat16);
    case FLOAT16:
      return reduce_halves(comm, op, to, from, count,
          [](uint16_t half) { _Float16 value; memcpy(&value, &half, 2); return float(value); },
          [](float value) { _Float16 half = _Float16(value); uint16_t bits; memcpy(&bits, &half, 2); return bits; });
    default: throw std::runtime_error("a reduction of an unknown dtype");
  }
}

// Queue a collective; a failure reaches whoever waits for the queue, and the other processes.
C_Status submit(C_CCLComm handle, C_Stream stream, std::function<void(Comm*)> work) {
  auto& count = figures();
  ++count.collectives;
  auto* comm = comm_of(handle);
  if (count.lost) return C_ERROR;
  if (count.fail_collective_after >= 0 && count.fail_collective_after-- == 0) {
    comm->shared->broken = 1;
    fprintf(stderr, "test device: a collective failed\n");
    return C_ERROR;
  }
  enqueue(queue_of(stream), [=] {
    try {
      work(comm);
    } catch (...) {
      comm->shared->broken = 1;
      throw;
    }
  });
  return C_SUCCESS;
}

// Publish `size` bytes chunk by chunk; `take(slots' first byte's offset, bytes)` reads between two meetings.
void exchange(Comm* comm, const char* from, size_t size, const std::function<void(size_t, size_t)>& take) {
  for (size_t done = 0; done < size; done += kChunk) {
    size_t part = std::min(kChunk, size - done);
    if (from != nullptr) memcpy(comm->shared->slots[comm->rank], from + done, part);
    meet(comm);
    take(done, part);
    meet(comm);
  }
}

C_Status unique_id_size(size_t* size) {
  *size = kIdSize;
  return C_SUCCESS;
}

C_Status unique_id(C_CCLRootId* id) {
  std::random_device random;
  snprintf(static_cast<char*>(id->data), kIdSize, "/testdev-%08x%08x", random(), random());
  return C_SUCCESS;
}

C_Status init_rank(size_t size, C_CCLRootId* id, size_t rank, C_CCLComm* result) {
  if (size > kMostRanks) return C_ERROR;
  auto* name = static_cast<const char*>(id->data);
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return C_ERROR;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return C_ERROR;
  auto* comm = new Comm{static_cast<Shared*>(memory), int(rank), int(size), name};
  try {
    meet(comm);  // everybody has it open: the name can go, and the memory ends with the processes
  } catch (const std::exception& error) {
    fprintf(stderr, "test device: %s\n", error.what());
    return C_ERROR;
  }
  if (rank == 0) shm_unlink(name);
  *result = reinterpret_cast<C_CCLComm>(comm);
  return C_SUCCESS;
}

C_Status destroy(C_CCLComm handle) {
  auto* comm = comm_of(handle);
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return C_SUCCESS;
}

C_Status comm_name(C_CCLComm handle, char* name) {
  strcpy(name, comm_of(handle)->name.c_str());
  return C_SUCCESS;
}

C_Status all_reduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm comm,
                    C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) {
    size_t size = size_of(type);
    std::vector<char> result(count * size);  // in place: what is published must not change before all have read it
    exchange(self, bytes(from), count * size,
             [&](size_t done, size_t part) { reduce_any(self, type, op, result.data() + done, 0, part / size); });
    memcpy(bytes(to), result.data(), result.size());
  });
}

C_Status reduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, size_t root, C_CCLComm comm,
                C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) {
    size_t size = size_of(type);
    std::vector<char> result(count * size);
    exchange(self, bytes(from), count * size,
             [&](size_t done, size_t part) { reduce_any(self, type, op, result.data() + done, 0, part / size); });
    if (self->rank == int(root)) memcpy(bytes(to), result.data(), result.size());
  });
}

C_Status broadcast(void* buffer, size_t count, C_DataType type, size_t root, C_CCLComm comm, C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) {
    char* own = bytes(buffer);
    exchange(self, self->rank == int(root) ? own : nullptr, count * size_of(type), [&](size_t done, size_t part) {
      if (self->rank != int(root)) memcpy(own + done, self->shared->slots[root], part);
    });
  });
}

C_Status all_gather(void* from, void* to, size_t count, C_DataType type, C_CCLComm comm, C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) {
    size_t size = count * size_of(type);
    exchange(self, bytes(from), size, [&](size_t done, size_t part) {
      for (int rank = 0; rank < self->size; ++rank)
        memcpy(bytes(to) + rank * size + done, self->shared->slots[rank], part);
    });
  });
}

// `count` is what each process receives.
C_Status reduce_scatter(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op, C_CCLComm comm,
                        C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) {
    size_t size = size_of(type), whole = count * self->size * size, first = self->rank * count * size;
    std::vector<char> all(whole);
    exchange(self, bytes(from), whole,
             [&](size_t done, size_t part) { reduce_any(self, type, op, all.data() + done, 0, part / size); });
    memcpy(bytes(to), all.data() + first, count * size);
  });
}

void post(Comm* self, int to, const char* from, size_t size) {
  for (size_t done = 0; done < size;) {
    auto& mail = self->shared->mail[self->rank][to];
    await(self->shared, [&] { return mail.full == 0; });
    size_t part = std::min(sizeof mail.bytes, size - done);
    memcpy(mail.bytes, from + done, part);
    mail.full = 1;
    done += part;
  }
}

void collect(Comm* self, int from, char* to, size_t size) {
  for (size_t done = 0; done < size;) {
    auto& mail = self->shared->mail[from][self->rank];
    await(self->shared, [&] { return mail.full == 1; });
    size_t part = std::min(sizeof mail.bytes, size - done);
    memcpy(to + done, mail.bytes, part);
    mail.full = 0;
    done += part;
  }
}

C_Status send(void* from, size_t count, C_DataType type, size_t to, C_CCLComm comm, C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) { post(self, to, bytes(from), count * size_of(type)); });
}

C_Status recv(void* to, size_t count, C_DataType type, size_t from, C_CCLComm comm, C_Stream stream) {
  return submit(comm, stream, [=](Comm* self) { collect(self, from, bytes(to), count * size_of(type)); });
}

C_Status nothing() { return C_SUCCESS; }

}  // namespace

void set_collectives(C_DeviceInterface* call) {
  call->xccl_get_comm_name = comm_name;
  call->xccl_get_unique_id_size = unique_id_size;
  call->xccl_get_unique_id = unique_id;
  call->xccl_comm_init_rank = init_rank;
  call->xccl_destroy_comm = destroy;
  call->xccl_all_reduce = all_reduce;
  call->xccl_broadcast = broadcast;
  call->xccl_reduce = reduce;
  call->xccl_all_gather = all_gather;
  call->xccl_reduce_scatter = reduce_scatter;
  call->xccl_group_start = nothing;
  call->xccl_group_end = nothing;
  call->xccl_send = send;
  call->xccl_recv = recv;
}

}  // namespace testdev
