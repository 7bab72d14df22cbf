// Queues of work. In lazy mode a queue begins only when someone waits for it (or 4,096 pieces wait): a result that is
// read without a wait is then always missing, not only when the machine is slow.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime.h"

namespace testdev {

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool running = false, closed = false;
  int waiting = 0;
  std::thread worker;

  bool may_start() const {
    return !work.empty() && (waiting > 0 || closed || !figures().lazy || work.size() > 4096);
  }

  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return may_start() || (closed && work.empty()); });
      if (work.empty()) return;
      auto next = std::move(work.front());
      work.pop_front();
      running = true;
      lock.unlock();
      try {
        next();
      } catch (const std::exception& error) {
        fail(error.what());
      }
      next = nullptr;
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }
};

namespace {

// Never destroyed: queues may still run while the process ends.
std::mutex& all_mutex = *new std::mutex;
std::map<Queue*, std::shared_ptr<Queue>>& all = *new std::map<Queue*, std::shared_ptr<Queue>>;
std::mutex& failure_mutex = *new std::mutex;
std::string& failure = *new std::string;

}  // namespace

Queue* create_queue() {
  auto queue = std::make_shared<Queue>();
  queue->worker = std::thread([raw = queue.get()] { raw->loop(); });
  std::lock_guard<std::mutex> lock(all_mutex);
  all[queue.get()] = queue;
  return queue.get();
}

std::shared_ptr<Queue> share(Queue* queue) {
  std::lock_guard<std::mutex> lock(all_mutex);
  auto found = all.find(queue);
  return found == all.end() ? nullptr : found->second;
}

void destroy_queue(Queue* raw) {
  auto queue = share(raw);
  if (queue == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(all_mutex);
    all.erase(raw);
  }
  {
    std::lock_guard<std::mutex> lock(queue->mutex);
    queue->closed = true;
    queue->changed.notify_all();
  }
  queue->worker.join();
}

void enqueue(Queue* queue, std::function<void()> work) {
  std::lock_guard<std::mutex> lock(queue->mutex);
  queue->work.push_back(std::move(work));
  if (queue->may_start()) queue->changed.notify_all();
}

void drain_until(Queue* queue, const std::function<bool()>& reached) {
  std::unique_lock<std::mutex> lock(queue->mutex);
  ++queue->waiting;
  queue->changed.notify_all();
  queue->changed.wait(lock, [&] { return reached() || (queue->work.empty() && !queue->running); });
  --queue->waiting;
}

void drain(Queue* queue) {
  drain_until(queue, [] { return false; });
}

bool is_idle(Queue* queue) {
  std::lock_guard<std::mutex> lock(queue->mutex);
  return queue->work.empty() && !queue->running;
}

void drain_all() {
  std::map<Queue*, std::shared_ptr<Queue>> queues;
  {
    std::lock_guard<std::mutex> lock(all_mutex);
    queues = all;
  }
  for (auto& queue : queues) drain(queue.first);
}

void fail(const std::string& message) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  if (failure.empty()) failure = message;
}

std::string take_failure() {
  std::lock_guard<std::mutex> lock(failure_mutex);
  return std::exchange(failure, "");
}

void count_wait() {
  ++figures().waits;
  std::lock_guard<std::mutex> lock(all_mutex);
  if (!std::all_of(all.begin(), all.end(), [](auto& queue) { return is_idle(queue.first); })) ++figures().syncs;
}

}  // namespace testdev
