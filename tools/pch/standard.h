// The standard headers that most sources include. Sanitized builds precompile them (meson.build); what a
// source needs it includes itself all the same, or other builds fail.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>
