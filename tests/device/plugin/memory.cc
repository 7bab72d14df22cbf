// Device memory: two ranges of the same layout, one without access rights (its addresses are what the framework sees),
// one with the bytes. A CPU operator that gets a tensor of the device faults at its first read.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace testdev {
namespace {

constexpr size_t kSpan = size_t{1} << 36;  // addresses, not memory
constexpr size_t kPage = 4096;

char* guarded = nullptr;
char* backing = nullptr;
std::mutex mutex;
std::map<size_t, size_t> holes;  // offset -> size

struct sigaction previous[2];

void on_fault(int number, siginfo_t* info, void*) {
  if (is_device_address(info->si_addr)) {
    char text[200];
    int length = snprintf(text, sizeof text,
                          "\ntest device: the CPU touched address %p, which is memory of the device\n", info->si_addr);
    ssize_t written = write(STDERR_FILENO, text, length);
    (void)written;
  }
  sigaction(number, &previous[number == SIGBUS], nullptr);  // the framework's handler or the default one runs next
}

size_t pages(size_t size) { return (size + kPage - 1) / kPage * kPage; }

}  // namespace

Figures& figures() {
  static Figures all;
  return all;
}

void reserve_memory() {
  if (guarded != nullptr) return;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* addresses = mmap(nullptr, kSpan, PROT_NONE, flags, -1, 0);
  void* bytes = mmap(nullptr, kSpan, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (addresses == MAP_FAILED || bytes == MAP_FAILED) {
    fprintf(stderr, "test device: no address range of %zu GiB\n", kSpan >> 30);
    abort();
  }
  guarded = static_cast<char*>(addresses);
  backing = static_cast<char*>(bytes);
  madvise(bytes, kSpan, MADV_DONTDUMP);
  holes[0] = kSpan;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous[0]);
  sigaction(SIGBUS, &action, &previous[1]);
}

void* allocate(size_t size) {
  size = pages(size ? size : 1);
  auto& count = figures();
  if (count.used + int64_t(size) > count.limit) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
    if (hole->second < size) continue;
    size_t offset = hole->first, rest = hole->second - size;
    holes.erase(hole);
    if (rest) holes[offset + size] = rest;
    int64_t used = count.used += size;
    if (used > count.peak) count.peak = used;
    memset(backing + offset, 0xFF, size);  // NaN in every floating-point format: what nobody wrote shows in the result
    return guarded + offset;
  }
  return nullptr;
}

void deallocate(void* address, size_t size) {
  size = pages(size ? size : 1);
  size_t offset = static_cast<char*>(address) - guarded;
  madvise(backing + offset, size, MADV_DONTNEED);
  std::lock_guard<std::mutex> lock(mutex);
  figures().used -= size;
  auto next = holes.emplace(offset, size).first;
  auto after = std::next(next);
  if (after != holes.end() && next->first + next->second == after->first) {
    next->second += after->second;
    holes.erase(after);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == next->first) {
      before->second += next->second;
      holes.erase(next);
    }
  }
}

bool is_device_address(const void* address) {
  auto* place = static_cast<const char*>(address);
  return guarded != nullptr && place >= guarded && place < guarded + kSpan;
}

void* bytes_of(const void* device_address) {
  return backing + (static_cast<const char*>(device_address) - guarded);
}

}  // namespace testdev
