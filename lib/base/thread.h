// How the library starts threads: every signal masked, so that a program's handlers never run on them; named,
// so that `top -H` and debuggers show whose they are; announced to the context's thread-start callback.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace weft {

// Called on the new thread before anything else, with its name. May be empty.
using ThreadStart = std::function<void(const char* name)>;

// Start `body` on a new thread. name: a literal of at most 15 characters. kSystem when the system has no
// thread to give; *thread is then untouched. Threads: any thread.
Status start_thread(const char* name, std::function<void()> body, const ThreadStart& on_start,
                    std::thread* thread);

}  // namespace weft
