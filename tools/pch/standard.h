// Precompiled: the standard headers that most sources include. A source includes what it needs itself all the
// same: `make lint` compiles each one without this header. A precompiled header has no #pragma once in gcc.
#ifndef WEFT_PCH_STANDARD_H
#define WEFT_PCH_STANDARD_H

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#endif
