// Starts the library's threads. All signals are masked, so that the program's handlers never run on them.
// They have names, for `top -H` and debuggers. Each calls the context's thread-start callback.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace weft {

// Called on the new thread before anything else, with the thread's name. May be empty.
using ThreadStart = std::function<void(const char* name)>;

// Starts `body` on a new thread. name: a literal of at most 15 characters. kSystem: the thread could not be
// created; *thread is then unchanged. Threads: any thread.
Status start_thread(const char* name, std::function<void()> body, const ThreadStart& on_start,
                    std::thread* thread);

}  // namespace weft
